"""ONNX files, handed over as they are. There is no original framework: the engine without its optimiser is the reference."""

from __future__ import annotations

from pathlib import Path

from tauten.formats import onnx_file
from tauten.spec.errors import BadModel, BadSource
from tauten.spec.graph import Value
from tauten.spec.signature import BATCH, Signature
from tauten.spec.source import Opened
from tauten.spec.tensors import TensorSpec

EXTRA = "onnx"


def accepts(given: object) -> bool:
    """A path that ends in .onnx."""
    return isinstance(given, str | Path) and Path(given).suffix == ".onnx"


def open(given: object, example_inputs: object = None) -> Opened:  # noqa: A001, ARG001  the shape every source has
    """Reads the graph. Raises BadSource for a missing file, BadModel for a damaged one."""
    path = Path(str(given))
    if not path.is_file():
        raise BadSource(f"there is no file {str(path)!r}", fix="check the path")
    onnx_file.load(path)  # whole, with its external data: what is damaged is told here
    graph = onnx_file.read_graph(path)
    stored = {i.name for i in graph.initializers}
    inputs = {v.name: _spec(v, position) for position, v in enumerate(graph.inputs) if v.name not in stored}
    outputs = {v.name: _spec(v, position) for position, v in enumerate(graph.outputs)}
    return Opened(
        kind="onnx",
        name=path.stem.lower(),
        suggested=Signature(inputs=inputs, outputs=outputs),
        reference=None,
        model=path,
        provenance={"producer": graph.producer, "opset": graph.opset, "ir_version": graph.ir_version},
    )


def _spec(value: Value, position: int) -> TensorSpec:
    """Nameless dynamic dimensions get names: the first is the batch, the others are numbered."""
    if value.dtype is None or value.shape is None:
        raise BadModel(f"{value.name!r} has no tensor type with a shape", fix="export the model again with shapes")
    shape = tuple(
        d if isinstance(d, int) else BATCH if i == 0 else (d or f"axis_{position}_{i}") for i, d in enumerate(value.shape)
    )
    return TensorSpec(dtype=value.dtype, shape=shape)
