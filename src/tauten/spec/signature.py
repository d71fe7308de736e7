"""What a model takes and gives, with bounded axes: the part of the contract that every single request is held to."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from tauten.spec.errors import BadContract, BadRequest
from tauten.spec.tensors import Array, TensorSpec

BATCH = "batch"  # the axis that requests are gathered along


class Axis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bounds of a dynamic axis. `buckets` are the sizes that inputs are padded up to; `opt` is the size to tune for."""

    min: int = 1
    opt: int | None = None
    max: int
    buckets: tuple[int, ...] = ()
    multiple_of: int = 1

    @property
    def optimum(self) -> int:
        return self.opt if self.opt is not None else max(self.min, self.max // 4)

    def trouble(self, name: str) -> str:
        """Why these bounds contradict each other; empty when they do not."""
        if self.min < 0 or self.multiple_of < 1:
            return f"axes.{name}: min {self.min} and multiple_of {self.multiple_of} must not be negative"
        if self.min > self.max:
            return f"axes.{name}: min {self.min} is greater than max {self.max}"
        if name == BATCH and self.min < 1:
            return f"axes.{name}: min is {self.min}, but a request has at least one row"
        if self.max // self.multiple_of * self.multiple_of < self.min:
            return f"axes.{name}: no size in [{self.min}, {self.max}] is a multiple of {self.multiple_of}"
        if self.opt is not None and not self.min <= self.opt <= self.max:
            return f"axes.{name}: opt {self.opt} is outside [{self.min}, {self.max}]"
        if list(self.buckets) != sorted(set(self.buckets)):
            return f"axes.{name}: buckets {list(self.buckets)} must rise"
        if self.buckets and (self.buckets[0] < self.min or self.buckets[-1] != self.max):
            return f"axes.{name}: buckets {list(self.buckets)} must lie in [{self.min}, {self.max}] and end at max"
        return ""

    def bucket(self, size: int) -> int:
        """The size that `size` is padded up to: the smallest bucket that holds it, or itself without buckets."""
        return next((b for b in self.buckets if b >= size), size)

    def describe(self) -> str:
        step = f" in steps of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.min} to {self.max}{step}"


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Inputs, outputs and the bounds of every axis that they name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    axes: dict[str, Axis] = {}

    @property
    def batchable(self) -> bool:
        """Every input and output leads with the batch axis, so that rows can be gathered and cut apart."""
        return all(s.shape and s.shape[0] == BATCH for s in (*self.inputs.values(), *self.outputs.values()))

    def trouble(self) -> str:
        """The first contradiction inside the signature; empty when there is none."""
        used = {a for s in (*self.inputs.values(), *self.outputs.values()) for a in s.axes}
        for name, axis in self.axes.items():
            if why := axis.trouble(name):
                return why
            if name not in used:
                return f"axes.{name} is bounded but no input or output has an axis of that name ({sorted(used)})"
        given = {a for s in self.inputs.values() for a in s.axes}
        for name, spec in self.outputs.items():
            if odd := [a for a in spec.axes if a not in given and a not in self.axes]:
                return f"outputs.{name}: axis {odd[0]!r} is in no input and has no bounds in axes"
        for name, spec in self.inputs.items():
            if why := _spec_trouble(spec):
                return f"inputs.{name}: {why}"
        return ""

    def check(self, inputs: Mapping[str, Array]) -> dict[str, int]:
        """Holds one request to the signature; returns the size of every axis in it.

        Raises BadRequest that names the input, what came and what is allowed. Missing optional inputs are fine here.
        """
        for name in inputs:
            if name not in self.inputs:
                raise BadRequest(f"unexpected input {name!r}; this model takes {', '.join(self.inputs)}",
                                 fix="send only inputs that the model's metadata lists")  # fmt: skip
        sizes: dict[str, int] = {}
        for name, spec in self.inputs.items():
            if name in inputs:
                self._check_one(name, spec, inputs[name], sizes)
            elif not spec.optional:
                raise BadRequest(f"input {name!r} ({spec.describe()}) is missing; got {', '.join(inputs) or 'no inputs'}",
                                 fix="send every input that is not optional")  # fmt: skip
        return sizes

    def _check_one(self, name: str, spec: TensorSpec, value: Array, sizes: dict[str, int]) -> None:
        if value.dtype != spec.element.numpy:
            raise BadRequest(f"input {name!r} has type {value.dtype}, expected {spec.dtype}",
                             fix=f"send datatype {spec.element.wire}")  # fmt: skip
        if value.ndim != len(spec.shape):
            raise BadRequest(f"input {name!r} has shape {list(value.shape)}, expected {spec.describe()}",
                             fix=f"send {len(spec.shape)} dimensions")  # fmt: skip
        for want, got in zip(spec.shape, value.shape, strict=True):
            if isinstance(want, int):
                if want != got:
                    raise BadRequest(f"input {name!r} has shape {list(value.shape)}, expected {spec.describe()}",
                                     fix=f"send {want} where {got} was sent")  # fmt: skip
                continue
            if sizes.setdefault(want, got) != got:
                raise BadRequest(f"input {name!r} has {got} along axis {want!r}, but another input has {sizes[want]}",
                                 fix=f"axis {want!r} has one size in a request")  # fmt: skip
            axis = self.axes.get(want)
            if axis and (not axis.min <= got <= axis.max or got % axis.multiple_of):
                raise BadRequest(f"input {name!r} has {got} along axis {want!r}, allowed is {axis.describe()}",
                                 fix=f"send {axis.describe()} along {want!r}")  # fmt: skip
        _check_range(name, spec, value)


def _check_range(name: str, spec: TensorSpec, value: Array) -> None:
    if spec.range is None or not value.size or spec.dtype in {"string", "bfloat16"}:
        return
    low, high = spec.range
    least, most = value.min(), value.max()
    if not (least >= low and most <= high):  # written so that NaN is refused too
        came = most if least >= low else least
        raise BadRequest(f"input {name!r} has the value {came}, outside the declared range [{low:g}, {high:g}]",
                         fix=f"send values in [{low:g}, {high:g}]")  # fmt: skip


def _spec_trouble(spec: TensorSpec) -> str:
    if spec.range is not None and spec.range[0] > spec.range[1]:
        return f"range [{spec.range[0]:g}, {spec.range[1]:g}] is upside down"
    if spec.range is not None and not _holds(spec, spec.range):
        return f"range [{spec.range[0]:g}, {spec.range[1]:g}] is not finite or does not fit {spec.dtype}"
    for key, value in (("pad", spec.pad), ("default", spec.default)):
        if value is None or spec.dtype == "string":
            continue
        if spec.element.integer:
            limits = np.iinfo(spec.element.numpy)
            if not math.isfinite(value) or value != int(value) or not limits.min <= value <= limits.max:
                return f"{key} {value} does not fit {spec.dtype}"
        if spec.range is not None and not spec.range[0] <= value <= spec.range[1]:
            return f"{key} {value} is outside the range [{spec.range[0]:g}, {spec.range[1]:g}]"
    if spec.optional and spec.default is None:
        return "is optional but has no default"
    return ""


def _holds(spec: TensorSpec, ends: tuple[float, float]) -> bool:
    """Whether values between these ends can be drawn, and an integer type holds them."""
    if not math.isfinite(ends[1] - ends[0]):
        return False
    limits = np.iinfo(spec.element.numpy) if spec.element.integer else None
    return limits is None or (limits.min <= ends[0] and ends[1] <= limits.max)


def raise_on_trouble(signature: Signature) -> None:
    """Raises BadContract with the first contradiction."""
    if why := signature.trouble():
        raise BadContract(why, fix="correct the bounds in the contract")
