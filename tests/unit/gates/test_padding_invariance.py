"""padding_invariance: what lets padding into the answer is found; what masks it, or cuts it off, passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tauten.spec.engine import Runner, Tensors
from tauten.spec.graph import Graph, Node
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

Judge = Callable[..., Verdict]
POOLED: dict[str, Any] = {
    "inputs": {
        "x": {"dtype": "float32", "shape": ["batch", "seq"], "range": [-1, 1], "pad": 0.5},
        "m": {"dtype": "int64", "shape": ["batch", "seq"], "range": [0, 1], "pad": 0},
    },
    "outputs": {"y": {"dtype": "float32", "shape": ["batch"]}},
    "axes": {"batch": {"max": 4}, "seq": {"min": 1, "opt": 6, "max": 16, "buckets": [4, 8, 16]}},
}
PER_TOKEN: dict[str, Any] = {**POOLED, "outputs": {"y": {"dtype": "float32", "shape": ["batch", "seq"]}}}


def masked_mean(inputs: Tensors) -> dict[str, Array]:
    m = inputs["m"].astype(np.float32)
    return {"y": (inputs["x"] * m).sum(1) / np.maximum(m.sum(1), 1)}


def plain_mean(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"].mean(1)}


def backwards_sum(inputs: Tensors) -> dict[str, Array]:
    return {"y": np.cumsum(inputs["x"][:, ::-1], axis=1, dtype=np.float32)[:, ::-1]}


def test_a_masked_mean_holds(judged: Judge) -> None:
    verdict = judged("padding_invariance", POOLED, delivered=masked_mean)
    assert verdict.status is Status.HELD
    assert verdict.samples > 10


def test_a_mean_that_counts_padding_is_refused_with_both_sizes(judged: Judge) -> None:
    verdict = judged("padding_invariance", POOLED, delivered=plain_mean)
    assert verdict.status is Status.BROKEN
    assert verdict.measured is not None
    assert verdict.measured > 0.1
    assert "when 'seq' is padded from " in verdict.message
    assert verdict.evidence["padded"] > verdict.evidence["size"]
    assert "take 'pad' out of the inputs" in verdict.fix


def test_outputs_that_have_the_axis_are_cut_back(judged: Judge) -> None:
    assert judged("padding_invariance", PER_TOKEN, delivered=lambda i: {"y": i["x"] * 2}).ok
    assert judged("padding_invariance", PER_TOKEN, delivered=lambda i: {"y": np.cumsum(i["x"], axis=1, dtype=np.float32)}).ok


def test_a_state_that_runs_backwards_through_padding_is_found(judged: Judge) -> None:
    assert judged("padding_invariance", PER_TOKEN, delivered=backwards_sum).status is Status.BROKEN


def test_the_operator_is_named(judged: Judge) -> None:
    def inside(names: tuple[str, ...]) -> Runner:
        def run(inputs: Tensors) -> dict[str, Array]:
            values = {"h": inputs["x"] * 2, "y": (inputs["x"] * 2).mean(1)}
            return {n: values[n] for n in names}

        return run

    graph = Graph(
        ir_version=10, opsets={"": 20}, inputs=(), outputs=(), initializers=(), metadata={}, producer="", files={},
        nodes=(Node("mul", "Mul", "", ("x",), ("h",)), Node("pool", "ReduceMean", "", ("h",), ("y",), origin="pooling")),
    )  # fmt: skip
    verdict = judged("padding_invariance", POOLED, delivered=inside(("y",)), graph=graph, taps=inside)
    assert "ReduceMean 'pool' (layer 'pooling') counts padded positions" in verdict.message
    assert "divide by the mask's sum" in verdict.fix


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "no axis has buckets"),
        (
            {**POOLED, "inputs": {**POOLED["inputs"], "x": {"dtype": "float32", "shape": ["batch", "seq"]}}},
            "input 'x' has no 'pad'",
        ),
        ({**POOLED, "axes": {"batch": {"max": 4}, "seq": {"max": 16}}}, "no axis has buckets"),
    ],
)
def test_what_is_never_padded_is_skipped_with_the_reason(judged: Judge, changes: dict[str, Any], reason: str) -> None:
    verdict = judged("padding_invariance", changes, delivered=plain_mean)
    assert verdict.status is Status.SKIPPED
    assert reason in verdict.message
