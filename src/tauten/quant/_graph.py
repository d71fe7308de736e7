"""What every integer scheme asks of a graph before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx

from tauten.formats import onnx_facts, onnx_file
from tauten.spec.errors import BadModel

QUANTISED = {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits", "QGemm", "QAttention", "QEmbedLayerNormalization",
    "GatherBlockQuantized",
}  # fmt: skip


def load_unquantised(path: Path, operators: set[str]) -> onnx.ModelProto:
    """The model, with float constants among its weights. Raises BadModel when there is nothing left to do for the scheme:
    the model is quantised already, or none of `operators` has a constant float32 weight."""
    model = onnx_file.load(path)
    graph = model.graph
    done = next((n for n in graph.node if n.op_type in QUANTISED or n.op_type.startswith("QLinear")), None)
    if done is not None:
        raise BadModel(f"{path.name!r} is quantised already: it has {done.op_type} {done.name!r}",
                       fix="start from the float32 model")  # fmt: skip
    _store_constants(graph)
    floats = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    if not any(n.op_type in operators and len(n.input) > 1 and n.input[1] in floats for n in graph.node):
        raise BadModel(f"{path.name!r} has nothing to quantise: no {', '.join(sorted(operators))} with a float32 weight",
                       fix="deliver it in float32: take int8 out of target.precision")  # fmt: skip
    return model


def names_read(model: onnx.ModelProto) -> Counter[str]:
    """How many times every value is read: by nodes, those of subgraphs too, or as an output of the model."""
    read = Counter(name for node in onnx_facts.nodes(model) for name in node.inputs)
    read.update(output.name for output in model.graph.output)
    return read


def replace(field: Any, values: Iterable[Any]) -> None:
    """Gives a repeated field new content, which may be of the old: clearing the field would take that along."""
    copies = []
    for value in values:
        copy = type(value)()
        copy.CopyFrom(value)
        copies.append(copy)
    del field[:]
    field.extend(copies)


def _store_constants(graph: onnx.GraphProto) -> None:
    """Turns Constant nodes that hold float32 tensors into stored weights: exporters write either."""
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type == "Constant" and value is not None and value.data_type == onnx.TensorProto.FLOAT:
            weight = graph.initializer.add()
            weight.CopyFrom(value)
            weight.name = node.output[0]
        else:
            kept.append(node)
    replace(graph.node, kept)
