"""parity: the worst element of every output over every probe, NaN is failure, and the message tells where."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tauten.spec.contract import Tolerance
from tauten.spec.engine import Runner, Tensors
from tauten.spec.errors import EngineFailed
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

Judge = Callable[..., Verdict]
TWO = {"outputs": {n: {"dtype": "float32", "shape": ["batch", 4]} for n in ("y", "z")}}


def double(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"] * 2}


def off(where: tuple[int, int], by: float) -> Runner:
    """`double`, but one element is off."""

    def run(inputs: Tensors) -> dict[str, Array]:
        y = inputs["x"] * 2
        if y.shape[0] > where[0]:
            y[where] += by
        return {"y": y}

    return run


def test_equal_answers_hold_with_evidence_for_every_output(judged: Judge) -> None:
    def both(inputs: Tensors) -> dict[str, Array]:
        return {"y": inputs["x"], "z": inputs["x"] + 1}

    verdict = judged("parity", TWO, delivered=both, reference=both)
    assert verdict.status is Status.HELD
    assert (verdict.measured, verdict.samples >= 10) == (0.0, True)
    assert set(verdict.evidence["outputs"]) == {"y", "z"}
    assert set(verdict.evidence["outputs"]["z"]) == {"max_abs", "limit", "index", "probe"}


def test_one_element_of_the_second_output_is_enough_and_is_named(judged: Judge) -> None:
    def crooked(inputs: Tensors) -> dict[str, Array]:
        return {"y": inputs["x"], "z": off((6, 3), 0.5)(inputs)["y"]}

    def straight(inputs: Tensors) -> dict[str, Array]:
        return {"y": inputs["x"], "z": inputs["x"] * 2}

    verdict = judged("parity", TWO, delivered=crooked, reference=straight)
    assert verdict.status is Status.BROKEN
    assert verdict.measured == pytest.approx(0.5, rel=1e-3)
    assert verdict.evidence["outputs"]["z"]["index"] == [6, 3]
    assert verdict.evidence["outputs"]["y"]["max_abs"] == 0.0
    assert "z[6, 3] differs by 0.5" in verdict.message
    assert verdict.fix


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_failure_though_it_cannot_be_measured(judged: Judge, value: float) -> None:
    verdict = judged("parity", delivered=off((0, 0), value), reference=double)
    assert (verdict.status, verdict.measured) == (Status.BROKEN, None)
    assert "instead of" in verdict.message


def test_nan_on_both_sides_is_still_failure(judged: Judge) -> None:
    nan = off((0, 0), np.nan)
    assert judged("parity", delivered=nan, reference=nan).status is Status.BROKEN


def test_another_rank_is_failure_and_told(judged: Judge) -> None:
    verdict = judged("parity", delivered=lambda i: {"y": double(i)["y"].squeeze()}, reference=double)
    assert verdict.status is Status.BROKEN
    assert "has shape [4] instead of [1, 4]" in verdict.message
    assert "only where batch = 1" in verdict.message


def test_a_frozen_branch_on_batch_size_is_named_with_its_axis(judged: Judge) -> None:
    def branching(inputs: Tensors) -> dict[str, Array]:
        return {"y": inputs["x"] if len(inputs["x"]) == 1 else inputs["x"] * 2}

    verdict = judged("parity", delivered=double, reference=branching)
    assert verdict.status is Status.BROKEN
    assert "it differs only where batch = 1" in verdict.message
    assert "do not branch on the size of 'batch'" in verdict.fix


def test_masked_rows_that_differ_are_told_apart(judged: Judge) -> None:
    def mean(guard: bool) -> Runner:
        def run(inputs: Tensors) -> dict[str, Array]:
            mask = inputs["m"].astype(np.float32)
            with np.errstate(invalid="ignore"):
                return {"y": (inputs["x"] * mask).sum(1) / (np.maximum(mask.sum(1), 1) if guard else mask.sum(1))}

        return run

    changes = {
        "inputs": {
            "x": {"dtype": "float32", "shape": ["batch", 4], "range": [-1, 1]},
            "m": {"dtype": "int64", "shape": ["batch", 4], "range": [0, 1]},
        },
        "outputs": {"y": {"dtype": "float32", "shape": ["batch"]}},
    }
    verdict = judged("parity", changes, delivered=mean(guard=False), reference=mean(guard=True))
    assert verdict.status is Status.BROKEN
    assert "masked entirely" in verdict.fix
    assert judged("parity", changes, delivered=mean(guard=True), reference=mean(guard=True)).ok


def test_atol_relative_to_scale_forgives_a_small_part_of_the_largest_value(judged: Judge) -> None:
    def rough(inputs: Tensors) -> dict[str, Array]:
        return {"y": inputs["x"] * 2 * 1.01}

    tolerance = Tolerance(atol=0.02)
    assert judged("parity", delivered=rough, reference=double, parity=tolerance).status is Status.BROKEN
    assert judged("parity", delivered=rough, reference=double, parity=tolerance, relative_to_scale=True).ok


def test_an_original_that_differs_from_itself_is_told_as_such(judged: Judge) -> None:
    """Otherwise people would look for the fault in the exporter."""
    rng = np.random.default_rng(0)

    def random(inputs: Tensors) -> dict[str, Array]:
        return {"y": inputs["x"] * rng.random(4, dtype=np.float32)}

    verdict = judged("parity", delivered=double, reference=random, reference_again=random)
    assert "the original differs from itself too" in verdict.message
    assert "training=self.training" in verdict.fix
    assert "itself" not in judged("parity", delivered=off((0, 0), 1.0), reference=double, reference_again=double).message


def test_an_original_that_cannot_run_inside_the_bounds_is_told_as_such(judged: Judge) -> None:
    def fails(inputs: Tensors) -> dict[str, Array]:
        if len(inputs["x"]) == 1:
            raise EngineFailed("expected more than 1 value per channel")
        return double(inputs)

    verdict = judged("parity", delivered=double, reference=fails)
    assert verdict.status is Status.BROKEN
    assert verdict.message == "the original itself fails on probe 'random batch=1': expected more than 1 value per channel"
    assert "bound the axes" in verdict.fix
    assert judged("determinism", delivered=double, reference=fails, reference_again=fails).ok


def test_without_an_original_it_is_skipped(judged: Judge) -> None:
    assert judged("parity", delivered=double).status is Status.SKIPPED
