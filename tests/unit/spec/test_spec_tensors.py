"""One table for every name of an element type; it agrees with the libraries that own those names."""

import numpy as np
import pytest

from tauten.spec.tensors import BY_ONNX, BY_WIRE, ELEMENT_TYPES, ElementType, TensorSpec

ALL = list(ELEMENT_TYPES.values())


@pytest.mark.parametrize("element", ALL, ids=lambda e: e.name)
def test_onnx_agrees(element: ElementType) -> None:
    from onnx import TensorProto

    upper = {"float32": "FLOAT", "float64": "DOUBLE"}.get(element.name, element.name.upper())
    assert TensorProto.DataType.Value(upper) == element.onnx


@pytest.mark.parametrize("element", [e for e in ALL if e.name not in {"string", "bfloat16"}], ids=lambda e: e.name)
def test_onnx_maps_it_to_the_same_numpy_type(element: ElementType) -> None:
    from onnx.helper import tensor_dtype_to_np_dtype

    assert tensor_dtype_to_np_dtype(element.onnx) == element.numpy


@pytest.mark.parametrize("element", [e for e in ALL if e.name != "bfloat16"], ids=lambda e: e.name)
def test_the_client_of_others_uses_the_same_wire_names(element: ElementType) -> None:
    utils = pytest.importorskip("tritonclient.utils")
    assert utils.np_to_triton_dtype(element.numpy) == element.wire


@pytest.mark.slow  # importing torch
@pytest.mark.parametrize("element", [e for e in ALL if e.name != "string"], ids=lambda e: e.name)
def test_torch_has_a_type_of_that_name_and_size(element: ElementType) -> None:
    import torch

    assert getattr(torch, element.torch).itemsize == element.size


def test_names_and_numbers_are_unique() -> None:
    assert len(BY_ONNX) == len(BY_WIRE) == len(ELEMENT_TYPES)


@pytest.mark.parametrize(
    ("name", "size", "floating", "integer"),
    [("float32", 4, True, False), ("bfloat16", 2, True, False), ("uint8", 1, False, True), ("bool", 1, False, False),
     ("string", 0, False, False)],
)  # fmt: skip
def test_facts_of_a_type(name: str, size: int, floating: bool, integer: bool) -> None:
    element = ELEMENT_TYPES[name]
    assert (element.size, element.floating, element.integer) == (size, floating, integer)


def test_bfloat16_is_carried_as_its_bits() -> None:
    assert ELEMENT_TYPES["bfloat16"].numpy == np.uint16


def test_a_spec_knows_its_axes_and_its_size() -> None:
    spec = TensorSpec(dtype="float32", shape=("batch", 3, "seq"))
    assert spec.axes == ("batch", "seq")
    assert spec.sized({"batch": 2, "seq": 5}) == (2, 3, 5)
    assert spec.describe() == "float32[batch, 3, seq]"
    assert spec.element.wire == "FP32"
