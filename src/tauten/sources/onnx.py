"""ONNX files, handed over as they are. There is no original framework: the engine without its optimiser is the reference."""

from __future__ import annotations

import re
from pathlib import Path

from tauten.spec.bundle import sha256
from tauten.spec.errors import BadModel, BadSource
from tauten.spec.graph import Value
from tauten.spec.signature import BATCH, Signature
from tauten.spec.source import Opened
from tauten.spec.tensors import ELEMENT_TYPES, TensorSpec

EXTRA = "onnx"


def accepts(given: object) -> bool:
    """A path that ends in .onnx."""
    return isinstance(given, str | Path) and Path(given).suffix == ".onnx"


def open(given: object, example_inputs: object = None) -> Opened:  # noqa: A001, ARG001  the shape every source has
    """Reads the graph. Raises BadSource for a missing file, BadModel for a damaged one. `reference` is None."""
    from tauten.formats import onnx_file

    path = Path(str(given))
    if not path.is_file():
        raise BadSource(f"there is no file {str(path)!r}", fix="check the path")
    graph = onnx_file.read_graph(path)
    if lost := [w for w in graph.initializers if w.location and w.location not in graph.files]:
        raise BadModel(f"weight {lost[0].name!r} of {path.name!r} is stored in {lost[0].location!r}, which is missing",
                       fix="keep the data file beside the model file, under the name that the model has for it")  # fmt: skip
    stored = {i.name for i in graph.initializers}
    return Opened(
        kind="onnx",
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._").lower() or "model",
        suggested=Signature(
            inputs={v.name: _spec(v) for v in graph.inputs if v.name not in stored},
            outputs={v.name: _spec(v) for v in graph.outputs},
        ),
        reference=None,
        model=path,
        provenance={
            "producer": graph.producer,
            "opset": graph.opset,
            "ir_version": graph.ir_version,
            "files": {name: f"sha256:{sha256(path.parent / name)}" for name in graph.files},
        },
    )


def _spec(value: Value) -> TensorSpec:
    """A dynamic dimension in front is the batch, whatever its name; others keep theirs, or get one from their place."""
    if value.dtype not in ELEMENT_TYPES or value.shape is None:
        raise BadModel(f"{value.name!r} has no type and shape that requests could be held to ({value.dtype or 'no tensor'})",
                       fix="export the model again with typed inputs and outputs")  # fmt: skip
    names = (
        (BATCH if i == 0 else d or f"{value.name}_{i}") if not isinstance(d, int) else d for i, d in enumerate(value.shape)
    )
    return TensorSpec(dtype=value.dtype, shape=tuple(names))
