"""The ONNX Runtime engine: real models, real refusals, nothing on stderr."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tauten.engines import onnxruntime as engine
from tauten.spec.engine import EngineSettings, Port
from tauten.spec.errors import BadModel, BadUsage, EngineFailed, Unsupported
from tauten.spec.tensors import ELEMENT_TYPES, Array, ElementType

IDENTITY_TYPES = [t for t in ELEMENT_TYPES.values() if t.name != "bfloat16"]


Ports = list[onnx.ValueInfoProto]


def save(
    path: Path, nodes: list[onnx.NodeProto], inputs: Ports, outputs: Ports, weights: tuple[onnx.TensorProto, ...] = ()
) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def identity(path: Path, kind: int) -> Path:
    return save(path, [helper.make_node("Identity", ["x"], ["y"])],
                [helper.make_tensor_value_info("x", kind, ["batch", None, 2])],
                [helper.make_tensor_value_info("y", kind, ["batch", None, 2])])  # fmt: skip


def gather(path: Path) -> Path:
    """Embedding of four rows: an id out of range makes the engine fail."""
    table = helper.make_tensor("t", TensorProto.FLOAT, [4, 2], list(range(8)))
    return save(path, [helper.make_node("Gather", ["t", "ids"], ["y"])],
                [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])], (table,))  # fmt: skip


@pytest.mark.parametrize("element", IDENTITY_TYPES, ids=lambda t: t.name)
def test_every_type_passes_bit_for_bit(tmp_path: Path, element: ElementType) -> None:
    session = engine.open(identity(tmp_path / "m.onnx", element.onnx), EngineSettings())
    assert session.inputs == (Port("x", element.name, ("batch", None, 2)),)
    assert session.outputs[0].dtype == element.name
    if element.name == "string":
        x: Array = np.array([[["a", "é"]]], dtype=object)
    else:
        x = np.arange(12).reshape(2, 3, 2).astype(element.numpy)
    y = session.run({"x": x})["y"]
    assert y.dtype == element.numpy
    np.testing.assert_array_equal(y, x)


def test_bfloat16_is_unsupported_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"'x' has type tensor\(bfloat16\)"):
        engine.open(identity(tmp_path / "m.onnx", TensorProto.BFLOAT16), EngineSettings())


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x0a\x12"], ids=["empty", "text", "cut"])
def test_a_damaged_file_is_a_bad_model_in_one_line(tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(BadModel, match=r"refuses 'm.onnx': ") as caught:
        engine.open(path, EngineSettings())
    assert "\n" not in caught.value.message
    assert capfd.readouterr() == ("", "")


def test_a_missing_file_is_a_bad_model(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="doesn't exist"):
        engine.open(tmp_path / "none.onnx", EngineSettings())


def test_an_unknown_graph_level_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="use one of disabled, basic, extended, all"):
        engine.open(gather(tmp_path / "m.onnx"), EngineSettings(graph_level="most"))


@pytest.mark.parametrize(
    "inputs",
    [
        {"ids": np.array([9])},
        {"ids": np.array([[0]])},
        {"ids": np.array([0], np.int32)},
        {},
        {"ids": np.array([0]), "b": np.array([0])},
    ],
    ids=["value", "rank", "type", "missing", "unknown"],
)
def test_a_failed_run_has_the_engines_words_and_the_session_lives_on(
    tmp_path: Path, inputs: dict[str, Array], capfd: pytest.CaptureFixture[str]
) -> None:
    session = engine.open(gather(tmp_path / "m.onnx"), EngineSettings())
    with pytest.raises(EngineFailed, match=r"ONNX Runtime failed: \S+") as caught:
        session.run(inputs)
    assert "\n" not in caught.value.message
    np.testing.assert_array_equal(session.run({"ids": np.array([3])})["y"], [[6, 7]])
    assert capfd.readouterr() == ("", "")


def test_closing_twice_is_fine_and_a_closed_session_says_so(tmp_path: Path) -> None:
    session = engine.open(gather(tmp_path / "m.onnx"), EngineSettings())
    assert repr(session) == "<OrtSession open threads=1>"
    session.close()
    session.close()
    assert repr(session) == "<OrtSession closed threads=1>"
    with pytest.raises(EngineFailed, match="closed"):
        session.run({"ids": np.array([1])})


def test_facts_tell_how_it_was_opened(tmp_path: Path) -> None:
    session = engine.open(gather(tmp_path / "m.onnx"), EngineSettings(threads=2, graph_level="basic", spinning=True))
    assert session.facts() == {"engine": "onnxruntime", "version": engine.version(), "provider": "CPUExecutionProvider",
                               "threads": 2, "graph_level": "basic", "spinning": True}  # fmt: skip
