"""Counts what the running system announces, and tells it to Prometheus under Triton's names. It judges nothing.

Folding is a few additions per batch, under one lock; text is made only when somebody scrapes. Series exist only for versions
that were announced, never for names that clients invent, and end with their version.

    metrics = Metrics(pending=…)
    service = Service(sink=metrics)          # it is a sink
    HttpFront.start(…, metrics=metrics.render)
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tauten.spec.errors import Code
from tauten.spec.events import BatchRan, Event, RequestRefused, StateChanged, WorkerChanged
from tauten.spec.lifecycle import State

Key = tuple[str, str]  # model, version
LABELS = ("model", "version")

REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
_REASON: dict[Code, str] = {
    Code.OVERLOADED: "REJECTED", Code.UNAVAILABLE: "REJECTED", Code.DEADLINE: "REJECTED",
    Code.CANCELLED: "CANCELED", Code.INTERNAL: "BACKEND",
}  # fmt: skip

# Microseconds. They hold every bound of Triton's proposed histograms, and finer ones between.
BUCKETS = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
PHASES = ("request", "queue", "compute_input", "compute_infer", "compute_output")

_PLAIN = re.compile(rb"^((?:# (?:HELP|TYPE) )?nv_\w+?)_total(?=[ {])", re.MULTILINE)


@dataclass(slots=True)
class _Phase:
    """Durations of one phase: their sum in microseconds and how many fell up to each bound."""

    total_us: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    def add(self, us: float, times: int = 1) -> None:
        self.total_us += us * times
        self.counts[bisect_left(BUCKETS, us)] += times

    def cumulative(self) -> list[tuple[str, float]]:
        running, rows = 0, []
        for bound, count in zip((*map(float, BUCKETS), float("inf")), self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(running)))
        return rows


@dataclass(slots=True)
class _Counts:
    """Everything that is counted for one version."""

    successes: int = 0
    rows: int = 0
    runs: int = 0
    failed_runs: int = 0
    padded_rows: int = 0
    crashes: int = 0
    load_s: float = 0.0
    state: State = State.STAGED
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    phases: dict[str, _Phase] = field(default_factory=lambda: {p: _Phase() for p in PHASES})

    def add(self, batch: BatchRan) -> None:
        """One run. Triton counts the time of a batch once for every request in it."""
        if batch.failed:
            self.failed_runs += 1
            return
        requests = len(batch.queue_s)
        self.successes += requests
        self.rows += batch.rows
        self.runs += 1
        self.padded_rows += batch.padded_rows
        for name, seconds in (("input", batch.assemble_s), ("infer", batch.compute_s), ("output", batch.split_s)):
            self.phases[f"compute_{name}"].add(seconds * 1e6, requests)
        worked = batch.assemble_s + batch.compute_s + batch.split_s
        queue, request = self.phases["queue"], self.phases["request"]
        for waited in batch.queue_s:
            queue.add(waited * 1e6)
            request.add((waited + worked) * 1e6)


class Metrics(Collector):
    """A sink of events that renders itself. `pending` tells how many requests wait, by model and version, when asked."""

    def __init__(self, pending: Callable[[], Mapping[Key, int]] | None = None) -> None:
        self._pending = pending
        self._lock = threading.Lock()
        self._counts: dict[Key, _Counts] = {}
        self._live: dict[str, str] = {}
        self._unknown = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def __repr__(self) -> str:
        return f"<Metrics of {len(self._counts)} versions>"

    def __call__(self, event: Event) -> None:
        """Takes one event; may be called from any thread."""
        with self._lock:
            if isinstance(event, BatchRan):
                if (counts := self._counts.get((event.model, event.version))) is not None:
                    counts.add(event)
            elif isinstance(event, RequestRefused):
                self._refused(event)
            elif isinstance(event, StateChanged):
                self._changed(event)
            else:
                self._crashed(event)

    def _refused(self, event: RequestRefused) -> None:
        version = event.version or self._live.get(event.model, "")
        counts = self._counts.get((event.model, version))
        if counts is None:
            self._unknown += 1
        else:
            counts.failures[_REASON.get(event.code, "OTHER")] += 1

    def _changed(self, event: StateChanged) -> None:
        key = (event.model, event.version)
        if event.state is State.CLOSED:
            self._counts.pop(key, None)
            if self._live.get(event.model) == event.version:
                del self._live[event.model]
            return
        counts = self._counts.setdefault(key, _Counts())
        counts.state = event.state
        if event.state is State.LIVE:
            self._live[event.model] = event.version
            counts.load_s = event.took_s or counts.load_s

    def _crashed(self, event: WorkerChanged) -> None:
        if not event.healthy and (counts := self._counts.get((event.model, event.version))) is not None:
            counts.crashes += 1

    def render(self) -> bytes:
        """The text that Prometheus reads. The library ends counters with _total; Triton's names have no such end."""
        return _PLAIN.sub(rb"\1", generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Families of this moment, for prometheus_client."""
        with self._lock:
            families = [*_families(self._counts), _unknown_models(self._unknown)]
        yield from families
        if self._pending is not None:
            pending = _gauge("nv_inference_pending_request_count", "Requests that wait for a run")
            for key, waiting in self._pending().items():
                pending.add_metric(key, waiting)
            yield pending


def _families(counts: Mapping[Key, _Counts]) -> Iterable[Metric]:
    def counter(name: str, told: str, value: Callable[[_Counts], float]) -> Metric:
        family = CounterMetricFamily(name, told, labels=LABELS)
        for key, of in counts.items():
            family.add_metric(key, value(of))
        return family

    yield counter("nv_inference_request_success", "Requests answered with a result", lambda c: c.successes)
    failures = CounterMetricFamily("nv_inference_request_failure", "Requests not answered with a result, by reason",
                                   labels=(*LABELS, "reason"))  # fmt: skip
    for key, of in counts.items():
        for reason, count in of.failures.items():
            failures.add_metric((*key, reason), count)
    yield failures
    yield counter("nv_inference_count", "Rows that were computed", lambda c: c.rows)
    yield counter("nv_inference_exec_count", "Runs of the model", lambda c: c.runs)
    for phase in PHASES:
        told = f"Time in {phase}, summed over requests, in microseconds"
        yield counter(f"nv_inference_{phase}_duration_us", told, partial(_total_us, phase))
    for phase in PHASES:
        family = HistogramMetricFamily(f"nv_inference_{phase}_duration_histogram_us", f"Time in {phase}, in microseconds",
                                       labels=LABELS)  # fmt: skip
        for key, of in counts.items():
            family.add_metric(key, of.phases[phase].cumulative(), of.phases[phase].total_us)
        yield family
    load = _gauge("nv_model_load_duration_secs", "From the start of loading to live, in seconds")
    state = _gauge("delivery_version_state", "1 for the state that a version is in", *LABELS, "state")
    for key, of in counts.items():
        load.add_metric(key, of.load_s)
        state.add_metric((*key, of.state), 1)
    yield from (load, state)
    yield counter("delivery_padded_rows", "Rows that were filled up to a bucket", lambda c: c.padded_rows)
    yield counter(
        "delivery_failed_runs", "Runs that raised; their requests are tried again one by one", lambda c: c.failed_runs
    )
    yield counter("delivery_worker_crashes", "Times that an instance had to be opened again", lambda c: c.crashes)


def _total_us(phase: str, counts: _Counts) -> float:
    return counts.phases[phase].total_us


def _gauge(name: str, told: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, told, labels=labels or LABELS)


def _unknown_models(count: int) -> Metric:
    return CounterMetricFamily(
        "delivery_unknown_model_requests", "Requests for a model or version that is not here", value=count
    )
