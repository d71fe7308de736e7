"""axes: bounds for every dynamic axis, and a model that really runs inside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tauten.spec.engine import Runner, Tensors
from tauten.spec.errors import EngineFailed
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

Judge = Callable[..., Verdict]
SEQ = {
    "inputs": {"x": {"dtype": "float32", "shape": ["batch", "t"]}},
    "outputs": {"y": {"dtype": "float32", "shape": ["batch", "t"]}},
    "axes": {"batch": {"min": 1, "max": 4}, "t": {"min": 2, "opt": 5, "max": 16}},
}


def same(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"]}


def only_at(axis: int, size: int) -> Runner:
    """Runs where the input has one size along an axis; elsewhere it fails as ONNX Runtime does."""

    def run(inputs: Tensors) -> dict[str, Array]:
        if inputs["x"].shape[axis] != size:
            raise EngineFailed("ONNX Runtime failed: Non-zero status code while running Reshape node. Name:'view_3'")
        return {"y": inputs["x"]}

    return run


def test_a_model_that_runs_at_every_size_holds_and_tells_what_was_tried(judged: Judge) -> None:
    verdict = judged("axes", SEQ, delivered=same)
    assert verdict.status is Status.HELD
    assert {2, 3, 5, 7, 13, 16} <= set(verdict.evidence["tried"]["t"])
    assert {1, 2, 3, 4} == set(verdict.evidence["tried"]["batch"])


def test_an_axis_without_bounds_is_refused_with_the_line_to_add(judged: Judge) -> None:
    verdict = judged("axes", {"axes": {"batch": {"max": 8}}, **{k: SEQ[k] for k in ("inputs", "outputs")}}, delivered=same)
    assert verdict.status is Status.BROKEN
    assert "axis 't' is dynamic but has no bounds" in verdict.message
    assert "axes: {t: {min: 1, max: 256}}" in verdict.fix


def test_dynamic_in_name_only_is_told_with_axis_size_and_node(judged: Judge) -> None:
    verdict = judged("axes", SEQ, delivered=only_at(1, 5))
    assert verdict.status is Status.BROKEN
    assert "axis 't' is dynamic in name but works at t = 5 only; at 2: " in verdict.message
    assert "'view_3'" in verdict.message
    assert verdict.evidence["failed"][0]["sizes"]["t"] != 5


def test_baked_batch_names_the_batch_axis(judged: Judge) -> None:
    verdict = judged("axes", SEQ, delivered=only_at(0, 2))
    assert "axis 'batch' is dynamic in name but works at batch = 2 only" in verdict.message
    assert "x.shape[0]" in verdict.fix


def test_a_dropped_batch_axis_at_one_row_is_found_by_rank(judged: Judge) -> None:
    verdict = judged("axes", delivered=lambda i: {"y": i["x"].squeeze()})
    assert verdict.status is Status.BROKEN
    assert "at batch = 1: output 'y' has shape [4], declared is float32[batch, 4], that is [1, 4]" in verdict.message
    assert "squeeze(dim)" in verdict.fix


def test_an_output_of_another_size_than_declared_fails(judged: Judge) -> None:
    verdict = judged("axes", SEQ, delivered=lambda i: {"y": i["x"][:, :5]})
    assert verdict.status is Status.BROKEN
    assert "fails at t = 7" in verdict.message


def test_a_missing_output_is_named(judged: Judge) -> None:
    assert "output 'y' is missing; the model gives z" in judged("axes", delivered=lambda i: {"z": i["x"]}).message


def test_an_axis_that_only_outputs_have_is_held_to_its_bounds_and_to_one_size(judged: Judge) -> None:
    changes = {
        "outputs": {n: {"dtype": "float32", "shape": ["batch", "found"]} for n in ("y", "z")},
        "axes": {"batch": {"max": 4}, "found": {"min": 0, "max": 3}},
    }

    def finds(y: int, z: int) -> Runner:
        return lambda i: {"y": np.zeros((len(i["x"]), y), np.float32), "z": np.zeros((len(i["x"]), z), np.float32)}

    assert judged("axes", changes, delivered=finds(2, 2)).ok
    assert "has 4 along 'found', allowed is 0 to 3" in judged("axes", changes, delivered=finds(4, 4)).message
    assert "declared is float32[batch, found], that is" in judged("axes", changes, delivered=finds(2, 1)).message


def test_a_model_of_fixed_sizes_is_run_too(judged: Judge) -> None:
    fixed = {
        "inputs": {"x": {"dtype": "float32", "shape": [2, 4]}},
        "outputs": {"y": {"dtype": "float32", "shape": [2, 4]}},
        "axes": {},
    }
    assert "every axis is fixed" in judged("axes", fixed, delivered=same).message
    verdict = judged("axes", fixed, delivered=only_at(0, 3))
    assert (verdict.status, "fails at its fixed size" in verdict.message) == (Status.BROKEN, True)


def test_two_axes_that_fail_together_only_are_both_told(judged: Judge) -> None:
    def picky(inputs: Tensors) -> dict[str, Array]:
        if inputs["x"].shape == (4, 16):
            raise EngineFailed("out of memory")
        return {"y": inputs["x"]}

    verdict = judged("axes", SEQ, delivered=picky)
    assert "fails at batch = 4, t = 16: out of memory" in verdict.message
