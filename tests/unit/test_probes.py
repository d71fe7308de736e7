"""Probes: which sizes and values, the same every time, valid under the contract, bounded in cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tauten.delivery.probes import ELEMENTS, make_probes, sample, sizes_of
from tauten.spec.contract import Contract
from tauten.spec.errors import BadContract, BadRequest
from tauten.spec.judging import Probe
from tauten.spec.signature import Axis


def contract(inputs: dict[str, Any], axes: dict[str, Any] | None = None) -> Contract:
    first = next(iter(inputs.values()))["shape"]
    return Contract.of(
        {"contract": 1, "inputs": inputs, "outputs": {"y": {"dtype": "float32", "shape": first}}, "axes": axes or {}}
    )


TEXT = contract(
    {
        "ids": {"dtype": "int64", "shape": ["batch", "seq"], "range": [0, 30521], "pad": 0},
        "mask": {"dtype": "int64", "shape": ["batch", "seq"], "range": [0, 1], "pad": 0},
    },
    {"batch": {"min": 1, "opt": 8, "max": 32}, "seq": {"min": 1, "opt": 64, "max": 256, "buckets": [32, 64, 128, 256]}},
)


def by_kind(probes: tuple[Probe, ...], kind: str) -> Probe:
    return next(p for p in probes if p.kind == kind)


def test_sizes_of_an_axis_are_its_ends_neighbours_optimum_odd_primes_and_buckets_with_neighbours() -> None:
    sizes = sizes_of(Axis(min=2, opt=40, max=64, buckets=(32, 64)))
    assert {2, 3, 40, 63, 64, 31, 32, 33, 5, 7, 13, 61} <= set(sizes)
    assert all(2 <= s <= 64 for s in sizes)
    assert sizes_of(Axis(min=1, max=32, multiple_of=8)) == (8, 16, 24, 32)
    assert sizes_of(Axis(min=3, max=3)) == (3,)


def test_text_probes_reach_every_size_that_matters_at_an_affordable_cost() -> None:
    probes = make_probes(TEXT)
    seqs, batches = ({p.sizes[a] for p in probes} for a in ("seq", "batch"))
    assert {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256} <= seqs
    assert {1, 2, 3, 5, 7, 8, 31, 32} <= batches
    corners = {(p.sizes["batch"], p.sizes["seq"]) for p in probes}
    assert {(1, 1), (32, 256), (1, 256), (32, 1)} <= corners
    assert sum((p.sizes["batch"], p.sizes["seq"]) == (32, 256) for p in probes) <= 2
    assert sum(math.prod(p.sizes.values()) for p in probes) < 20_000


def test_masks_are_full_padded_holed_and_rows_are_masked_entirely() -> None:
    probes = make_probes(TEXT)
    assert by_kind(probes, "mask ones").inputs["mask"].all()
    lengths = by_kind(probes, "mask lengths").inputs["mask"]
    assert (np.diff(lengths, axis=1) <= 0).all()
    assert lengths.sum(axis=1).min() >= 1
    holes = by_kind(probes, "mask holes").inputs["mask"]
    assert (np.diff(holes, axis=1) > 0).any()
    assert by_kind(probes, "mask one row empty").inputs["mask"].any(axis=1).tolist() == [True, True, True, False]
    assert by_kind(probes, "mask all rows empty but one").inputs["mask"].any(axis=1).tolist() == [True, False, False, False]


def test_limits_of_declared_ranges_are_reached() -> None:
    probes = make_probes(TEXT)
    assert (by_kind(probes, "low").inputs["ids"] == 0).all()
    assert (by_kind(probes, "high").inputs["ids"] == 30521).all()
    assert by_kind(probes, "low").inputs["mask"].all()  # with all masked, the other input would not matter


def test_floats_without_a_range_come_as_normal_zeros_tiny_and_large() -> None:
    probes = make_probes(contract({"x": {"dtype": "float32", "shape": ["batch", 3]}}, {"batch": {"max": 4}}))
    sizes = {p.kind: float(np.abs(p.inputs["x"]).max()) for p in probes}
    assert sizes["zeros"] == 0.0
    assert sizes["tiny"] < 1e-4 < sizes["random"] < 10 < sizes["large"]


def test_a_model_of_fixed_sizes_has_probes_too() -> None:
    probes = make_probes(contract({"x": {"dtype": "float16", "shape": [2, 3], "range": [-1, 1]}}))
    assert {p.kind for p in probes} == {"random", "low", "high"}
    assert all(p.inputs["x"].shape == (2, 3) and p.inputs["x"].dtype == np.float16 for p in probes)


def test_every_type_is_made() -> None:
    for dtype in ("bool", "uint8", "string", "bfloat16", "float64", "int32"):
        made = make_probes(contract({"x": {"dtype": dtype, "shape": ["n"]}}, {"n": {"min": 2, "max": 3}}))
        assert made, dtype
    limits = make_probes(contract({"x": {"dtype": "bfloat16", "shape": [1], "range": [1.0, 1.0]}}))
    assert all(int(p.inputs["x"][0]) == 0x3F80 for p in limits)


def test_optional_inputs_are_tried_at_their_defaults() -> None:
    made = contract(
        {"x": {"dtype": "float32", "shape": [2]}, "t": {"dtype": "float32", "shape": [1], "optional": True, "default": 7}}
    )
    assert by_kind(make_probes(made), "defaults").inputs["t"].tolist() == [7.0]


def test_given_samples_come_first_and_must_fit() -> None:
    made = contract({"x": {"dtype": "float32", "shape": ["batch", 3]}}, {"batch": {"max": 4}})
    ones = {"x": np.ones((2, 3), np.float32)}
    assert make_probes(made, samples=[ones])[0] == Probe("given 0", "given", {"batch": 2}, ones)
    with pytest.raises(BadRequest, match="allowed is 1 to 4"):
        make_probes(made, samples=[{"x": np.ones((5, 3), np.float32)}])


def test_costly_inputs_get_fewer_probes_but_never_lose_the_ends() -> None:
    made = contract({"x": {"dtype": "uint8", "shape": ["batch", 3, 1024, 1024]}}, {"batch": {"max": 16}})
    probes = make_probes(made)
    assert {1, 16} <= {p.sizes["batch"] for p in probes}
    assert sum(p.inputs["x"].size for p in probes) <= ELEMENTS + 3 * 16 * 3 * 2**20


@pytest.mark.parametrize(("dtype", "ends"), [("int8", [0, 300]), ("uint8", [-1, 5]), ("float32", [0, math.inf])])
def test_a_range_that_cannot_be_drawn_from_is_no_contract(dtype: str, ends: list[float]) -> None:
    with pytest.raises(BadContract, match="is not finite or does not fit"):
        contract({"x": {"dtype": dtype, "shape": [2], "range": ends}})


def test_an_end_that_cannot_be_tried_is_refused() -> None:
    spec = {"dtype": "float32", "shape": ["batch", 4]}
    axes = {"batch": {"max": 10**30}}
    contract = Contract.of({"contract": 1, "inputs": {"x": spec}, "outputs": {"y": spec}, "axes": axes})
    with pytest.raises(BadContract, match="too much to try"):
        make_probes(contract)


def test_a_sample_has_the_asked_sizes_and_nothing_masked() -> None:
    made = sample(TEXT, {"batch": 3, "seq": 5})
    assert made["ids"].shape == (3, 5)
    assert made["mask"].all()


axis = st.tuples(st.integers(1, 20), st.integers(0, 20)).map(lambda p: {"min": p[0], "max": p[0] + p[1]})


@settings(max_examples=30, deadline=None)
@given(axis, axis, st.sampled_from(["float32", "int64", "bool"]), st.integers(0, 3))
def test_every_probe_fits_the_contract_and_is_made_the_same_again(a: Any, b: Any, dtype: str, seed: int) -> None:
    made = contract({"x": {"dtype": dtype, "shape": ["batch", "n"]}}, {"batch": a, "n": b})
    first, second = make_probes(made, seed=seed), make_probes(made, seed=seed)
    assert len({p.name for p in first}) == len(first)  # answers are remembered by name
    for p, q in zip(first, second, strict=True):
        assert made.signature.check(p.inputs) == p.sizes
        assert p.name == q.name
        assert all(np.array_equal(p.inputs[n], q.inputs[n]) for n in p.inputs)
