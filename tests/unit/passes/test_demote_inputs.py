"""A client that sends an input of a weight's name must not replace the weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from tauten import testing
from tauten.engines import onnxruntime as engine
from tauten.formats import onnx_file
from tauten.passes import demote_inputs
from tauten.spec.engine import EngineSettings
from tauten.spec.errors import EngineFailed

CONTRACT = testing.tiny_contract()  # the pass does not look at it
ONE, FIVE = np.ones(2, np.float32), np.full(2, 5, np.float32)


def write(path: Path, ir_version: int = 10) -> Path:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 8]> g (float[b, 2] x, float[2] w) => (float[b, 2] y) {y = Mul(x, w)}'
    )
    model.ir_version = ir_version
    model.graph.initializer.append(numpy_helper.from_array(ONE, "w"))
    onnx.save(model, path)
    return path


def test_a_weight_can_be_overridden_before_and_not_after(tmp_path: Path) -> None:
    source, out = write(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    inputs = {"x": FIVE[None], "w": FIVE}
    assert engine.open(source, EngineSettings()).run(inputs)["y"].max() == 25, "the fault is there"
    assert demote_inputs.apply(source, out, CONTRACT)
    mended = engine.open(out, EngineSettings())
    with pytest.raises(EngineFailed, match="w"):
        mended.run(inputs)
    assert mended.run({"x": FIVE[None]})["y"].max() == 5


def test_old_files_have_to_list_their_weights(tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", ir_version=3)
    assert not demote_inputs.apply(source, tmp_path / "out.onnx", CONTRACT)
    assert engine.open(source, EngineSettings()).run({"x": FIVE[None]})["y"].max() == 5


def test_a_sparse_weight_is_a_weight(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path / "m.onnx"))
    (dense,) = model.graph.initializer
    del model.graph.initializer[:]
    places = numpy_helper.from_array(np.array([0, 1]), "")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(dense, places, [2]))
    onnx.save(model, tmp_path / "m.onnx")
    assert demote_inputs.apply(tmp_path / "m.onnx", tmp_path / "out.onnx", CONTRACT)
    assert [i.name for i in onnx.load(tmp_path / "out.onnx").graph.input] == ["x"]


def test_external_data_comes_along(tmp_path: Path) -> None:
    model = onnx_file.load(write(tmp_path / "m.onnx"))
    wide = np.full((1, 1024), 3, np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(wide, "w"))
    model.graph.input[1].type.tensor_type.shape.CopyFrom(
        helper.make_tensor_value_info("w", 1, wide.shape).type.tensor_type.shape
    )
    onnx_file.save(model, tmp_path / "large.onnx", external_above=0)
    assert demote_inputs.apply(tmp_path / "large.onnx", tmp_path / "new" / "out.onnx", CONTRACT)
    (weight,) = onnx_file.load(tmp_path / "new" / "out.onnx").graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(weight), wide)
