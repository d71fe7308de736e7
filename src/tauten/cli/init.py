"""tauten init: writes a first contract from a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from tauten.cli import _delivery, _terminal
from tauten.delivery.files import write_whole
from tauten.delivery.first_contract import accuracy_from
from tauten.spec.contract import Contract
from tauten.spec.errors import AlreadyExists, BadUsage
from tauten.workbench import first

HELP = "write a first contract from the model"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    _delivery.add_source(verb, contract=False)
    verb.add_argument("-o", "--output", default="contract.yaml", metavar="FILE")
    verb.add_argument("--name", default="", help="name of the model (default: from the source)")
    verb.add_argument("--precision", default="float32", help="what may be delivered, in order: float32,int8")
    verb.add_argument("--opset", type=int, default=20)
    verb.add_argument("--accuracy", metavar="FILE", help="labelled data that every variant is scored on")
    verb.add_argument("--metric", default="spearman", help="spearman (text pairs with a score) or accuracy (top-1)")
    verb.add_argument("--max-drop", type=float, default=0.005, help="how much of the metric a variant may lose")
    verb.add_argument("--force", action="store_true", help="overwrite the file")


def run(args: argparse.Namespace) -> int:
    """Exit code 2 when the file exists already."""
    output = Path(args.output)
    if output.exists() and not args.force:
        raise AlreadyExists(f"{args.output!r} exists already", fix="give another -o, or --force")
    if args.max_drop < 0:
        raise BadUsage(f"--max-drop is {args.max_drop:g}", fix="give a number that is not negative")
    options = {"precision": tuple(args.precision.split(",")), "opset": args.opset}
    if args.accuracy:
        options["accuracy"] = accuracy_from(args.accuracy, args.metric, args.max_drop, output)
    with _terminal.working(f"measuring {args.source} on this host"):
        contract = first(args.source, name=args.name, options=options)
    text = contract.dumps()
    Contract.parse(text, where="the first contract")  # what was asked for on the command line is held to the rules too
    write_whole(output, text.encode())
    slo = contract.slo
    console = _terminal.out()
    console.print(
        f"{args.output}: a first contract for {contract.name!r}; read it and tighten it", soft_wrap=True, markup=False
    )
    for kind, specs in (("input", contract.inputs), ("output", contract.outputs)):
        for name, spec in specs.items():
            console.print(f"  {kind:6} {name}: {spec.describe()}", markup=False)
    for name, axis in contract.axes.items():
        console.print(f"  axis   {name}: {axis.describe()}", markup=False)
    if slo:
        console.print(
            f"  slo    {slo.rate:g} requests/s, p50 {slo.p50_ms:g} ms, p99 {slo.p99_ms:g} ms (the original here, with headroom)"
        )
    return 0
