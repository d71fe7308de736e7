"""tauten verify: the contract against a live server, clause by clause."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tauten.cli import _arguments, _live, _terminal
from tauten.govern.verify import DEFAULT_RATE, verify
from tauten.measure.observed import Observed
from tauten.reports import html
from tauten.reports.data import Section, latency_data
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.errors import BadUsage
from tauten.spec.verdict import Judgement, Status

HELP = "check the contract against a live server, clause by clause"
EXIT = {Status.HELD: 0, Status.BROKEN: 1, Status.UNDECIDED: 4}


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    verb.add_argument("url", metavar="URL", help="where the server listens, such as http://127.0.0.1:8000")
    verb.add_argument("-c", "--contract", metavar="FILE", help="the delivery contract (default: the bundle's)")
    verb.add_argument("--for", dest="seconds", type=_arguments.duration, default=60.0, metavar="TIME",
                      help="how long, such as 30s or 10m (default 60s); p99.9 needs 3,688 answers, growth 10m")  # fmt: skip
    verb.add_argument("--bundle", metavar="DIR", type=Path, help="the sealed bundle, whose golden probes are then the measure")
    verb.add_argument("--json", action="store_true", help="the verdicts as JSON on stdout")
    verb.add_argument("--report", metavar="FILE", help="write an HTML report")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 held, 1 not held, 4 undecided."""
    if args.report:
        html.require_jinja()
    bundle = Bundle.open(args.bundle) if args.bundle else None
    if args.contract:
        contract = Contract.load(args.contract)
    elif bundle:
        contract = bundle.contract()
    else:
        raise BadUsage("no contract was given", fix="give -c contract.yaml, or --bundle DIR")
    judgement, observed = verify_live(args.url, contract, seconds=args.seconds, bundle=bundle)
    if args.json:
        sys.stdout.write(judgement.to_json().decode() + "\n")
    else:
        console = _terminal.out()
        console.print(_terminal.verdict_table(judgement, f"{contract.name} at {args.url}"))
    if args.report:
        latency = latency_data(observed.load, describe(contract, args.seconds), slo=contract.slo, rows=1)
        digests = {"contract": contract.digest, **({"bundle": bundle.identity} if bundle else {})}
        section = Section(title="Clauses, against the live server", judgement=judgement)
        _live.write_report(args.report, f"{contract.name} under its contract", latency, (section,), digests)
    return EXIT[judgement.status]


def verify_live(url: str, contract: Contract, *, seconds: float, bundle: Bundle | None = None) -> tuple[Judgement, Observed]:
    """Verifies with live progress on stderr."""
    with _live.load_progress(f"verifying {contract.name}", seconds) as progress:
        return verify(url, contract, seconds=seconds, bundle=bundle, progress=progress)


def describe(contract: Contract, seconds: float) -> str:
    rate = contract.slo.rate if contract.slo else DEFAULT_RATE
    return f"open loop, Poisson at {rate:g} requests/s for {seconds:g} s, one row each"
