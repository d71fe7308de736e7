"""A first contract: bounded, measured, rounded so that people can read it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauten.delivery.first_contract import _round_down, _round_up, accuracy_from, first_contract
from tauten.delivery.origin import open_source
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.errors import BadContract, BadSource
from tauten.spec.signature import Axis, Signature
from tauten.spec.source import Opened
from tauten.spec.tensors import Array, TensorSpec


def opened(**axes: Axis) -> Opened:
    signature = Signature(
        inputs={"ids": TensorSpec(dtype="int64", shape=("batch", "seq"), range=(0, 9))},
        outputs={"y": TensorSpec(dtype="float32", shape=("batch", 3))},
        axes=axes,
    )
    return Opened(kind="test", name="Net", suggested=signature, reference=None)


def run(inputs: Tensors) -> dict[str, Array]:
    return {"y": np.zeros((len(inputs["ids"]), 3), np.float32)}


def test_every_axis_is_bounded_and_known_bounds_are_kept() -> None:
    contract = first_contract(opened(seq=Axis(min=2, opt=4, max=6)), run)
    assert contract.axes["seq"] == Axis(min=2, opt=4, max=6)
    assert contract.axes["batch"].max > 1
    assert not contract.signature.trouble()
    assert Contract.parse(contract.dumps()).digest == contract.digest


def test_the_slo_has_headroom_over_what_was_measured() -> None:
    sizes: list[tuple[int, ...]] = []

    def seen(inputs: Tensors) -> dict[str, Array]:
        sizes.append(inputs["ids"].shape)
        return run(inputs)

    slo = first_contract(opened(seq=Axis(min=1, opt=5, max=8)), seen).slo
    assert slo is not None
    assert set(sizes) == {(1, 5)}
    assert slo.p50_ms is not None
    assert slo.p99_ms is not None
    assert slo.p99_ms > slo.p50_ms
    assert slo.errors == 0


def test_a_model_that_takes_no_time_is_not_promised_to_answer_in_none() -> None:
    slo = first_contract(opened(), run).slo
    assert slo is not None
    assert (slo.rate, slo.p50_ms, slo.p99_ms) == (120.0, 6.0, 20.0)


@given(st.floats(1e-3, 1e6))
def test_rounding_is_to_two_digits_and_never_the_wrong_way(value: float) -> None:
    up, down = _round_up(value), _round_down(value)
    assert value * 0.999999 <= up <= value * 1.11
    assert down <= max(value, 0.1) * 1.000001
    assert down >= min(value * 0.9, 0.1)
    assert len(f"{up:.2g}".rstrip("0")) <= 8


def test_a_model_without_a_signature_gets_none() -> None:
    nothing = Opened(kind="test", name="x", suggested=Signature(inputs={}, outputs={}), reference=None)
    with pytest.raises(BadContract, match="example_inputs"):
        first_contract(nothing, run)


def test_accuracy_data_is_told_relative_to_the_contract(tmp_path: Path) -> None:
    data = tmp_path / "in" / "pairs.tsv"
    data.parent.mkdir()
    data.write_text("a\tb\t1\n")
    assert accuracy_from(str(data), "spearman", 0.1, tmp_path / "c.yaml").data == "in/pairs.tsv"
    with pytest.raises(BadContract, match="not a file"):
        accuracy_from(str(tmp_path / "none.tsv"), "spearman", 0.1, tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("given", "says"), [("no/such/file", "no file or directory"), (object(), "object"), ("a.weird", "no file or directory")]
)
def test_what_no_source_takes_is_named(given: object, says: str) -> None:
    with pytest.raises(BadSource, match=says):
        open_source(given)
