"""Where things go in a drawing: pure geometry in the units of an SVG's viewBox. The template decides how they look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from tauten.reports.data import CandidateRow, LatencyData, ParityRow, Percentile

Tick = tuple[float, str]  # position, label
CHAR = 6.6  # width of a character of a label, about


@dataclass(frozen=True)
class Frame:
    """The drawing and the plotting area inside it."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class Axis:
    """Maps values to positions, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, v = (
            (log10(x) for x in (self.low, self.high, max(value, self.low))) if self.log else (self.low, self.high, value)
        )
        return round(self.start + (v - low) / ((high - low) or 1) * (self.end - self.start), 1)

    def ticks(self, most: int = 6) -> tuple[Tick, ...]:
        values = log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high, most)
        return tuple((self.at(v), short(v)) for v in values)


def short(value: float) -> str:
    """1.2k, 35, 0.04, 1e-6."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}" if abs(value) >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) in [low, high]."""
    if high <= low:
        return [low]
    raw = (high - low) / most
    power = 10 ** floor(log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 per decade; only powers of ten (thinned to at most seven) over more than three decades."""
    decades = range(floor(log10(low)) - 1, ceil(log10(high)) + 1)
    wide = log10(high / low) > 3
    keep = max(1, ceil(log10(high / low) / 7)) if wide else 1
    values = [m * 10.0**d for d in decades if d % keep == 0 for m in ((1,) if wide else (1, 2, 5))]
    return [v for v in values if low * 0.999 <= v <= high * 1.001]


@dataclass(frozen=True)
class Mark:
    """A measured percentile with its whisker, and its limit."""

    of: Percentile
    x: float
    y: float
    top: float
    bottom: float
    limit: float | None


@dataclass(frozen=True)
class LatencyPlot:
    frame: Frame
    path: str
    marks: tuple[Mark, ...]


SHARES = ((0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99"), (0.99999, "99.999"))


def latency_plot(data: LatencyData, width: float, height: float) -> LatencyPlot:
    """Milliseconds over percentiles, the percentiles by decades of what is slower, so that the tail has its room."""
    frame = Frame(width, height, left=46, right=width - 16, top=14, bottom=height - 40)
    deepest = max(3.3, *(-log10(1 - s) for s, _ in data.curve if s < 1))
    values = [ms for _, ms in data.curve if ms > 0]
    values += [v for p in data.percentiles for v in (p.limit, p.high) if v]
    y = Axis(min(values) / 1.25, max(values) * 1.25, frame.bottom, frame.top, log=True)
    x = Axis(0, deepest, frame.left, frame.right)

    def across(share: float) -> float:
        return x.at(min(deepest, -log10(max(1 - share, 1e-12))))

    path = "M" + " L".join(f"{across(s)},{y.at(ms)}" for s, ms in data.curve)
    marks = tuple(
        Mark(
            p,
            across(p.q),
            y.at(p.ms),
            y.at(p.high or max(values)),
            y.at(p.low or min(values)),
            y.at(p.limit) if p.limit else None,
        )
        for p in data.percentiles
    )
    x_ticks = tuple((across(s), label) for s, label in SHARES if -log10(1 - s) <= deepest)
    return LatencyPlot(_with_ticks(frame, x_ticks, y.ticks()), path, marks)


@dataclass(frozen=True)
class Point:
    of: CandidateRow
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str
    front: bool


@dataclass(frozen=True)
class ScatterPlot:
    frame: Frame
    points: tuple[Point, ...]
    front: str
    metric: str


def scatter_plot(rows: Sequence[CandidateRow], width: float, height: float) -> ScatterPlot | None:
    """Accuracy over speed, with the Pareto front of those that were not refused; None below two points."""
    known = [(r, r.samples_per_s, r.accuracy) for r in rows if r.samples_per_s and r.accuracy is not None]
    if len(known) < 2:
        return None
    frame = Frame(width, height, left=58, right=width - 18, top=16, bottom=height - 40)
    x_axis = _padded([s for _, s, _ in known], frame.left, frame.right)
    y_axis = _padded([a for _, _, a in known], frame.bottom, frame.top)
    fit = [i for i, (row, _, _) in enumerate(known) if not row.refused_by]
    best = {fit[i] for i in pareto([known[i][1:] for i in fit])}
    placed = [(x_axis.at(s), y_axis.at(a)) for _, s, a in known]
    labels = place_labels(placed, [r.name for r, _, _ in known], frame)
    points = tuple(
        Point(row, px, py, lx, ly, anchor, i in best)
        for i, ((row, _, _), (px, py), (lx, ly, anchor)) in enumerate(zip(known, placed, labels, strict=True))
    )
    corners = sorted((p.x, p.y) for p in points if p.front)  # accuracy falls as speed rises
    steps = " ".join(f"V{y} H{x}" for x, y in corners[1:])
    front = f"M{frame.left},{corners[0][1]} H{corners[0][0]} {steps} V{frame.bottom}" if corners else ""
    frame = _with_ticks(frame, x_axis.ticks(max(2, int(width / 110))), y_axis.ticks(5))
    return ScatterPlot(frame, points, front, known[0][0].metric)


def pareto(points: Sequence[tuple[float, float]]) -> set[int]:
    """Indices of the points that no other beats in one coordinate without losing in the other (more is better)."""

    def beaten(p: tuple[float, float]) -> bool:
        return any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in points)

    return {i for i, p in enumerate(points) if not beaten(p)}


def place_labels(points: Sequence[tuple[float, float]], texts: Sequence[str], frame: Frame) -> list[tuple[float, float, str]]:
    """For each point the place beside it that covers the fewest other labels and points and stays inside the frame."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    placed = []
    for (x, y), text in zip(points, texts, strict=True):
        wide = len(text) * CHAR
        choices = [
            (x + 8, y - 9, "start"), (x - 8, y - 9, "end"), (x + 8, y + 18, "start"), (x - 8, y + 18, "end"),
            (x, y - 13, "middle"), (x, y + 23, "middle"), (x + 11, y + 4, "start"), (x - 11, y + 4, "end"),
        ]  # fmt: skip
        boxes = [(c, _box(c, wide)) for c in choices]
        best, box = min(boxes, key=lambda cb: sum(_overlap(cb[1], t) for t in taken) + 9 * _outside(cb[1], frame))
        taken.append(box)
        placed.append(best)
    return placed


def _box(place: tuple[float, float, str], wide: float) -> tuple[float, float, float, float]:
    x, y, anchor = place
    left = x - {"start": 0.0, "end": wide, "middle": wide / 2}[anchor]
    return left, y - 11, left + wide, y + 3


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _outside(box: tuple[float, float, float, float], frame: Frame) -> float:
    sides = (frame.left - box[0], box[2] - frame.width, frame.top - 10 - box[1], box[3] - frame.bottom)
    return sum(max(0.0, s) for s in sides) * 12


@dataclass(frozen=True)
class Bar:
    """Lengths in percent of the full width."""

    of: ParityRow
    length: float


PARITY_FROM, PARITY_TO = 1e-4, 10.0  # the scale of parity bars, in units of the limit


def parity_bars(rows: Sequence[ParityRow]) -> tuple[tuple[Bar, ...], float]:
    """One bar an output: its worst difference in units of its own limit, by decades; and where the limit is."""
    axis = Axis(PARITY_FROM, PARITY_TO, 0, 100, log=True)

    def length(row: ParityRow) -> float:
        if row.max_abs is None:
            return 100.0
        if not row.limit:
            return 100.0 if row.max_abs else 0.0
        return min(100.0, max(1.0, axis.at(row.max_abs / row.limit))) if row.max_abs else 0.0

    return tuple(Bar(r, length(r)) for r in rows), axis.at(1.0)


def _padded(values: Sequence[float], start: float, end: float) -> Axis:
    low, high = min(values), max(values)
    room = (high - low) * 0.12 or abs(high) * 0.1 or 1.0
    return Axis(low - room, high + room, start, end)


def _with_ticks(frame: Frame, x: tuple[Tick, ...], y: tuple[Tick, ...]) -> Frame:
    return Frame(frame.width, frame.height, frame.left, frame.right, frame.top, frame.bottom, x, y)
