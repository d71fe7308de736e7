"""tauten serve: the server. Its first line on stdout says where it listens, as one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tauten.app import Where, run_server
from tauten.cli import _terminal
from tauten.serving.settings import ServerSettings

HELP = "serve bundles over the Open Inference Protocol"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags; names are Triton's where the meaning is."""
    verb.add_argument("bundles", nargs="*", metavar="BUNDLE", type=Path, help="bundle directories")
    verb.add_argument("--model-repository", type=Path, metavar="DIR", help="DIR/<name>/<version>/ with a bundle in each")
    verb.add_argument("--http-address", default="127.0.0.1", metavar="HOST")
    verb.add_argument("--http-port", type=int, default=8000, metavar="N", help="0 takes a free one (default 8000)")
    verb.add_argument("--metrics-port", type=int, default=8002, metavar="N",
                      help="metrics alone; 0 takes a free one, -1 opens none (default 8002)")  # fmt: skip
    verb.add_argument(
        "--http-max-input-size", type=int, default=64 << 20, metavar="BYTES", help="largest body (default 64 MiB)"
    )
    verb.add_argument("--exit-timeout-secs", type=float, default=30.0, metavar="S",
                      help="how long a stopping server answers what is in flight (default 30)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Exit code 0 after SIGTERM or SIGINT, also when the exit time-out cut somebody; then stderr says so."""
    settings = ServerSettings(
        bundles=tuple(args.bundles),
        repository=args.model_repository,
        http_address=args.http_address,
        http_port=args.http_port,
        metrics_port=args.metrics_port,
        max_input_bytes=args.http_max_input_size,
        exit_timeout_s=args.exit_timeout_secs,
    )
    if not run_server(settings, _announce):
        _terminal.err().print("tauten: stopped before everybody was answered", style="yellow")
    return 0


def _announce(where: Where) -> None:
    sys.stdout.write(json.dumps(where) + "\n")
    sys.stdout.flush()
