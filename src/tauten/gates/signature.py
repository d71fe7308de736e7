"""signature: what was asked for is what the file has: names, types, ranks, dynamic axes, opset. The order does not matter."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from tauten.spec.graph import Graph, Value
from tauten.spec.judging import Subject
from tauten.spec.tensors import TensorSpec
from tauten.spec.verdict import Status, Verdict, from_troubles

NAME = "signature"

Trouble = tuple[str, str]  # what is wrong, and the fix


def judge(subject: Subject) -> Verdict:
    """Compares the contract with what was read back from the file. Sizes of outputs are not trusted: `axes` runs them."""
    if subject.graph is None:
        return Verdict(name=NAME, status=Status.SKIPPED, message="the model has no graph to read back")
    contract, graph = subject.contract, subject.graph
    stored = {i.name for i in graph.initializers}
    inputs = [v for v in graph.inputs if v.name not in stored]
    troubles = [
        *_inputs(contract.inputs, inputs),
        *_outputs(contract.outputs, graph.outputs),
        *_opset(subject.asked_opset, graph),
    ]
    evidence = {
        "inputs": [_shown(v) for v in inputs],
        "outputs": [_shown(v) for v in graph.outputs],
        "opset": graph.opset,
        "asked_opset": subject.asked_opset,
    }
    return from_troubles(
        NAME,
        troubles,
        fine=f"{len(contract.inputs)} inputs and {len(contract.outputs)} outputs are as asked, opset {graph.opset}",
        unit="differences",
        samples=len(contract.inputs) + len(contract.outputs),
        evidence=evidence,
    )


def _inputs(asked: Mapping[str, TensorSpec], got: Iterable[Value]) -> list[Trouble]:
    found = {v.name: v for v in got}
    missing = [name for name in asked if name not in found]
    extra = [name for name in found if name not in asked]
    troubles = [_missing_input(name, extra, found) for name in missing]
    if len(missing) < len(extra):
        unknown = next(n for n in extra if n not in asked)
        troubles.append((f"the model takes an input {unknown!r} that the contract does not list ({', '.join(asked)})",
                         "add it to inputs in the contract, or give it a default in forward"))  # fmt: skip
    for name, spec in asked.items():
        if name in found:
            troubles += _port(f"input {name!r}", spec, found[name], sizes=True)
    return troubles


def _missing_input(name: str, extra: list[str], found: Mapping[str, Value]) -> Trouble:
    if not extra:
        return (f"input {name!r} is unused and was dropped by the exporter; the file has {', '.join(found) or 'no inputs'}",
                f"use {name!r} in forward, or take it out of the contract")  # fmt: skip
    close = difflib.get_close_matches(name, extra, n=1, cutoff=0.0)[0]
    return (f"input {name!r} is not in the file, which has {close!r} instead: it was renamed or the names have shifted",
            f"export with the contract's names, or rename {name!r} to {close!r} in the contract")  # fmt: skip


def _outputs(asked: Mapping[str, TensorSpec], got: Iterable[Value]) -> list[Trouble]:
    found = {v.name: v for v in got}
    troubles: list[Trouble] = []
    for name, spec in asked.items():
        if name not in found:
            troubles.append((f"output {name!r} is not in the file; it has {', '.join(found) or 'no outputs'}",
                             "name the outputs in the order in which forward returns them"))  # fmt: skip
        else:
            troubles += _port(f"output {name!r}", spec, found[name], sizes=False)
    if len(found) > len(asked):
        unknown = next(n for n in found if n not in asked)
        troubles.append((f"the model has an output {unknown!r} that the contract does not list",
                         "add it to outputs in the contract, or do not return it from forward"))  # fmt: skip
    return troubles


def _port(where: str, spec: TensorSpec, value: Value, *, sizes: bool) -> list[Trouble]:
    troubles: list[Trouble] = []
    if value.dtype is not None and value.dtype != spec.dtype:
        troubles.append(
            (
                f"{where} has type {value.dtype}, asked is {spec.dtype}",
                f"cast it in forward, or say {value.dtype} in the contract",
            )
        )
    if value.shape is None:
        return troubles
    if len(value.shape) != len(spec.shape):
        return [*troubles, (f"{where} has rank {len(value.shape)} {_shape(value)}, asked is {spec.describe()}",
                            "correct the shape in the contract, or keep every axis in forward")]  # fmt: skip
    for position, (want, have) in enumerate(zip(spec.shape, value.shape, strict=True)):
        if not sizes or not isinstance(have, int) or want == have:
            continue
        if isinstance(want, str):
            what = f"{where}: axis {want!r} was asked to be dynamic but is fixed to {have} (dimension {position})"
            fix = f"take the size from the input in forward instead of a constant, or say {have} in the contract"
        else:
            what, fix = f"{where} has {have} in dimension {position}, asked is {want}", f"say {have} in the contract"
        troubles.append((what, fix))
    return troubles


def _opset(asked: int | None, graph: Graph) -> list[Trouble]:
    if asked is None or graph.opset == asked:
        return []
    return [(f"opset {asked} was asked, the exporter wrote opset {graph.opset}",
             f"try the other exporter, or say target.opset: {graph.opset} if the target engine runs it")]  # fmt: skip


def _shown(value: Value) -> str:
    return f"{value.name}: {value.dtype or '?'}{_shape(value)}"


def _shape(value: Value) -> str:
    return "[?]" if value.shape is None else "[" + ", ".join("?" if d is None else str(d) for d in value.shape) + "]"
