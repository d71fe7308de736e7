"""What a report shows, as plain data. Whoever fills it leaves private values out; nothing here knows where it came from."""

from __future__ import annotations

import msgspec

from tauten.measure.digests import Digest
from tauten.measure.traffic import Observations
from tauten.spec.contract import Slo
from tauten.spec.verdict import Judgement, Status


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A judgement under its own heading: the gates of a build, the clauses of a live server."""

    title: str
    judgement: Judgement


class CandidateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One form of the model that competed. `speed_ratio`: times as fast as its parent. `refused_by`: empty where it held."""

    name: str
    precision: str
    accuracy: float | None = None
    metric: str = ""
    samples_per_s: float | None = None
    speed_ratio: float | None = None
    size_mb: float | None = None
    settings: str = ""
    chosen: bool = False
    refused_by: str = ""
    reason: str = ""


class Percentile(msgspec.Struct, frozen=True, kw_only=True):
    """A measured percentile in ms with its 95 % interval, and the contract's limit where it has one."""

    label: str
    q: float
    ms: float
    low: float | None = None
    high: float | None = None
    limit: float | None = None

    @property
    def status(self) -> Status:
        """As the latency clause weighs it: the whole interval on one side, or undecided."""
        if self.limit is None:
            return Status.SKIPPED
        if self.high is not None and self.high <= self.limit:
            return Status.HELD
        return Status.BROKEN if self.low is not None and self.low > self.limit else Status.UNDECIDED


class LatencyData(msgspec.Struct, frozen=True, kw_only=True):
    """How long answers took. `curve` is (share of answers at or below, ms), thinned; `load` says how it was measured."""

    load: str
    answers: int
    failed: int
    requests_per_s: float
    samples_per_s: float | None
    percentiles: tuple[Percentile, ...]
    curve: tuple[tuple[float, float], ...]
    generator_lag_ms: float | None = None


class ParityRow(msgspec.Struct, frozen=True, kw_only=True):
    """The worst element of one output against the original. `max_abs` None stands for NaN, infinite or not comparable."""

    output: str
    max_abs: float | None
    limit: float
    note: str = ""

    @property
    def held(self) -> bool:
        return self.max_abs is not None and self.max_abs <= self.limit


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the ledger."""

    step: str
    outcome: str
    seconds: float
    reason: str = ""


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a report; what is empty has no chapter."""

    title: str
    subtitle: str = ""
    made: str = ""
    sections: tuple[Section, ...] = ()
    candidates: tuple[CandidateRow, ...] = ()
    latency: LatencyData | None = None
    parity: tuple[ParityRow, ...] = ()
    environment: dict[str, str] = {}
    digests: dict[str, str] = {}
    steps: tuple[Step, ...] = ()

    @property
    def status(self) -> Status | None:
        """The worst of all judgements; None where nothing was judged."""
        found = {s.judgement.status for s in self.sections}
        return next((s for s in (Status.BROKEN, Status.UNDECIDED, Status.HELD) if s in found), None)


LIMITS = {0.5: "p50_ms", 0.99: "p99_ms", 0.999: "p999_ms"}


def latency_data(seen: Observations, load: str, *, slo: Slo | None = None, rows: float | None = None) -> LatencyData:
    """Fills the latency chapter from what the load generator saw. `rows` is the mean number of samples in a request."""
    digest, lag = Digest(seen.latencies), seen.lag.quantile(0.99)
    found = [(q, digest.quantile(q)) for q in (0.5, 0.9, 0.99, 0.999)]
    return LatencyData(
        load=load, answers=int(seen.ok.sum()), failed=seen.failed, requests_per_s=seen.requests_per_s,
        samples_per_s=seen.requests_per_s * rows if rows else None,
        percentiles=tuple(
            Percentile(label=x.label, q=q, ms=x.value * 1000, low=_ms(x.low), high=_ms(x.high),
                       limit=getattr(slo, LIMITS.get(q, ""), None))
            for q, x in found if x is not None
        ),
        curve=tuple((share, seconds * 1000) for share, seconds in digest.curve(160)),
        generator_lag_ms=lag.value * 1000 if lag and seen.open_loop else None,
    )  # fmt: skip


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
