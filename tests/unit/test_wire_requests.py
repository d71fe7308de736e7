"""The protocol's requests: what is good arrives as sent, what is bad is refused with what came and what is allowed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tauten.spec.errors import BadRequest, Code, Unsupported
from tauten.spec.infer import InferRequest
from tauten.spec.signature import Axis, Signature
from tauten.spec.tensors import BY_WIRE, Array, TensorSpec
from tauten.spec.wire import Message, Wishes, decode_request, encode_request
from tauten.spec.wire.request import _Plans

BINARY = Wishes(binary=True)


def signature(dtype: str = "float32", shape: tuple[int | str, ...] = ("batch", "n")) -> Signature:
    spec = TensorSpec(dtype=dtype, shape=shape)
    axes = {a: Axis(min=0, max=100) for a in spec.axes}
    return Signature(inputs={"x": spec}, outputs={"y": spec}, axes=axes)


def never() -> Signature:
    raise AssertionError("the bytes tell enough; nobody asks for the signature")


def head(data: Any = None, *, shape: Any = (1, 2), datatype: str = "FP32", size: Any = None, **more: Any) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": "x", "shape": list(shape), "datatype": datatype}
    if data is not None:
        tensor["data"] = data
    if size is not None:
        tensor["parameters"] = {"binary_data_size": size}
    return {"inputs": [tensor], **more}


def decode(
    request: Any, tail: bytes = b"", *, length: int | None = None, of: Signature | None = None
) -> tuple[InferRequest, Wishes]:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    if tail and length is None:
        length = len(body)
    return decode_request("m", "", body + tail, head_length=length, now=100.0, signature=never if of is None else lambda: of)


def x(request: Any, tail: bytes = b"", **more: Any) -> Array:
    return decode(request, tail, **more)[0].inputs["x"]


def without(key: str) -> dict[str, Any]:
    request = head([1, 2])
    del request["inputs"][0][key]
    return request


FLOATS = np.arange(4, dtype=np.float32).tobytes()

# request, binary part, words that the message must have
BAD: dict[str, tuple[Any, bytes, tuple[str, ...]]] = {
    # shape and data disagree
    "too many values": (head([1, 2, 3, 4, 5, 6, 7], shape=(1, 5)), b"", ("input 'x'", "[1, 5]", "5 values", "7 values")),
    "too few values": (head([1, 2, 3], shape=(1, 5)), b"", ("input 'x'", "5 values", "3 values")),
    "no values": (head([], shape=(1, 5)), b"", ("input 'x'", "5 values", "0 values")),
    "nested otherwise": (head([[1], [2]], shape=(1, 2)), b"", ("input 'x'", "[1, 2]", "[2, 1]")),
    "nested too deep": (head([[[1, 2]]], shape=(1, 2)), b"", ("input 'x'", "3 deep", "2 dimensions")),
    "uneven rows": (head([[1, 2], [3]], shape=(2, 2)), b"", ("input 'x'", "differ in length")),
    "uneven texts": (head([["a", "b"], ["c"]], shape=(2, 2), datatype="BYTES"), b"", ("input 'x'", "differ in length")),
    "binary too short": (head(size=16, shape=(1, 4)), FLOATS[:12], ("input 'x'", "expecting 4 additional bytes", "'m'")),
    "binary too long": (head(size=16, shape=(1, 4)), FLOATS + b"!", ("unexpected additional input data", "1 bytes")),
    "size under shape": (head(size=12, shape=(1, 4)), FLOATS[:12], ("input 'x'", "[1, 4]", "16 bytes", "got 12")),
    "size over shape": (head(size=16, shape=(1, 3)), FLOATS, ("input 'x'", "[1, 3]", "12 bytes", "got 16")),
    # missing and misshapen fields
    "no name": (without("name"), b"", ("Unable to parse 'name'", "input number 0")),
    "no datatype": (without("datatype"), b"", ("Unable to parse 'datatype'", "input 'x'")),
    "no shape": (without("shape"), b"", ("Unable to parse 'shape'", "input 'x'")),
    "no data": (without("data"), b"", ("Unable to parse 'data'", "input 'x'")),
    "no inputs": ({"id": "7"}, b"", ("Unable to parse 'inputs'",)),
    "inputs no list": ({"inputs": {}}, b"", ("Unable to parse 'inputs'", "array")),
    "shape of text": (head([1], shape="ab"), b"", ("Unable to parse 'shape[0]'", "int", "str", "input 'x'")),
    "shape of fractions": (head([1], shape=(1.5,)), b"", ("shape[0]", "int", "float", "input 'x'")),
    "data no array": (head(5, shape=()), b"", ("Unable to parse 'data'", "input 'x'", "not an array")),
    "twice": ({"inputs": head([1, 2])["inputs"] * 2}, b"", ("input 'x'", "more than once")),
    "both forms": (head([1, 2], size=8), b"", ("input 'x'", "both")),
    "size of text": (head(size="8"), b"", ("input 'x'", "'8'", "bytes")),
    "size below zero": (head(size=-8), b"", ("input 'x'", "-8")),
    "size true": (head(size=True), b"", ("input 'x'", "True")),
    # datatypes and values
    "unknown datatype": (head([1, 2], datatype="FP8"), b"", ("input 'x'", "'FP8'", "FP16, FP64")),
    "negative size": (head([1, 2], shape=(-1, 2)), b"", ("invalid shape", "input 'x'", "[-1, 2]")),
    "too many dimensions": (head([1], shape=(1,) * 33), b"", ("input 'x'", "33 dimensions", "32")),
    "count overflows": (head([1], shape=(2**40, 2**40)), b"", ("input 'x'", "overflows")),
    "bytes overflow": (head([1], shape=(2**61, 1), datatype="INT64"), b"", ("input 'x'", "overflows")),
    "overflow beside zero": (head([], shape=(2**40, 2**40, 0)), b"", ("input 'x'", "overflows")),
    "huge count of texts": (head(size=8, shape=(2**50,), datatype="BYTES"), FLOATS[:8], ("input 'x'", str(2**50))),
    "text for number": (head(["1", "2"]), b"", ("input 'x'", "FP32", "str")),
    "null": (head([1, None]), b"", ("input 'x'", "FP32", "null")),
    "bool for number": (head([True, False]), b"", ("input 'x'", "FP32", "bool")),
    "number for bool": (head([1, 0], datatype="BOOL"), b"", ("input 'x'", "BOOL", "int")),
    "number for text": (head([1, 2], datatype="BYTES"), b"", ("input 'x'", "BYTES", "int")),
    "fraction for integer": (head([1.5, 2], datatype="INT32"), b"", ("input 'x'", "INT32", "float")),
    "over uint8": (head([1, 256], datatype="UINT8"), b"", ("input 'x'", "does not fit UINT8")),
    "under uint8": (head([-1, 2], datatype="UINT8"), b"", ("input 'x'", "does not fit UINT8")),
    "over int64": (head([1, 2**63], datatype="INT64"), b"", ("input 'x'", "does not fit INT64")),
    "over float32": (head([1, 1e39]), b"", ("input 'x'", "does not fit FP32")),
    "over float64": (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP64","data":[1e999]}]}', b"", ("input 'x'", "FP64")),
    "NaN": (b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1, NaN]}]}', b"", ("NaN", "binary")),
    "Infinity": (b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1, -Infinity]}]}', b"", ("Infinity", "binary")),
    "half in JSON": (head([1, 2], datatype="FP16"), b"", ("input 'x'", "FP16", "binary")),
    "bfloat16 in JSON": (head([1, 2], datatype="BF16"), b"", ("input 'x'", "BF16", "binary")),
    "odd bool": (head(size=2, datatype="BOOL"), b"\x01\x02", ("input 'x'", "0 and 1")),
    "text cut in length": (head(size=6, shape=(2,), datatype="BYTES"), bytes(6), ("input 'x'", "2 elements")),
    "text cut in bytes": (head(size=5, shape=(1,), datatype="BYTES"), b"\x09\0\0\0a", ("element 0", "8 bytes after")),
    "bytes after texts": (head(size=5, shape=(1,), datatype="BYTES"), bytes(5), ("input 'x'", "1 bytes after")),
    # the body as a whole
    "no JSON": (b"hello", b"", ("not valid JSON",)),
    "empty": (b"", b"", ("not valid JSON",)),
    "no UTF-8": (b'{"inputs":[{"name":"\xff"}]}', b"", ("UTF-8",)),
    "a list": ([], b"", ("object", "array")),
    "cut JSON": (json.dumps(head([1, 2])).encode()[:-3], b"", ("not valid JSON",)),
    "deep JSON": (b'{"zz":' + b"[" * 100_000, b"", ("nested too deeply",)),
    "deep data": (b'{"inputs":[{"name":"x","data":' + b"[" * 100_000, b"", ("nested too deeply",)),
    # parameters
    "reserved": (head([1, 2], parameters={"triton_x": 1}), b"", ("'triton_x'", "reserved")),
    "nested parameter": (head([1, 2], parameters={"a": [1]}), b"", ("parameters", "array")),
    "timeout of text": (head([1, 2], parameters={"timeout": "soon"}), b"", ("'timeout'", "'soon'")),
    "timeout below zero": (head([1, 2], parameters={"timeout": -1}), b"", ("'timeout'", "-1")),
    "binary_data_output of text": (head([1, 2], parameters={"binary_data_output": "yes"}), b"", ("'binary_data_output'",)),
    "binary_data of text": (head([1, 2], outputs=[{"name": "y", "parameters": {"binary_data": 1}}]), b"", ("output 'y'",)),
    "output without name": (head([1, 2], outputs=[{}]), b"", ("Unable to parse 'name'", "output number 0")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda c: c.replace(" ", "_"))
def test_a_bad_request_is_refused_with_what_came_and_what_is_allowed(case: str) -> None:
    request, tail, words = BAD[case]
    with pytest.raises(BadRequest) as caught:
        decode(request, tail)
    assert caught.value.code is Code.INVALID
    assert caught.value.fix
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, str(caught.value)


@pytest.mark.parametrize("length", [-1, 1000])
def test_a_head_must_lie_in_the_body(length: int) -> None:
    with pytest.raises(BadRequest, match=rf"inference header size should be in range \(0, \d+\), got: {length}"):
        decode(head(size=16, shape=(1, 4)), FLOATS, length=length)


def test_binary_data_needs_its_header() -> None:
    with pytest.raises(BadRequest, match="Inference-Header-Content-Length"):
        decode(head(size=8))


@pytest.mark.parametrize(
    "request_",
    [
        head([1, 2], parameters={"sequence_id": 7, "sequence_start": True}),
        head([1, 2], outputs=[{"name": "y", "parameters": {"classification": 3}}]),
        head([1, 2], outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}]),
        {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "parameters": {"shared_memory_region": "r"}}]},
    ],
    ids=["sequence", "classification", "output in shared memory", "input in shared memory"],
)
def test_an_extension_that_is_not_here_is_unsupported_not_ignored(request_: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        decode(request_)


def test_json_data_may_be_flat_or_nested() -> None:
    expected = np.array([[1, 2], [3, 4]], np.int32)
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        got = x(head(data, shape=(2, 2), datatype="INT32"))
        assert got.dtype == np.int32
        assert np.array_equal(got, expected)


def test_json_texts_arrive_as_bytes() -> None:
    got = x(head([["a", "ü"], ["", "d"]], shape=(2, 2), datatype="BYTES"))
    assert got.tolist() == [[b"a", "ü".encode()], [b"", b"d"]]


@pytest.mark.parametrize(("shape", "data"), [((0,), []), ((2, 0), [[], []]), ((2, 0), []), ((0, 3), [])])
def test_empty_tensors_in_both_forms(shape: tuple[int, ...], data: list[Any]) -> None:
    assert x(head(data, shape=shape)).shape == shape
    tail = b""
    body = json.dumps(head(size=0, shape=shape)).encode()
    assert x(body, tail, length=len(body)).shape == shape


def test_a_scalar_has_one_value() -> None:
    assert x(head([7], shape=())).shape == ()


def test_tensors_are_views_of_the_body() -> None:
    got = x(head(size=16, shape=(2, 2)), FLOATS)
    assert not got.flags.owndata
    assert not got.flags.writeable
    assert got.tolist() == [[0, 1], [2, 3]]


def test_the_rest_of_a_request_travels() -> None:
    asked, wishes = decode(
        head(
            [1, 2], id="7", parameters={"timeout": 250_000, "binary_data_output": True, "temperature": 0.5, "sequence_id": 0},
            outputs=[{"name": "y"}, {"name": "z", "parameters": {"binary_data": False, "classification": 0}}],
        )
    )  # fmt: skip
    assert (asked.model, asked.id, asked.outputs, asked.parameters) == ("m", "7", ("y", "z"), {"temperature": 0.5})
    assert asked.deadline == pytest.approx(100.25)
    assert wishes.wants_binary("y")
    assert not wishes.wants_binary("z")


@pytest.mark.parametrize("parameters", [None, {}, {"timeout": 0}, {"timeout": None}])
def test_without_a_timeout_there_is_no_deadline(parameters: Any) -> None:
    assert decode(head([1, 2], parameters=parameters, id=None, outputs=None))[0].deadline is None


# --- one numpy type for two datatypes


@pytest.mark.parametrize(("sent", "wanted"), [("UINT16", "bfloat16"), ("BF16", "uint16")])
def test_sixteen_bits_are_not_taken_for_others(sent: str, wanted: str) -> None:
    with pytest.raises(BadRequest, match=f"input 'x' has type {BY_WIRE[sent].name}, expected {wanted}"):
        decode(head(size=4, datatype=sent), b"\0\0\1\1", of=signature(wanted))
    assert decode(head(size=4, datatype=sent), b"\0\0\1\1", of=signature(BY_WIRE[sent].name))


# --- the raw body


def test_a_raw_body_is_the_one_input() -> None:
    asked, wishes = decode(b"", FLOATS, length=0, of=signature())
    assert asked.inputs["x"].tolist() == [[0, 1, 2, 3]]
    assert wishes.wants_binary("y")


def test_a_raw_text_is_one_element() -> None:
    assert x(b"", b"\xffab", length=0, of=signature("string", ("batch", 1))).tolist() == [[b"\xffab"]]


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (signature(shape=("batch", "n", "m")), "at most one open dimension"),
        (signature("string", ("batch", "n")), "one element"),
        (signature(shape=("batch", 3)), "12 bytes"),
        (signature(shape=("batch", "n", 3)), "12 bytes"),
        (Signature(inputs={n: TensorSpec(dtype="float32", shape=(1,)) for n in "ab"}, outputs={}), "has 2"),
    ],
    ids=["two open", "texts", "fixed", "remainder", "two inputs"],
)
def test_a_raw_body_that_could_mean_several_things_is_refused(of: Signature, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        decode(b"", FLOATS, length=0, of=of)


# --- heads that come again


def test_equal_heads_share_one_plan_and_nothing_private_is_kept() -> None:
    plans = _Plans(most=2, longest=500)
    heads = [json.dumps(head(size=8, shape=(n, 2))).encode() for n in range(3)]
    assert plans.of(heads[0]) is plans.of(heads[0])
    private = [head([1, 2]), head(size=8, id="7"), head(size=8, parameters={"patient": "x"})]
    for request in [*private, head(size=8, outputs=[{"name": "y" * 600}])]:
        plans.of(json.dumps(request).encode())
    assert len(plans) == 1
    first = plans.of(heads[0])
    plans.of(heads[1])
    assert plans.of(heads[0]) is first  # used last
    plans.of(heads[2])
    assert len(plans) == 2
    assert plans.of(heads[0]) is first


# --- the client's half


def test_what_numpy_has_and_the_protocol_has_not_is_refused() -> None:
    with pytest.raises(BadRequest, match="input 'x' has type complex128"):
        encode_request({"x": np.zeros(1, complex)})
    with pytest.raises(BadRequest, match="int"):
        encode_request({"x": np.array([1, "a"], object)})


def test_tensors_start_aligned() -> None:
    for name in ("x", "xy", "xyz"):
        message = encode_request({name: np.zeros(1, np.int64)})
        assert message.head_length
        assert message.head_length % 8 == 0


@pytest.mark.parametrize("kind", ["U", "S", "O"])
def test_texts_of_every_kind_are_bytes(kind: str) -> None:
    message: Message = encode_request({"x": np.array(["ab", "c"]).astype(kind)}, outputs=["y"], request_id="7")
    asked, wishes = decode(message.join(), length=message.head_length)
    assert asked.inputs["x"].tolist() == [b"ab", b"c"]
    assert (asked.id, asked.outputs, wishes.wants_binary("y")) == ("7", ("y",), True)
