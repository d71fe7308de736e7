"""What is done to a file as an exporter left it: the contract's names, axes and bounds in, all that names a machine out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import onnx

from tauten.formats import onnx_facts, onnx_file
from tauten.spec.contract import Contract

EXTRA = "onnx"
AXES_KEY = "tauten.axes"  # metadata: JSON, by axis min, opt, max, multiple_of; an ONNX file has names of axes, but no bounds
KEPT_NOTES = (onnx_facts.NAMESPACE, onnx_facts.SCOPES)


def finish(raw: Path, target: Path, contract: Contract, names: Mapping[str, str], *, scope: str) -> None:
    """Writes `target` from what an exporter wrote. The same export gives the same bytes.

    `names` maps the temporary names of inputs and outputs to the contract's; `scope` is the wrapper that the exporter saw
    around the module, which is taken out of the names. A static dimension stays static: the gates are to see it.
    """
    model = onnx_file.load(raw)
    _scrub(model)
    _unwrap(model, scope)
    rename_values(model.graph, names)
    for values, specs in ((model.graph.input, contract.inputs), (model.graph.output, contract.outputs)):
        for value in values:
            if value.name in specs:
                _name_axes(value, specs[value.name].shape)
    note_axes(model, contract)
    onnx_file.save(model, target)


def note_axes(model: onnx.ModelProto, contract: Contract) -> None:
    """Notes the bounds of every axis in the file's metadata."""
    bounds = {
        name: {"min": a.min, "opt": a.optimum, "max": a.max, "multiple_of": a.multiple_of} for name, a in contract.axes.items()
    }
    onnx.helper.set_model_props(model, {AXES_KEY: msgspec.json.encode(bounds, order="deterministic").decode()})


def rename_values(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Renames values everywhere. Something inside that already has one of the new names gives way to it."""
    taken = set(_all_names(graph))
    moved: dict[str, str] = {}
    for new in names.values():
        if new in taken and new not in names:
            moved[new] = next(n for n in _suffixed(new) if n not in taken)
            taken.add(moved[new])
    mapping = {**moved, **names}
    _rename(graph, lambda name: mapping.get(name, name))


def _suffixed(name: str) -> Iterator[str]:
    yield f"{name}_inner"
    number = 2
    while True:
        yield f"{name}_inner_{number}"
        number += 1


def _all_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in _values(graph))
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in onnx_facts.subgraphs(node):
            yield from _all_names(inner)


def _values(graph: onnx.GraphProto) -> list[Any]:
    """Everything that declares a name: inputs, outputs, inner values, weights."""
    return [*graph.input, *graph.output, *graph.value_info, *graph.initializer]


def _rename(graph: onnx.GraphProto, new: Callable[[str], str]) -> None:
    for value in _values(graph):
        value.name = new(value.name)
    for node in graph.node:
        node.input[:] = [new(n) for n in node.input]
        node.output[:] = [new(n) for n in node.output]
        for inner in onnx_facts.subgraphs(node):
            _rename(inner, new)


def _name_axes(value: onnx.ValueInfoProto, shape: tuple[int | str, ...]) -> None:
    dims = value.type.tensor_type.shape.dim
    if len(dims) != len(shape):
        return
    for dim, want in zip(dims, shape, strict=True):
        if isinstance(want, str) and not dim.HasField("dim_value"):
            dim.dim_param = want


def _unwrap(model: onnx.ModelProto, scope: str) -> None:
    """Takes the wrapper out of the names: of weights `model.fc.weight`, of layers ['', 'model', 'model.fc', 'linear']."""
    inside = re.compile(rf"^/{scope}/|^{scope}\.")
    taken = set(_all_names(model.graph))
    shorter = {name: inside.sub(_slash, name) for name in taken}
    _rename(model.graph, lambda name: shorter[name] if name in shorter and shorter[name] not in taken else name)
    for node in _every_node(model.graph):
        node.name = inside.sub(_slash, node.name)
        for note in node.metadata_props:
            if note.key == onnx_facts.SCOPES:
                scopes = [s.removeprefix(f"{scope}.") for s in ast.literal_eval(note.value) if s != scope]
                note.value = str(scopes)
            else:
                parts = [p.removeprefix(f"{scope}.") for p in note.value.split("/") if not p.startswith(f"{scope}:")]
                note.value = "/".join(parts)


def _slash(match: re.Match[str]) -> str:
    return "/" if match[0].startswith("/") else ""


def _every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in onnx_facts.subgraphs(node):
            yield from _every_node(inner)


def _scrub(model: onnx.ModelProto) -> None:
    """Takes out what differs from run to run or names this machine: stack traces, shapes of inner values. Layers are kept."""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    model.doc_string = model.graph.doc_string = ""
    del model.graph.value_info[:]  # stale after renaming, and the engine infers it again
    for value in _values(model.graph):
        value.doc_string = ""
        del value.metadata_props[:]
    for node in _every_node(model.graph):
        node.doc_string = ""
        notes = {p.key: p.value for p in node.metadata_props if p.key in KEPT_NOTES}
        del node.metadata_props[:]
        for key in sorted(notes):
            node.metadata_props.add(key=key, value=notes[key])
