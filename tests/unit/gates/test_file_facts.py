"""lint, signature and compatibility on facts as they are read back from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tauten.gates.compatibility import admits
from tauten.spec.engine import Tensors
from tauten.spec.graph import Graph, Initializer, Node, Value
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

Judge = Callable[..., Verdict]
X, Y = Value("x", "float32", ("batch", 4)), Value("y", "float32", ("batch", 4))
W = Initializer("w", "float32", (4, 4), 64)
GRAPH = Graph(
    ir_version=10, opsets={"": 20}, inputs=(X,), outputs=(Y,), initializers=(W,), metadata={}, producer="test",
    files={"model.onnx": 900}, nodes=(Node("mm", "MatMul", "", ("x", "w"), ("h",)), Node("act", "Relu", "", ("h",), ("y",))),
)  # fmt: skip


def same(inputs: Tensors) -> dict[str, Array]:
    return {"y": inputs["x"]}


@pytest.fixture
def told(judged: Judge) -> Callable[..., tuple[Status, str, str]]:
    """told(gate, changes of the graph, contract changes, **fields): status, message, fix."""

    def tell(
        gate: str, graph: dict[str, Any], contract: dict[str, Any] | None = None, **fields: Any
    ) -> tuple[Status, str, str]:
        verdict = judged(gate, contract or {}, delivered=same, graph=replace(GRAPH, **graph), **fields)
        return verdict.status, verdict.message, verdict.fix

    return tell


Told = Callable[..., tuple[Status, str, str]]


@pytest.mark.parametrize("gate", ["lint", "signature", "compatibility"])
def test_a_sound_file_holds_and_no_graph_is_skipped(told: Told, judged: Judge, gate: str) -> None:
    assert told(gate, {})[0] is Status.HELD
    assert judged(gate, delivered=same).status is Status.SKIPPED


MM, ACT = GRAPH.nodes
LINTS: dict[str, tuple[dict[str, Any], str]] = {
    "two nodes write one value": ({"nodes": (MM, ACT, replace(ACT, name="b"))}, "value 'y' is written by 2 nodes"),
    "a weight stored twice": ({"initializers": (W, W)}, "weight 'w' is stored 2 times"),
    "a weight that is an input": ({"inputs": (X, Value("w", "float32", (4, 4)))}, "weight 'w' is also an input"),
    "unsorted nodes": ({"nodes": (ACT, MM)}, "Relu 'act' reads 'h', which is written only later"),
    "a lost value": ({"nodes": (replace(ACT, inputs=("gone",)),)}, "reads 'gone', which nothing writes"),
    "a lost output": ({"outputs": (Y, Value("z", "float32", (1,)))}, "output 'z' is written by nothing"),
    "an output listed twice": ({"outputs": (Y, Y)}, "output 'y' is listed 2 times"),
    "an input without a name": ({"inputs": (X, Value("", None, None))}, "an input has no name"),
    "an input that is written": ({"nodes": (MM, replace(ACT, outputs=("y", "x")))}, "value 'x' is written by Relu 'act'"),
    "a file too large": ({"files": {"model.onnx": 1 << 31}}, "more than a protobuf message can have"),
    "a missing data file": ({"initializers": (replace(W, location="w.data"),)}, "stored in 'w.data', which is missing"),
    "a data file cut short": (
        {"initializers": (replace(W, location="w.data"),), "files": {"m": 1, "w.data": 63}}, "ends at byte 64 of 'w.data'",
    ),
    "dead bytes before": (
        {"initializers": (replace(W, nbytes=4096, location="w.data", offset=8192),), "files": {"m": 1, "w.data": 12288}},
        "8,192 of 12,288 bytes in 'w.data' belong to no weight",
    ),
    "dead bytes after": (
        {"initializers": (replace(W, location="w.data"),), "files": {"m": 1, "w.data": 164}}, "100 of 164 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LINTS)
def test_lint_finds(told: Told, kind: str) -> None:
    change, message = LINTS[kind]
    status, text, fix = told("lint", change)
    assert status is Status.BROKEN
    assert message in text
    assert fix


SOUND: dict[str, dict[str, Any]] = {
    "aligned weights": {
        "initializers": (replace(W, location="d"), Initializer("v", "float32", (16,), 64, "d", 4096)),
        "files": {"m": 1, "d": 4160},
    },
    "weights that share bytes": {
        "initializers": (replace(W, location="d"), Initializer("v", "float32", (4, 4), 64, "d", 0)), "files": {"m": 1, "d": 64},
    },
    "an input given through": {"outputs": (Y, X)},
    "weights as inputs, as IR 3 wants it": {"ir_version": 3, "inputs": (X, Value("w", "float32", (4, 4)))},
    "branches with equal names": {
        "nodes": (MM, ACT, Node("a", "Add", "", ("h",), ("t",), depth=1), Node("b", "Sub", "", ("h",), ("t",), depth=1)),
    },
    "an optional input left out": {"nodes": (MM, replace(ACT, op="Clip", inputs=("h", "", "w")))},
}  # fmt: skip


@pytest.mark.parametrize("kind", SOUND)
def test_lint_lets_pass(told: Told, kind: str) -> None:
    assert told("lint", SOUND[kind])[:2] == (Status.HELD, told("lint", SOUND[kind])[1])


def test_all_troubles_are_in_the_evidence_and_the_first_in_the_message(judged: Judge) -> None:
    verdict = judged("lint", delivered=same, graph=replace(GRAPH, nodes=(ACT, MM), initializers=(W, W)))
    assert len(verdict.evidence["troubles"]) == 2
    assert verdict.measured == 2
    assert verdict.message.endswith("(and 1 more)")


TWO_INPUTS = {"inputs": {n: {"dtype": "float32", "shape": ["batch", 4]} for n in ("x", "b")}}
SIGNATURES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an unused input": ({}, TWO_INPUTS, "input 'b' is unused and was dropped by the exporter"),
    "a renamed input": (
        {"inputs": (X, replace(X, name="b.1"))},
        TWO_INPUTS,
        "input 'b' is not in the file, which has 'b.1' instead",
    ),
    "an input too many": ({"inputs": (X, replace(X, name="t"))}, {}, "takes an input 't' that the contract does not list"),
    "a missing output": ({"outputs": (replace(Y, name="z"),)}, {}, "output 'y' is not in the file; it has z"),
    "an output too many": ({"outputs": (Y, replace(Y, name="z"))}, {}, "has an output 'z' that the contract does not list"),
    "another type": ({"inputs": (replace(X, dtype="float64"),)}, {}, "input 'x' has type float64, asked is float32"),
    "another rank": ({"outputs": (replace(Y, shape=(4,)),)}, {}, "output 'y' has rank 1 [4], asked is float32[batch, 4]"),
    "a frozen axis": ({"inputs": (replace(X, shape=(1, 4)),)}, {}, "axis 'batch' was asked to be dynamic but is fixed to 1"),
    "another size": ({"inputs": (replace(X, shape=("b", 5)),)}, {}, "input 'x' has 5 in dimension 1, asked is 4"),
}


@pytest.mark.parametrize("kind", SIGNATURES)
def test_signature_finds(told: Told, kind: str) -> None:
    graph, contract, message = SIGNATURES[kind]
    status, text, fix = told("signature", graph, contract)
    assert status is Status.BROKEN
    assert message in text
    assert fix


def test_signature_does_not_mind_order_other_axis_names_or_sizes_that_outputs_declare(told: Told) -> None:
    b = replace(X, name="b")
    assert told("signature", {"inputs": (b, X)}, TWO_INPUTS)[0] is Status.HELD
    assert told("signature", {"inputs": (replace(X, shape=(None, 4)),)})[0] is Status.HELD
    assert told("signature", {"outputs": (replace(Y, shape=(30, "n")),)})[0] is Status.HELD
    assert told("signature", {"outputs": (replace(Y, shape=None),)})[0] is Status.HELD
    assert told("signature", {"inputs": (X, Value("w", "float32", (4, 4)))})[0] is Status.HELD  # a weight, which lint refuses


def test_another_opset_than_asked_is_told_with_both_numbers(told: Told) -> None:
    status, text, fix = told("signature", {"opsets": {"": 18}}, asked_opset=11)
    assert (status, text) == (Status.BROKEN, "opset 11 was asked, the exporter wrote opset 18")
    assert "target.opset: 18" in fix
    assert told("signature", {"opsets": {"": 18}}, asked_opset=18)[0] is Status.HELD
    assert told("signature", {"opsets": {"": 9}})[0] is Status.HELD  # handed over as it is


def target(version: str) -> dict[str, Any]:
    return {"target": {"engine_version": version, "opset": 20}}


@pytest.mark.parametrize(
    ("graph", "version", "message"),
    [
        ({"opsets": {"": 22}}, ">=1.20", "opset 22, but onnxruntime 1.18 reads 21 at most"),
        ({"opsets": {"": 20}}, ">=1.16,<2", "opset 20, but onnxruntime 1.16 reads 19 at most"),
        ({"opsets": {"": 6}}, "", "opset 6: onnxruntime reads 7 and newer"),
        ({"ir_version": 11}, ">=1.20", "IR version 11, but onnxruntime 1.18 reads 10 at most"),
        ({"opsets": {"": 20, "ai.onnx.ml": 5}}, ">=1.20", "opset 5 of ai.onnx.ml"),
        ({"nodes": (Node("f", "Fancy", "acme", ("x",), ("y",)),)}, "", "Fancy 'f' is of domain 'acme'"),
        ({}, ">=1.40", "this host has onnxruntime 1.32.0, the contract allows >=1.40"),
        ({}, "<1.30", "this host has onnxruntime 1.32.0"),
        ({}, ">=1.0", "allows versions older than 1.8"),
        ({}, "newest", "'newest' is not a list of versions"),
    ],
)
def test_compatibility_refuses(told: Told, graph: dict[str, Any], version: str, message: str) -> None:
    status, text, fix = told("compatibility", graph, target(version), engine={"version": "1.32.0"})
    assert status is Status.BROKEN
    assert message in text
    assert fix


@pytest.mark.parametrize(
    ("graph", "version"),
    [
        ({"opsets": {"": 21}}, ">=1.20"),
        ({"opsets": {"": 28}, "ir_version": 13}, ""),
        ({"opsets": {"": 28}}, ">=1.32"),
        ({"opsets": {"": 15}, "ir_version": 8}, "~=1.10"),
        ({"nodes": (Node("q", "DynamicQuantizeMatMul", "com.microsoft", ("x",), ("y",)),)}, ">=1.20"),
    ],
)
def test_compatibility_lets_pass(told: Told, graph: dict[str, Any], version: str) -> None:
    assert told("compatibility", graph, target(version), engine={"version": "1.32.0"})[0] is Status.HELD


def test_compatibility_tells_the_oldest_version_that_reads_the_file(told: Told) -> None:
    assert told("compatibility", {})[1] == "opset 20, IR 10: onnxruntime 1.18 and newer read it"
    assert told("compatibility", {"opsets": {"": 17}, "ir_version": 8})[1].endswith("onnxruntime 1.12 and newer read it")


@pytest.mark.parametrize(
    ("specifier", "version", "admitted"),
    [
        ("", "1.0", True), (">=1.20,<2", "1.32.0", True), (">=1.20,<2", "2.0", False), (">=1.20", "1.9.9", False),
        ("==1.20", "1.20.0", True), ("!=1.20", "1.20", False), (">1.20", "1.20.0", False), ("<=1.20", "1.20.1", False),
        ("~=1.20", "1.99", True), ("~=1.20", "2.0", False), ("~=1.20.1", "1.20.9", True), ("~=1.20.1", "1.21", False),
        (">=1.32", "1.32.0rc1", True),
    ],
)  # fmt: skip
def test_versions_are_compared_as_numbers(specifier: str, version: str, admitted: bool) -> None:
    assert admits(specifier, version) is admitted
