"""Requests are held to the signature: what is wrong is named with what came and what is allowed."""

from typing import Any

import numpy as np
import pytest

from tauten.spec.errors import BadContract, BadRequest
from tauten.spec.signature import Axis, Signature, raise_on_trouble
from tauten.spec.tensors import Array, TensorSpec

SIGNATURE = Signature(
    inputs={
        "ids": TensorSpec(dtype="int64", shape=("batch", "seq"), range=(0, 9), pad=0),
        "scale": TensorSpec(dtype="float32", shape=("batch", 2), range=(-1.0, 1.0), optional=True, default=0.0),
    },
    outputs={"y": TensorSpec(dtype="float32", shape=("batch", 3))},
    axes={"batch": Axis(max=4), "seq": Axis(min=2, max=8, buckets=(4, 8), multiple_of=2)},
)


def ids(*shape: int, fill: int = 1) -> Array:
    return np.full(shape, fill, dtype=np.int64)


def test_a_good_request_gives_its_sizes() -> None:
    assert SIGNATURE.check({"ids": ids(3, 4)}) == {"batch": 3, "seq": 4}
    both = {"ids": ids(1, 2), "scale": np.zeros((1, 2), np.float32)}
    assert SIGNATURE.check(both) == {"batch": 1, "seq": 2}


@pytest.mark.parametrize(
    ("inputs", "message", "fix"),
    [
        ({}, "input 'ids' (int64[batch, seq]) is missing; got no inputs", "send every input"),
        ({"ids": ids(1, 2), "id": ids(1, 2)}, "unexpected input 'id'; this model takes ids, scale", "metadata"),
        ({"ids": ids(1, 2).astype(np.int32)}, "input 'ids' has type int32, expected int64", "datatype INT64"),
        ({"ids": ids(2)}, "input 'ids' has shape [2], expected int64[batch, seq]", "2 dimensions"),
        ({"ids": ids(5, 2)}, "has 5 along axis 'batch', allowed is 1 to 4", "1 to 4"),
        ({"ids": ids(0, 2)}, "has 0 along axis 'batch', allowed is 1 to 4", "1 to 4"),
        ({"ids": ids(1, 10)}, "has 10 along axis 'seq', allowed is 2 to 8 in steps of 2", "in steps of 2"),
        ({"ids": ids(1, 3)}, "has 3 along axis 'seq', allowed is 2 to 8 in steps of 2", "in steps of 2"),
        ({"ids": ids(1, 2, fill=10)}, "input 'ids' has the value 10, outside the declared range [0, 9]", "[0, 9]"),
        ({"ids": ids(1, 2, fill=-1)}, "input 'ids' has the value -1, outside the declared range [0, 9]", "[0, 9]"),
        ({"ids": ids(2, 2), "scale": np.zeros((2, 3), np.float32)}, "'scale' has shape [2, 3]", "send 2 where 3 was sent"),
        ({"ids": ids(2, 2), "scale": np.zeros((1, 2), np.float32)}, "'scale' has 1 along axis 'batch', but another input has 2",
         "one size"),
        ({"ids": ids(1, 2), "scale": np.full((1, 2), np.nan, np.float32)}, "'scale' has the value nan", "[-1, 1]"),
        ({"ids": ids(1, 2), "scale": np.full((1, 2), np.inf, np.float32)}, "'scale' has the value inf", "[-1, 1]"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told_what_came_and_what_is_allowed(inputs: dict[str, Array], message: str, fix: str) -> None:
    with pytest.raises(BadRequest) as caught:
        SIGNATURE.check(inputs)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_values_without_a_declared_range_are_free() -> None:
    free = Signature(inputs={"x": TensorSpec(dtype="float32", shape=("n",))}, outputs={})
    assert free.check({"x": np.array([np.nan, 1e30], np.float32)}) == {"n": 2}


def test_strings_and_bit_patterns_have_no_range() -> None:
    spec = {
        "s": TensorSpec(dtype="string", shape=(1,), range=(0, 1)),
        "b": TensorSpec(dtype="bfloat16", shape=(1,), range=(0, 1)),
    }
    values = {"s": np.array([b"long text"], dtype=object), "b": np.array([0x4040], dtype=np.uint16)}
    assert Signature(inputs=spec, outputs={}).check(values) == {}


def test_nothing_is_changed_in_what_was_sent() -> None:
    sent = ids(2, 4)
    sent.flags.writeable = False
    SIGNATURE.check({"ids": sent})
    assert (sent == 1).all()


@pytest.mark.parametrize(("size", "padded"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, 9)])
def test_the_bucket_is_the_smallest_that_holds_it(size: int, padded: int) -> None:
    assert SIGNATURE.axes["seq"].bucket(size) == padded


def test_the_optimum_is_declared_or_a_quarter() -> None:
    assert Axis(max=32).optimum == 8
    assert Axis(min=6, max=8).optimum == 6
    assert Axis(opt=3, max=8).optimum == 3


@pytest.mark.parametrize(
    ("axis", "why"),
    [
        ({"min": 5, "max": 4}, "min 5 is greater than max 4"),
        ({"min": -1, "max": 4}, "must not be negative"),
        ({"max": 4, "multiple_of": 0}, "multiple_of 0"),
        ({"max": 5, "multiple_of": 7}, "no size in [1, 5] is a multiple of 7"),
        ({"max": 4, "opt": 5}, "opt 5 is outside [1, 4]"),
        ({"max": 8, "buckets": (8, 4)}, "must rise"),
        ({"max": 8, "buckets": (4, 4, 8)}, "must rise"),
        ({"max": 8, "buckets": (2, 4)}, "end at max"),
        ({"min": 4, "max": 8, "buckets": (2, 8)}, "must lie in [4, 8]"),
    ],
)
def test_bounds_that_contradict_each_other(axis: dict[str, Any], why: str) -> None:
    told = Axis(**axis).trouble("seq")
    assert told.startswith("axes.seq: ")
    assert why in told


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"range": (2, 1)}, "range [2, 1] is upside down"),
        ({"pad": 300}, "pad 300 does not fit int8"),
        ({"pad": float("inf")}, "pad inf does not fit int8"),
        ({"default": float("nan")}, "default nan does not fit int8"),
        ({"pad": 0.5}, "pad 0.5 does not fit int8"),
        ({"range": (1, 5), "pad": 0}, "pad 0 is outside the range [1, 5]"),
        ({"optional": True}, "is optional but has no default"),
        ({"optional": True, "default": 200}, "default 200 does not fit int8"),
    ],
)
def test_input_specs_that_contradict_themselves(spec: dict[str, Any], why: str) -> None:
    signature = Signature(inputs={"x": TensorSpec(dtype="int8", shape=("batch",), **spec)}, outputs={})
    with pytest.raises(BadContract) as caught:
        raise_on_trouble(signature)
    assert f"inputs.x: {why}" in caught.value.message


def test_an_output_axis_must_come_from_somewhere() -> None:
    signature = Signature(
        inputs={"x": TensorSpec(dtype="int8", shape=("batch",))},
        outputs={"y": TensorSpec(dtype="int8", shape=("batch", "found"))},
    )
    assert "axis 'found' is in no input and has no bounds" in signature.trouble()
    bounded = Signature(inputs=signature.inputs, outputs=signature.outputs, axes={"found": Axis(max=9)})
    assert not bounded.trouble()


@pytest.mark.parametrize(
    ("shape", "batchable"), [(("batch", 2), True), (("batch",), True), ((2, "batch"), False), ((), False), (("n",), False)]
)
def test_rows_can_be_gathered_only_along_a_leading_batch_axis(shape: tuple[str | int, ...], batchable: bool) -> None:
    spec = {"x": TensorSpec(dtype="float32", shape=("batch", 1))}
    assert Signature(inputs=spec, outputs={"y": TensorSpec(dtype="float32", shape=shape)}).batchable is batchable
