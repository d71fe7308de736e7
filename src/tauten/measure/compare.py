"""How far two answers are apart, at the worst element. NaN, a missing output, another shape or another type is a failure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tauten.spec.contract import Tolerance
from tauten.spec.engine import Tensors
from tauten.spec.judging import Probe
from tauten.spec.tensors import Array, TensorSpec

EXACT = Tolerance()
BEYOND = "large"  # kind of a probe whose values lie beyond anything that the contract declares


@dataclass(frozen=True, slots=True)
class Difference:
    """The element that is furthest beyond its own limit, or comes nearest to it.

    max_abs  |got - want| there; infinite where the two cannot be compared, and `reason` says why
    limit    what the tolerance allows there
    index    its position in the output
    """

    output: str
    max_abs: float
    limit: float
    index: tuple[int, ...] = ()
    reason: str = ""

    @property
    def excess(self) -> float:
        """How many times its limit: above one is a failure."""
        return _times(self.max_abs, self.limit)

    @property
    def held(self) -> bool:
        return self.max_abs <= self.limit

    @property
    def measured(self) -> float | None:
        """`max_abs` for a verdict, which has no infinities."""
        return self.max_abs if math.isfinite(self.max_abs) else None

    def told(self) -> str:
        """In words: what differs, where."""
        where = f"{self.output}{list(self.index)}" if self.index else self.output
        return f"{where} {self.reason}" if self.reason else f"{where} differs by {self.max_abs:.3g}"

    def as_evidence(self, **more: Any) -> dict[str, Any]:
        """Plain JSON data."""
        found: dict[str, Any] = {"max_abs": self.measured, "limit": self.limit, "index": list(self.index)}
        return {**found, **({"reason": self.reason} if self.reason else {}), **more}


def worst(
    got: Array, want: Array, tolerance: Tolerance, *, output: str = "", scale: float = 1.0, bits: bool = False
) -> Difference:
    """Compares element by element: |got - want| <= atol * scale + rtol * |want|.

    An infinity agrees with the same infinity. NaN agrees with nothing, not even with NaN. Strings agree when equal. `bits` says
    that both hold the bit patterns of bfloat16.
    """
    if got.dtype != want.dtype and not (_textual(got) and _textual(want)):
        return _incomparable(output, f"has type {got.dtype} instead of {want.dtype}")
    if got.shape != want.shape:
        return _incomparable(output, f"has shape {list(got.shape)} instead of {list(want.shape)}")
    if not got.size:
        return Difference(output, 0.0, tolerance.atol * scale)
    if _textual(got):
        return _worst_text(got, want, output)
    a, b = (_numbers(x, bits) for x in (got, want))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
        allowed = tolerance.atol * scale + tolerance.rtol * np.abs(np.where(np.isfinite(b), b, 0.0))
    apart = np.where(np.isnan(a) | np.isnan(b), np.inf, np.where(a == b, 0.0, apart))
    # beyond 2**53 integers that differ may look equal as float64
    apart = (
        np.where((got != want) & (apart == 0.0) & ~np.isnan(a), 1.0, apart) if got.dtype.kind in "iub" and not bits else apart
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.where(apart == 0.0, 0.0, apart / allowed)
    most = times == times.max()
    place = np.unravel_index(int(np.argmax(np.where(most, apart, -1.0))), got.shape)
    index = tuple(int(i) for i in place)
    found = Difference(output, float(apart[place]), float(allowed[place]), index)
    if math.isfinite(found.max_abs):
        return found
    return Difference(output, math.inf, found.limit, index, f"is {a[place]} instead of {b[place]}")


def worst_of(
    got: Tensors,
    want: Tensors,
    tolerance: Tolerance,
    outputs: Mapping[str, TensorSpec],
    *,
    scale: float | None = 1.0,
    nan_agrees: bool = False,
) -> dict[str, Difference]:
    """The worst element of every declared output.

    `scale` None counts atol in units of each output's largest finite magnitude. `nan_agrees` is for a model held against
    itself: that it answers NaN at all is the affair of another gate.
    """
    found: dict[str, Difference] = {}
    for name, spec in outputs.items():
        if name not in got or name not in want:
            found[name] = _incomparable(name, "is missing")
            continue
        bits = spec.dtype == "bfloat16"
        unit = magnitude(want[name], bits=bits) if scale is None else scale
        pair = _without_shared_nan(got[name], want[name]) if nan_agrees else (got[name], want[name])
        found[name] = worst(*pair, tolerance, output=name, scale=unit, bits=bits)
    return found


def _times(apart: float, allowed: float) -> float:
    if apart == 0.0:
        return 0.0
    return apart / allowed if allowed else math.inf


def most_excessive(differences: Iterable[Difference]) -> Difference:
    """The one that is furthest beyond its limit."""
    return max(differences, key=lambda d: (d.excess, d.max_abs))


def weight(difference: Difference, probe: Probe) -> tuple[bool, bool, float, float]:
    """Sorts what is worth telling to the end: failures, on values that clients may well send, by how much they exceed."""
    return not difference.held, probe.kind != BEYOND, difference.excess, difference.max_abs


def magnitude(values: Array, *, bits: bool = False) -> float:
    """The largest finite absolute value; 0 where there is none."""
    if _textual(values) or not values.size:
        return 0.0
    size = np.abs(_numbers(values, bits))
    return float(np.max(size, where=np.isfinite(size), initial=0.0))


def scale_of(probe: Probe) -> float:
    """What an absolute tolerance counts in on this probe: 1, save where the values lie beyond anything declared.

    There rounding grows with the values: with the inputs a thousand times as large, so is the last bit of their sums.
    """
    if probe.kind != BEYOND:
        return 1.0
    return max(1.0, *(magnitude(v) for v in probe.inputs.values() if v.dtype.kind == "f"))


def non_finite(values: Array, *, bits: bool = False) -> Array:
    """Where NaN or an infinity is; nowhere in integers and strings."""
    if values.dtype.kind == "f" or bits:
        return ~np.isfinite(_numbers(values, bits))
    return np.zeros(values.shape, dtype=bool)


def _numbers(values: Array, bits: bool) -> Array:
    """As float64; bfloat16 is the upper half of a float32."""
    if bits:
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def _without_shared_nan(a: Array, b: Array) -> tuple[Array, Array]:
    """Both with zeros where both are NaN."""
    if a.shape != b.shape or a.dtype.kind != "f" or b.dtype.kind != "f":
        return a, b
    both = np.isnan(a) & np.isnan(b)
    return (np.where(both, a.dtype.type(0), a), np.where(both, b.dtype.type(0), b)) if both.any() else (a, b)


def _textual(values: Array) -> bool:
    return values.dtype.kind in "OSU"


def _worst_text(got: Array, want: Array, output: str) -> Difference:
    unequal = np.array([_text(a) != _text(b) for a, b in zip(got.flat, want.flat, strict=True)]).reshape(got.shape)
    if not unequal.any():
        return Difference(output, 0.0, 0.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), got.shape))
    return Difference(output, math.inf, 0.0, index, f"is {_text(got[index])!r} instead of {_text(want[index])!r}")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _incomparable(output: str, reason: str) -> Difference:
    return Difference(output, math.inf, 0.0, (), reason)
