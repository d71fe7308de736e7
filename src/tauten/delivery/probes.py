"""Inputs to try a model on: made from the contract alone, with a fixed seed, of every size that matters and with nasty values.

Sizes: the smallest, the next, the declared optimum, the largest, odd primes, every bucket and its neighbours; one axis at a
time, then the corners. Values: drawn from the declared range, all at its lower and at its upper limit; masks with holes,
with padding, and with rows that are masked entirely; floats with no declared range also as zeros, tiny and large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tauten.measure.draw import draw, draw_all, mask_like
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.errors import BadContract
from tauten.spec.judging import Probe
from tauten.spec.signature import BATCH, Axis, Signature
from tauten.spec.tensors import Array, TensorSpec

PRIMES = (3, 5, 7, 13, 31, 61, 127, 251)
MODEST = 16  # where one axis is swept, the others stay at or below this
ELEMENTS = 48_000_000  # in all probes together; beyond it, less telling ones are left out
TINY, LARGE = 1e-6, 1e3
MOST = 1 << 31  # elements in one probe, drawn as float64: 16 GiB
WORDS = ("", "a", "Grüße", "two words", "line\nbreak", "漢字", "x" * 200)
UNBOUNDED = Axis(min=1, opt=2, max=5)  # stands in for an axis that the contract forgot to bound; the gate `axes` refuses it

Sizes = Mapping[str, int]
Rng = np.random.Generator


def make_probes(contract: Contract, *, seed: int = 0, samples: Sequence[Tensors] = ()) -> tuple[Probe, ...]:
    """All probes for a contract; the same ones for the same contract and seed.

    `samples` are inputs that somebody gave; they come first. Raises BadRequest when one does not fit the signature, and
    BadContract when an axis is bounded so far out that its end cannot be tried.
    """
    given = [Probe(f"given {i}", "given", contract.signature.check(s), dict(s)) for i, s in enumerate(samples)]
    made: list[Probe] = []
    room = float(ELEMENTS)
    for plan in _plans(contract):
        cost = _elements(contract, plan.sizes)
        if cost > room and not plan.essential:
            continue
        label = " ".join(f"{axis}={size}" for axis, size in plan.sizes.items())
        if cost > MOST:
            raise BadContract(f"the inputs of {label} have {cost:.2g} elements, which is too much to try",
                              fix="lower the max of these axes")  # fmt: skip
        room -= cost
        rng = np.random.default_rng([seed, len(made)])
        with np.errstate(over="ignore"):  # a range that the type cannot hold: the gate `finite` refuses it
            inputs = {name: plan.fill(spec, spec.sized(dict(plan.sizes)), rng) for name, spec in contract.inputs.items()}
        made.append(Probe(f"{plan.kind} {label}".strip(), plan.kind, dict(plan.sizes), inputs))
    return (*given, *made)


def sample(contract: Contract, sizes: Sizes, *, seed: int = 0) -> dict[str, Array]:
    """One input of the given axis sizes with ordinary values: drawn from the declared ranges, masks all ones."""
    return draw_all(contract.signature, sizes, seed=seed)


Fill = Callable[[TensorSpec, tuple[int, ...], Rng], Array]


@dataclass(frozen=True, slots=True)
class _Plan:
    kind: str
    sizes: Sizes
    fill: Fill
    essential: bool = False


def _plans(contract: Contract) -> Iterator[_Plan]:
    """What to make, the telling ones first."""
    bounds = axes_of(contract.signature)
    usual = {name: _fit(axis, axis.optimum) for name, axis in bounds.items()}
    few = {**usual, BATCH: _fit(bounds[BATCH], min(4, bounds[BATCH].max))} if BATCH in bounds else usual
    seen: set[tuple[tuple[str, int], ...]] = set()
    for number, sizes in enumerate([usual, *_corners(bounds), *_sweeps(bounds), few]):
        key = tuple(sorted(sizes.items()))
        if key not in seen:
            seen.add(key)
            yield _Plan("random", sizes, _natural, essential=number < 3)
    for kind, fill in _kinds(contract.inputs):
        yield _Plan(kind, few, fill)
    longest = {name: few[name] if name == BATCH else _ends(axis)[1] for name, axis in bounds.items()}
    if longest != few:
        yield _Plan("high", longest, _at_limit(1))


def axes_of(signature: Signature) -> dict[str, Axis]:
    """Bounds of every axis that an input has, those left out replaced by small ones."""
    names = dict.fromkeys(a for s in signature.inputs.values() for a in s.axes)
    return {name: signature.axes.get(name, UNBOUNDED) for name in names}


def sizes_of(axis: Axis) -> tuple[int, ...]:
    """Sizes to try along one axis, rising."""
    low, high = _ends(axis)
    step = axis.multiple_of
    near = [b + d for b in axis.buckets for d in (-1, 0, 1)]
    wanted = [low, low + step, axis.optimum, high - step, high, *PRIMES, *near]
    return tuple(sorted({_fit(axis, size) for size in wanted if low <= size <= high} | {low, high}))


def _corners(bounds: Mapping[str, Axis]) -> Iterator[dict[str, int]]:
    """All at their smallest, all at their largest, then each alone at its smallest and largest."""
    low = {name: _ends(axis)[0] for name, axis in bounds.items()}
    high = {name: _ends(axis)[1] for name, axis in bounds.items()}
    yield low
    yield high
    for name in bounds:
        yield {**low, name: high[name]}
        yield {**high, name: low[name]}


def _sweeps(bounds: Mapping[str, Axis]) -> Iterator[dict[str, int]]:
    """One axis at a time through all its sizes, the others at a modest size above one."""
    modest = {name: _fit(axis, min(axis.optimum, 2 if name == BATCH else MODEST)) for name, axis in bounds.items()}
    for name, axis in bounds.items():
        for size in sizes_of(axis):
            yield {**modest, name: size}


def _ends(axis: Axis) -> tuple[int, int]:
    """The smallest and largest size that the axis allows, its step considered."""
    step = axis.multiple_of
    return math.ceil(axis.min / step) * step, max(axis.max // step * step, math.ceil(axis.min / step) * step)


def _fit(axis: Axis, size: int) -> int:
    low, high = _ends(axis)
    return min(max(size // axis.multiple_of * axis.multiple_of, low), high)


def _elements(contract: Contract, sizes: Sizes) -> int:
    return sum(math.prod(spec.sized(dict(sizes))) for spec in contract.inputs.values())


def _kinds(inputs: Mapping[str, TensorSpec]) -> Iterable[tuple[str, Fill]]:
    """Value patterns that make sense for these inputs."""
    specs = list(inputs.values())
    if any(s.range is not None and not mask_like(s) for s in specs):
        yield "low", _at_limit(0)
        yield "high", _at_limit(1)
    if any(mask_like(s) for s in specs):
        for name, pattern in _MASKS.items():
            yield f"mask {name}", _masked(pattern)
    if any(s.element.floating and s.range is None for s in specs):
        yield "zeros", _scaled(0.0)
        yield "tiny", _scaled(TINY)
        yield "large", _scaled(LARGE)
    if any(s.optional for s in specs):
        yield "defaults", _defaults


def _natural(spec: TensorSpec, shape: tuple[int, ...], rng: Rng) -> Array:
    return _random(spec, shape, rng, mask=_left_aligned)


def _random(spec: TensorSpec, shape: tuple[int, ...], rng: Rng, mask: Callable[[tuple[int, ...], Rng], Array]) -> Array:
    """Ordinary values, but every kind of string, and masks of the given pattern."""
    if spec.dtype == "string":
        return np.array([WORDS[i] for i in rng.integers(len(WORDS), size=math.prod(shape))], dtype=object).reshape(shape)
    if mask_like(spec):
        return mask(shape, rng).astype(spec.element.numpy)
    return draw(spec, shape, rng)


def _at_limit(end: int) -> Fill:
    def fill(spec: TensorSpec, shape: tuple[int, ...], rng: Rng) -> Array:
        if spec.range is None or mask_like(spec):
            return _random(spec, shape, rng, mask=_ones)
        limit = spec.range[end]
        if spec.element.floating:
            return _floats(spec, np.full(shape, limit))
        return np.full(shape, math.floor(limit) if end else math.ceil(limit)).astype(spec.element.numpy)

    return fill


def _scaled(factor: float) -> Fill:
    """Floats with no declared range at another magnitude."""

    def fill(spec: TensorSpec, shape: tuple[int, ...], rng: Rng) -> Array:
        if spec.element.floating and spec.range is None:
            return _floats(spec, rng.standard_normal(shape) * factor)
        return _random(spec, shape, rng, mask=_ones)

    return fill


def _defaults(spec: TensorSpec, shape: tuple[int, ...], rng: Rng) -> Array:
    """What the server fills in when clients leave the optional inputs out."""
    if not spec.optional or spec.default is None:
        return _random(spec, shape, rng, mask=_ones)
    filled = np.full(shape, spec.default)
    return _floats(spec, filled) if spec.element.floating else filled.astype(spec.element.numpy)


def _floats(spec: TensorSpec, values: Array) -> Array:
    if spec.dtype == "bfloat16":  # carried as the upper half of a float32
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(spec.element.numpy)


def _ones(shape: tuple[int, ...], _: Rng) -> Array:
    return np.ones(shape, dtype=np.int64)


def _left_aligned(shape: tuple[int, ...], rng: Rng) -> Array:
    """As tokenizers pad: each row's first elements are ones, at least one of them; the first row is full."""
    if len(shape) < 2:
        return np.ones(shape, dtype=np.int64)
    lengths = rng.integers(1, max(shape[1], 1), size=shape[0], endpoint=True)
    lengths[:1] = shape[1]
    kept = np.arange(shape[1])[None, :] < lengths[:, None]
    return np.broadcast_to(kept.reshape(*kept.shape, *([1] * (len(shape) - 2))), shape).astype(np.int64)


def _holes(shape: tuple[int, ...], rng: Rng) -> Array:
    mask = rng.integers(0, 2, size=shape)
    mask[(slice(None),) + (slice(0, 1),) * (len(shape) - 1)] = 1  # no row is empty by chance
    return mask


def _one_empty(shape: tuple[int, ...], rng: Rng) -> Array:
    mask = _left_aligned(shape, rng)
    mask[-1:] = 0
    return mask


def _others_empty(shape: tuple[int, ...], _: Rng) -> Array:
    mask = np.zeros(shape, dtype=np.int64)
    mask[:1] = 1
    return mask


_MASKS: dict[str, Callable[[tuple[int, ...], Rng], Array]] = {
    "ones": _ones, "lengths": _left_aligned, "holes": _holes, "one row empty": _one_empty,
    "all rows empty but one": _others_empty,
}  # fmt: skip


def _masked(pattern: Callable[[tuple[int, ...], Rng], Array]) -> Fill:
    def fill(spec: TensorSpec, shape: tuple[int, ...], rng: Rng) -> Array:
        return _random(spec, shape, rng, mask=pattern)

    return fill
