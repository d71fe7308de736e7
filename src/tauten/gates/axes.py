"""axes: every dynamic axis has bounds, and the candidate runs inside them with outputs of the declared rank and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tauten.spec.errors import EngineFailed
from tauten.spec.judging import Probe, Subject
from tauten.spec.signature import BATCH
from tauten.spec.tensors import Array, TensorSpec
from tauten.spec.verdict import Status, Verdict

NAME = "axes"


@dataclass(frozen=True, slots=True)
class _Failure:
    probe: Probe
    why: str
    wrong_output: bool = False


def judge(subject: Subject) -> Verdict:
    """Runs every probe. Names the axis, the size, and what the engine said, which names the node."""
    signature = subject.contract.signature
    dynamic = list(dict.fromkeys(a for s in signature.inputs.values() for a in s.axes))
    if unbounded := [a for a in dynamic if a not in signature.axes]:
        return _unbounded(unbounded)
    failures = [f for f in (_try(subject, p) for p in subject.probes) if f is not None]
    tried = {axis: sorted({p.sizes[axis] for p in subject.probes if axis in p.sizes}) for axis in dynamic}
    evidence: dict[str, Any] = {
        "tried": tried,
        "failed": [{"probe": f.probe.name, "sizes": dict(f.probe.sizes), "why": f.why} for f in failures],
    }
    samples = len(subject.probes)
    if not failures:
        bounds = ", ".join(f"{a} {signature.axes[a].describe()}" for a in dynamic) or "every axis is fixed"
        return Verdict(name=NAME, status=Status.HELD, measured=0.0, limit=0.0, unit="failed probes", samples=samples,
                       message=f"runs at every size: {bounds}", evidence=evidence)  # fmt: skip
    axis = _culprit(subject.probes, failures, dynamic)
    return Verdict(name=NAME, status=Status.BROKEN, measured=float(len(failures)), limit=0.0, unit="failed probes",
                   samples=samples, message=_message(subject.probes, failures, axis), fix=_fix(failures, axis),
                   evidence=evidence)  # fmt: skip


def _unbounded(axes: list[str]) -> Verdict:
    lines = ", ".join(f"{a}: {{min: 1, max: {32 if a == BATCH else 256}}}" for a in axes)
    return Verdict(
        name=NAME, status=Status.BROKEN, measured=float(len(axes)), limit=0.0, unit="unbounded axes",
        message=f"axis {axes[0]!r} is dynamic but has no bounds: a client could ask for any size",
        fix=f"add to the contract: axes: {{{lines}}}", evidence={"unbounded": axes},
    )  # fmt: skip


def _try(subject: Subject, probe: Probe) -> _Failure | None:
    try:
        outputs = subject.delivered(probe.inputs)
    except EngineFailed as error:
        return _Failure(probe, error.message)
    sizes = dict(probe.sizes)
    for name, spec in subject.contract.outputs.items():
        if name not in outputs:
            return _Failure(probe, f"output {name!r} is missing; the model gives {', '.join(outputs)}", wrong_output=True)
        if why := _wrong_shape(name, spec, outputs[name], sizes):
            return _Failure(probe, why, wrong_output=True)
        if why := _out_of_bounds(subject, spec, outputs[name]):
            return _Failure(probe, f"output {name!r} {why}", wrong_output=True)
    return None


def _wrong_shape(name: str, spec: TensorSpec, value: Array, sizes: dict[str, int]) -> str:
    """Why a shape is not what was declared. An axis that only outputs have takes its size from the first that shows it."""
    fits = value.ndim == len(spec.shape) and all(
        got == (want if isinstance(want, int) else sizes.setdefault(want, got))
        for want, got in zip(spec.shape, value.shape, strict=True)
    )
    if fits:
        return ""
    wanted = [sizes.get(d, d) if isinstance(d, str) else d for d in spec.shape]
    return f"output {name!r} has shape {list(value.shape)}, declared is {spec.describe()}, that is {wanted}"


def _out_of_bounds(subject: Subject, spec: TensorSpec, value: Array) -> str:
    for want, got in zip(spec.shape, value.shape, strict=True):
        axis = subject.contract.axes.get(want) if isinstance(want, str) else None
        if axis and not axis.min <= got <= axis.max:
            return f"has {got} along {want!r}, allowed is {axis.describe()}"
    return ""


def _culprit(probes: Iterable[Probe], failures: list[_Failure], axes: list[str]) -> str:
    """The axis whose sizes tell failed probes from working ones; empty when none does."""
    failed = {id(f.probe) for f in failures}
    fine = [p for p in probes if id(p) not in failed]
    for axis in axes:
        good = {p.sizes[axis] for p in fine}
        if all(f.probe.sizes[axis] not in good for f in failures):
            return axis
    return ""


def _message(probes: Iterable[Probe], failures: list[_Failure], axis: str) -> str:
    first = failures[0]
    if not axis:
        return f"fails at {_shown(first.probe)}: {first.why}"
    failed = {id(f.probe) for f in failures}
    works = sorted({p.sizes[axis] for p in probes if id(p) not in failed})
    first = min(failures, key=lambda f: f.probe.sizes[axis])
    if len(works) == 1:
        return (
            f"axis {axis!r} is dynamic in name but works at {axis} = {works[0]} only; at {first.probe.sizes[axis]}: {first.why}"
        )
    return f"fails at {axis} = {first.probe.sizes[axis]}: {first.why}"


def _fix(failures: list[_Failure], axis: str) -> str:
    if not axis:
        return "make the model run at these sizes, or narrow the bounds in axes"
    sizes = {f.probe.sizes[axis] for f in failures}
    if axis == BATCH and sizes == {1} and any(f.wrong_output for f in failures):
        return "squeeze(dim) only the axis that is meant: a bare squeeze() drops the batch axis when it is 1"
    size = f"x.shape[{0 if axis == BATCH else 'i'}]"
    return (
        f"take the size from the input at run time ({size}) instead of a constant of the example,"
        f" or fix it in the contract by narrowing axes.{axis}"
    )


def _shown(probe: Probe) -> str:
    return ", ".join(f"{axis} = {size}" for axis, size in probe.sizes.items()) or "its fixed size"
