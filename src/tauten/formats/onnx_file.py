"""ONNX files: the place that knows the library. Reading gives plain facts for gates; writing is whole or not at all.

Saving goes to a fresh directory and is renamed into place, so that a file saved twice has the same bytes and external data
never grows by what an older version of it left behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, ValueInfoProto

from tauten.spec.contract import Contract
from tauten.spec.errors import BadModel, ExportFailed
from tauten.spec.graph import Graph, Initializer, Node, Value
from tauten.spec.tensors import BY_ONNX

EXTRA = "onnx"
EXTERNAL_ABOVE = 1_500_000_000  # bytes; protobuf ends at 2 GiB
SMALL = 1024  # tensors below this many bytes stay inside the model file


def load(path: Path) -> onnx.ModelProto:
    """The model with its external data. Raises BadModel for a file that is missing, damaged or of another kind."""
    try:
        model = onnx.load(str(path))
    except FileNotFoundError as error:
        raise BadModel(
            f"{Path(str(error.filename or path)).name!r} is missing", fix="keep the model and its data together"
        ) from error
    except (DecodeError, OSError, ValueError, TypeError, onnx.checker.ValidationError) as error:
        raise BadModel(f"{path.name!r} is not a readable ONNX model: {_one_line(error)}",
                       fix="export it again, or fetch it again whole") from error  # fmt: skip
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise BadModel(f"{path.name!r} is not an ONNX model: it has no graph", fix="give the file that an exporter wrote")
    return model


def save(model: onnx.ModelProto, path: Path, *, external_above: int = EXTERNAL_ABOVE) -> None:
    """Writes the model; weights go to `<name>.data` beside it when it would be larger than `external_above` bytes.

    The target appears whole, after everything was flushed to disk, or is left as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.name + ".data"
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        large = copy.ByteSize() > external_above
        if large:
            onnx.save_model(
                copy, str(fresh), save_as_external_data=True, all_tensors_to_one_file=True, location=data, size_threshold=SMALL
            )
        else:
            fresh.write_bytes(copy.SerializeToString(deterministic=True))
        for file in Path(folder).iterdir():
            _flush(file)
            os.replace(file, path.with_name(file.name))
    if not large:
        path.with_name(data).unlink(missing_ok=True)


def copy(source: Path, target: Path) -> None:
    """Copies a model file and the external data that belongs to it, byte by byte."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for weight in {i.location for i in read_graph(source).initializers if i.location}:
        shutil.copyfile(source.with_name(weight), target.with_name(weight))
    shutil.copyfile(source, target)


def valid(model: onnx.ModelProto) -> str:
    """Why the library's own checker refuses the model; empty when it does not."""
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        return _one_line(error)
    return ""


def with_outputs(source: Path, names: tuple[str, ...], target: Path) -> None:
    """Writes an instrumented copy that also returns the named inner values; the source is untouched."""
    model = load(source)
    there = {o.name for o in model.graph.output}
    known = {v.name: v for v in model.graph.value_info}
    for name in names:
        if name not in there:
            info = model.graph.output.add()
            info.CopyFrom(known.get(name, ValueInfoProto(name=name)))
            info.type.tensor_type.ClearField("shape")  # shape metadata may be wrong; the engine knows better
    save(model, target)


def read_graph(path: Path) -> Graph:
    """Facts read back from a file, weights not loaded. Raises BadModel."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError, ValueError, TypeError) as error:
        raise BadModel(f"{path.name!r} is not a readable ONNX model: {_one_line(error)}",
                       fix="export it again, or fetch it again whole") from error  # fmt: skip
    graph = model.graph
    weights = tuple(_initializer(t) for t in graph.initializer)
    files = {path.name: path.stat().st_size}
    for location in dict.fromkeys(w.location for w in weights if w.location):
        data = path.parent / location
        if data.is_file():
            files[location] = data.stat().st_size
    return Graph(
        ir_version=model.ir_version,
        opsets={o.domain: o.version for o in model.opset_import},
        inputs=tuple(_value(v) for v in graph.input),
        outputs=tuple(_value(v) for v in graph.output),
        nodes=tuple(_nodes(graph, 0)),
        initializers=weights,
        metadata={p.key: p.value for p in model.metadata_props},
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        files=files,
    )


def _nodes(graph: onnx.GraphProto, depth: int) -> Iterator[Node]:
    for node in graph.node:
        yield Node(
            name=node.name,
            op=node.op_type,
            domain=node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes=_attributes(node),
            origin=_origin(node),
            depth=depth,
        )
        for attribute in node.attribute:
            for inner in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                yield from _nodes(inner, depth + 1)


_PLAIN = {
    AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING,
    AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS,
}  # fmt: skip


def _attributes(node: onnx.NodeProto) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in _PLAIN:
            value = onnx.helper.get_attribute_value(attribute)
            found[attribute.name] = _text(value) if not isinstance(value, list) else [_text(v) for v in value]
    return found


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _origin(node: onnx.NodeProto) -> str:
    """The layer of the original framework: what the exporter noted, or the scope in a legacy exporter's node name."""
    notes = {p.key: p.value for p in node.metadata_props}
    if scopes := notes.get("pkg.torch.onnx.name_scopes"):
        names = [n for n in _list(scopes) if n]
        return names[-2] if len(names) > 1 else (names[-1] if names else "")
    parts = [p for p in node.name.split("/") if p]
    return ".".join(parts[:-1]) if node.name.startswith("/") else ""


def _list(text: str) -> list[str]:
    """The exporter writes a Python list of strings."""
    return [part.strip().strip("'\"") for part in text.strip("[]").split(",")]


def _value(info: ValueInfoProto) -> Value:
    if not info.type.HasField("tensor_type"):
        return Value(info.name, None, None)
    tensor = info.type.tensor_type
    element = BY_ONNX.get(tensor.elem_type)
    shape = tuple(_dim(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return Value(info.name, element.name if element else None, shape)


def _dim(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) or None


def _initializer(tensor: TensorProto) -> Initializer:
    external = {e.key: e.value for e in tensor.external_data} if tensor.data_location == TensorProto.EXTERNAL else {}
    element = BY_ONNX.get(tensor.data_type)
    count = 1
    for size in tensor.dims:
        count *= size
    nbytes = int(external["length"]) if "length" in external else count * (element.size if element else 1)
    return Initializer(
        name=tensor.name,
        dtype=element.name if element else f"onnx type {tensor.data_type}",
        shape=tuple(tensor.dims),
        nbytes=nbytes,
        location=external.get("location", ""),
        offset=int(external.get("offset", 0)),
    )


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


KEPT_NOTES = {"pkg.torch.onnx.name_scopes", "namespace"}  # where a node came from; stack traces would carry a machine's paths


def finish_export(raw: Path, target: Path, contract: Contract) -> None:
    """Gives a fresh export the contract's output names, axis names and bounds, and takes out what differs from run to run.

    Raises ExportFailed when the number of outputs is not the contract's. A static dimension is never made dynamic here.
    """
    model = load(raw)
    outputs = list(model.graph.output)
    if len(outputs) != len(contract.outputs):
        raise ExportFailed(f"the model returns {len(outputs)} outputs, the contract names {len(contract.outputs)}",
                           fix="list every output in the contract, in the order they are returned")  # fmt: skip
    _rename(model.graph, {o.name: name for o, name in zip(outputs, contract.outputs, strict=True)})
    for values, specs in ((model.graph.input, contract.inputs), (model.graph.output, contract.outputs)):
        for value in values:
            spec = specs.get(value.name)
            if spec is not None and len(spec.shape) == len(value.type.tensor_type.shape.dim):
                for dim, want in zip(value.type.tensor_type.shape.dim, spec.shape, strict=True):
                    if isinstance(want, str) and not dim.HasField("dim_value"):
                        dim.dim_param = want
    _scrub(model)
    bounds = model.metadata_props.add()
    bounds.key, bounds.value = "tauten.axes", msgspec.json.encode(contract.axes, order="deterministic").decode()
    save(model, target)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Renames values everywhere. An inner value that already has a new name gives way: it gets a suffix."""
    taken = {n for node in graph.node for n in node.output} | {i.name for i in graph.initializer}
    given = {i.name for i in graph.input}
    if clash := given & set(names.values()):
        raise ExportFailed(f"{sorted(clash)[0]!r} is the name of an input and of an output", fix="rename one in the contract")
    moved = {new: f"{new}_inner" for new in names.values() if new in taken and new not in names}
    mapping = {**names, **moved}

    def renamed(inner: onnx.GraphProto) -> None:
        for node in inner.node:
            node.input[:] = [mapping.get(n, n) for n in node.input]
            node.output[:] = [mapping.get(n, n) for n in node.output]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    renamed(attribute.g)
                for branch in attribute.graphs:
                    renamed(branch)
        for value in (*inner.value_info, *inner.output, *inner.initializer):
            value.name = mapping.get(value.name, value.name)

    renamed(graph)


def _scrub(model: onnx.ModelProto) -> None:
    """Takes out stack traces and other notes that name this machine or this run; where a node came from is kept."""
    del model.metadata_props[:]
    model.doc_string = model.graph.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        kept = sorted((p.key, p.value) for p in node.metadata_props if p.key in KEPT_NOTES)
        del node.metadata_props[:]
        for key, value in kept:
            note = node.metadata_props.add()
            note.key, note.value = key, value
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    del model.graph.metadata_props[:]
