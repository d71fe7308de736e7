"""tauten serve: the server."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tauten.app import run_server
from tauten.cli import _terminal
from tauten.serving.settings import ServerSettings

HELP = "serve bundles over the Open Inference Protocol"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags; names as Triton's where the meaning is the same."""
    verb.add_argument("bundles", nargs="*", type=Path, metavar="BUNDLE", help="a bundle directory")
    verb.add_argument("--model-repository", type=Path, metavar="DIR", help="DIR/<name>/<version>/ with a bundle in each")
    verb.add_argument("--http-address", default="127.0.0.1", help="where to listen; 0.0.0.0 for every network")
    verb.add_argument("--http-port", type=int, default=8000, help="0 takes a free one (default 8000)")
    verb.add_argument("--metrics-port", type=int, default=8002, help="0 takes a free one, -1 opens none (default 8002)")
    verb.add_argument(
        "--http-max-input-size", type=int, default=64 << 20, metavar="BYTES", help="largest body (default 64 MiB)"
    )
    verb.add_argument("--exit-timeout-secs", type=float, default=30.0, metavar="S",
                      help="how long to answer what is in flight after SIGTERM (default 30)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT."""
    settings = ServerSettings(
        bundles=tuple(args.bundles),
        repository=args.model_repository,
        http_address=args.http_address,
        http_port=args.http_port,
        metrics_port=args.metrics_port,
        max_input_bytes=args.http_max_input_size,
        exit_timeout_s=args.exit_timeout_secs,
    )
    run_server(settings, _announce)
    return 0


def _announce(where: dict[str, Any]) -> None:
    """One JSON object on the first line of stdout, for programs; the same on stderr, for people."""
    sys.stdout.write(json.dumps(where) + "\n")
    sys.stdout.flush()
    _terminal.err().print(
        f"ready at {where['http']}, metrics at {where['metrics']}; stop with Ctrl-C", style="dim", soft_wrap=True
    )
