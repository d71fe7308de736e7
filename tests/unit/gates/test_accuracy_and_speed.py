"""accuracy and speed: figures against what is promised, undecided where there are too few."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tauten.gates.speed import lower_bound
from tauten.spec.engine import Tensors
from tauten.spec.judging import Score, Speed
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

Judge = Callable[..., Verdict]
PROMISE: dict[str, Any] = {"accuracy": {"data": "d.csv", "metric": "spearman", "max_drop": 0.005}}


def same(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"]}


def score(value: float) -> Score:
    return Score("spearman", value, 353)


def test_a_small_loss_holds_and_a_large_one_is_told_in_points(judged: Judge) -> None:
    kept = judged("accuracy", PROMISE, delivered=same, score=score(0.7254), parent_score=score(0.7292))
    assert (kept.status, kept.samples) == (Status.HELD, 353)
    lost = judged("accuracy", PROMISE, delivered=same, score=score(0.7020), parent_score=score(0.7292))
    assert lost.status is Status.BROKEN
    assert lost.measured == pytest.approx(0.0272)
    assert "+2.72 points lost, allowed 0.50" in lost.message


def test_the_least_that_is_promised_counts_without_a_parent_too(judged: Judge) -> None:
    promise = {"accuracy": {**PROMISE["accuracy"], "min": 0.8}}
    verdict = judged("accuracy", promise, delivered=same, score=score(0.7))
    assert (verdict.status, "at least 0.8 is promised" in verdict.message) == (Status.BROKEN, True)
    assert judged("accuracy", promise, delivered=same, score=score(0.8)).ok


def test_a_score_that_is_not_a_number_is_no_pass(judged: Judge) -> None:
    verdict = judged("accuracy", PROMISE, delivered=same, score=score(math.nan), parent_score=score(0.7))
    assert (verdict.status, verdict.measured) == (Status.BROKEN, None)


def test_nothing_promised_is_skipped_and_nothing_measured_undecided(judged: Judge) -> None:
    assert judged("accuracy", delivered=same, score=score(0.1)).status is Status.SKIPPED
    assert judged("accuracy", PROMISE, delivered=same).status is Status.UNDECIDED


def speed(*ratios: float) -> Speed:
    return Speed(ratios, "batch 8, 1 x 2 threads", 300.0, 200.0)


def test_faster_in_every_round_holds_and_noise_around_one_does_not(judged: Judge) -> None:
    assert judged("speed", delivered=same, speed=speed(1.5, 1.6, 1.4, 1.5, 1.7)).status is Status.HELD
    noisy = judged("speed", delivered=same, speed=speed(1.5, 0.8, 1.1, 0.9, 1.2, 1.3, 0.9))
    assert noisy.status is Status.BROKEN
    assert "not worth it: 1.10 times as fast" in noisy.message
    assert "300 against 200 samples/s" in noisy.message


def test_too_few_rounds_are_undecided_and_no_parent_is_skipped(judged: Judge) -> None:
    assert judged("speed", delivered=same, speed=speed(2, 2, 2, 2)).status is Status.UNDECIDED
    assert judged("speed", delivered=same, speed=speed()).status is Status.UNDECIDED
    assert judged("speed", delivered=same).status is Status.SKIPPED


def test_the_bound_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for rounds in (5, 9, 20):
        below = np.mean([lower_bound(rng.lognormal(size=rounds).tolist()) <= 1.0 for _ in range(4000)])
        assert below >= 0.945, rounds
