"""ONNX files as a source: the signature as the file declares it, and what a damaged one is told."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tauten import testing
from tauten.formats import onnx_file
from tauten.sources import onnx
from tauten.spec.errors import BadModel, BadSource
from tauten.spec.tensors import TensorSpec


def test_the_signature_is_the_file_s(tmp_path: Path) -> None:
    path = tmp_path / "My Model.onnx"
    testing.write_tiny_model(path)
    opened = onnx.open(str(path))
    assert (opened.kind, opened.name, opened.model, opened.reference, opened.exporters) == ("onnx", "my-model", path, None, ())
    assert opened.suggested.inputs == dict.fromkeys(
        ("input_ids", "attention_mask"), TensorSpec(dtype="int64", shape=("batch", "seq"))
    )
    assert opened.provenance["opset"] == 20
    assert list(opened.provenance["files"]) == ["My Model.onnx"]
    assert str(tmp_path) not in str(opened.provenance)


def save(path: Path, dims: list[str | int | None], kind: int = TensorProto.FLOAT) -> Path:
    value = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.ones(2000, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g",
        [value("x", kind, dims), value("w", TensorProto.FLOAT, [2000])], [value("y", kind, dims)], [weight],
    )  # fmt: skip
    onnx_file.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path, external_above=0)
    return path


def test_axes_are_named_by_place_and_weights_are_no_inputs(tmp_path: Path) -> None:
    inputs = onnx.open(save(tmp_path / "m.onnx", ["N", None, 3, "W"])).suggested.inputs
    assert inputs == {"x": TensorSpec(dtype="float32", shape=("batch", "x_1", 3, "W"))}


def test_what_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="there is no file"):
        onnx.open(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"\x08")
    with pytest.raises(BadModel, match=r"'bad\.onnx' is not"):
        onnx.open(tmp_path / "bad.onnx")
    path = save(tmp_path / "m.onnx", ["N"])
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(BadModel, match=r"weight 'w' of 'm\.onnx' is stored in 'm\.onnx\.data', which is missing"):
        onnx.open(path)
    with pytest.raises(BadModel, match="'x' has no type and shape"):
        onnx.open(save(tmp_path / "odd.onnx", ["N"], TensorProto.COMPLEX64))
    assert onnx.accepts(path)
    assert not onnx.accepts(tmp_path)
