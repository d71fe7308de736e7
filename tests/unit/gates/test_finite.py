"""finite: NaN and infinities are failures wherever they come from, and their origin is told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tauten.spec.engine import Runner, Tensors
from tauten.spec.graph import Graph, Node
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

Judge = Callable[..., Verdict]


def same(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"]}


def unit(inputs: Tensors) -> dict[str, Array]:
    """x / |x|: NaN for a row of zeros."""
    with np.errstate(invalid="ignore"):
        return {"y": inputs["x"] / np.linalg.norm(inputs["x"], axis=1, keepdims=True)}


def half(inputs: Tensors) -> dict[str, Array]:
    with np.errstate(over="ignore"):
        return {"y": (inputs["x"].astype(np.float16) * 100).astype(np.float32)}


def test_finite_answers_hold_and_tell_the_largest(judged: Judge) -> None:
    verdict = judged("finite", delivered=same)
    assert verdict.status is Status.HELD
    assert verdict.evidence["largest"]["y"] > 1000


def test_division_by_zero_is_found_and_the_original_blamed_where_it_does_it_too(judged: Judge) -> None:
    verdict = judged("finite", delivered=unit, reference=same)
    assert verdict.status is Status.BROKEN
    assert verdict.evidence["broken_probes"] == ["zeros batch=4"]
    assert "original" not in verdict.message
    assert "epsilon" in verdict.fix
    assert "the original does it too" in judged("finite", delivered=unit, reference=unit).message


def test_overflow_of_half_precision_shows_on_large_values(judged: Judge) -> None:
    verdict = judged("finite", delivered=half, reference=same)
    assert verdict.status is Status.BROKEN
    assert verdict.evidence["broken_probes"] == ["large batch=4"]


def test_a_range_that_its_type_cannot_hold_is_refused(judged: Judge) -> None:
    wide = {"inputs": {"x": {"dtype": "float16", "shape": ["batch", 4], "range": [0, 1e5]}}}
    verdict = judged("finite", wide, delivered=same)
    assert (verdict.status, "float16 ends at 65504" in verdict.message) == (Status.BROKEN, True)


def test_the_operator_that_makes_it_is_named_and_masks_of_minus_infinity_are_not(judged: Judge) -> None:
    def inside(names: tuple[str, ...]) -> Runner:
        def run(inputs: Tensors) -> dict[str, Array]:
            values = {"mask": np.full_like(inputs["x"], -np.inf), "n": unit(inputs)["y"], "y": unit(inputs)["y"] + 1}
            return {n: values[n] for n in names}

        return run

    graph = Graph(
        ir_version=10, opsets={"": 20}, inputs=(), outputs=(), initializers=(), metadata={}, producer="", files={},
        nodes=(
            Node("where", "Where", "", ("x",), ("mask",)),
            Node("div", "Div", "", ("x",), ("n",)),
            Node("add", "Add", "", ("n",), ("y",)),
        ),
    )  # fmt: skip
    verdict = judged("finite", delivered=inside(("y",)), graph=graph, taps=inside)
    assert verdict.message.endswith("Div 'div' makes it")
