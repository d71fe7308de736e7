"""determinism: to the last bit under the same settings; live dropout and random operators are named."""

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


def same(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"]}


def moved(by: float) -> Runner:
    return lambda inputs: {"y": inputs["x"] + np.float32(by)}


def dropout() -> Runner:
    rng = np.random.default_rng(0)
    return lambda inputs: {"y": inputs["x"] * rng.integers(0, 2, inputs["x"].shape).astype(np.float32)}


def graph(*nodes: Node) -> Graph:
    return Graph(
        ir_version=10, opsets={"": 20}, inputs=(), outputs=(), initializers=(), metadata={}, producer="", files={}, nodes=nodes
    )


def test_equal_answers_under_every_condition_hold_and_tell_the_conditions(judged: Judge) -> None:
    verdict = judged("determinism", delivered=same, again={"second run": same, "fresh process": same})
    assert verdict.status is Status.HELD
    assert verdict.message == "the same answers under 2 conditions"
    assert set(verdict.evidence["conditions"]) == {"second run", "fresh process"}


def test_without_other_conditions_it_is_simply_run_twice(judged: Judge) -> None:
    assert judged("determinism", delivered=same).ok
    verdict = judged("determinism", delivered=dropout())
    assert verdict.status is Status.BROKEN
    assert "between two runs on one input (again)" in verdict.message
    assert "training=self.training" in verdict.fix


def test_exact_means_the_last_bit_but_not_across_numbers_of_threads(judged: Judge) -> None:
    off = moved(1e-6)
    assert judged("determinism", delivered=same, again={"fresh process": off}).status is Status.BROKEN
    assert judged("determinism", delivered=same, again={"threads=2": off}).status is Status.HELD
    assert judged("determinism", delivered=same, again={"threads=2": moved(1e-3)}).status is Status.BROKEN


def test_a_tolerance_in_the_contract_is_for_everything(judged: Judge) -> None:
    loose: dict[str, Any] = {"tolerances": {"determinism": {"atol": 0.01}}}
    assert judged("determinism", loose, delivered=same, again={"fresh process": moved(0.001)}).ok
    verdict = judged("determinism", loose, delivered=same, again={"threads=2": moved(0.1)})
    assert verdict.status is Status.BROKEN
    assert verdict.limit == 0.01


@pytest.mark.parametrize("op", ["RandomUniformLike", "Bernoulli", "Multinomial", "RandomNormal"])
def test_random_operators_are_refused_even_where_no_probe_shows_them(judged: Judge, op: str) -> None:
    verdict = judged("determinism", delivered=same, graph=graph(Node("noise", op, "", (), ("r",), origin="augment")))
    assert verdict.status is Status.BROKEN
    assert f"{op} 'noise' (layer 'augment') draws random numbers" in verdict.message


def test_a_live_dropout_is_named_and_one_at_rest_is_not(judged: Judge) -> None:
    live = graph(Node("drop", "Dropout", "", ("x", "ratio", "training"), ("y",)))
    verdict = judged("determinism", delivered=dropout(), graph=live)
    assert "Dropout 'drop'" in verdict.message
    assert judged("determinism", delivered=same, graph=live).ok


def test_an_original_that_differs_from_itself_is_told_as_such(judged: Judge) -> None:
    verdict = judged("determinism", delivered=same, reference=dropout(), reference_again=dropout())
    assert verdict.status is Status.HELD  # the same seed twice
    rng = dropout()
    verdict = judged("determinism", delivered=same, reference=rng, reference_again=rng)
    assert verdict.status is Status.BROKEN
    assert "the original answers differently twice" in verdict.message
