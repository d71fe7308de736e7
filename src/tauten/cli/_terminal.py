"""What people see: results to stdout, progress and errors to stderr, tables that fit the width they have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tauten.spec.verdict import Judgement, Status, Verdict

WIDE = 110  # columns
MARKS = {
    Status.HELD: ("✓", "green"), Status.BROKEN: ("✗", "bold red"), Status.UNDECIDED: ("?", "yellow"),
    Status.WAIVED: ("~", "yellow"), Status.SKIPPED: ("-", "dim"),
}  # fmt: skip


def out() -> Console:
    return Console(highlight=False)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def error(message: str, *, fix: str = "") -> None:
    """One message: what is wrong, and below it what to do."""
    console = err()
    console.print(Text.assemble(("tauten: ", "bold red"), message), soft_wrap=True)
    if fix:
        console.print(Text.assemble(("   fix: ", "bold"), fix), soft_wrap=True)


def number(value: float | None, unit: str = "") -> str:
    """A number people can read: four significant digits, an en dash for none."""
    if value is None:
        return "–"
    text = f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def verdict_table(judgement: Judgement, title: str = "") -> Group:
    """Every verdict in a row: mark, name, measured, limit, samples, what it says.

    A narrow terminal has no room for what the fine ones say; what the others say stands below, whole.
    """
    wide = out().width >= WIDE
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("verdict", no_wrap=True)
    for column in ("measured", "limit", "samples"):
        table.add_column(column, justify="right", no_wrap=True)
    if wide:
        table.add_column("", overflow="fold", ratio=1)
    for verdict in judgement.verdicts:
        cells = _cells(verdict)
        table.add_row(*cells if wide else cells[:-1])
    return Group(table, *(_told(v) for v in judgement.verdicts if not v.ok))


def _cells(v: Verdict) -> tuple[Text | str, ...]:
    mark, style = MARKS[v.status]
    return (Text(mark, style=style), Text(v.name, style=style if not v.ok else ""), number(v.measured, v.unit),
            number(v.limit), str(v.samples or "–"), Text(v.message if v.ok else str(v.status), style="dim"))  # fmt: skip


def _told(v: Verdict) -> Text:
    """What a verdict that is not fine says, and the fix."""
    mark, style = MARKS[v.status]
    told = Text.assemble("\n", (f"{mark} {v.name} ", style), v.message)
    if v.fix:
        told.append("\n  fix: ", style="bold").append(v.fix)
    return told


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on a terminal, one plain line elsewhere; always on stderr."""
    console = err()
    if sys.stderr.isatty():
        with console.status(what):
            yield
    else:
        console.print(what, style="dim")
        yield
