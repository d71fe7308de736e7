"""Finds the first operator whose result changes between two runs of one graph that ought to agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tauten.measure.compare import magnitude, worst
from tauten.spec.contract import Tolerance
from tauten.spec.engine import Runner, Tensors
from tauten.spec.errors import BadInput, EngineFailed, Unsupported
from tauten.spec.graph import Graph, Node
from tauten.spec.tensors import Array

Taps = Callable[[tuple[str, ...]], Runner]
Align = Callable[[Array, Array], tuple[Array, Array] | None]  # the parts of two inner values that ought to agree
AT_ONCE = 64  # inner values per instrumented copy: more would hold the whole inside of a large model in memory
ROUNDING = 1e-5  # of a value's largest magnitude: what float32 sums may move by when they are cut differently


def first_change(graph: Graph | None, taps: Taps | None, runs: tuple[Tensors, Tensors], align: Align) -> Node | None:
    """The first node, in the order of the graph, with an output that changes between two inputs beyond rounding.

    `runs` are the inputs of the two runs. None where the graph cannot be instrumented, or where nothing inside changes.
    """
    for node, (before, after) in _inner_values(graph, taps, runs):
        if _changed(before, after, align):
            return node
    return None


def first_non_finite(graph: Graph | None, taps: Taps | None, inputs: Tensors) -> Node | None:
    """The first node that makes NaN, or else the first that makes an infinity: masks hold infinities on purpose."""
    infinite: Node | None = None
    for node, (value,) in _inner_values(graph, taps, (inputs,)):
        if value.dtype.kind != "f":
            continue
        if np.isnan(value).any():
            return node
        if infinite is None and not np.isfinite(value).all():
            infinite = node
    return infinite


def _inner_values(
    graph: Graph | None, taps: Taps | None, runs: tuple[Tensors, ...]
) -> Iterator[tuple[Node, tuple[Array, ...]]]:
    """Every output of every node in order, with its value in each run."""
    if graph is None or taps is None:
        return
    values = [
        (name, node) for node in graph.nodes if node.depth == 0 and node.op != "Constant" for name in node.outputs if name
    ]
    for start in range(0, len(values), AT_ONCE):
        part = values[start : start + AT_ONCE]
        try:
            run = taps(tuple(name for name, _ in part))
            found = [run(inputs) for inputs in runs]
        except (BadInput, EngineFailed, Unsupported):  # a kind of value that numpy cannot carry: the rest is still looked at
            continue
        for name, node in part:
            if all(name in outputs for outputs in found):
                yield node, tuple(outputs[name] for outputs in found)


def _changed(before: Array, after: Array, align: Align) -> bool:
    pair = align(before, after)
    if pair is None or pair[0].dtype.kind not in "fiub":
        return False
    a, b = pair
    if a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return False
    return not worst(a, b, Tolerance(atol=ROUNDING), scale=max(magnitude(b), 1e-30)).held


def rows_of(row: int, of: int, alone: int) -> Align:
    """Aligns a row that ran in a batch of `alone` rows (as the first) with row `row` of a batch of `of`.

    A value whose leading size is a multiple of the rows is cut into as many blocks: rows and tokens may be flattened
    together. Any other float value, a mean or a scale, must not change at all; integers that are no rows are sizes, which may.
    """

    def align(before: Array, after: Array) -> tuple[Array, Array] | None:
        if before.ndim and after.ndim == before.ndim and before.shape[0] * of == after.shape[0] * alone and of != alone:
            step = before.shape[0] // alone
            if step and before.shape[0] % alone == 0:
                return before[:step], after[row * step : (row + 1) * step]
        if before.dtype.kind == "f" and before.shape == after.shape:
            return before, after
        return None

    return align


def cut(size: int, padded: int) -> Align:
    """Aligns values along an axis of `size` that became `padded`: what was there before must not change."""

    def align(before: Array, after: Array) -> tuple[Array, Array] | None:
        if before.ndim != after.ndim:
            return None
        index: list[Any] = []
        for a, b in zip(before.shape, after.shape, strict=True):
            if a != b and (a, b) != (size, padded):
                return None
            index.append(slice(0, a))
        if before.shape == after.shape and before.dtype.kind != "f":
            return None  # sizes may change
        return before, after[tuple(index)]

    return align
