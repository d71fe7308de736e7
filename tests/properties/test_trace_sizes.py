"""Sizes that a model is traced with: inside the bounds, never 0 or 1, and telling axes apart."""

from hypothesis import given
from hypothesis import strategies as st

from tauten.sources._torch_export import trace_sizes
from tauten.spec.contract import Contract
from tauten.spec.signature import Axis
from tauten.spec.tensors import TensorSpec


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    step = draw(st.sampled_from([1, 1, 1, 2, 8, 32]))
    low = draw(st.integers(0, 40)) * step
    return Axis(min=low, max=low + draw(st.integers(0, 40)) * step, multiple_of=step)


@given(st.dictionaries(st.sampled_from(["batch", "seq", "h", "w"]), axes(), min_size=1), st.integers(1, 8))
def test_sizes_are_inside_and_away_from_zero_and_one(bounds: dict[str, Axis], fixed: int) -> None:
    spec = TensorSpec(dtype="float32", shape=(*bounds, fixed))
    sizes = trace_sizes(Contract(contract=1, inputs={"x": spec}, outputs={"y": spec}, axes=bounds))
    assert list(sizes) == list(bounds)
    for name, size in sizes.items():
        axis = bounds[name]
        assert size >= 2
        assert size % axis.multiple_of == 0
        possible = [s for s in range(axis.min, axis.max + 1) if s % axis.multiple_of == 0 and s > 1]
        assert size in possible or not possible, "only where the bounds end at 1 is a size outside them"
        if len([s for s in possible if axis.min < s < axis.max]) > 5:
            assert axis.min < size < axis.max
            assert size != fixed
            assert list(sizes.values()).count(size) == 1


def test_usual_bounds_give_small_odd_sizes() -> None:
    spec = TensorSpec(dtype="float32", shape=("batch", "seq", 3))
    bounds = {"batch": Axis(min=1, max=32), "seq": Axis(min=1, max=256)}
    assert trace_sizes(Contract(contract=1, inputs={"x": spec}, outputs={"y": spec}, axes=bounds)) == {"batch": 2, "seq": 5}


def test_an_axis_without_bounds_is_traced_too() -> None:
    spec = TensorSpec(dtype="float32", shape=("batch", "n"))
    assert trace_sizes(Contract(contract=1, inputs={"x": spec}, outputs={"y": spec})) == {"batch": 2, "n": 3}
