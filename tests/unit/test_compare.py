"""The worst element: NaN, infinities, shapes, types, scale, strings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauten.measure.compare import EXACT, magnitude, most_excessive, non_finite, scale_of, worst, worst_of
from tauten.spec.contract import Tolerance
from tauten.spec.judging import Probe
from tauten.spec.tensors import Array, TensorSpec

NAN, INF = math.nan, math.inf


def floats(*values: float) -> Array:
    return np.array(values, dtype=np.float32)


def test_the_worst_element_is_the_one_that_exceeds_its_own_limit_by_most() -> None:
    # 1000.5 differs by more, but 10 % of a thousand is allowed
    found = worst(floats(1000.5, 0.2), floats(1000.0, 0.0), Tolerance(rtol=0.1), output="y")
    assert (found.index, found.held) == ((1,), False)
    assert found.max_abs == pytest.approx(0.2)
    assert found.limit == 0.0
    assert found.told() == "y[1] differs by 0.2"


def test_where_all_hold_the_one_nearest_to_its_limit_is_told() -> None:
    found = worst(floats(100.0, 1.00001), floats(100.0, 1.0), Tolerance(atol=1e-3))
    assert (found.index, found.held) == ((1,), True)
    assert found.excess == pytest.approx(0.01, rel=0.05)


def test_with_nothing_allowed_the_largest_difference_is_told() -> None:
    assert worst(floats(1.1, 1.5, 1.2), floats(1, 1, 1), EXACT).index == (1,)


def test_atol_counts_in_units_of_scale() -> None:
    assert not worst(floats(1.5), floats(1.0), Tolerance(atol=0.1)).held
    assert worst(floats(1.5), floats(1.0), Tolerance(atol=0.1), scale=10.0).held


@pytest.mark.parametrize(("got", "want"), [(NAN, 1.0), (1.0, NAN), (NAN, NAN), (INF, 1.0), (1.0, -INF), (INF, -INF)])
def test_nan_agrees_with_nothing_and_an_infinity_with_itself_only(got: float, want: float) -> None:
    found = worst(floats(0.0, got), floats(0.0, want), Tolerance(atol=1e9, rtol=1e9))
    assert (found.excess, found.index, found.measured) == (INF, (1,), None)
    assert "instead of" in found.reason


def test_the_same_infinity_agrees() -> None:
    assert worst(floats(INF, -INF), floats(INF, -INF), EXACT).held


def test_another_shape_or_type_is_a_failure_that_says_so() -> None:
    assert worst(np.zeros((3,)), np.zeros((1, 3)), EXACT).reason == "has shape [3] instead of [1, 3]"
    assert worst(np.zeros(3, np.float64), np.zeros(3, np.float32), EXACT).reason == "has type float64 instead of float32"


def test_nothing_to_compare_agrees() -> None:
    assert worst(np.zeros((0, 3)), np.zeros((0, 3)), EXACT).held


def test_large_integers_are_not_equal_by_rounding() -> None:
    a = np.array([2**60 + 1], dtype=np.int64)
    assert worst(a, a, EXACT).held
    assert not worst(a, a - 1, EXACT).held
    assert not worst(np.array([0], np.uint64), np.array([2**63], np.uint64), Tolerance(atol=5)).held


def test_strings_agree_when_equal_whether_text_or_bytes() -> None:
    words = np.array(["a", "ü"], dtype=object)
    assert worst(words, np.array([b"a", "ü".encode()], dtype=object), EXACT).held
    found = worst(words, np.array(["a", "u"], dtype=object), EXACT)
    assert (found.index, found.reason) == ((1,), "is 'ü' instead of 'u'")


def test_bfloat16_is_compared_as_numbers() -> None:
    one, next_up = np.array([0x3F80], np.uint16), np.array([0x3F81], np.uint16)  # 1 and 1 + 2**-7
    assert worst(next_up, one, EXACT, bits=True).max_abs == 2**-7
    assert magnitude(one, bits=True) == 1.0
    assert non_finite(np.array([0x7F80, 0x3F80], np.uint16), bits=True).tolist() == [True, False]


def test_every_declared_output_is_compared_and_a_missing_one_fails() -> None:
    outputs = {n: TensorSpec(dtype="float32", shape=(2,)) for n in "ab"}
    found = worst_of({"a": floats(1, 2)}, {"a": floats(1, 2), "b": floats(0, 0)}, EXACT, outputs)
    assert found["a"].held
    assert found["b"].reason == "is missing"
    assert most_excessive(found.values()).output == "b"


def test_scale_none_is_the_largest_finite_reference_value_of_each_output() -> None:
    outputs = {"a": TensorSpec(dtype="float32", shape=(3,))}
    got, want = floats(100.5, 0.0, INF), floats(100.0, 0.0, INF)
    assert worst_of({"a": got}, {"a": want}, Tolerance(atol=0.01), outputs, scale=None)["a"].held
    assert not worst_of({"a": got}, {"a": want}, Tolerance(atol=0.01), outputs)["a"].held


def test_shared_nan_may_agree_where_a_model_is_held_against_itself() -> None:
    outputs = {"a": TensorSpec(dtype="float32", shape=(2,))}
    both = {"a": floats(NAN, 1)}
    assert worst_of(both, both, EXACT, outputs, nan_agrees=True)["a"].held
    assert not worst_of(both, {"a": floats(NAN, NAN)}, EXACT, outputs, nan_agrees=True)["a"].held


def test_only_values_beyond_anything_declared_widen_the_absolute_tolerance() -> None:
    inputs = {"x": floats(-500.0, 3.0), "n": np.array([9999])}
    assert scale_of(Probe("p", "large", {}, inputs)) == 500.0
    assert scale_of(Probe("p", "high", {}, inputs)) == 1.0


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_within_tolerance_exactly_when_every_element_is(values: list[float], atol: float, rtol: float) -> None:
    want = np.array(values)
    got = want[::-1].copy()
    held = worst(got, want, Tolerance(atol=atol, rtol=rtol)).held
    assert held == bool(np.all(np.abs(got - want) - (atol + rtol * np.abs(want)) <= 0))
