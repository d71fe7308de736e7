"""Faults that happened to people, as graphs that the real engine runs: each is refused for its own reason, with its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tauten.delivery.probes import make_probes
from tauten.delivery.subject import Wish, open_subject
from tauten.formats.onnx_file import read_graph
from tauten.spec import plugins
from tauten.spec.contract import Contract
from tauten.spec.errors import BadModel, BadRequest
from tauten.spec.judging import Subject
from tauten.spec.source import Opened
from tauten.spec.verdict import Status, Verdict

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
B34: dict[str, Any] = {
    "contract": 1,
    "inputs": {"x": {"dtype": "float32", "shape": ["batch", 3, 4]}},
    "outputs": {"y": {"dtype": "float32", "shape": ["batch", 12]}},
    "axes": {"batch": {"min": 1, "opt": 4, "max": 10}},
}
Open = Callable[..., Any]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """opened(model or text, contract data): a context that gives the subject of a model that is its own original."""

    @contextmanager
    def make(model: onnx.ModelProto | str, data: dict[str, Any]) -> Iterator[Subject]:
        contract, path = Contract.of(data), tmp_path / "model.onnx"
        proto = parser.parse_model(HEAD + model) if isinstance(model, str) else model
        path.write_bytes(proto.SerializeToString())
        source = Opened(kind="onnx", name="case", suggested=contract.signature, reference=None, model=path)
        with open_subject(contract, source, Wish(model=path, parity=contract.tolerances.parity), make_probes(contract)) as made:
            yield made

    return make


def judge(gate: str, subject: Subject) -> Verdict:
    verdict: Verdict = plugins.load("gates", gate).judge(subject)
    return verdict


def test_a_batch_labelled_dynamic_that_was_frozen_to_one_is_told_with_axis_and_node(opened: Open) -> None:
    text = """g (float[batch, 3, 4] x) => (float[batch, 12] y) {
        zero = Constant<value_ints=[0]>()
        s = Squeeze(x, zero)
        flat = Constant<value_ints=[1, 12]>()
        y = Reshape(s, flat) }"""
    model = parser.parse_model(HEAD + text)
    model.graph.node[1].name = "node_squeeze"
    with opened(model, B34) as subject:
        verdict = judge("axes", subject)
    assert verdict.status is Status.BROKEN
    assert "axis 'batch' is dynamic in name but works at batch = 1 only; at 2: " in verdict.message
    assert "node_squeeze" in verdict.message
    assert {f["sizes"]["batch"] for f in verdict.evidence["failed"]} == {2, 3, 4, 5, 7, 9, 10}


def test_a_baked_reshape_fails_at_other_batches(opened: Open) -> None:
    """Reshape of x[b, 3, 4] to the constant [2, 12]: the library's full check passes it."""
    text = "g (float[batch, 3, 4] x) => (float[batch, 12] y) {s = Constant<value_ints=[2, 12]>() y = Reshape(x, s)}"
    onnx.checker.check_model(parser.parse_model(HEAD + text), full_check=True)
    with opened(text, B34) as subject:
        verdict = judge("axes", subject)
    assert "works at batch = 2 only" in verdict.message
    assert "Reshape" in verdict.message


def test_a_reshape_that_makes_two_rows_of_four_samples_is_refused_by_rows_and_by_shape(opened: Open) -> None:
    """x[b, 4] to [2, -1], then the mean: no error at b = 4, but two rows come back, built from four samples."""
    text = """g (float[batch, 4] x) => (float[batch] y) {
        s = Constant<value_ints=[2, -1]>()
        r = Reshape(x, s)
        one = Constant<value_ints=[1]>()
        y = ReduceMean<keepdims=0>(r, one) }"""
    data = {
        **B34, "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}},
        "outputs": {"y": {"dtype": "float32", "shape": ["batch"]}},
        "axes": {"batch": {"min": 2, "opt": 4, "max": 8, "multiple_of": 2}},
    }  # fmt: skip
    with opened(text, data) as subject:
        four = subject.delivered({"x": np.arange(16, dtype=np.float32).reshape(4, 4)})["y"]
        rows, shapes = judge("batch_invariance", subject), judge("axes", subject)
    assert four.tolist() == [3.5, 11.5]
    assert rows.status is Status.BROKEN
    assert "has 2 rows for 4 rows in: rows are mixed" in rows.message
    assert "x.reshape(x.shape[0], -1)" in rows.fix
    assert "works at batch = 2 only; at 4: output 'y' has shape [2], declared is float32[batch], that is [4]" in shapes.message


def test_squeeze_without_a_dim_drops_the_batch_axis_at_one_row(opened: Open) -> None:
    text = """g (float[batch, 3, 4] x) => (float[batch, 3] y) {
        two = Constant<value_ints=[2]>()
        m = ReduceMean(x, two)
        y = Squeeze(m) }"""
    with opened(text, {**B34, "outputs": {"y": {"dtype": "float32", "shape": ["batch", 3]}}}) as subject:
        axes, rows = judge("axes", subject), judge("batch_invariance", subject)
    assert "fails at batch = 1: output 'y' has shape [3], declared is float32[batch, 3], that is [1, 3]" in axes.message
    assert "squeeze(dim)" in axes.fix
    assert rows.status is Status.BROKEN


def test_an_axis_without_bounds_is_refused_and_with_bounds_the_request_is(opened: Open) -> None:
    """The file itself has names, no ranges: the engine runs 50 rows of a model that is bounded to 6."""
    text = "g (float[batch, 4] x) => (float[batch, 4] y) {y = Tanh(x)}"
    data = {**B34, "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}}}
    data["outputs"] = {"y": {"dtype": "float32", "shape": ["batch", 4]}}
    with opened(text, {**data, "axes": {}}) as subject:
        verdict = judge("axes", subject)
        assert len(subject.delivered({"x": np.zeros((50, 4), np.float32)})["y"]) == 50
    assert (verdict.status, verdict.fix) == (Status.BROKEN, "add to the contract: axes: {batch: {min: 1, max: 32}}")
    bounded = Contract.of({**data, "axes": {"batch": {"min": 2, "max": 6}}})
    for rows in (2, 6):
        bounded.signature.check({"x": np.zeros((rows, 4), np.float32)})
    for rows in (1, 7, 50):
        with pytest.raises(BadRequest, match=f"has {rows} along axis 'batch', allowed is 2 to 6"):
            bounded.signature.check({"x": np.zeros((rows, 4), np.float32)})
    with opened(text, {**data, "axes": {"batch": {"min": 2, "max": 6}}}) as subject:
        assert {p.sizes["batch"] for p in subject.probes} == {2, 3, 4, 5, 6}
        assert judge("axes", subject).ok


def test_a_loop_unrolled_to_the_example_length_fails_at_other_lengths(opened: Open) -> None:
    """h = tanh(h + x[:, i]) for five steps: longer inputs are cut off without an error, shorter ones fail."""
    steps = " ".join(f"i{i} = Constant<value_int={i}>() g{i} = Gather<axis=1>(x, i{i})" for i in range(5))
    sums = "h0 = Tanh(g0) " + " ".join(f"a{i} = Add(h{i - 1}, g{i}) h{i} = Tanh(a{i})" for i in range(1, 5))
    text = f"g (float[batch, t] x) => (float[batch] y) {{{steps} {sums} y = Identity(h4)}}"
    data = {**B34, "inputs": {"x": {"dtype": "float32", "shape": ["batch", "t"]}},
            "outputs": {"y": {"dtype": "float32", "shape": ["batch"]}},
            "axes": {"batch": {"max": 4}, "t": {"min": 2, "opt": 5, "max": 16}}}  # fmt: skip

    def loop(inputs: Any) -> dict[str, Any]:
        h = np.zeros(len(inputs["x"]), np.float32)
        for i in range(inputs["x"].shape[1]):
            h = np.tanh(h + inputs["x"][:, i])
        return {"y": h}

    with opened(text, data) as subject:
        axes = judge("axes", subject)
        long = Subject(contract=subject.contract, probes=tuple(p for p in subject.probes if p.sizes["t"] >= 5),
                       delivered=subject.delivered, reference=loop, parity=subject.parity)  # fmt: skip
        parity = judge("parity", long)
    assert "fails at t = 2" in axes.message
    assert parity.status is Status.BROKEN
    assert {int(name.rpartition("t=")[2]) > 5 for name in parity.evidence["broken_probes"]} == {True}


@pytest.mark.parametrize("kind", ["two writers", "two weights", "weight as input", "unsorted"])
def test_names_that_runtimes_read_differently_are_refused(opened: Open, tmp_path: Path, kind: str) -> None:
    """The engine by itself takes the last of two weights, sorts nodes silently, and lets a client send a weight."""
    add = helper.make_node("Add", ["x", "w"], ["h"], name="add")
    act = helper.make_node("Relu", ["h"], ["y"], name="act")
    nodes = {"unsorted": [act, add], "two writers": [add, act, helper.make_node("Neg", ["x"], ["y"], name="neg")]}
    weights = [numpy_helper.from_array(np.full(4, v, np.float32), "w") for v in (1, 5)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 4]) for n in "xy")
    w = helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])
    model = helper.make_model(
        helper.make_graph(nodes.get(kind, [add, act]), "g", [x, w] if kind == "weight as input" else [x], [y],
                          weights if kind == "two weights" else weights[:1]),
        opset_imports=[helper.make_opsetid("", 20)], ir_version=10,
    )  # fmt: skip
    told = {
        "two writers": "value 'y' is written by 2 nodes: Relu 'act' and Neg 'neg'",
        "two weights": "weight 'w' is stored 2 times",
        "weight as input": "weight 'w' is also an input: a client could override it",
        "unsorted": "Relu 'act' reads 'h', which is written only later",
    }[kind]
    data = {**B34, "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}},
            "outputs": {"y": {"dtype": "float32", "shape": ["batch", 4]}}}  # fmt: skip
    if kind == "two writers":  # here the engine refuses by itself; the facts are told all the same
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        with pytest.raises(BadModel, match="refuses"), opened(model, data):
            pass
        contract = Contract.of(data)
        verdict = judge("lint", Subject(contract=contract, probes=(), delivered=dict, parity=contract.tolerances.parity,
                                        graph=read_graph(path)))  # fmt: skip
    else:
        with opened(model, data) as subject:
            verdict = judge("lint", subject)
            if kind == "two weights":
                assert subject.delivered({"x": np.zeros((1, 4), np.float32)})["y"][0, 0] == 5
    assert verdict.status is Status.BROKEN
    assert told in verdict.message


def test_bytes_that_a_second_save_left_behind_are_counted(tmp_path: Path) -> None:
    """The library opens the data file for appending: each save to the same name makes it larger."""
    weight = numpy_helper.from_array(np.arange(1024, dtype=np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 1024]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"], name="add")], "g", [x], [y], [weight])
    contract = Contract.of(B34)
    path = tmp_path / "model.onnx"
    dead = []
    for _ in range(3):
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.save_model(model, str(path), save_as_external_data=True, location="model.data", size_threshold=0)
        facts = read_graph(path)
        verdict = judge(
            "lint", Subject(contract=contract, probes=(), delivered=dict, parity=contract.tolerances.parity, graph=facts)
        )
        dead.append((verdict.status, facts.files["model.data"]))
    assert dead[0] == (Status.HELD, 4096)
    assert dead[2] == (Status.BROKEN, 12288)
    assert "8,192 of 12,288 bytes in 'model.data' belong to no weight" in verdict.message
    (tmp_path / "model.data").unlink()
    missing = Subject(contract=contract, probes=(), delivered=dict, parity=contract.tolerances.parity, graph=read_graph(path))
    assert "stored in 'model.data', which is missing" in judge("lint", missing).message


def test_one_activation_scale_for_the_batch_is_found_and_named(opened: Open) -> None:
    text = """g (float[batch, 4] x) => (float[batch, 4] y) <float scale = {0.01}> {
        q, s, z = DynamicQuantizeLinear(x)
        y = DequantizeLinear(q, s, z) }"""
    data = {**B34, "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4], "range": [-2, 2]}},
            "outputs": {"y": {"dtype": "float32", "shape": ["batch", 4]}}}  # fmt: skip
    with opened(text, data) as subject:
        verdict = judge("batch_invariance", subject)
    assert verdict.status is Status.BROKEN
    assert "DynamicQuantizeLinear" in verdict.message
    assert "has one activation scale for the whole batch" in verdict.message
    assert "row-wise scheme, or serve with axes.batch.max: 1" in verdict.fix


def test_a_live_dropout_is_found_by_running_twice(opened: Open) -> None:
    text = """g (float[batch, 4] x) => (float[batch, 4] y) <float ratio = {0.5}, bool training = {1}> {
        y = Dropout(x, ratio, training) }"""
    model = parser.parse_model(HEAD + text)
    model.graph.node[0].name = "drop"
    data = {**B34, "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}},
            "outputs": {"y": {"dtype": "float32", "shape": ["batch", 4]}}}  # fmt: skip
    with opened(model, data) as subject:
        verdict = judge("determinism", subject)
    assert verdict.status is Status.BROKEN
    assert verdict.message == "Dropout 'drop' draws random numbers at every run"
    assert verdict.measured is not None
    assert verdict.measured > 0.5


def test_the_table_of_versions_is_right_about_the_engine_that_is_here(tmp_path: Path) -> None:
    """The last row of the table was measured: this version loads that opset and refuses the next."""
    from tauten.gates.compatibility import TABLE

    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) != TABLE[-1].version:
        pytest.skip("another version of the engine is installed")
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    for opset, loads in ((TABLE[-1].opset, True), (TABLE[-1].opset + 1, False)):
        model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = TABLE[-1].ir
        path = tmp_path / f"{opset}.onnx"
        path.write_bytes(model.SerializeToString())
        engine = plugins.load("engines", "onnxruntime")
        from tauten.spec.engine import EngineSettings

        if loads:
            engine.open(path, EngineSettings()).close()
        else:
            with pytest.raises(BadModel, match="opset"):
                engine.open(path, EngineSettings())
