"""tauten ship: build, serve, and verify the contract against the live server, in one command."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from pathlib import Path

from tauten.cli import _arguments, _delivery, _live, _terminal
from tauten.cli.build import add_build, build
from tauten.cli.verify import verify_live
from tauten.delivery.files import write_whole
from tauten.measure.digests import samples_needed
from tauten.reports.build import build_report
from tauten.spec.contract import Contract
from tauten.spec.errors import BadUsage, Unavailable

HELP = "build, serve, and verify the contract against the live server"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    _delivery.add_source(verb)
    add_build(verb)
    verb.add_argument("--http-port", type=int, default=8000, help="0 takes a free one")
    verb.add_argument("--for", dest="seconds", type=_arguments.duration, metavar="TIME",
                      help="how long to verify at the contract's rate (default: long enough to decide on p99)")  # fmt: skip
    verb.add_argument("--report", metavar="FILE", help="the HTML report (default: beside the bundle)")
    verb.add_argument("--then", metavar="COMMAND", action="append", default=[],
                      help="run this against the live server ({url} is replaced), then stop; may be given several times. "
                           "Without it the server runs until interrupted")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when a gate or a clause said no, 4 when there was too little evidence."""
    _live.require_free(args.http_port)
    commands = [_words(command) for command in args.then]
    found = build(args)
    if found is None:
        return _delivery.EXIT[args.refusal.status]
    assert found.bundle is not None
    console = _terminal.out()
    with _live.server(found.bundle.root, args.http_port) as running:
        url = running.url
        console.print(f"serving {url}\n", markup=False)
        judgement, observed = verify_live(
            url, found.job.contract, seconds=args.seconds or _enough(found.job.contract), bundle=found.bundle
        )
        console.print(_terminal.verdict_table(judgement, f"the contract against {url}"))
        console.print(_delivery.headline(judgement))
        report = Path(args.report or found.bundle.root.with_name(f"{found.bundle.root.name}-report.html"))
        write_whole(report, build_report(found, live=judgement, load=observed.load).encode())
        console.print(f"\nreport {report}", soft_wrap=True, markup=False)
        code = _delivery.EXIT[judgement.status]
        for words in commands:
            code = code or _then(words, url)
        if code == 0 and not commands:
            _serve_on(running.process)
    return code


def _enough(contract: Contract) -> float:
    """Seconds at the contract's rate after which p99 has an interval, with a tenth to spare; 20 s to 10 min."""
    rate = contract.slo.rate if contract.slo else 0.0
    return min(max(20.0, 1.1 * samples_needed(0.99) / rate), 600.0) if rate else 20.0


def _words(command: str) -> list[str]:
    """The words of a command line whose program is there. Raises BadUsage: better now than after the build."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadUsage(f"--then {command!r} cannot be read: {error}", fix="close every quote") from error
    if not words or shutil.which(words[0]) is None:
        raise BadUsage(f"--then {command!r}: there is no such program", fix="give a program on PATH, or its whole path")
    return words


def _then(words: list[str], url: str) -> int:
    """Runs the user's own command line, without a shell."""
    return subprocess.run([w.replace("{url}", url) for w in words], check=False).returncode  # noqa: S603  the user's own command


def _serve_on(process: subprocess.Popen[str]) -> None:
    """Until the server ends by itself or the user interrupts, who may do so as soon as the line is out."""
    try:
        _terminal.out().print("serving until interrupted (Ctrl-C)")
        code = process.wait()
    except KeyboardInterrupt:
        return
    raise Unavailable(f"the server (pid {process.pid}) ended with exit code {code}", fix="see its log")
