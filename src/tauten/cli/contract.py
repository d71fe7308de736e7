"""tauten contract: the schema of the delivery contract, and whether a file keeps to it."""

from __future__ import annotations

import argparse
import json
import sys

from tauten.cli import _terminal
from tauten.spec.contract import Contract

HELP = "print the contract's JSON Schema, or check a contract file"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    verb.add_argument("what", choices=["schema", "check"])
    verb.add_argument("file", nargs="?", help="the contract to check")


def run(args: argparse.Namespace) -> int:
    """Exit code 2 where the file is not a contract."""
    if args.what == "schema":
        sys.stdout.write(json.dumps(Contract.schema(), indent=2) + "\n")
        return 0
    if args.file is None:
        _terminal.error("'tauten contract check' needs a file", fix="tauten contract check contract.yaml")
        return 2
    contract = Contract.load(args.file)
    _terminal.out().print(f"{contract.name}: a valid contract, {contract.digest}")
    return 0
