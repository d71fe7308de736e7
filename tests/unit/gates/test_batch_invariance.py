"""batch_invariance: whatever makes a row depend on its batch is found, and models that keep rows apart pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tauten.spec.engine import Runner, Tensors
from tauten.spec.graph import Graph, Node
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

Judge = Callable[..., Verdict]


def of_x(function: Callable[[Array], Array]) -> Runner:
    return lambda inputs: {"y": function(inputs["x"]).astype(np.float32)}


def normalised(x: Array) -> Array:
    return np.asarray((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5))


def shared_scale(x: Array) -> Array:
    """Rounded to 8 bits with one scale for all rows, as dynamic quantisation does."""
    scale = max(float(np.nanmax(np.abs(x))), 1e-9) / 127
    return np.round(x / scale) * scale


MIXING: dict[str, Callable[[Array], Array]] = {
    "batch statistics": normalised,
    "one scale for the batch": shared_scale,
    "neighbour": lambda x: x + 0.001 * np.roll(x, 1, axis=0),
    "position": lambda x: x + np.arange(len(x))[:, None] * 0.01,
    "size of the batch": lambda x: x / len(x),
    "softmax over rows": lambda x: np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0),
    "sorted rows": lambda x: np.sort(x, axis=0),
    "NaN of a mate": lambda x: x + 0 * x.sum(),
    "only in full batches": lambda x: x + (len(x) == 8) * 0.01,
}


@pytest.mark.parametrize("kind", MIXING)
def test_whatever_mixes_rows_is_found(judged: Judge, kind: str) -> None:
    verdict = judged("batch_invariance", delivered=of_x(MIXING[kind]))
    assert verdict.status is Status.BROKEN
    assert "changes" in verdict.message
    assert "axes.batch.max: 1" in verdict.fix


@pytest.mark.parametrize(
    "function", [lambda x: x * 2, np.tanh, lambda x: x - x.mean(1, keepdims=True), lambda x: np.sort(x, axis=1)]
)
def test_rows_that_keep_apart_hold(judged: Judge, function: Callable[[Array], Array]) -> None:
    verdict = judged("batch_invariance", delivered=of_x(function))
    assert verdict.status is Status.HELD
    assert verdict.samples > 50


def test_fewer_rows_out_than_in_are_told_with_both_numbers(judged: Judge) -> None:
    def pairs(inputs: Tensors) -> dict[str, Array]:
        flat = inputs["x"].reshape(2, -1) if inputs["x"].shape[0] > 1 else inputs["x"]
        return {"y": np.stack([flat.mean(1)] * 4, axis=1)}

    verdict = judged("batch_invariance", {"axes": {"batch": {"min": 1, "opt": 4, "max": 4, "multiple_of": 1}}}, delivered=pairs)
    assert verdict.status is Status.BROKEN
    assert "has 2 rows for 3 rows in: rows are mixed" in verdict.message or "has 2 rows for 4 rows in" in verdict.message
    assert "x.reshape(x.shape[0], -1)" in verdict.fix


def test_a_batch_axis_that_vanishes_at_one_row_is_told(judged: Judge) -> None:
    verdict = judged("batch_invariance", delivered=lambda i: {"y": i["x"].squeeze()})
    assert "output 'y' has shape [4] for a batch of 1" in verdict.message
    assert "squeeze(dim)" in verdict.fix


def test_masked_neighbours_are_tried(judged: Judge) -> None:
    """Cuts the whole batch to its longest row: wrong once all the others are masked, right otherwise."""

    def cut(inputs: Tensors) -> dict[str, Array]:
        longest = int(inputs["m"].sum(1).min())
        return {"y": inputs["x"][:, :longest].sum(1)}

    changes: dict[str, Any] = {
        "inputs": {
            "x": {"dtype": "float32", "shape": ["batch", 4], "range": [-1, 1]},
            "m": {"dtype": "int64", "shape": ["batch", 4], "range": [0, 1]},
        },
        "outputs": {"y": {"dtype": "float32", "shape": ["batch"]}},
    }
    assert judged("batch_invariance", changes, delivered=cut).status is Status.BROKEN


def test_nan_in_both_is_no_change(judged: Judge) -> None:
    verdict = judged("batch_invariance", delivered=of_x(lambda x: np.where(x > 0, x, np.nan)))
    assert verdict.status is Status.HELD


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"axes": {"batch": {"max": 1}}}, "axes.batch.max is 1"),
        ({"inputs": {"x": {"dtype": "float32", "shape": ["n", 4]}}, "axes": {"n": {"max": 4}},
          "outputs": {"y": {"dtype": "float32", "shape": ["n", 4]}}}, "input 'x' does not lead with 'batch'"),
        ({"outputs": {"y": {"dtype": "float32", "shape": [4]}}}, "output 'y' does not lead with 'batch'"),
    ],
)  # fmt: skip
def test_rows_that_are_never_gathered_are_skipped_with_the_reason(judged: Judge, changes: dict[str, Any], reason: str) -> None:
    verdict = judged("batch_invariance", changes, delivered=of_x(normalised))
    assert verdict.status is Status.SKIPPED
    assert reason in verdict.message


def test_batches_keep_to_the_bounds_and_the_step(judged: Judge) -> None:
    seen: set[int] = set()

    def spy(inputs: Tensors) -> dict[str, Array]:
        seen.add(len(inputs["x"]))
        return {"y": inputs["x"]}

    assert judged("batch_invariance", {"axes": {"batch": {"min": 2, "max": 6, "multiple_of": 2}}}, delivered=spy).ok
    assert seen <= {2, 4, 6}
    assert 6 in seen


NORM = Node("bn1", "BatchNormalization", "", ("h",), ("n",))
GRAPH = Graph(
    ir_version=10, opsets={"": 20}, inputs=(), outputs=(), initializers=(), metadata={}, producer="", files={"m": 1},
    nodes=(Node("lin", "MatMul", "", ("x",), ("h",)), NORM, Node("act", "Relu", "", ("n",), ("y",))),
)  # fmt: skip


def inside(names: tuple[str, ...]) -> Runner:
    def run(inputs: Tensors) -> dict[str, Array]:
        h = inputs["x"] * 2
        n = normalised(h)
        values = {"h": h, "n": n, "y": np.maximum(n, 0)}
        return {name: values[name] for name in names}

    return run


def test_the_operator_that_mixes_rows_is_named_with_its_cause_and_fix(judged: Judge) -> None:
    verdict = judged("batch_invariance", delivered=inside(("y",)), graph=GRAPH, taps=inside)
    assert verdict.status is Status.BROKEN
    assert verdict.measured is not None
    told = r"row \d changes by [\d.]+ when its batch mates change: BatchNormalization 'bn1' uses batch statistics"
    assert re.fullmatch(told, verdict.message)
    assert verdict.fix == "track_running_stats=True (and eval()), or serve with axes.batch.max: 1"
    assert verdict.evidence["node"] == "BatchNormalization 'bn1'"
