"""What the offline verbs share: reading SOURCE and contract, showing the steps, and the tables of verdicts and candidates."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tauten.cli import _terminal
from tauten.delivery.candidates import Candidate
from tauten.delivery.ledger import Progress
from tauten.spec.contract import Contract
from tauten.spec.verdict import Judgement, Status
from tauten.workbench import Delivery, prepare

EXIT = {Status.HELD: 0, Status.BROKEN: 1, Status.UNDECIDED: 4}


def add_source(verb: argparse.ArgumentParser, *, contract: bool = True) -> None:
    """The arguments SOURCE and --contract."""
    verb.add_argument("source", metavar="SOURCE",
                      help="model.onnx, file.py:factory, package.module:factory, or a Hugging Face directory")  # fmt: skip
    if contract:
        verb.add_argument("-c", "--contract", required=True, metavar="FILE", help="the delivery contract (YAML)")


@contextmanager
def job(args: argparse.Namespace) -> Iterator[Delivery]:
    """Everything an offline verb works with; intermediate files are gone afterwards."""
    path = Path(args.contract)
    contract = Contract.load(path)
    with progress() as tell, prepare(args.source, contract, data_root=path.parent, progress=tell) as delivery:
        yield delivery


@contextmanager
def progress() -> Iterator[Progress]:
    """A spinner that names the step on a terminal, a line per step elsewhere; on stderr."""
    console = _terminal.err()
    if not sys.stderr.isatty():
        yield lambda step: console.print(f"· {step}", style="dim")
        return
    with console.status("starting") as status:
        yield status.update


def print_judgement(judgement: Judgement, title: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(judgement.to_json().decode() + "\n")
        return
    console = _terminal.out()
    console.print(_terminal.verdict_table(judgement, title))
    console.print(headline(judgement))


def headline(judgement: Judgement) -> Text:
    """The last line: held, not held or undecided, and by what."""
    bad = [v.name for v in judgement.verdicts if not v.ok]
    match judgement.status:
        case Status.BROKEN:
            return Text(f"not held: {', '.join(bad)}", style="bold red")
        case Status.UNDECIDED:
            return Text(f"undecided: {', '.join(bad)}", style="bold yellow")
        case _:
            return Text(f"held: all {len(judgement.verdicts)} verdicts", style="bold green")


def candidates(found: Sequence[Candidate], chosen: str) -> Group:
    """Every candidate with its figures in a table, and below it why each loser lost."""
    table = Table(title="candidates on this host", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    table.add_column("candidate", no_wrap=True)
    for column in ("samples/s", "× parent", "score", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("batch", justify="right")
    table.add_column("sessions × threads", justify="right")
    for c in found:
        best = c.tuned.best if c.tuned else None
        table.add_row(
            Text("→" if c.name == chosen else "✓" if c.held else "✗", style="green" if c.held else "red"),
            Text(c.name, style="bold" if c.name == chosen else ""),
            _terminal.number(c.samples_per_s or None),
            f"{c.speed.median:.2f}" if c.speed else "–",
            f"{c.score.value:.4f}" if c.score else "–",
            f"{c.model.stat().st_size / 1e6:.1f}" if c.model.exists() else "–",
            str(best.batch) if best else "–",
            f"{best.instances} × {best.threads}" if best else "–",
        )
    return Group(table, *(_lost(c) for c in found if not c.held))


def _lost(candidate: Candidate) -> Text:
    """One line for each gate that refused it."""
    if candidate.failure:
        return Text(f"✗ {candidate.name}: not made, {candidate.failure}", style="dim")
    assert candidate.judgement is not None
    told = [f"  {v.name}: {v.message}" for v in candidate.judgement.verdicts if not v.ok]
    return Text("\n".join([f"✗ {candidate.name} refused by", *told]), style="dim")
