"""padding_invariance: a row padded up to a bucket answers as it does unpadded, cut back where the output has that axis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tauten.measure.compare import Difference, most_excessive, scale_of, weight, worst_of
from tauten.measure.locate import cut, first_change
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.graph import Node
from tauten.spec.judging import Probe, Subject
from tauten.spec.signature import BATCH
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

NAME = "padding_invariance"
ROWS = 4  # rows of a probe that are padded
UNPADDED = "take 'pad' out of the inputs, so that rows are never padded"


@dataclass(frozen=True, slots=True)
class _Change:
    difference: Difference
    probe: Probe
    axis: str
    size: int
    padded: int
    before: Tensors
    after: Tensors

    @property
    def weight(self) -> tuple[bool, bool, float, float]:
        return weight(self.difference, self.probe)


def judge(subject: Subject) -> Verdict:
    """Skipped where nothing is ever padded. Names the operator that lets padding in where the graph can be instrumented."""
    axes = _padded_axes(subject.contract)
    if not axes:
        return Verdict(name=NAME, status=Status.SKIPPED, message=_why_not(subject.contract))
    worst, samples = None, 0
    for axis in axes:
        for probe, padded in _cases(subject, axis):
            change = _try(subject, probe, axis, padded)
            samples += 1
            worst = change if worst is None or change.weight > worst.weight else worst
    if worst is None:
        return Verdict(name=NAME, status=Status.UNDECIDED, message="no probe is shorter than the largest bucket",
                       fix="give probes of smaller sizes")  # fmt: skip
    found = worst.difference
    evidence: dict[str, Any] = found.as_evidence(
        output=found.output, probe=worst.probe.name, axis=worst.axis, size=worst.size, padded=worst.padded
    )
    if found.held:
        message, fix = f"{samples} inputs answer padded as they do unpadded along {', '.join(axes)}", ""
    else:
        node = first_change(subject.graph, subject.taps, (worst.before, worst.after), cut(worst.size, worst.padded))
        message, fix = _told(worst, node)
        evidence.update({"node": node.label} if node else {})
    return Verdict(name=NAME, status=Status.HELD if found.held else Status.BROKEN, measured=found.measured, limit=found.limit,
                   unit="max_abs", samples=samples, message=message, fix=fix, evidence=evidence)  # fmt: skip


def _padded_axes(contract: Contract) -> list[str]:
    """Axes with buckets along which every input that has them can be padded. Rows along the batch axis are another gate's."""
    return [
        name
        for name, axis in contract.axes.items()
        if name != BATCH and axis.buckets and all(s.pad is not None for s in contract.inputs.values() if name in s.axes)
    ]


def _why_not(contract: Contract) -> str:
    for name, axis in contract.axes.items():
        unpadded = [n for n, s in contract.inputs.items() if name in s.axes and s.pad is None]
        if name != BATCH and axis.buckets and unpadded:
            return f"input {unpadded[0]!r} has no 'pad', so nothing is padded along {name!r}"
    return "no axis has buckets: inputs are never padded"


def _cases(subject: Subject, axis: str) -> Iterator[tuple[Probe, int]]:
    """One probe of each kind and size, to the next larger bucket; the shortest of each kind to the largest one too."""
    buckets = subject.contract.axes[axis].buckets
    seen: set[tuple[Any, ...]] = set()
    shortest: dict[str, Probe] = {}
    for probe in subject.probes:
        size = probe.sizes.get(axis)
        key = (probe.kind, *sorted((a, s) for a, s in probe.sizes.items() if a != BATCH))
        if size is None or key in seen or size >= buckets[-1]:
            continue
        seen.add(key)
        if probe.kind not in shortest or size < shortest[probe.kind].sizes[axis]:
            shortest[probe.kind] = probe
        yield probe, next(b for b in buckets if b > size)
    for probe in shortest.values():
        if probe.sizes[axis] < next((b for b in reversed(buckets[:-1])), 0):
            yield probe, buckets[-1]


def _try(subject: Subject, probe: Probe, axis: str, padded: int) -> _Change:
    contract, size = subject.contract, probe.sizes[axis]
    before = {name: v[:ROWS] if contract.inputs[name].shape[:1] == (BATCH,) else v for name, v in probe.inputs.items()}
    after = {name: _pad(v, contract.inputs[name], axis, padded) for name, v in before.items()}
    want, got = subject.delivered(before), subject.delivered(after)
    back = {name: _cut(v, contract.outputs[name].shape, axis, size) for name, v in got.items() if name in contract.outputs}
    differences = worst_of(back, want, contract.tolerances.batch, contract.outputs, scale=scale_of(probe), nan_agrees=True)
    return _Change(most_excessive(differences.values()), probe, axis, size, padded, before, after)


def _pad(value: Array, spec: Any, axis: str, padded: int) -> Array:
    widths = [(0, padded - value.shape[i]) if d == axis else (0, 0) for i, d in enumerate(spec.shape)]
    return np.pad(value, widths, constant_values=spec.pad) if any(w != (0, 0) for w in widths) else value


def _cut(value: Array, shape: tuple[int | str, ...], axis: str, size: int) -> Array:
    if value.ndim != len(shape):
        return value
    return value[tuple(slice(0, size) if d == axis else slice(None) for d in shape)]


def _told(change: _Change, node: Node | None) -> tuple[str, str]:
    found = change.difference
    amount = f"by {found.max_abs:.3g}" if math.isfinite(found.max_abs) else f"({found.reason})"
    text = f"{found.output} changes {amount} when {change.axis!r} is padded from {change.size} to {change.padded}"
    if node is None:
        return text, f"let the mask keep padded positions out of every sum, or {UNPADDED}"
    if node.op.startswith("Reduce") or node.op in {"GlobalAveragePool", "GlobalMaxPool", "Softmax"}:
        return f"{text}: {node.label} counts padded positions", f"mask them before it (divide by the mask's sum), or {UNPADDED}"
    if node.op in {"LSTM", "GRU", "RNN"}:
        return f"{text}: {node.label} runs on through the padding", f"give it the lengths (sequence_lens), or {UNPADDED}"
    return f"{text}: {node.label} lets padded positions in", f"mask them before it, or {UNPADDED}"
