"""The protocol's replies: JSON always parses strictly, binary data keeps every bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tauten.spec.errors import BadRequest, EngineFailed, TautenError
from tauten.spec.infer import InferReply
from tauten.spec.signature import Axis, Signature
from tauten.spec.tensors import Array, TensorSpec
from tauten.spec.wire import Wishes, decode_reply, encode_error, encode_reply

BINARY = Wishes(binary=True)


def signature(dtype: str) -> Signature:
    spec = TensorSpec(dtype=dtype, shape=("batch", "n"))
    return Signature(inputs={"x": spec}, outputs={"y": spec}, axes={a: Axis(max=100) for a in spec.axes})


def never() -> Signature:
    raise AssertionError("the arrays tell enough; nobody asks for the signature")


def reply(*arrays: Array) -> InferReply:
    return InferReply("m", "3", {f"y{i}": a for i, a in enumerate(arrays)})


def strict(body: bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(body, parse_constant=refuse)


def test_json_replies_are_flat_and_complete() -> None:
    message = encode_reply(reply(np.arange(4, dtype=np.int8).reshape(2, 2)), Wishes(), signature=never)
    assert message.head_length is None
    assert strict(message.join()) == {
        "model_name": "m", "model_version": "3",
        "outputs": [{"name": "y0", "datatype": "INT8", "shape": [2, 2], "data": [0, 1, 2, 3]}],
    }  # fmt: skip


def test_the_id_comes_back_only_when_sent() -> None:
    answer = reply()
    answer.id = "7"
    assert strict(encode_reply(answer, BINARY, signature=never).join())["id"] == "7"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_json_cannot_say_is_an_error_that_names_the_output(bad: float) -> None:
    """Models that divide 0 by 0, or take its logarithm: the bits travel as binary data, JSON gets a clear no."""
    array = np.array([[1.0, bad, bad]], np.float32)
    with pytest.raises(EngineFailed, match=r"output 'y0' has 2 of 3 values that are not finite \(number 1 is") as caught:
        encode_reply(reply(array), Wishes(), signature=never)
    assert "binary_data" in caught.value.fix
    message = encode_reply(reply(array), BINARY, signature=never)
    assert decode_reply(message.join(), message.head_length).outputs["y0"].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("array", "error"),
    [(np.array([1.0], np.float16), BadRequest), (np.array([b"\xff"], object), EngineFailed)],
    ids=["half", "no UTF-8"],
)
def test_other_things_json_cannot_carry(array: Array, error: type[TautenError]) -> None:
    with pytest.raises(error, match=r"output 'y0'.*binary_data"):
        encode_reply(reply(array), Wishes(), signature=never)
    assert encode_reply(reply(array), BINARY, signature=never).head_length


def test_bfloat16_is_told_apart_by_the_signature() -> None:
    answer = InferReply("m", "1", {"y": np.array([[0x3F80]], np.uint16)})
    for dtype, wire in (("bfloat16", "BF16"), ("uint16", "UINT16")):
        message = encode_reply(answer, BINARY, signature=lambda dtype=dtype: signature(dtype))  # type: ignore[misc]
        assert decode_reply(message.join(), message.head_length).datatypes == {"y": wire}


def test_a_head_length_is_told_only_when_bytes_follow() -> None:
    empty = encode_reply(reply(np.empty((0, 2), np.float32)), BINARY, signature=never)
    assert empty.head_length is None
    assert strict(empty.join())["outputs"][0]["parameters"] == {"binary_data_size": 0}
    mixed = encode_reply(reply(np.zeros(1), np.ones(1)), Wishes(binary=True, each={"y0": False}), signature=never)
    assert mixed.head_length
    told = strict(mixed.join()[: mixed.head_length])["outputs"]
    assert told[0]["data"] == [0.0]
    assert told[1]["parameters"] == {"binary_data_size": 8}


def test_memory_that_is_laid_out_otherwise_is_sent_in_order() -> None:
    table = np.arange(6, dtype=np.int32).reshape(2, 3)
    for array in (table.T, table[:, ::2], table[::-1], table.astype(">i4")):
        message = encode_reply(reply(array), BINARY, signature=never)
        assert decode_reply(message.join(), message.head_length).outputs["y0"].tolist() == array.tolist()


def test_large_outputs_leave_without_a_copy() -> None:
    array = np.zeros(1000, np.float32)
    message = encode_reply(reply(array), BINARY, signature=never)
    assert message.nbytes == len(message.join())
    assert np.shares_memory(np.frombuffer(message.parts[1], np.float32), array)


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b"<html>", None),
        (b"{}", None),
        (b'{"model_name":"m","outputs":[{"name":"y","shape":[1],"datatype":"FP32"}]}', None),
        (b'{"model_name":"m","outputs":[{"name":"y","shape":[1],"datatype":"FP9","data":[1]}]}', None),
        (b'{"model_name":"m","outputs":[{"name":"y","shape":[9],"datatype":"INT8","parameters":{"binary_data_size":9}}]}', 108),
    ],
    ids=["no JSON", "no reply", "no data", "unknown datatype", "cut"],
)
def test_a_damaged_reply_is_refused(body: bytes, length: int | None) -> None:
    with pytest.raises(BadRequest):
        decode_reply(body, length)


def test_an_error_is_an_object_with_its_text() -> None:
    assert strict(encode_error('a "quoted" ü\n')) == {"error": 'a "quoted" ü\n'}
