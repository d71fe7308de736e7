"""What an exporter left is given the contract's names, axes and bounds, and loses what names a machine."""

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tauten.formats import onnx_file, onnx_finish
from tauten.spec.contract import Contract

CONTRACT = Contract.parse("""
contract: 1
inputs: {add: {dtype: float32, shape: [batch, seq]}}
outputs: {relu: {dtype: float32, shape: [batch, 4]}}
axes: {batch: {min: 1, opt: 2, max: 6}, seq: {min: 4, max: 64, multiple_of: 4}}
""")
NAMES = {"in_0": "add", "out_0": "relu"}


def raw(dims: list[str | int | None]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["in_0", "in_0"], ["add"], name="/model/net/net.0/Add", doc_string="/home/somebody/net.py:3"),
        helper.make_node("Relu", ["add"], ["relu"], name="node_relu"),
        helper.make_node("Mul", ["relu", "model.scale"], ["out_0"]),
    ]
    scopes = "['', 'model', 'model.net', 'relu']"
    for key, text in (("pkg.torch.onnx.name_scopes", scopes), ("pkg.torch.onnx.stack_trace", "/home/somebody/net.py"),
                      ("namespace", ": tauten.Flat/model: m.Net/model.net: torch.nn.ReLU/relu: aten.relu")):  # fmt: skip
        nodes[1].metadata_props.add(key=key, value=text)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "main", [value("in_0", TensorProto.FLOAT, dims)], [value("out_0", TensorProto.FLOAT, ["s0", "s9"])],
        [helper.make_tensor("model.scale", TensorProto.FLOAT, [], [2.0])],
        value_info=[value("add", TensorProto.FLOAT, ["s0", 17])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.helper.set_model_props(model, {"pkg.torch.export.ExportedProgram.graph_signature": "at /home/somebody"})
    return model


def finished(tmp_path: Path, dims: list[str | int | None]) -> Path:
    onnx_file.save(raw(dims), tmp_path / "raw.onnx")
    onnx_finish.finish(tmp_path / "raw.onnx", tmp_path / "m.onnx", CONTRACT, NAMES, scope="model")
    return tmp_path / "m.onnx"


def test_the_contract_s_names_win_over_inner_ones(tmp_path: Path) -> None:
    """Names of inputs and outputs are free: an inner value of that name gives way, and the model stays the same."""
    path = finished(tmp_path, ["s0", "s1"])
    graph = onnx_file.read_graph(path)
    assert ([v.name for v in graph.inputs], [v.name for v in graph.outputs]) == (["add"], ["relu"])
    assert [(n.inputs, n.outputs) for n in graph.nodes] == [
        (("add", "add"), ("add_inner",)), (("add_inner",), ("relu_inner",)), (("relu_inner", "scale"), ("relu",)),
    ]  # fmt: skip
    assert onnx_file.invalid(onnx_file.load(path)) == ""


def test_axes_are_named_where_they_are_dynamic_and_only_there(tmp_path: Path) -> None:
    assert onnx_file.read_graph(finished(tmp_path, ["s0", 8])).inputs[0].shape == ("batch", 8)
    assert onnx_file.read_graph(finished(tmp_path, [None, "4*axis_1"])).inputs[0].shape == ("batch", "seq")
    assert onnx_file.read_graph(finished(tmp_path, ["s0", "s1", 3])).inputs[0].shape == ("s0", "s1", 3)
    assert onnx_file.read_graph(finished(tmp_path, ["s0", "s1"])).outputs[0].shape == ("batch", "s9")


def test_bounds_are_noted_in_the_file(tmp_path: Path) -> None:
    """ONNX has names of axes but no ranges: whoever only has the file can still tell what it was made for."""
    metadata = onnx_file.read_graph(finished(tmp_path, ["s0", "s1"])).metadata
    assert json.loads(metadata[onnx_finish.AXES_KEY]) == {
        "batch": {"min": 1, "opt": 2, "max": 6, "multiple_of": 1},
        "seq": {"min": 4, "opt": 16, "max": 64, "multiple_of": 4},
    }


def test_nothing_names_the_machine_and_layers_are_kept(tmp_path: Path) -> None:
    path = finished(tmp_path, ["s0", "s1"])
    assert b"/home" not in path.read_bytes()
    assert b"somebody" not in path.read_bytes()
    graph = onnx_file.read_graph(path)
    assert [n.origin for n in graph.nodes[:2]] == ["net.0", "net"]
    assert list(graph.metadata) == [onnx_finish.AXES_KEY]
    assert not onnx_file.load(path).graph.value_info


def test_an_inner_name_gives_way_to_a_free_one() -> None:
    model = raw(["s0", "s1"])
    model.graph.node[1].output[0] = model.graph.node[2].input[0] = "add_inner"
    onnx_finish.rename_values(model.graph, NAMES)
    assert [n.output[0] for n in model.graph.node] == ["add_inner_2", "add_inner", "relu"]


def test_names_inside_branches_follow() -> None:
    inner = helper.make_graph(
        [helper.make_node("Neg", ["in_0"], ["b"])], "then", [], [helper.make_empty_tensor_value_info("b")]
    )
    node = helper.make_node("If", ["flag"], ["out_0"], then_branch=inner, else_branch=inner)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("in_0", 1, [1])], [])
    onnx_finish.rename_values(graph, {"in_0": "x", "out_0": "y"})
    assert graph.node[0].attribute[0].g.node[0].input[0] == "x"
    assert graph.node[0].output[0] == "y"


@pytest.mark.parametrize("scope", ["model", "wrapper"])
def test_a_weight_keeps_its_name_where_the_shorter_one_is_taken(scope: str) -> None:
    model = raw(["s0", "s1"])
    model.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [1.0]))
    onnx_finish._unwrap(model, scope)
    assert [i.name for i in model.graph.initializer] == ["model.scale", "scale"]
