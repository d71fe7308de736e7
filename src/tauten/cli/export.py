"""tauten export: writes the ONNX file that the gates accept."""

from __future__ import annotations

import argparse
from pathlib import Path

from tauten.cli import _delivery, _terminal
from tauten.spec.errors import NotHeld

HELP = "export to ONNX; reads names, axes and opset back and fails if they are not what was asked"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    _delivery.add_source(verb)
    verb.add_argument("-o", "--output", required=True, metavar="FILE", help="the ONNX file to write")


def run(args: argparse.Namespace) -> int:
    """Exit code 1 when the file would not be what the contract asks for; then nothing is written."""
    with _delivery.job(args) as delivery:
        judged = delivery.check()
        assert judged.judgement is not None
        if not judged.held:
            raise NotHeld(judged.judgement)
        delivery.write_model(judged, Path(args.output))
    _terminal.out().print(
        f"{args.output}: written by the {judged.made_by} exporter, {judged.judgement.subject}", soft_wrap=True, markup=False
    )
    return 0
