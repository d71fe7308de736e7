"""ReportData → one HTML file that opens offline: no script, nothing from elsewhere, and a policy in it that forbids both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tauten.reports import plots
from tauten.reports.data import ReportData
from tauten.spec.errors import MissingExtra
from tauten.spec.verdict import Status

WIDE, NARROW = (760.0, 330.0), (340.0, 300.0)  # every drawing comes twice, so that its letters stay readable on a telephone
MOST_EVIDENCE = 4000  # characters shown of one verdict's evidence

WORDS = {Status.HELD: "Held", Status.BROKEN: "Not held", Status.UNDECIDED: "Undecided", None: "Measured"}
MARKS = {Status.HELD: "✓", Status.BROKEN: "✗", Status.UNDECIDED: "?", Status.WAIVED: "~", Status.SKIPPED: "–"}


def render(data: ReportData) -> str:
    """Raises MissingExtra without jinja2. Everything in `data` is escaped."""
    jinja2 = require_jinja()
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters.update(num=num, evidence=evidence, digest=digest, seconds=seconds)
    verdicts = [v for s in data.sections for v in s.judgement.verdicts]
    source = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    text: str = environment.from_string(source).render(
        data=data,
        word=WORDS[data.status],
        words=WORDS,
        marks=MARKS,
        verdicts=verdicts,
        bad=list(dict.fromkeys(v.name for v in verdicts if v.status is data.status and not v.ok)),
        latency_plots=[
            plots.latency_plot(data.latency, *size) for size in (WIDE, NARROW) if data.latency and data.latency.curve
        ],
        scatter_plots=[found for size in (WIDE, NARROW) if (found := plots.scatter_plot(data.candidates, *size))],
        parity=plots.parity_bars(data.parity),
        chosen=next((c for c in data.candidates if c.chosen), None),
        longest=max((s.seconds for s in data.steps), default=0.0),
    )
    return text


def require_jinja() -> Any:
    """The package jinja2. Raises MissingExtra, which is worth asking for before the work that is to be reported."""
    try:
        import jinja2  # noqa: PLC0415  only reports need it
    except ModuleNotFoundError as error:
        raise MissingExtra("jinja2", "report", needed_for="an HTML report") from error
    return jinja2


def num(value: float | None) -> str:
    """Four significant digits, whole numbers in full with their thousands separated, an en dash for none."""
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e+")


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" if value >= 0.1 else f"{value * 1000:.0f} ms"


def digest(text: str) -> str:
    """The first twelve hex digits: enough to compare by eye; the whole is in the title beside it."""
    return text.removeprefix("sha256:")[:12]


def evidence(value: dict[str, Any]) -> str:
    text = json.dumps(value, indent=1, ensure_ascii=False, default=str)
    return text if len(text) <= MOST_EVIDENCE else text[:MOST_EVIDENCE] + " …"
