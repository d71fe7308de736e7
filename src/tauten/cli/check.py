"""tauten check: runs every gate on a model and says what holds."""

from __future__ import annotations

import argparse

from tauten.cli import _delivery
from tauten.reports import html

HELP = "run every gate; a table of verdicts"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    _delivery.add_source(verb)
    verb.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    verb.add_argument("--report", metavar="FILE", help="write an HTML report")


def run(args: argparse.Namespace) -> int:
    """Exit code 0 held, 1 not held, 4 undecided."""
    if args.report:
        html.require_jinja()
    with _delivery.job(args) as delivery:
        judged = delivery.check()
        assert judged.judgement is not None
        _delivery.print_judgement(judged.judgement, f"{delivery.contract.name} ({judged.made_by})", as_json=args.json)
        if args.report:
            delivery.write_report(args.report, judged)
    return _delivery.EXIT[judged.judgement.status]
