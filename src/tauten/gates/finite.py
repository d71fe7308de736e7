"""finite: no NaN and no infinity in any output, on any input that the contract allows; ranges fit their types."""

from __future__ import annotations

from typing import Any

import numpy as np

from tauten.measure.compare import magnitude, non_finite
from tauten.measure.locate import first_non_finite
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.errors import EngineFailed
from tauten.spec.judging import Probe, Subject
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

NAME = "finite"
LARGEST = {"float16": 65504.0}  # the largest finite number of the type


def judge(subject: Subject) -> Verdict:
    """Names the first operator that makes NaN or an infinity where the graph can be instrumented."""
    if why := _range_trouble(subject.contract):
        return Verdict(name=NAME, status=Status.BROKEN, message=why, fix="narrow the range, or take float32 for this input")
    bad: list[tuple[Probe, str, Array]] = []
    largest: dict[str, float] = {}
    for probe in subject.probes:
        for name, value in _declared(subject, subject.delivered(probe.inputs)).items():
            bits = subject.contract.outputs[name].dtype == "bfloat16"
            largest[name] = max(largest.get(name, 0.0), magnitude(value, bits=bits))
            if (where := non_finite(value, bits=bits)).any():
                bad.append((probe, name, where))
    evidence: dict[str, Any] = {"largest": largest, "broken_probes": sorted({p.name for p, *_ in bad})}
    count, samples = float(sum(where.sum() for *_, where in bad)), len(subject.probes)
    if not bad:
        return Verdict(name=NAME, status=Status.HELD, measured=0.0, limit=0.0, unit="elements", samples=samples,
                       message=f"every output is finite on {samples} probes", evidence=evidence)  # fmt: skip
    probe, name, where = bad[0]
    node = first_non_finite(subject.graph, subject.taps, probe.inputs)
    evidence.update({"node": node.label} if node else {})
    index = [int(i) for i in np.argwhere(where)[0]]
    text = f"{name}{index} is not finite on probe '{probe.name}'"
    if _original_too(subject, probe, name, where):
        text += "; the original does it too"
    return Verdict(name=NAME, status=Status.BROKEN, measured=count, limit=0.0, unit="elements", samples=samples,
                   message=f"{text}: {node.label} makes it" if node else text, fix=_fix(probe), evidence=evidence)  # fmt: skip


def _declared(subject: Subject, outputs: Tensors) -> dict[str, Array]:
    return {name: outputs[name] for name in subject.contract.outputs if name in outputs}


def _original_too(subject: Subject, probe: Probe, name: str, where: Array) -> bool:
    """Whether the original is not finite at the very same places."""
    if subject.reference is None:
        return False
    try:
        value = subject.reference(probe.inputs).get(name)
    except EngineFailed:  # the gate `parity` says so
        return False
    bits = subject.contract.outputs[name].dtype == "bfloat16"
    return value is not None and np.array_equal(non_finite(value, bits=bits), where)


def _range_trouble(contract: Contract) -> str:
    """A declared range that the type cannot hold: what clients may send would arrive as infinity."""
    for name, spec in contract.inputs.items():
        limit = LARGEST.get(spec.dtype)
        if limit and spec.range and max(abs(end) for end in spec.range) > limit:
            return f"input {name!r} may be up to {max(map(abs, spec.range)):g}, but {spec.dtype} ends at {limit:g}"
    return ""


def _fix(probe: Probe) -> str:
    if probe.kind.startswith("mask"):
        return "guard against rows that are masked entirely: divide by max(count, 1), and mask with a finite number, not -inf"
    if probe.kind == "zeros":
        return "guard the division or the logarithm: add a small epsilon"
    return "declare the range that inputs really have, or guard the operator (clamp before exp, epsilon before division)"
