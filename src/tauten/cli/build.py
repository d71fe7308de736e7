"""tauten build: from a source to a sealed bundle, or a no with its reasons."""

from __future__ import annotations

import argparse
from pathlib import Path

from tauten.cli import _delivery, _terminal
from tauten.delivery.line import Delivered
from tauten.spec.errors import BadUsage, NotHeld, Undecided

HELP = "export, gates, passes, quantisation, tuning on this host, gates again, sealed bundle"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    _delivery.add_source(verb)
    add_build(verb)
    verb.add_argument("--json", action="store_true", help="print the verdicts of the chosen variant as JSON")


def add_build(verb: argparse.ArgumentParser) -> None:
    """The flags that `ship` has too."""
    verb.add_argument("-o", "--output", default="out", metavar="DIR", help="the bundle is written to DIR/<name>-<version>")
    verb.add_argument("--version", default="1", help="version of the bundle, a positive whole number")
    verb.add_argument(
        "--only-variant", default="", metavar="NAME", help="deliver this candidate, not the fastest one that holds"
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 1 not held, 4 undecided; then nothing is written."""
    found = build(args)
    if found is None:
        return _delivery.EXIT[args.refusal.status]
    if args.json:
        assert found.chosen.judgement is not None
        _delivery.print_judgement(found.chosen.judgement, "", as_json=True)
    return 0


def build(args: argparse.Namespace) -> Delivered | None:
    """Builds and shows what came of it. None when the contract is not held; `args.refusal` then has the judgement."""
    if not args.version.isdecimal() or int(args.version) < 1 or args.version != str(int(args.version)):
        raise BadUsage(f"--version is {args.version!r}", fix="give a positive whole number without leading zeros")
    quiet = getattr(args, "json", False)
    with _delivery.job(args) as delivery:
        target = Path(args.output) / f"{delivery.contract.name}-{args.version}"
        try:
            found = delivery.deliver(target, version=args.version, only=args.only_variant)
        except (NotHeld, Undecided) as refusal:
            _delivery.print_judgement(
                refusal.judgement, f"{delivery.contract.name}: refused, nothing was published", as_json=quiet
            )
            args.refusal = refusal.judgement
            return None
        assert found.chosen.judgement is not None
        assert found.bundle is not None
        if not quiet:
            console = _terminal.out()
            console.print(_terminal.verdict_table(found.chosen.judgement, f"{delivery.contract.name}: {found.chosen.name}"))
            console.print(_delivery.headline(found.chosen.judgement))
            console.print()
            console.print(_delivery.candidates(found.candidates, found.chosen.name))
            console.print(f"\nsealed {target}  {found.bundle.identity}", soft_wrap=True, markup=False)
        return found
