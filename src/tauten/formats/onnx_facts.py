"""Parts of an ONNX model as the plain facts of spec/graph.py."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, ValueInfoProto

from tauten.spec.graph import Initializer, Node, Value
from tauten.spec.tensors import BY_ONNX

EXTRA = "onnx"
SCOPES = "pkg.torch.onnx.name_scopes"  # notes of torch's exporter at a node: the modules it lies in, from the outside in
NAMESPACE = "namespace"
PLAIN = {
    AttributeProto.FLOAT, AttributeProto.INT, AttributeProto.STRING,
    AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.STRINGS,
}  # fmt: skip


def nodes(model: onnx.ModelProto) -> Iterator[Node]:
    """Nodes of the main graph, each followed by those of its subgraphs; at the end those of the model's own functions."""
    yield from _nodes(model.graph.node, 0)
    for function in model.functions:
        yield from _nodes(function.node, 1)


def _nodes(some: Iterable[onnx.NodeProto], depth: int) -> Iterator[Node]:
    for node in some:
        yield Node(
            name=node.name,
            op=node.op_type,
            domain=node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes={a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute if a.type in PLAIN},
            origin=origin(node),
            depth=depth,
        )
        for graph in subgraphs(node):
            yield from _nodes(graph.node, depth + 1)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node runs: branches, loop bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def origin(node: onnx.NodeProto) -> str:
    """The layer of the original framework that a node came from; empty where the exporter noted none.

    torch's newer exporter notes the scopes as a list, which ends with the operation's own name; the legacy one builds the
    node's name of them, `/encoder/encoder.0/Gemm`, every scope named from the one before.
    """
    notes = {p.key: p.value for p in node.metadata_props}
    if SCOPES in notes:
        return str(_literal(notes[SCOPES])[-2:-1][0]) if len(_literal(notes[SCOPES])) > 1 else ""
    if NAMESPACE in notes:
        scopes = [part.partition(": ")[0] for part in notes[NAMESPACE].split("/")]
        return scopes[-2] if len(scopes) > 1 else ""
    if not node.name.startswith("/"):
        return ""
    layers: list[str] = []
    for scope in node.name.split("/")[1:-1]:
        if layers and scope.startswith(f"{layers[-1]}."):
            layers.pop()
        layers.append(scope)
    return ".".join(layers)


def value(info: ValueInfoProto) -> Value:
    """A declared input or output."""
    if not info.type.HasField("tensor_type"):
        return Value(info.name, None, None)
    tensor = info.type.tensor_type
    shape = tuple(_dim(d) for d in tensor.shape.dim) if tensor.HasField("shape") else None
    return Value(info.name, _type_name(tensor.elem_type) if tensor.elem_type else None, shape)


def initializer(tensor: TensorProto) -> Initializer:
    """A stored weight and where it is."""
    external = {e.key: e.value for e in tensor.external_data} if tensor.data_location == TensorProto.EXTERNAL else {}
    element = BY_ONNX.get(tensor.data_type)
    if "length" in external:
        nbytes = int(external["length"])
    elif element is not None and element.size:
        nbytes = math.prod(tensor.dims) * element.size
    else:
        nbytes = tensor.ByteSize()
    return Initializer(
        name=tensor.name,
        dtype=_type_name(tensor.data_type),
        shape=tuple(tensor.dims),
        nbytes=nbytes,
        location=external.get("location", ""),
        offset=int(external.get("offset", 0)),
    )


def _type_name(number: int) -> str:
    if number in BY_ONNX:
        return BY_ONNX[number].name
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else f"type {number}"


def _dim(dim: Any) -> int | str | None:
    return int(dim.dim_value) if dim.HasField("dim_value") else str(dim.dim_param) or None


def _plain(attribute: Any) -> Any:
    if isinstance(attribute, bytes):
        return attribute.decode(errors="replace")
    return [_plain(a) for a in attribute] if isinstance(attribute, list) else attribute


def _literal(text: str) -> list[str]:
    """The exporter writes Python lists of strings."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []
