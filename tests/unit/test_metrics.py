"""What is announced is counted once, under Triton's names, and no client can invent a series."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tauten.govern.metrics import BUCKETS, REASONS, Metrics
from tauten.spec.errors import Code
from tauten.spec.events import BatchRan, RequestRefused, StateChanged, WorkerChanged
from tauten.spec.lifecycle import State

M1 = {"model": "m", "version": "1"}


def batch(**changes: Any) -> BatchRan:
    given: dict[str, Any] = {
        "model": "m", "version": "1", "rows": 3, "padded_rows": 1, "sizes": (), "queue_s": (0.001, 0.003),
        "assemble_s": 0.0001, "compute_s": 0.002, "split_s": 0.0002, "failed": False, **changes,
    }  # fmt: skip
    return BatchRan(**given)


def live(metrics: Metrics, version: str = "1") -> Metrics:
    metrics(StateChanged("m", version, State.WARMING))
    metrics(StateChanged("m", version, State.LIVE, took_s=1.5))
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """As a reader of the text sees them. This one adds _total to every counter; Triton's names are told without."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (s.name.removesuffix("_total") if s.name.startswith("nv_") else s.name, frozenset(s.labels.items())): s.value
        for f in families
        for s in f.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[name, frozenset(labels.items())]


def test_a_batch_counts_its_requests_rows_and_times() -> None:
    metrics = live(Metrics())
    metrics(batch())
    metrics(batch(queue_s=(0.002,), rows=1, padded_rows=0))
    assert value(metrics, "nv_inference_request_success", **M1) == 3
    assert value(metrics, "nv_inference_count", **M1) == 4
    assert value(metrics, "nv_inference_exec_count", **M1) == 2
    assert value(metrics, "nv_inference_queue_duration_us", **M1) == pytest.approx(6000)
    assert value(metrics, "nv_inference_compute_infer_duration_us", **M1) == pytest.approx(6000)  # once per request
    assert value(metrics, "nv_inference_request_duration_us", **M1) == pytest.approx(6000 + 3 * 2300)
    assert value(metrics, "nv_model_load_duration_secs", **M1) == 1.5
    assert value(metrics, "delivery_padded_rows_total", **M1) == 1


def test_histograms_hold_every_request_and_their_sum() -> None:
    metrics = live(Metrics())
    metrics(batch(queue_s=(0.0, 50e-6, 51e-6, 9.0)))
    name = "nv_inference_queue_duration_histogram_us"
    assert value(metrics, f"{name}_bucket", **M1, le="50") == 2  # a bound belongs to its bucket
    assert value(metrics, f"{name}_bucket", **M1, le="100") == 3
    assert value(metrics, f"{name}_bucket", **M1, le=f"{BUCKETS[-1]:g}") == 3
    assert value(metrics, f"{name}_bucket", **M1, le="+Inf") == value(metrics, f"{name}_count", **M1) == 4
    assert value(metrics, f"{name}_sum", **M1) == pytest.approx(9e6 + 101)


def test_all_reasons_are_there_from_the_start_and_every_code_has_one() -> None:
    metrics = live(Metrics())
    assert [value(metrics, "nv_inference_request_failure", **M1, reason=r) for r in REASONS] == [0] * 4
    for code in Code:
        metrics(RequestRefused("m", "1", code))
    counts = [value(metrics, "nv_inference_request_failure", **M1, reason=r) for r in REASONS]
    assert sum(counts) == len(Code)
    assert counts[:3] == [3, 1, 1]


def test_a_refusal_without_version_belongs_to_the_live_one() -> None:
    metrics = live(live(Metrics(), "1"), "2")
    metrics(RequestRefused("m", "", Code.OVERLOADED))
    assert value(metrics, "nv_inference_request_failure", model="m", version="2", reason="REJECTED") == 1
    assert value(metrics, "nv_inference_request_failure", **M1, reason="REJECTED") == 0


def test_names_that_clients_invent_make_no_series() -> None:
    metrics = live(Metrics())
    before = len(samples(metrics))
    for i in range(100):
        metrics(RequestRefused(f"invented {i}", "", Code.NOT_FOUND))
    metrics(batch(model="never loaded"))
    assert len(samples(metrics)) == before
    assert value(metrics, "delivery_unknown_model_requests_total") == 100


def test_a_closed_version_ends_its_series() -> None:
    metrics = live(Metrics())
    metrics(StateChanged("m", "1", State.CLOSED))
    metrics(batch())
    assert not [name for name, _ in samples(metrics) if name.startswith("nv_inference")]


def test_a_failed_run_and_a_crash_count_apart() -> None:
    metrics = live(Metrics())
    metrics(batch(failed=True))
    metrics(WorkerChanged("m", "1", healthy=False, crashes=1))
    metrics(WorkerChanged("m", "1", healthy=True, crashes=1))
    assert value(metrics, "nv_inference_request_success", **M1) == 0
    assert value(metrics, "delivery_failed_runs_total", **M1) == 1
    assert value(metrics, "delivery_worker_crashes_total", **M1) == 1


def test_pending_requests_are_asked_for_when_scraped() -> None:
    waiting = {("m", "1"): 3}
    metrics = live(Metrics(pending=lambda: waiting))
    assert value(metrics, "nv_inference_pending_request_count", **M1) == 3
    waiting["m", "1"] = 0
    assert value(metrics, "nv_inference_pending_request_count", **M1) == 0


def test_types_are_told_and_counters_of_triton_have_no_total() -> None:
    metrics = live(Metrics(pending=lambda: {("m", "1"): 0}))
    text = metrics.render().decode()
    assert "# TYPE nv_inference_request_success counter\n" in text
    assert "# TYPE nv_inference_request_duration_us counter\n" in text
    assert "# TYPE nv_inference_request_duration_histogram_us histogram\n" in text
    assert not [line for line in text.splitlines() if line.startswith("nv_") and "_total{" in line]
    assert "process_resident_memory_bytes" in text


def test_odd_names_are_escaped() -> None:
    metrics = Metrics()
    metrics(StateChanged('a"b\\c\n', "1", State.LIVE))
    assert value(metrics, "nv_inference_count", model='a"b\\c\n', version="1") == 0
