"""Buckets, padding, gathering and cutting: numpy only."""

import numpy as np
import pytest

from tauten.serving.shapes import Shapes
from tauten.spec.contract import Contract
from tauten.spec.engine import ServingSettings
from tauten.spec.errors import BadRequest, EngineFailed
from tauten.spec.signature import Signature
from tauten.spec.tensors import Array

SETTINGS = ServingSettings(batch=8, buckets={"seq": (4, 8)})


def signature(**changes: object) -> Signature:
    data: dict[str, object] = {
        "contract": 1,
        "inputs": {
            "ids": {"dtype": "int64", "shape": ["batch", "seq"], "pad": 9},
            "mask": {"dtype": "bool", "shape": ["batch", "seq"], "pad": False},
            "scale": {"dtype": "float32", "shape": ["batch", "k"], "optional": True, "default": 2.0},
        },
        "outputs": {
            "pooled": {"dtype": "int64", "shape": ["batch", 2]},
            "each": {"dtype": "int64", "shape": ["batch", "seq"]},
        },
    }
    return Contract.of({**data, **changes}).signature


def request(rows: int, seq: int, k: int = 1, first: int = 0) -> dict[str, Array]:
    ids = np.arange(first, first + rows * seq).reshape(rows, seq)
    return {"ids": ids, "mask": np.ones((rows, seq), bool), "scale": np.ones((rows, k), np.float32)}


def test_ragged_requests_meet_in_a_bucket_and_are_filled_with_the_pad_value() -> None:
    shapes = Shapes(signature(), SETTINGS)
    a, b = request(1, 2), request(2, 3, first=10)
    s, t = (shapes.of({"batch": n, "seq": m, "k": 1}) for n, m in ((1, 2), (2, 3)))
    assert s.key == t.key == (("k", 1), ("seq", 4))
    batch = shapes.gather([a, b], [s, t])
    assert batch["ids"].tolist() == [[0, 1, 9, 9], [10, 11, 12, 9], [13, 14, 15, 9]]
    assert batch["mask"].tolist() == [[True, True, False, False], [True, True, True, False], [True, True, True, False]]
    assert batch["ids"].dtype == np.int64
    first, second = shapes.cut({"pooled": batch["ids"][:, :2], "each": batch["ids"]}, [s, t])
    np.testing.assert_array_equal(first["each"], a["ids"])
    np.testing.assert_array_equal(second["each"], b["ids"])
    np.testing.assert_array_equal(second["pooled"], b["ids"][:, :2])


def test_a_request_that_fills_its_bucket_is_passed_on_as_it_is() -> None:
    shapes = Shapes(signature(), SETTINGS)
    one = request(2, 4)
    assert all(v is one[k] for k, v in shapes.gather([one], [shapes.of({"batch": 2, "seq": 4, "k": 1})]).items())


def test_an_axis_without_pad_values_must_agree() -> None:
    shapes = Shapes(signature(), ServingSettings(batch=8, buckets={"seq": (4, 8), "k": (4,)}))
    assert shapes.buckets == {"seq": (4, 8)}
    keys = {shapes.of({"batch": 1, "seq": 3, "k": k}).key for k in (1, 2)}
    assert len(keys) == 2


def test_pad_false_pads_nothing() -> None:
    shapes = Shapes(signature(), ServingSettings(batch=8, pad=False, buckets={"seq": (4, 8)}))
    shape = shapes.of({"batch": 1, "seq": 3, "k": 1})
    assert (shape.padded, shape.run["seq"]) == (False, 3)


def test_one_input_without_a_pad_value_forbids_padding_the_axis() -> None:
    inputs = {
        "ids": {"dtype": "int64", "shape": ["batch", "seq"], "pad": 0},
        "w": {"dtype": "float32", "shape": ["batch", "seq"]},
    }
    shapes = Shapes(signature(inputs=inputs), SETTINGS)
    assert shapes.buckets == {}


def test_over_the_largest_bucket_a_request_runs_as_it_is() -> None:
    assert not Shapes(signature(), SETTINGS).of({"batch": 1, "seq": 9, "k": 1}).padded


def test_left_out_inputs_have_their_default() -> None:
    inputs = {"x": {"dtype": "float32", "shape": ["batch", 2]},
              "t": {"dtype": "int8", "shape": ["batch"], "optional": True, "default": 3}}  # fmt: skip
    outputs = {"y": {"dtype": "float32", "shape": ["batch", 2]}}
    shapes = Shapes(signature(inputs=inputs, outputs=outputs), SETTINGS)
    complete = shapes.complete({"x": np.zeros((2, 2), np.float32)}, {"batch": 2})
    assert (complete["t"].tolist(), str(complete["t"].dtype)) == ([3, 3], "int8")


def test_a_left_out_input_whose_axis_nobody_sent_is_named() -> None:
    shapes = Shapes(signature(), SETTINGS)
    with pytest.raises(BadRequest, match="input 'scale' was left out, and no other input has its axis 'k'"):
        shapes.complete({n: v for n, v in request(1, 1).items() if n != "scale"}, {"batch": 1, "seq": 1})


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        ({"pooled": np.zeros((2, 2))}, "gave no output 'each'"),
        ({"pooled": np.zeros((1, 2)), "each": np.zeros((2, 4))}, r"'pooled' came with shape \[1, 2\] where \[2, 2\] was due"),
        ({"pooled": np.zeros((2, 3)), "each": np.zeros((2, 4))}, r"'pooled' came with shape \[2, 3\] where \[2, 2\] was due"),
        ({"pooled": np.zeros((2, 2)), "each": np.zeros((2, 3))}, r"'each' came with shape \[2, 3\] where \[2, 4\] was due"),
        ({"pooled": np.zeros((2,)), "each": np.zeros((2, 4))}, r"'pooled' came with shape \[2\]"),
    ],
    ids=["missing", "rows", "fixed size", "padded axis", "rank"],
)
def test_outputs_of_another_size_are_never_handed_to_anybody(outputs: dict[str, Array], says: str) -> None:
    shapes = Shapes(signature(), SETTINGS)
    both = [shapes.of({"batch": 1, "seq": 3, "k": 1})] * 2
    with pytest.raises(EngineFailed, match=says):
        shapes.cut(outputs, both)


def test_a_model_without_a_batch_axis_goes_alone_and_is_padded_all_the_same() -> None:
    shapes = Shapes(
        signature(
            inputs={"x": {"dtype": "float32", "shape": ["seq", 2], "pad": -1}, "t": {"dtype": "float32", "shape": []}},
            outputs={"y": {"dtype": "float32", "shape": ["seq", 2]}, "sum": {"dtype": "float32", "shape": []}},
        ),
        SETTINGS,
    )
    assert repr(shapes) == "<Shapes alone buckets={'seq': (4, 8)}>"
    shape = shapes.of({"seq": 3})
    assert (shape.rows, shape.key) == (1, None)
    one = {"x": np.ones((3, 2), np.float32), "t": np.array(5, np.float32)}
    batch = shapes.gather([one], [shape])
    assert batch["x"].tolist() == [[1, 1]] * 3 + [[-1, -1]]
    reply = shapes.cut({"y": batch["x"], "sum": batch["t"]}, [shape])[0]
    assert (reply["y"].shape, reply["sum"].shape) == ((3, 2), ())


def test_strings_reach_the_model_as_text() -> None:
    spec = {"dtype": "string", "shape": ["batch", 1]}
    shapes = Shapes(signature(inputs={"s": spec}, outputs={"o": spec}), ServingSettings(batch=4))
    given = np.array([["é".encode()], ["b"]], object)
    assert shapes.complete({"s": given}, {"batch": 2})["s"].tolist() == [["é"], ["b"]]
    assert given.tolist() == [["é".encode()], ["b"]]
    for odd, why in ((b"\xff", "not UTF-8 in element 1"), (3, "int in element 1")):
        with pytest.raises(BadRequest, match=why):
            shapes.complete({"s": np.array([["a"], [odd]], object)}, {"batch": 2})


def test_strings_are_gathered() -> None:
    shapes = Shapes(
        signature(
            inputs={"s": {"dtype": "string", "shape": ["batch", 1]}}, outputs={"o": {"dtype": "string", "shape": ["batch", 1]}}
        ),
        SETTINGS,
    )
    shape = shapes.of({"batch": 1})
    rows: list[dict[str, Array]] = [{"s": np.array([[w]], dtype=object)} for w in ("a", "bc")]
    assert shapes.gather(rows, [shape, shape])["s"].tolist() == [["a"], ["bc"]]
