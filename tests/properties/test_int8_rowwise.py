"""INT8 with one scale per row: as near to float as the theory says, and no row knows of another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from tauten import testing
from tauten.engines import onnxruntime as engine
from tauten.quant import int8_rowwise
from tauten.spec.engine import EngineSettings
from tauten.spec.tensors import Array

DEPTH, WIDTH = 72, 64  # no multiples of a vector's length
EPS = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(np.float32).tiny)
LAYER = '<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 72] x) => (float[batch, 64] y) {y = MatMul(x, w)}'

seeds = st.integers(0, 2**32 - 1)


@st.composite
def matrices(draw: st.DrawFn) -> Array:
    """Columns of their own magnitude, some without weights; or such as integers hold exactly."""
    rng = np.random.default_rng(draw(seeds))
    if draw(st.booleans()):
        return np.eye(DEPTH, WIDTH, dtype=np.float32)
    columns = 10.0 ** rng.uniform(-3, 3, size=WIDTH) * draw(st.sampled_from([1e-6, 1.0, 1e3]))
    matrix = rng.normal(size=(DEPTH, WIDTH)) * columns
    matrix[:, rng.random(WIDTH) < draw(st.sampled_from([0.0, 0.2]))] = 0
    return matrix.astype(np.float32)


@st.composite
def batches(draw: st.DrawFn) -> Array:
    """Rows as unlike as can be: of any magnitude, far from zero, constant, zero, with one outlier."""
    rng = np.random.default_rng(draw(seeds))
    rows = []
    for kind in draw(st.lists(st.sampled_from(["normal", "far", "constant", "zero", "outlier"]), min_size=1, max_size=9)):
        row = rng.normal(size=DEPTH) * (kind not in {"constant", "zero"})
        row += {"far": 100, "constant": rng.normal()}.get(kind, 0)
        row[0] *= 1000 if kind == "outlier" else 1
        rows.append(row * draw(st.sampled_from([1e-30, 1e-3, 1.0, 1e4])))
    return np.array(rows).astype(np.float32)


@contextmanager
def quantised(matrix: Array) -> Iterator[Any]:
    """run(x) of one layer in integers."""
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / "m.onnx", Path(folder) / "q.onnx"
        model = parser.parse_model(LAYER)
        model.graph.initializer.append(numpy_helper.from_array(matrix, "w"))
        onnx.save(model, source)
        int8_rowwise.quantise(source, out, testing.tiny_contract())
        session = engine.open(out, EngineSettings())
        yield lambda x: session.run({"x": x})["y"]
        session.close()


def bound(x: Array, w: Array) -> Array:
    """How far the answer may be off, element by element.

    Half a step of every activation, what the weights lost when they were rounded, and float arithmetic around them.
    """
    x, w = x.astype(np.float64), w.astype(np.float64)
    width = np.maximum(x.max(axis=1) - x.min(axis=1), TINY)
    most = np.abs(w).max(axis=0)
    step = np.where(most > 0, np.maximum(most / 127, TINY), 0)
    stored = step * np.rint(np.divide(w, step, out=np.zeros_like(w), where=step > 0))
    quantising = width[:, None] / 510 * np.abs(stored).sum(axis=0) + np.abs(x) @ np.abs(w - stored)
    # The offset and the part above it may cancel: rounding is relative to the two, not to their sum.
    parts = np.abs(x.min(axis=1))[:, None] * np.abs(stored.sum(axis=0)) + width[:, None] * np.abs(stored).sum(axis=0)
    return np.asarray(quantising * (1 + 1e-3) + 8 * EPS * parts + DEPTH * TINY)


@given(matrix=matrices(), x=batches())
@settings(max_examples=60, deadline=None)
def test_the_error_is_within_its_bound(matrix: Array, x: Array) -> None:
    with quantised(matrix) as run:
        apart = np.abs(run(x) - x.astype(np.float64) @ matrix.astype(np.float64))
    assert (apart <= bound(x, matrix)).all()


@given(matrix=matrices(), x=batches(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_row_knows_of_another(matrix: Array, x: Array, data: st.DataObject) -> None:
    """To the last bit: alone, in another order, beside other rows."""
    order = data.draw(st.permutations(range(len(x))))
    beside = data.draw(batches())
    with quantised(matrix) as run:
        together = run(x)
        np.testing.assert_array_equal(run(x[order]), together[order])
        np.testing.assert_array_equal(run(np.concatenate([beside, x]))[len(beside) :], together)
        for i in range(len(x)):
            np.testing.assert_array_equal(run(x[i : i + 1])[0], together[i])


@given(matrix=matrices(), x=batches(), factor=st.integers(-8, 8).map(lambda e: 2.0**e))
@settings(max_examples=30, deadline=None)
def test_a_row_that_is_twice_as_large_has_an_answer_twice_as_large(matrix: Array, x: Array, factor: float) -> None:
    """The scale follows the row: no magnitude is favoured."""
    x = x[np.abs(x).max(axis=1) > 1e-20]  # below, a float itself has fewer digits
    if len(x):
        with quantised(matrix) as run:
            np.testing.assert_allclose(run(x * np.float32(factor)), run(x) * np.float32(factor), rtol=1e-5)


@given(matrix=matrices())
@settings(max_examples=15, deadline=None)
def test_zero_is_exact(matrix: Array) -> None:
    """Zero rows and channels without weights answer zero, not nearly zero."""
    x = np.random.default_rng(0).normal(size=(4, DEPTH)).astype(np.float32)
    x[2] = 0
    with quantised(matrix) as run:
        y = run(x)
    assert (y[2] == 0).all()
    assert (y[:, (matrix == 0).all(axis=0)] == 0).all()
