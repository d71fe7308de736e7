"""How requests become one batch and one batch becomes replies: buckets, padding, gathering, cutting. Pure, numpy only.

An axis is padded only where it has buckets and every input that has the axis declares a pad value. Outputs that have the axis
are cut back along it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tauten.spec.engine import ServingSettings
from tauten.spec.errors import BadRequest, EngineFailed
from tauten.spec.signature import BATCH, Signature
from tauten.spec.tensors import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one request: as sent, and as run. `rows` is its size along the batch axis; 1 where the model has none."""

    rows: int
    sent: Mapping[str, int]
    run: Mapping[str, int]
    key: Hashable

    @property
    def padded(self) -> bool:
        return self.sent != self.run


class Shapes:
    """The geometry of one served variant."""

    def __init__(self, signature: Signature, settings: ServingSettings) -> None:
        self._signature = signature
        self._batchable = signature.batchable
        self._buckets = {a: b for a, b in settings.buckets.items() if settings.pad and _may_pad(signature, a)}

    def __repr__(self) -> str:
        return f"<Shapes {'batchable' if self._batchable else 'alone'} buckets={self._buckets}>"

    @property
    def buckets(self) -> Mapping[str, tuple[int, ...]]:
        """The axes that are really padded, and to what."""
        return self._buckets

    def of(self, sizes: Mapping[str, int]) -> Shape:
        """The shape of a request whose axes have these sizes. Sizes over the largest bucket stay as they are."""
        run = dict(sizes)
        for axis, buckets in self._buckets.items():
            if axis in run:
                run[axis] = next((b for b in buckets if b >= run[axis]), run[axis])
        if not self._batchable:
            return Shape(1, sizes, run, None)
        return Shape(sizes[BATCH], sizes, run, tuple(sorted((a, n) for a, n in run.items() if a != BATCH)))

    def complete(self, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
        """All inputs of the signature: those left out have their default, strings are text. Raises BadRequest."""
        specs = self._signature.inputs
        whole = {n: inputs[n] if n in inputs else _filled(n, s, sizes) for n, s in specs.items()}
        return {n: _text(n, v) if specs[n].dtype == "string" else v for n, v in whole.items()}

    def gather(self, inputs: Sequence[Mapping[str, Array]], shapes: Sequence[Shape]) -> dict[str, Array]:
        """One batch of several requests with the same key. A single one that needs no padding is passed on as it is."""
        if len(inputs) == 1 and not shapes[0].padded:
            return dict(inputs[0])
        sizes = self._whole(shapes)
        return {n: _gathered([i[n] for i in inputs], s, s.sized(sizes)) for n, s in self._signature.inputs.items()}

    def cut(self, outputs: Mapping[str, Array], shapes: Sequence[Shape]) -> list[dict[str, Array]]:
        """The replies of a batch, one for each request, as views. Raises EngineFailed when the model gave other sizes."""
        specs = self._signature.outputs
        sizes = self._whole(shapes)
        for name, spec in specs.items():
            _check_output(name, spec, outputs, sizes)
        replies = []
        row = 0
        for shape in shapes:
            rows = slice(row, row + shape.rows) if self._batchable else slice(None)
            replies.append({n: self._cut_one(outputs[n], s, rows, shape) for n, s in specs.items()})
            row += shape.rows
        return replies

    def _whole(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """Axis sizes of the batch that these requests make."""
        rows = {BATCH: sum(s.rows for s in shapes)} if self._batchable else {}
        return {**shapes[0].run, **rows}

    def _cut_one(self, value: Array, spec: TensorSpec, rows: slice, shape: Shape) -> Array:
        if not spec.shape:
            return value
        if not shape.padded:
            return value[rows]
        where = [slice(shape.sent[d]) if d in self._buckets and d in shape.sent else slice(None) for d in spec.shape]
        return value[(rows, *where[1:]) if self._batchable else tuple(where)]


def _gathered(values: Sequence[Array], spec: TensorSpec, shape: tuple[int, ...]) -> Array:
    """The values under each other along the first axis, filled up to `shape` with the pad value."""
    if not shape:
        return values[0]
    ragged = any(v.shape[1:] != shape[1:] for v in values) or sum(map(len, values)) != shape[0]
    whole = np.full(shape, spec.pad, spec.element.numpy) if ragged else np.empty(shape, spec.element.numpy)
    row = 0
    for value in values:
        whole[(slice(row, row + len(value)), *(slice(n) for n in value.shape[1:]))] = value
        row += len(value)
    return whole


def _may_pad(signature: Signature, axis: str) -> bool:
    users = [s for s in signature.inputs.values() if axis in s.axes]
    return axis != BATCH and bool(users) and all(s.pad is not None for s in users)


def _text(name: str, array: Array) -> Array:
    """Elements of BYTES as `str`: an engine given bytes would take their Python notation for the text."""
    found = np.empty(array.size, object)
    for i, item in enumerate(array.reshape(-1).tolist()):
        try:
            found[i] = item.decode() if isinstance(item, bytes) else item
        except UnicodeDecodeError as error:
            raise BadRequest(f"input {name!r} has bytes that are not UTF-8 in element {i}", fix="send UTF-8 text") from error
        if not isinstance(found[i], str):
            raise BadRequest(f"input {name!r} has {type(item).__name__} in element {i}", fix="send text or bytes")
    return found.reshape(array.shape)


def _filled(name: str, spec: TensorSpec, sizes: Mapping[str, int]) -> Array:
    if missing := [a for a in spec.axes if a not in sizes]:
        raise BadRequest(f"input {name!r} was left out, and no other input has its axis {missing[0]!r}", fix=f"send {name!r}")
    return np.full(spec.sized(dict(sizes)), spec.default, spec.element.numpy)


def _check_output(name: str, spec: TensorSpec, outputs: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    if name not in outputs:
        raise EngineFailed(f"the model gave no output {name!r}", fix="deliver the model again; its gates would refuse this one")
    got = outputs[name].shape
    want = [sizes.get(d, n) if isinstance(d, str) else d for d, n in zip(spec.shape, got, strict=False)]
    if len(got) != len(spec.shape) or list(got) != want:
        raise EngineFailed(f"output {name!r} came with shape {list(got)} where {want} was due ({spec.describe()})",
                           fix="deliver the model again; its gates would refuse this one")  # fmt: skip
