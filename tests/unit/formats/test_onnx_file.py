"""ONNX files: written whole or not at all, the same bytes every time, and read back as plain facts."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tauten.engines import onnxruntime
from tauten.formats import onnx_file
from tauten.spec.engine import EngineSettings
from tauten.spec.errors import BadModel

SIZE = 1024  # float32 values of the weight: 4 KiB


def value(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def add_model(nodes: list[onnx.NodeProto] | None = None, weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """x + w: one input, one weight of 4 KiB."""
    weights = weights if weights is not None else {"w": np.arange(SIZE, dtype=np.float32)}
    graph = helper.make_graph(
        nodes or [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        "g",
        [value("x", ["batch", SIZE])],
        [value("y", ["batch", SIZE])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def answer(path: Path) -> np.ndarray:
    session = onnxruntime.open(path, EngineSettings())
    found = session.run({"x": np.ones((2, SIZE), np.float32)})["y"]
    session.close()
    return found


@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_saving_again_gives_the_same_bytes_and_never_grows(threshold: int, tmp_path: Path) -> None:
    """Saving over external data must not append to it: dead bytes, another hash, and in the end a full disk."""
    path = tmp_path / "m.onnx"
    onnx_file.save(add_model(), path, external_above=threshold)
    first = digests(tmp_path)
    for _ in range(3):
        onnx_file.save(onnx_file.load(path), path, external_above=threshold)
        assert digests(tmp_path) == first
    graph = onnx_file.read_graph(path)
    if threshold:
        assert set(first) == {"m.onnx"}
    else:
        assert graph.files["m.onnx.data"] == sum(i.nbytes for i in graph.initializers) == 4 * SIZE
    np.testing.assert_array_equal(answer(path)[1], np.arange(SIZE) + 1)


def test_weights_move_out_above_the_threshold_only(tmp_path: Path) -> None:
    model = add_model()
    weight = model.graph.initializer[0].ByteSize()
    onnx_file.save(model, tmp_path / "in.onnx", external_above=weight)
    onnx_file.save(model, tmp_path / "out.onnx", external_above=weight - 1)
    assert set(digests(tmp_path)) == {"in.onnx", "out.onnx", "out.onnx.data"}


def test_small_weights_stay_where_tools_read_them_and_large_ones_start_at_pages(tmp_path: Path) -> None:
    weights = {"w": np.arange(SIZE, dtype=np.float32), "small": np.ones(1, np.float32), "w2": np.ones(SIZE + 1, np.float32)}
    onnx_file.save(add_model(weights=weights), tmp_path / "m.onnx", external_above=0)
    places = {i.name: (i.location, i.offset) for i in onnx_file.read_graph(tmp_path / "m.onnx").initializers}
    assert places == {"w": ("m.onnx.data", 0), "small": ("", 0), "w2": ("m.onnx.data", 4096)}


def test_the_model_in_memory_is_as_it_was_after_its_weights_went_out(tmp_path: Path) -> None:
    model = add_model()
    before = model.SerializeToString(deterministic=True)
    onnx_file.save(model, tmp_path / "m.onnx", external_above=0)
    array = numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_array_equal(array, np.arange(SIZE, dtype=np.float32))
    onnx_file.save(model, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").stat().st_size <= len(before) + 64


def test_typed_fields_and_strings_survive(tmp_path: Path) -> None:
    """Not every writer uses raw bytes, and strings have no bytes of a fixed size."""
    model = add_model()
    typed = helper.make_tensor("w", TensorProto.FLOAT, [SIZE], list(range(SIZE)))
    model.graph.initializer[0].CopyFrom(typed)
    model.graph.initializer.append(numpy_helper.from_array(np.full(SIZE, "word", dtype=object), "words"))
    onnx_file.save(model, tmp_path / "m.onnx", external_above=0)
    np.testing.assert_array_equal(answer(tmp_path / "m.onnx")[0], np.arange(SIZE) + 1)
    words = onnx_file.read_graph(tmp_path / "m.onnx").initializers[1]
    assert (words.dtype, words.location) == ("string", "")


def test_a_model_that_fits_again_leaves_no_data_behind(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx_file.save(add_model(), path, external_above=0)
    onnx_file.save(onnx_file.load(path), path)
    assert set(digests(tmp_path)) == {"m.onnx"}
    np.testing.assert_array_equal(answer(path)[1], np.arange(SIZE) + 1)


@pytest.mark.parametrize("threshold", [0, 1 << 20])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_half_way_leaves_the_target_as_it_was(
    call: str, threshold: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        onnx_file.save(add_model(), tmp_path / "m.onnx", external_above=threshold)
    assert digests(tmp_path) == {}


def test_a_failed_save_over_a_model_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx_file.save(add_model(), path, external_above=0)
    before = digests(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        onnx_file.save(add_model(weights={"w": np.zeros(SIZE, np.float32)}), path, external_above=0)
    assert digests(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [b"", b"not a model", b"<html>404</html>" * 50, os.urandom(2000), add_model().SerializeToString()[:-900]],
    ids=["empty", "text", "page", "noise", "cut"],
)
def test_a_damaged_file_is_one_message(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for read in (onnx_file.load, onnx_file.read_graph):
        with pytest.raises(BadModel, match=r"'m\.onnx' is not .*ONNX model") as error:
            read(path)
        assert "\n" not in error.value.message
        assert error.value.fix


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"there is no file 'm\.onnx'"):
        onnx_file.load(tmp_path / "m.onnx")
    onnx_file.save(add_model(), tmp_path / "m.onnx", external_above=0)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(BadModel, match=r"external data of 'm\.onnx'"):
        onnx_file.load(tmp_path / "m.onnx")
    assert "m.onnx.data" not in onnx_file.read_graph(tmp_path / "m.onnx").files


def test_data_outside_the_model_s_folder_is_never_read(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    onnx_file.save(add_model(), inside / "m.onnx", external_above=0)
    (inside / "m.onnx.data").rename(tmp_path / "outside.data")
    model = onnx_file.read_skeleton(inside / "m.onnx")
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../outside.data"
    (inside / "m.onnx").write_bytes(model.SerializeToString())
    assert set(onnx_file.read_graph(inside / "m.onnx").files) == {"m.onnx"}
    with pytest.raises(BadModel, match="external data"):
        onnx_file.load(inside / "m.onnx")


def test_an_instrumented_copy_returns_inner_values_and_leaves_the_model_alone(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["sum"]), helper.make_node("Neg", ["sum"], ["y"])]
    onnx_file.save(add_model(nodes), tmp_path / "m.onnx", external_above=0)
    before = digests(tmp_path)
    onnx_file.with_outputs(tmp_path / "m.onnx", tmp_path / "taps" / "m.onnx", ["sum", "y", "x"])
    session = onnxruntime.open(tmp_path / "taps" / "m.onnx", EngineSettings(graph_level="disabled"))
    found = session.run({"x": np.ones((1, SIZE), np.float32)})
    assert list(found) == ["y", "sum", "x"]
    np.testing.assert_array_equal(found["sum"], -found["y"])
    assert {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in before} == before
    with pytest.raises(BadModel, match="no inner value 'nothing'"):
        onnx_file.with_outputs(tmp_path / "m.onnx", tmp_path / "taps" / "n.onnx", ["nothing"])


def test_a_copy_has_its_data_under_its_own_name(tmp_path: Path) -> None:
    onnx_file.save(add_model(), tmp_path / "a" / "old.onnx", external_above=0)
    onnx_file.copy(tmp_path / "a" / "old.onnx", tmp_path / "b" / "new.onnx")
    assert set(digests(tmp_path / "b")) == {"new.onnx", "new.onnx.data"}
    np.testing.assert_array_equal(answer(tmp_path / "b" / "new.onnx")[1], np.arange(SIZE) + 1)
    onnx_file.save(add_model(), tmp_path / "c.onnx")
    onnx_file.copy(tmp_path / "c.onnx", tmp_path / "d.onnx")
    assert (tmp_path / "c.onnx").read_bytes() == (tmp_path / "d.onnx").read_bytes()


def test_names_that_are_given_twice_are_read_as_they_stand(tmp_path: Path) -> None:
    """Reading is no judging: duplicates, an input that is a weight, and wrong order are facts for the gate."""
    nodes = [
        helper.make_node("Neg", ["sum"], ["y"]), helper.make_node("Add", ["x", "w"], ["sum"]),
        helper.make_node("Abs", ["sum"], ["y"]),
    ]  # fmt: skip
    model = add_model(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(SIZE, np.float32), "w"))
    model.graph.input.append(value("w", [SIZE]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graph = onnx_file.read_graph(path)
    assert [n.op for n in graph.nodes] == ["Neg", "Add", "Abs"]
    assert [i.name for i in graph.initializers] == ["w", "w"]
    assert [v.name for v in graph.inputs] == ["x", "w"]
    assert onnx_file.invalid(model) != ""
    assert onnx_file.invalid(add_model()) == ""


def test_facts_of_nodes_values_and_subgraphs(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}_y"])], op, [], [value(f"{op}_y", ["batch", None])])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], name="/deep/deep.0/If", else_branch=branch("Abs"), then_branch=branch("Neg")),
        helper.make_node("Einsum", ["x"], ["z"], equation="ij->ij"),
    ]
    model = add_model(nodes, weights={})
    model.graph.output.append(value("z", [None, SIZE]))
    model.graph.node[3].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'body', 'body.0', 'einsum']")
    model.graph.node[1].metadata_props.add(key="namespace", value=": m.Net/head: torch.nn.Linear/to: aten.to.dtype")
    onnx.helper.set_model_props(model, {"k": "v"})
    onnx_file.save(model, tmp_path / "m.onnx")
    graph = onnx_file.read_graph(tmp_path / "m.onnx")
    assert [(n.op, n.depth) for n in graph.nodes] == [
        ("ReduceSum", 0), ("Cast", 0), ("If", 0), ("Abs", 1), ("Neg", 1), ("Einsum", 0),
    ]  # fmt: skip
    origins = {n.op: n.origin for n in graph.nodes}
    assert (origins["Einsum"], origins["Cast"], origins["If"], origins["ReduceSum"]) == ("body.0", "head", "deep.0", "")
    einsum = graph.nodes[-1]
    assert einsum.attributes == {"equation": "ij->ij"}
    assert [v.shape for v in graph.outputs] == [("batch", SIZE), (None, SIZE)]
    assert (graph.opset, graph.metadata["k"], graph.producer_of("z")) == (20, "v", einsum)
