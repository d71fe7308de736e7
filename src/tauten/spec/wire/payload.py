"""Tensor data <-> numpy arrays, in both forms: little-endian bytes, and JSON numbers in row-major order.

bfloat16 is carried as its bits in uint16; an element of BYTES is a Python bytes object in an object array.
`what` names the tensor in messages: "input 'x'".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from tauten.spec.errors import BadRequest, EngineFailed
from tauten.spec.tensors import BY_WIRE, ELEMENT_TYPES, Array, ElementType
from tauten.spec.wire.message import Part, literal

MAX_RANK = 32
MAX_BYTES = 2**63 - 1
_LENGTH = struct.Struct("<I")
_HALVES = {"float16", "bfloat16"}  # JSON has no form for them in the protocol


def element_of(what: str, datatype: str) -> ElementType:
    element = BY_WIRE.get(datatype)
    if element is None:
        raise BadRequest(f"{what} has datatype {datatype!r}, which is not known", fix=f"use one of {', '.join(BY_WIRE)}")
    return element


def count(what: str, shape: Sequence[int], element: ElementType) -> int:
    """Number of elements. Refuses negative sizes and shapes whose size does not fit a signed 64-bit number of bytes."""
    if len(shape) > MAX_RANK:
        raise BadRequest(f"{what} has {len(shape)} dimensions", fix=f"send at most {MAX_RANK}")
    if any(size < 0 for size in shape):
        raise BadRequest(f"invalid shape for {what}: {list(shape)} contains one or more invalid dimensions",
                         fix="send the real sizes; -1 is only for metadata")  # fmt: skip
    # A zero does not excuse its neighbours: numpy refuses such shapes too.
    if math.prod(max(size, 1) for size in shape) > MAX_BYTES // max(element.size, 4):
        raise BadRequest(f"{what} has shape {list(shape)}, whose size overflows 64 bits", fix="send the real sizes")
    return math.prod(shape)


def from_bytes(what: str, element: ElementType, shape: tuple[int, ...], body: bytes, *, start: int, size: int) -> Array:
    """A view of `size` bytes of `body` from `start`. Refuses data that is longer or shorter than the shape says."""
    elements = count(what, shape, element)
    if element.name == "string":
        return _strings(what, shape, elements, body[start : start + size])
    if size != elements * element.size:
        raise BadRequest(f"{what} with shape {list(shape)} and datatype {element.wire} takes {elements * element.size} bytes "
                         f"({elements} elements), got {size} bytes", fix="send as much data as the shape says")  # fmt: skip
    if not elements:
        return np.empty(shape, element.numpy)
    array: Array = np.frombuffer(body, element.numpy, elements, start).reshape(shape)
    if element.name == "bool" and array.view(np.uint8).max() > 1:
        raise BadRequest(f"{what} has BOOL bytes other than 0 and 1", fix="send one byte per element, 0 or 1")
    return array


def to_bytes(array: Array, element: ElementType) -> Part:
    """Row-major bytes: the array's own memory where it is laid out like that."""
    if element.name == "string":
        return b"".join(_LENGTH.pack(len(item)) + item for item in map(_encoded, array.ravel().tolist()))
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.size:
        return b""
    return array.reshape(-1).view(np.uint8).data  # reshape copies where the memory is not contiguous


def from_json(what: str, element: ElementType, shape: tuple[int, ...], raw: bytes) -> Array:
    """Flat or nested numbers. Refuses wrong types, values that do not fit, ragged nesting and wrong counts."""
    elements = count(what, shape, element)
    if element.name in _HALVES:
        raise BadRequest(f"{what} has datatype {element.wire}, which JSON cannot carry", fix="send the tensor as binary data")
    depth = _depth(raw)
    if not depth:
        raise BadRequest(f"Unable to parse 'data' of {what}: it is not an array", fix="send data flat or nested like the shape")
    if depth not in {1, len(shape)} and elements:
        raise BadRequest(f"{what} has data nested {depth} deep, its shape {list(shape)} has {len(shape)} dimensions",
                         fix="send data flat or nested like the shape")  # fmt: skip
    values = _values(what, element, raw, min(depth, MAX_RANK))
    array = _array(what, element, values)
    if array.size != elements or (depth > 1 and elements and array.shape != shape):
        got = f"{array.size} values" if depth == 1 else f"{array.size} values nested as {list(array.shape)}"
        raise BadRequest(f"{what} with shape {list(shape)} takes {elements} values, got {got}",
                         fix="send as many values as the shape says")  # fmt: skip
    return array.reshape(shape)


def to_json(what: str, array: Array, element: ElementType) -> list[Any]:
    """A flat list. Refuses what JSON cannot say: half types, NaN and infinities, bytes that are no UTF-8."""
    ask = 'ask for this output as binary data (parameters: {"binary_data": true})'
    if element.name in _HALVES:
        raise BadRequest(f"{what} has datatype {element.wire}, which JSON cannot carry", fix=ask)
    if element.floating and not np.isfinite(array).all():
        flat = array.reshape(-1)
        bad = np.flatnonzero(~np.isfinite(flat))
        raise EngineFailed(f"{what} has {bad.size} of {flat.size} values that are not finite (number {bad[0]} is "
                           f"{flat[bad[0]]}), which JSON cannot carry", fix=ask)  # fmt: skip
    values: list[Any] = array.reshape(-1).tolist()
    if element.name != "string":
        return values
    try:
        return [_encoded(item).decode() for item in values]
    except UnicodeDecodeError as error:
        raise EngineFailed(f"{what} has bytes that are not UTF-8, which JSON cannot carry", fix=ask) from error


def element_of_array(what: str, array: Array) -> ElementType:
    """The element type that an array of a caller has. Text, bytes and objects are BYTES; uint16 is UINT16."""
    if array.dtype.kind in "USO":
        return ELEMENT_TYPES["string"]
    element = ELEMENT_TYPES.get(array.dtype.name)
    if element is None:
        raise BadRequest(f"{what} has type {array.dtype}, which the protocol does not know",
                         fix=f"convert it to one of {', '.join(ELEMENT_TYPES)}")  # fmt: skip
    return element


def _encoded(item: object) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    raise BadRequest(f"an element of BYTES is {type(item).__name__}", fix="give bytes or str")


def _strings(what: str, shape: tuple[int, ...], elements: int, data: bytes) -> Array:
    if elements * _LENGTH.size > len(data):  # before anything is allocated for them
        raise BadRequest(f"{what} with shape {list(shape)} takes {elements} elements of BYTES, got {len(data)} bytes",
                         fix="send each element as a 4-byte length and its bytes")  # fmt: skip
    array = np.empty(elements, object)
    at = 0
    for i in range(elements):
        end = at + _LENGTH.size
        if end <= len(data):
            end += _LENGTH.unpack_from(data, at)[0]
        if end > len(data) or end < at + _LENGTH.size:
            raise BadRequest(f"{what}: element {i} of {elements} ends {end - len(data)} bytes after its data",
                             fix="send each element as a 4-byte length and its bytes")  # fmt: skip
        array[i] = data[at + _LENGTH.size : end]
        at = end
    if at != len(data):
        raise BadRequest(f"{what} has {len(data) - at} bytes after its {elements} elements", fix="send nothing after them")
    return array.reshape(shape)


def _depth(raw: bytes) -> int:
    """How many brackets open before the first value: 1 is flat."""
    depth = 0
    for byte in raw:
        if byte == ord("["):
            depth += 1
        elif byte not in b" \t\r\n":
            break
    return depth


@cache
def _decoder(kind: type, depth: int) -> msgspec.json.Decoder[Any]:
    nested: Any = kind
    for _ in range(depth):
        nested = list[nested]
    return msgspec.json.Decoder(nested)


def _values(what: str, element: ElementType, raw: bytes, depth: int) -> list[Any]:
    kind = {"string": str, "bool": bool}.get(element.name, float if element.floating else int)
    try:
        values: list[Any] = _decoder(kind, depth).decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:  # a null, a word, a fraction for an integer, uneven nesting
        raise BadRequest(f"{what} has data that is not {element.wire}: {literal(str(error), raw) or error}",
                         fix=f"send values of {element.wire}, flat or nested like the shape") from error  # fmt: skip
    return values


def _array(what: str, element: ElementType, values: list[Any]) -> Array:
    try:
        if element.name == "string":
            return _string_array(values)
        with np.errstate(over="raise"):
            return np.array(values, element.numpy)
    except (OverflowError, FloatingPointError) as error:
        raise BadRequest(f"{what} has a value that does not fit {element.wire}", fix="send values in its range") from error
    except ValueError as error:
        raise BadRequest(f"{what} has data whose rows differ in length", fix="send data flat, or nested evenly") from error


def _string_array(values: list[Any]) -> Array:
    texts = np.array(values, object)  # uneven nesting leaves lists as elements
    flat = texts.reshape(-1).tolist()
    if not all(isinstance(item, str) for item in flat):
        raise ValueError("uneven")
    array = np.empty(texts.shape, object)
    array.reshape(-1)[:] = [item.encode() for item in flat]
    return array
