"""A model of texts, with a slash in the name of its output: delivered, served and answered with the text itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save_model

import tauten

TEXT = {"dtype": "string", "shape": ["batch"]}


def test_texts_under_a_name_with_a_slash(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["batch"]) for name in ("x", "head/y:0")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["head/y:0"], name="same")], "g", ends[:1], ends[1:])
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), tmp_path / "same.onnx")
    axes = {"batch": {"max": 4}}
    contract = tauten.Contract.of(
        {"contract": 1, "name": "same", "inputs": {"x": TEXT}, "outputs": {"head/y:0": TEXT}, "axes": axes}
    )
    bundle = tauten.deliver(str(tmp_path / "same.onnx"), contract, tmp_path / "out")
    with tauten.serve(bundle, port=0) as server, tauten.Client(server.url) as client:
        answer = client.infer("same", {"x": np.array(["Grüße", ""], object)})
    assert [item.decode() for item in answer["head/y:0"].tolist()] == ["Grüße", ""]
