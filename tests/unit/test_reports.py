"""The HTML report: parses, loads nothing, says every verdict, escapes what is hostile; the geometry of its drawings."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauten.measure.load import Observations
from tauten.reports import plots
from tauten.reports.data import CandidateRow, ParityRow, Percentile, ReportData, Section, Step, latency_data
from tauten.reports.html import num, render
from tauten.spec.contract import Slo
from tauten.spec.verdict import Judgement, Status, Verdict

pytest.importorskip("jinja2")

VOID = {"meta", "line", "path", "circle", "br", "img", "link", "hr", "input"}
HOSTILE = '<script>alert("x")</script>\'"&{{ 7 * 7 }}{% raw %}</style>'


class Page(HTMLParser):
    """Checks that tags nest, and collects texts, tags and every attribute's value."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.values: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text += data


def verdict(name: str, status: Status, **more: object) -> Verdict:
    return msgspec.convert({"name": name, "status": status, "message": f"said by {name}", **more}, Verdict)


def load(n: int = 2000) -> Observations:
    took = np.random.default_rng(0).lognormal(-5, 0.5, n)
    due = np.linspace(0, 40, n)
    return Observations(due=due, noticed=due, sent=due, done=due + took, status=np.full(n, 200, np.int32), seconds=40.0)


def full(**parts: object) -> ReportData:
    verdicts = tuple(verdict(f"gate_{s}", s, measured=0.5, limit=1.0, unit="ms", samples=1234, fix=f"mend {s}") for s in Status)
    rows = (
        CandidateRow(name="fp32", precision="float32", accuracy=0.64, metric="spearman", samples_per_s=200.0),
        CandidateRow(name="int8", precision="int8", accuracy=0.63, metric="spearman", samples_per_s=450.0, chosen=True),
        CandidateRow(name="bad", precision="int8", accuracy=0.5, metric="spearman", samples_per_s=460.0, refused_by="accuracy"),
        CandidateRow(name="none", precision="int8", refused_by="made", reason="could not be made"),
    )
    judgement = Judgement(subject="sha256:ab", contract="sha256:cd", verdicts=verdicts)
    known: dict[str, object] = {
        "title": "tiny", "subtitle": "under test", "made": "2026-12-01", "candidates": rows,
        "sections": (Section(title="Gates", judgement=judgement),),
        "latency": latency_data(load(), "open loop", slo=Slo(rate=50, p50_ms=15, p99_ms=20, p999_ms=500), rows=2),
        "parity": (ParityRow(output="y", max_abs=1e-6, limit=1e-5),
                   ParityRow(output="z", max_abs=None, limit=1e-5, note="is nan")),
        "environment": {"cpu": "some"}, "digests": {"bundle": "sha256:ab"},
        "steps": (Step(step="export", outcome="done", seconds=3.2),
                  Step(step="gates", outcome="refused", seconds=0.01, reason="no")),
    }  # fmt: skip
    return ReportData(**{**known, **parts})  # type: ignore[arg-type]


def test_everything_is_said() -> None:
    page = Page(render(full()))
    for status in Status:
        assert f"gate_{status}" in page.text
        assert f"said by gate_{status}" in page.text
    assert "mend broken" in page.text
    assert "mend held" not in page.text  # a fix is for what does not hold
    assert "Not held" in page.text
    for told in ("fp32", "could not be made", "is nan", "export", "some", "p99.9", "not finite", "spearman", "1,234"):
        assert told in page.text
    assert page.tags.count("svg") == 4 + 3  # two drawings, each wide and narrow, and a legend


def test_it_loads_nothing_and_runs_nothing() -> None:
    text = render(full())
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not re.search(r"https?://|//[a-z]|url\(|@import|javascript:", text)
    assert not {name for name, _ in page.values} & {"src", "href", "srcset", "action", "onload", "onclick"}
    assert "default-src 'none'" in text


def test_drawings_have_text_alternatives() -> None:
    text = render(full())
    drawings = re.findall(r"<svg [^>]*>", text)
    assert all("aria-label=" in d or "aria-hidden=" in d for d in drawings)
    assert re.search(r'aria-label="Latency by percentile, p50 [\d.]+ ms of 15 promised; p90', text)


def test_what_is_hostile_is_shown_and_not_obeyed() -> None:
    bad = verdict(HOSTILE, Status.BROKEN, fix=HOSTILE, unit=HOSTILE, evidence={HOSTILE: HOSTILE})
    judgement = Judgement(subject=HOSTILE, contract=HOSTILE, verdicts=(bad,))
    text = render(
        full(
            title=HOSTILE, subtitle=HOSTILE, made=HOSTILE, environment={HOSTILE: HOSTILE}, digests={HOSTILE: HOSTILE},
            sections=(Section(title=HOSTILE, judgement=judgement),), steps=(Step(step=HOSTILE, outcome=HOSTILE, seconds=1),),
            candidates=(CandidateRow(name=HOSTILE, precision=HOSTILE, accuracy=1, metric=HOSTILE, samples_per_s=2,
                                     reason=HOSTILE),
                        CandidateRow(name="b", precision="c", accuracy=2, samples_per_s=3)),
            parity=(ParityRow(output=HOSTILE, max_abs=1, limit=1, note=HOSTILE),),
        )
    )  # fmt: skip
    page = Page(text)
    assert "script" not in page.tags
    assert text.count("</style>") == 1
    assert HOSTILE in page.text
    assert "49" not in re.findall(r"alert\(.*?\)(.*?)<", text)


@pytest.mark.parametrize(
    ("statuses", "word"),
    [([Status.HELD, Status.SKIPPED], "Held: all 2 verdicts"), ([Status.UNDECIDED], "Undecided: gate_undecided"),
     ([Status.BROKEN, Status.UNDECIDED], "Not held: gate_broken")],
)  # fmt: skip
def test_the_headline(statuses: list[Status], word: str) -> None:
    judgement = Judgement(subject="", contract="", verdicts=tuple(verdict(f"gate_{s}", s) for s in statuses))
    page = Page(render(ReportData(title="t", sections=(Section(title="s", judgement=judgement),))))
    assert word in re.sub(r"\s+", " ", page.text)


def test_an_empty_report_and_a_load_alone() -> None:
    assert "Measured" in Page(render(ReportData(title="t"))).text
    alone = Page(render(ReportData(title="t", latency=latency_data(load(), "closed loop"))))
    assert "Latency" in alone.text
    assert "Candidates" not in alone.text
    dead = Observations(due=np.zeros(1), noticed=np.zeros(1), sent=np.zeros(1), done=np.ones(1), status=np.zeros(1, np.int32))
    Page(render(ReportData(title="t", latency=latency_data(dead, "closed loop"))))


def test_percentiles_are_weighed_as_the_clause_does() -> None:
    def status(low: float | None, high: float | None, limit: float | None) -> Status:
        return Percentile(label="p99", q=0.99, ms=5, low=low, high=high, limit=limit).status

    assert status(4, 6, 7) is Status.HELD
    assert status(4, 6, 3) is Status.BROKEN
    assert status(4, 6, 5) is Status.UNDECIDED
    assert status(4, None, 7) is Status.UNDECIDED
    assert status(4, 6, None) is Status.SKIPPED


def test_numbers() -> None:
    assert [num(v) for v in (None, 0, 12, 12345.6, 0.000012, 1.23456, 1234567)] == [
        "–",
        "0",
        "12",
        "12,346",
        "1.2e-5",
        "1.235",
        "1,234,567",
    ]


points = st.lists(st.tuples(st.floats(1, 1e4), st.floats(0, 1)), min_size=1, max_size=12)


@given(points)
def test_the_front_is_what_nothing_beats(places: list[tuple[float, float]]) -> None:
    front = plots.pareto(places)
    assert front
    for i, p in enumerate(places):
        beaten = any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in places)
        assert (i in front) is not beaten


@given(points, st.sampled_from([(760.0, 330.0), (340.0, 300.0)]))
def test_everything_is_drawn_inside(places: list[tuple[float, float]], size: tuple[float, float]) -> None:
    rows = [CandidateRow(name=f"c{i}", precision="p", accuracy=a, samples_per_s=s) for i, (s, a) in enumerate(places)]
    plot = plots.scatter_plot(rows, *size)
    assert (plot is None) is (len(rows) < 2)
    if plot is not None:
        f = plot.frame
        assert all(f.left <= p.x <= f.right and f.top <= p.y <= f.bottom for p in plot.points)
        assert all(f.left - 0.1 <= x <= f.right + 0.1 for x, _ in f.x_ticks)


@given(st.floats(1e-6, 1e6), st.floats(1.0001, 1e7))
def test_ticks_are_few_and_inside(low: float, times: float) -> None:
    high = low * times
    for found, most in ((plots.even_ticks(low, high, 6), 8), (plots.log_ticks(low, high), 12)):
        assert len(found) <= most
        assert all(low * 0.99 <= v <= high * 1.01 for v in found)
        assert found == sorted(found)


def test_the_latency_curve_rises_to_the_right() -> None:
    data = latency_data(load(), "x", slo=Slo(rate=1, p99_ms=20))
    plot = plots.latency_plot(data, 760, 330)
    corners = [tuple(map(float, c.split(","))) for c in plot.path[1:].split(" L")]
    assert corners == sorted(corners, key=lambda c: (c[0], -c[1]))
    p99 = next(m for m in plot.marks if m.of.label == "p99")
    assert p99.top <= p99.y <= p99.bottom
    assert p99.limit is not None
    assert (p99.limit < p99.y) is (p99.of.ms < 20)  # higher on the page is slower
