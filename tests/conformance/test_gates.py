"""Every gate: a known-bad model fails it, a known-good one passes, twice the same, in plain JSON, with the fix.

The models are real graphs run by the real engine, under the conditions that the delivery line makes. A new file in gates/ needs
a row in FIXTURES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import parser

from tauten.delivery.probes import make_probes
from tauten.delivery.subject import Memo, Wish, open_subject
from tauten.spec import plugins
from tauten.spec.contract import Contract
from tauten.spec.judging import Score, Speed, Subject
from tauten.spec.source import Opened
from tauten.spec.verdict import Status, Verdict

GATES = plugins.names("gates")
HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
GOOD = "g (float[batch, t] x) => (float[batch, t] y) {h = Relu(x) y = Tanh(h)}"
PLAIN: dict[str, Any] = {
    "contract": 1,
    "inputs": {"x": {"dtype": "float32", "shape": ["batch", "t"], "range": [-2, 2], "pad": 0}},
    "outputs": {"y": {"dtype": "float32", "shape": ["batch", "t"]}},
    "axes": {"batch": {"min": 1, "opt": 4, "max": 8}, "t": {"min": 1, "opt": 4, "max": 8, "buckets": [4, 8]}},
    "target": {"engine_version": ">=1.20"},
    "accuracy": {"data": "d.csv", "metric": "accuracy", "max_drop": 0.01},
}


def graph(body: str, shape: str = "float[batch, t]") -> str:
    return f"g ({shape} x) => ({shape} y) {{{body}}}"


# name: (graph, contract changes, fields of the wish, what the message must say)
FIXTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "lint": (graph("y = Tanh(h) h = Relu(x)"), {}, {}, "Tanh 'y' reads 'h', which is written only later"),
    "compatibility": (graph("y = Tanh(x)"), {"target": {"engine_version": ">=1.16"}}, {}, "opset 20, but onnxruntime 1.16"),
    "signature": (graph("y = Tanh(x)", "float[batch, 4]"), {}, {}, "axis 't' was asked to be dynamic but is fixed to 4"),
    "axes": (graph("s = Constant<value_ints=[-1, 4]>() y = Reshape(x, s)"), {}, {}, "works at t = 4 only"),
    "parity": (graph("h = Relu(x) g = Tanh(h) c = Constant<value_float=0.001>() y = Add(g, c)"), {}, {}, "differs by 0.001"),
    "batch_invariance": (
        graph("a = Constant<value_ints=[0]>() m = ReduceMean(x, a) y = Sub(x, m)"), {}, {}, "ReduceMean 'centre'",
    ),
    "padding_invariance": (
        graph("a = Constant<value_ints=[1]>() m = ReduceMean(x, a) y = Sub(x, m)"), {}, {}, "ReduceMean 'centre'",
    ),
    "determinism": (graph("r = RandomUniformLike(x) y = Add(x, r)"), {}, {}, "RandomUniformLike"),
    "finite": (graph("h = Log(x) y = Tanh(h)"), {}, {}, "Log "),
    "accuracy": (GOOD, {}, {"score": Score("accuracy", 0.90, 100)}, "+5.00 points lost"),
    "speed": (GOOD, {}, {"speed": Speed((0.9, 1.0, 1.1, 0.95, 1.02, 0.97), "batch 8", 90.0, 95.0)}, "not worth it"),
}  # fmt: skip


@pytest.fixture
def subject(tmp_path: Path) -> Callable[..., Any]:
    """subject(graph, contract changes, **fields of the wish): a context that gives the subject. The original is GOOD."""

    @contextmanager
    def make(text: str, changes: dict[str, Any], **wish: Any) -> Iterator[Subject]:
        contract = Contract.of({**PLAIN, **changes})
        original, model = tmp_path / "original.onnx", tmp_path / "model.onnx"
        for path, body in ((original, GOOD), (model, text)):
            proto = parser.parse_model(HEAD + body)
            for node in proto.graph.node:
                node.name = "centre" if node.op_type == "ReduceMean" else node.output[0]
            path.write_bytes(proto.SerializeToString())
        opened = Opened(kind="onnx", name="good", suggested=contract.signature, reference=None, model=original)
        memo = Memo().parent(Score("accuracy", 0.95, 100))
        fields = {"score": Score("accuracy", 0.95, 100), "speed": Speed((1.5,) * 6, "batch 8", 150.0, 100.0), **wish}
        wished = Wish(model=model, parity=contract.tolerances.parity, **fields)
        with open_subject(contract, opened, wished, make_probes(contract), memo) as made:
            yield made

    return make


def judge(gate: str, subject: Subject) -> Verdict:
    verdict: Verdict = plugins.load("gates", gate).judge(subject)
    assert verdict.name == gate
    return verdict


def test_every_gate_has_a_known_bad_model() -> None:
    assert set(GATES) == set(FIXTURES)


@pytest.mark.parametrize("gate", GATES)
def test_a_known_bad_model_fails_with_the_reason_and_the_fix(gate: str, subject: Callable[..., Any]) -> None:
    text, changes, wish, told = FIXTURES[gate]
    with subject(text, changes, **wish) as made:
        verdict = judge(gate, made)
    assert verdict.status is Status.BROKEN
    assert told in verdict.message
    assert verdict.fix
    assert verdict.samples > 0


@pytest.mark.parametrize("gate", GATES)
def test_a_known_good_model_passes_in_plain_json(gate: str, subject: Callable[..., Any]) -> None:
    with subject(GOOD, {}) as made:
        verdict = judge(gate, made)
    assert verdict.status is Status.HELD
    assert not verdict.fix
    assert verdict.message
    again = msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict)
    assert again == verdict
    assert msgspec.json.decode(msgspec.json.encode(verdict.evidence)) == verdict.evidence


@pytest.mark.parametrize("gate", [g for g in GATES if g != "determinism"])
def test_judged_twice_it_says_the_same_of_good_and_bad(gate: str, subject: Callable[..., Any]) -> None:
    text, changes, wish, _ = FIXTURES[gate]
    for arguments in ((text, changes, wish), (GOOD, {}, {})):
        found = []
        for _ in range(2):
            with subject(arguments[0], arguments[1], **arguments[2]) as made:
                found.append(judge(gate, made))
        assert found[0] == found[1]


def test_judging_leaves_the_probes_and_the_file_alone(subject: Callable[..., Any], tmp_path: Path) -> None:
    with subject(FIXTURES["batch_invariance"][0], {}) as made:
        before = (tmp_path / "model.onnx").read_bytes()
        values = [{n: v.copy() for n, v in p.inputs.items()} for p in made.probes]
        for gate in GATES:
            judge(gate, made)
        assert (tmp_path / "model.onnx").read_bytes() == before
        assert all(np.array_equal(v, p.inputs[n]) for p, kept in zip(made.probes, values, strict=True) for n, v in kept.items())
