"""Ordinary inputs drawn from what a signature declares: inside the range, masks all ones, the same ones for the same seed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tauten.spec.signature import Signature
from tauten.spec.tensors import Array, TensorSpec


def draw(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """One tensor. Without a range integers are 0 or 1 and floats are normal."""
    element = spec.element
    if element.name == "string":
        return np.full(shape, "a", dtype=object)
    if mask_like(spec):
        return np.ones(shape, element.numpy)
    if element.integer:
        low, high = spec.range if spec.range is not None else (0, 1)
        return rng.integers(math.ceil(low), math.floor(high), shape, dtype=element.numpy.type, endpoint=True)
    values = rng.standard_normal(shape) if spec.range is None else rng.uniform(*spec.range, shape)
    if element.name == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(values, element.numpy)


def draw_all(signature: Signature, sizes: Mapping[str, int], *, seed: int = 0) -> dict[str, Array]:
    """One tensor for every input, with the given axis sizes."""
    rng = np.random.default_rng(seed)
    return {name: draw(spec, spec.sized(dict(sizes)), rng) for name, spec in signature.inputs.items()}


def mask_like(spec: TensorSpec) -> bool:
    """Whether an input looks like a mask: truth values, or integers that are 0 or 1."""
    return spec.dtype == "bool" or (spec.element.integer and spec.range == (0, 1))
