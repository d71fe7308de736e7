"""What several tests of whole services need: a model that takes its time."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model

from tauten import testing
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings, ServingSettings


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """y = x, after some 10 GFLOP."""

    def model(path: Path) -> None:
        node = helper.make_node
        nodes = [
            node("ReduceSum", ["x"], ["s"], keepdims=0),
            node("ConstantOfShape", ["size"], ["a"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1e-3])),
            node("Mul", ["a", "s"], ["b0"]),
            *(node("MatMul", [f"b{i}", "a"], [f"b{i + 1}"]) for i in range(5)),
            node("ReduceMax", ["b5"], ["m"], keepdims=0),
            node("Mul", ["m", "zero"], ["n"]),
            node("Add", ["x", "n"], ["y"]),
        ]
        weights = {"size": np.array([1024, 1024]), "zero": np.zeros((), np.float32)}
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 1]) for n in "xy")
        graph = helper.make_graph(nodes, "slow", [x], [y], [numpy_helper.from_array(w, n) for n, w in weights.items()])
        save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)

    spec = {"dtype": "float32", "shape": ["batch", 1]}
    contract = Contract.of(
        {"contract": 1, "name": "slow", "inputs": {"x": spec}, "outputs": {"y": spec}, "axes": {"batch": {"max": 1}}}
    )
    settings = ServingSettings(session=EngineSettings(graph_level="disabled"))
    return testing.seal_bundle(tmp_path_factory.mktemp("slow") / "1", contract, model, settings)
