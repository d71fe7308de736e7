"""Whatever is sent arrives bit by bit, in every datatype and shape; no bytes make the decoder fail in another way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tauten.spec.errors import TautenError
from tauten.spec.infer import InferReply
from tauten.spec.signature import Axis, Signature
from tauten.spec.tensors import ELEMENT_TYPES, Array, TensorSpec
from tauten.spec.wire import Wishes, decode_reply, decode_request, encode_reply, encode_request

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first text loads tables of Unicode
NUMBERS = sorted(n for n in ELEMENT_TYPES if n != "string")


def signature(dtype: str) -> Signature:
    spec = TensorSpec(dtype=dtype, shape=("batch",))
    return Signature(inputs={"x": spec}, outputs={"x": spec}, axes={"batch": Axis(max=1)})


@st.composite
def tensors(draw: st.DrawFn, *, json_only: bool = False) -> tuple[str, Array]:
    """An element type and an array of it; any bits, NaN with payloads too, unless JSON has to carry it."""
    name = draw(st.sampled_from([n for n in ELEMENT_TYPES if not json_only or n not in {"float16", "bfloat16"}]))
    shape = draw(SHAPES)
    if name == "string":
        item: st.SearchStrategy[bytes] = st.text().map(str.encode) if json_only else st.binary()
        flat = draw(st.lists(item, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        array = np.empty(len(flat), object)
        array[:] = flat
        return name, array.reshape(shape)
    dtype = ELEMENT_TYPES[name].numpy
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if json_only and dtype.kind == "f" else {}
    return name, draw(hnp.arrays(dtype, shape, elements=hnp.from_dtype(dtype, **finite)))


def same(a: Array, b: Array) -> bool:
    if a.dtype == object:
        return a.shape == b.shape and a.tolist() == b.tolist()
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@RELAXED
@given(tensors(), st.sampled_from("CF"))
def test_a_reply_in_binary_arrives_bit_by_bit(tensor: tuple[str, Array], order: Any) -> None:
    name, array = tensor
    message = encode_reply(
        InferReply("m", "1", {"x": array.copy(order)}), Wishes(binary=True), signature=lambda: signature(name)
    )
    answer = decode_reply(message.join(), message.head_length)
    assert same(answer.outputs["x"], array)
    assert answer.datatypes["x"] == ELEMENT_TYPES[name].wire


@RELAXED
@given(st.lists(tensors(), min_size=1, max_size=4))
def test_requests_arrive_bit_by_bit(given_: list[tuple[str, Array]]) -> None:
    inputs = {f"x{i}": a for i, (name, a) in enumerate(given_) if name != "bfloat16"}
    message = encode_request(inputs)
    asked, _ = decode_request(
        "m", "", message.join(), head_length=message.head_length, now=0.0, signature=lambda: signature("bool")
    )
    assert list(asked.inputs) == list(inputs)
    assert all(same(asked.inputs[n], a) for n, a in inputs.items())


@RELAXED
@given(tensors(json_only=True))
def test_json_carries_every_finite_value(tensor: tuple[str, Array]) -> None:
    name, array = tensor
    message = encode_reply(InferReply("m", "1", {"x": array}), Wishes(), signature=lambda: signature(name))
    assert message.head_length is None
    told = json.loads(message.join())["outputs"][0]
    assert len(told["data"]) == array.size
    request = json.dumps({"inputs": [told]}).encode()
    asked, _ = decode_request("m", "", request, head_length=None, now=0.0, signature=lambda: signature(name))
    assert same(asked.inputs["x"], array)


@RELAXED
@given(tensors(json_only=True))
def test_nested_json_is_the_same_tensor(tensor: tuple[str, Array]) -> None:
    name, array = tensor
    if array.ndim == 0:
        array = array.reshape(1)
    data = np.vectorize(bytes.decode, otypes=[object])(array).tolist() if name == "string" and array.size else array.tolist()
    one = {"name": "x", "shape": array.shape, "datatype": ELEMENT_TYPES[name].wire, "data": data}
    request = json.dumps({"inputs": [one]}).encode()
    asked, _ = decode_request("m", "", request, head_length=None, now=0.0, signature=lambda: signature(name))
    assert same(asked.inputs["x"], array)


@RELAXED
@given(st.sampled_from(NUMBERS), SHAPES, st.integers(-9, 9).filter(bool))
def test_a_binary_part_of_any_other_length_is_refused(name: str, shape: tuple[int, ...], change: int) -> None:
    element = ELEMENT_TYPES[name]
    size = max(int(np.prod(shape)) * element.size + change, 0)
    if size == int(np.prod(shape)) * element.size:
        return
    one = {"name": "x", "shape": shape, "datatype": element.wire, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [one]}).encode()
    try:
        decode_request("m", "", head + bytes(size), head_length=len(head), now=0.0, signature=lambda: signature(name))
    except TautenError as error:
        assert "input 'x'" in error.message  # noqa: PT017  the assertion is about what was raised; that it was, is the next line
    else:
        raise AssertionError("accepted")


@settings(RELAXED, max_examples=300)
@given(st.data())
def test_damaged_bytes_are_refused_or_read_never_worse(data: st.DataObject) -> None:
    """Bytes of a good request are changed, cut or doubled: the decoder answers or raises an error of the house."""
    name, array = data.draw(tensors())
    body = bytearray(encode_request({"x": array if name != "bfloat16" else array.view(np.uint16)}).join())
    length = data.draw(st.none() | st.integers(-1, len(body) + 1))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(body)))
        match data.draw(st.sampled_from(["change", "cut", "double", "put"])):
            case "change" if at < len(body):
                body[at] = data.draw(st.integers(0, 255))
            case "cut":
                del body[at : at + data.draw(st.integers(0, 20))]
            case "double":
                body[at:at] = body[at : at + data.draw(st.integers(0, 20))]
            case _:
                body[at:at] = data.draw(st.sampled_from([b"[", b"NaN", b'"', b"-1", b"99999999999999999999", b"null", b"\xff"]))
    try:
        decode_request("m", "", bytes(body), head_length=length, now=0.0, signature=lambda: signature(name))
        decode_reply(bytes(body), length)
    except TautenError as error:
        assert error.message  # noqa: PT017  any error of the house will do
