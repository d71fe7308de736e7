"""Every clause on made-up observations: held, broken, undecided, and left out of the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tauten.govern import availability, drift, errors, integrity, jitter, latency, memory, memory_growth
from tauten.measure.load import Observations
from tauten.measure.observed import Moved, Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict

HELD, BROKEN, UNDECIDED, SKIPPED = Status.HELD, Status.BROKEN, Status.UNDECIDED, Status.SKIPPED
Judge = Callable[[Observed, Contract], tuple[Verdict, ...]]


def contract(**parts: Any) -> Contract:
    tensor = {"dtype": "float32", "shape": ["batch", 2]}
    return Contract.of(
        {"contract": 1, "inputs": {"x": tensor}, "outputs": {"y": tensor}, "axes": {"batch": {"max": 4}}, **parts}
    )


def slo(**limits: float) -> Contract:
    return contract(slo={"rate": 50, **limits})


def load(latencies_ms: Any, *, seconds: float = 100.0, late_ms: float = 0.0, status: Any = None, **more: Any) -> Observations:
    took = np.asarray(latencies_ms, float) / 1000
    due = np.linspace(0, seconds, took.size, endpoint=False)
    noticed = due + late_ms / 1000
    statuses = np.full(took.size, 200, np.int32) if status is None else np.asarray(status, np.int32)
    return Observations(due=due, noticed=noticed, sent=noticed, done=due + took, status=statuses, seconds=seconds, **more)


def one(judge: Judge, observed: Observed, promised: Contract) -> Verdict:
    (verdict,) = judge(observed, promised)
    return verdict


EXPONENTIAL = -20 * np.log1p(-(np.arange(5000) + 0.5) / 5000)  # ms; p50 13.9, p99 92
MIXED = np.random.default_rng(0).permutation(EXPONENTIAL)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"p50_ms": 20, "p99_ms": 150, "p999_ms": 300}, [HELD, HELD, HELD]),
        ({"p50_ms": 10, "p99_ms": 50, "p999_ms": 80}, [BROKEN, BROKEN, BROKEN]),
        ({"p50_ms": 13.9, "p99_ms": 92}, [UNDECIDED, UNDECIDED, SKIPPED]),  # the limit is inside the interval
        ({}, [SKIPPED, SKIPPED, SKIPPED]),
    ],
)
def test_latency(limits: dict[str, float], expected: list[Status]) -> None:
    found = latency.judge(Observed(load=load(MIXED)), slo(**limits))
    assert [v.status for v in found] == expected
    assert [v.unit for v in found] == ["ms p50", "ms p99", "ms p99.9"]
    assert all(v.samples == 5000 and v.measured is not None for v in found)
    low, high = found[1].evidence["interval_ms"]
    assert low < found[1].measured < high
    assert all(v.fix for v in found if not v.ok)


def test_too_few_samples_are_undecided_however_good_they_look() -> None:
    found = latency.judge(Observed(load=load(np.full(300, 1.0))), slo(p50_ms=10, p99_ms=100, p999_ms=100))
    assert [v.status for v in found] == [HELD, UNDECIDED, UNDECIDED]
    assert "368" in found[1].message
    assert "3,688" in found[2].message
    assert "135 s" in found[1].fix  # at 3 requests/s, with a tenth to spare


def test_a_tired_generator_accuses_nobody() -> None:
    fine = latency.judge(Observed(load=load(MIXED, late_ms=0.5)), slo(p99_ms=50))[1]
    tired = latency.judge(Observed(load=load(MIXED, late_ms=30)), slo(p99_ms=50))[1]
    assert (fine.status, tired.status) == (BROKEN, UNDECIDED)
    assert "generator" in tired.message


def test_latency_when_nobody_answered() -> None:
    dead = Observed(load=load([5.0] * 10, status=[0] * 10))
    assert [v.status for v in latency.judge(dead, slo(p99_ms=5))] == [SKIPPED, UNDECIDED, SKIPPED]


def test_what_was_given_up_counts_as_slow() -> None:
    status = np.where(np.arange(5000) % 10 == 0, -1, 200)
    took = np.where(status == -1, 10_000.0, 5.0)
    seen = Observed(load=load(took, status=status))
    assert latency.judge(seen, slo(p99_ms=100))[1].status is BROKEN


def test_jitter() -> None:
    steady = Observed(load=load(MIXED))
    swings = MIXED * np.where(np.arange(5000) // 500 % 2, 4.0, 1.0)
    assert one(jitter.judge, steady, slo(jitter_ms=60)).status is HELD
    assert one(jitter.judge, Observed(load=load(swings)), slo(jitter_ms=20)).status is BROKEN
    assert one(jitter.judge, steady, slo(jitter_ms=1)).status is UNDECIDED  # chance alone moves a p99 by more
    assert one(jitter.judge, steady, slo()).status is SKIPPED
    few = one(jitter.judge, Observed(load=load(MIXED[:900])), slo(jitter_ms=60))
    assert few.status is UNDECIDED
    assert "368" in few.message
    values = one(jitter.judge, steady, slo(jitter_ms=60)).evidence["p99_ms_by_window"]
    assert len(values) == 10
    assert one(jitter.judge, steady, slo(jitter_ms=60)).measured == (max(values) - min(values)) / 2


@pytest.mark.parametrize(
    ("failed", "limit", "expected"),
    [(0, 0.0, HELD), (1, 0.0, BROKEN), (0, 0.01, HELD), (9, 0.01, UNDECIDED), (30, 0.01, BROKEN), (0, 0.001, UNDECIDED)],
)
def test_errors(failed: int, limit: float, expected: Status) -> None:
    status = [503] * failed + [200] * (1000 - failed)
    seen = Observed(load=load(np.ones(1000), status=status, errors={"status 503": failed} if failed else {}))
    verdict = one(errors.judge, seen, slo(errors=limit))
    assert verdict.status is expected
    assert (verdict.measured, verdict.samples) == (failed / 1000, 1000)
    assert not failed or "status 503" in verdict.message


def test_errors_without_requests_or_limit() -> None:
    assert one(errors.judge, Observed(load=load([])), slo(errors=0)).status is UNDECIDED
    assert one(errors.judge, Observed(load=load([1.0])), slo()).status is SKIPPED


def test_availability() -> None:
    up = tuple((float(t), True) for t in range(9))
    assert one(availability.judge, Observed(load=load([1.0]), ready=up), slo()).status is HELD
    down = one(availability.judge, Observed(load=load([1.0]), ready=(*up, (9.0, False))), slo())
    assert (down.status, down.measured) == (BROKEN, 0.9)
    assert "9.0 s" in down.message
    assert one(availability.judge, Observed(load=load([1.0])), slo()).status is UNDECIDED


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 1e-7], HELD), ([0.0, 1e-3], BROKEN), ([0.0, float("inf")], BROKEN), ([], UNDECIDED)],
)
def test_drift(values: list[float], expected: Status) -> None:
    seen = Observed(load=load([1.0]), moved=tuple(Moved(float(i), "zeros", v) for i, v in enumerate(values)))
    verdict = one(drift.judge, seen, contract(drift={"max_abs": 1e-6}))
    assert verdict.status is expected
    assert one(drift.judge, seen, contract()).status is SKIPPED
    if expected is BROKEN:
        assert "zeros" in verdict.message
        assert verdict.measured is None or np.isfinite(verdict.measured)


def test_memory() -> None:
    seen = Observed(load=load([1.0]), resident=((0.0, 300.0), (1.0, 420.0), (2.0, 310.0)))
    held = one(memory.judge, seen, contract(memory={"peak_mb": 420}))
    assert (held.status, held.measured, held.samples) == (HELD, 420.0, 3)
    assert one(memory.judge, seen, contract(memory={"peak_mb": 419})).status is BROKEN
    assert one(memory.judge, Observed(load=load([1.0])), contract(memory={"peak_mb": 419})).status is UNDECIDED
    assert one(memory.judge, seen, contract()).status is SKIPPED


def growth(mb_per_day: float, *, seconds: float, noise: float = 0.0) -> Observed:
    at = np.arange(0, seconds, 5.0)
    size = 300 + mb_per_day * at / 86_400 + noise * np.random.default_rng(0).standard_normal(at.size)
    size = np.where(at < seconds / 4, size - 50, size)  # it warms up first
    resident = tuple(zip(at.tolist(), size.tolist(), strict=True))
    return Observed(load=load([1.0], seconds=seconds), resident=resident)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (growth(0, seconds=1200), HELD),
        (growth(500, seconds=1200), BROKEN),
        (growth(500, seconds=1200, noise=0.01), BROKEN),
        (growth(0, seconds=1200, noise=5), UNDECIDED),
        (growth(500, seconds=120), UNDECIDED),
        (growth(0, seconds=300), UNDECIDED),
    ],
)
def test_memory_growth(seen: Observed, expected: Status) -> None:
    verdict = one(memory_growth.judge, seen, contract(memory={"growth_mb_per_day": 2}))
    assert verdict.status is expected
    assert one(memory_growth.judge, seen, contract()).status is SKIPPED


def test_the_slope_is_the_slope_and_one_step_does_not_tilt_it() -> None:
    at = np.arange(0, 900, 5.0)
    line = [(float(t), 100 + t * 7 / 86_400) for t in at]
    slope, low, high = memory_growth.slope_per_day(line)
    assert slope == pytest.approx(7)
    assert low < 7 < high
    step = [(float(t), 100.0 + (8.0 if t > 800 else 0.0)) for t in at]
    assert memory_growth.slope_per_day(step)[0] == 0


def test_integrity() -> None:
    def seen(served: dict[str, str], expected: dict[str, str]) -> Observed:
        return Observed(load=load([1.0]), served=served, expected=expected)

    ours = {"bundle": "sha256:aa", "contract": "sha256:bb"}
    assert one(integrity.judge, seen(ours, ours), slo()).status is HELD
    assert one(integrity.judge, seen({}, ours), slo()).status is SKIPPED
    wrong = one(integrity.judge, seen({**ours, "bundle": "sha256:cc"}, ours), slo())
    assert wrong.status is BROKEN
    assert "cc" in wrong.message


@pytest.mark.parametrize("clause", [latency, jitter, errors, availability, drift, memory, memory_growth, integrity])
def test_clauses_are_named_after_their_files_and_repeat_themselves(clause: Any) -> None:
    seen = Observed(load=load(MIXED), ready=((1.0, True),), moved=(Moved(1.0, "p", 0.0),), resident=((1.0, 5.0),))
    promised = contract(slo={"rate": 5, "p50_ms": 9, "jitter_ms": 1, "errors": 0}, drift={"max_abs": 1}, memory={"peak_mb": 9})
    first = clause.judge(seen, promised)
    assert {v.name for v in first} == {clause.__name__.rpartition(".")[2]}
    assert first == clause.judge(seen, promised)
    assert all(v.fix for v in first if not v.ok)
