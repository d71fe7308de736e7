"""What the row-wise scheme makes of a graph: what it rewrites, what it leaves, what it keeps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from tauten import testing
from tauten.engines import onnxruntime as engine
from tauten.formats.onnx_file import read_graph
from tauten.quant import int8_rowwise
from tauten.spec.engine import EngineSettings
from tauten.spec.errors import BadModel
from tauten.spec.graph import Graph
from tauten.spec.tensors import Array

CONTRACT = testing.tiny_contract()  # the scheme does not look at it
RNG = np.random.default_rng(5)
X = RNG.normal(size=(3, 64)).astype(np.float32)
WEIGHTS = {
    "w": RNG.normal(size=(64, 64)), "v": RNG.normal(size=(64, 64)), "bias": RNG.normal(size=64),
    "small": RNG.normal(size=(64, 63)), "table": RNG.normal(size=(1024, 64)), "nan": np.full((64, 64), np.nan),
}  # fmt: skip


def quantised(
    folder: Path, body: str, *, opset: int = 20, inputs: str = "float[batch, 64] x", outputs: str = "float[p, q] y"
) -> Graph:
    """Quantises a graph of these nodes at folder/m.onnx to folder/q.onnx."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}')
    stored = {n: v for n, v in WEIGHTS.items() if n in body}
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float32), n) for n, v in stored.items())
    onnx.save(model, folder / "m.onnx")
    int8_rowwise.quantise(folder / "m.onnx", folder / "q.onnx", CONTRACT)
    onnx.checker.check_model(folder / "q.onnx")
    return read_graph(folder / "q.onnx")


def both(folder: Path, **inputs: Array) -> tuple[Array, Array]:
    """(in float, in integers)"""
    first, second = (engine.open(folder / n, EngineSettings()).run(inputs)["y"] for n in ("m.onnx", "q.onnx"))
    return first, second


def assert_near(folder: Path, **inputs: Array) -> None:
    want, got = both(folder, **inputs)
    assert 0 < np.abs(got - want).max() < 0.03 * np.abs(want).max()


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


@pytest.mark.parametrize("opset", [10, 13, 17, 18, 20])
def test_every_opset_that_can_quantise(opset: int, tmp_path: Path) -> None:
    quantised(tmp_path, "y = MatMul(x, w)", opset=opset)
    assert_near(tmp_path, x=X)


def test_an_opset_that_cannot_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="opset 9") as refused:
        quantised(tmp_path, "y = MatMul(x, w)", opset=9)
    assert "target.opset" in refused.value.fix


@pytest.mark.parametrize(
    "body",
    [
        "y = Gemm(x, w)", "y = Gemm(x, w, bias)", "y = Gemm<transB = 1>(x, w, bias)", "y = Gemm<alpha = 2.5>(x, w, bias)",
        "y = Gemm<alpha = 0.5, transB = 1>(x, w)", "r = Relu(x) y = Gemm(r, w, r)", "y = Gemm<beta = 2.0>(x, w)",
        "w2 = Constant<value = float[64, 64] {WHOLE}>() y = MatMul(x, w2)",
    ],
)  # fmt: skip
def test_all_forms_of_a_linear_layer(body: str, tmp_path: Path) -> None:
    graph = quantised(tmp_path, body.replace("WHOLE", ", ".join(f"{v:.4f}" for v in WEIGHTS["w"].ravel())))
    assert ops(graph)["MatMulIntegerToFloat"] == 1
    assert not {"MatMul", "Gemm"} & set(ops(graph))
    assert_near(tmp_path, x=X)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = MatMul(h, small)", "MatMul"),  # too few weights to pay
        ("y = MatMul(w, h)", "MatMul"),  # rows of the weights
        ("t = Transpose(h) y = MatMul(h, t)", "MatMul"),  # no weights at all
        ("y = Gemm<beta = 2.0>(h, w, bias)", "Gemm"),
        ("t = Transpose(h) y = Gemm<transA = 1>(t, w, bias)", "Gemm"),
        ("y = MatMul(h, nan)", "MatMul"),  # another gate's affair; here it must not become a number
    ],
)
def test_what_stays_in_float(body: str, left: str, tmp_path: Path) -> None:
    graph = quantised(tmp_path, f"h = MatMul(x, v) {body}")
    assert ops(graph)["MatMulIntegerToFloat"] == 1
    assert ops(graph)[left] == 1
    want, got = both(tmp_path, x=RNG.normal(size=(64, 64)).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


def test_weights_that_are_all_too_small_are_nothing_to_quantise(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="fewer than 4096") as refused:
        quantised(tmp_path, "y = MatMul(x, small)")
    assert refused.value.fix


def test_a_layer_so_deep_that_its_sum_could_overflow_stays_in_float(tmp_path: Path) -> None:
    deep = int8_rowwise.LONGEST + 1
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 20]> g (float[b, {deep}] x) => (float[b, 1] y) {{ y = MatMul(x, deep) }}'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((deep, 1), np.float32), "deep"))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(BadModel, match="worth quantising"):
        int8_rowwise.quantise(tmp_path / "m.onnx", tmp_path / "q.onnx", CONTRACT)


def test_activations_are_quantised_once_for_all_their_readers(tmp_path: Path) -> None:
    graph = quantised(tmp_path, "a = MatMul(x, w) b = MatMul(x, v) c = MatMul(x, w) y = Sum(a, b, c)")
    assert ops(graph)["QuantizeLinear"] == 1
    assert ops(graph)["MatMulIntegerToFloat"] == 3
    assert sum(i.dtype == "int8" for i in graph.initializers) == 2, "a shared weight is stored once"
    assert_near(tmp_path, x=X)


def test_the_same_weight_both_ways_round_is_two_weights(tmp_path: Path) -> None:
    quantised(tmp_path, "a = Gemm(x, w) b = Gemm<transB = 1>(x, w) c = Gemm<alpha = 3.0>(x, w) y = Sum(a, b, c)")
    assert_near(tmp_path, x=X)


def test_a_weight_that_others_read_too_is_kept(tmp_path: Path) -> None:
    graph = quantised(tmp_path, "a = MatMul(x, w) b = ReduceSum(w) y = Add(a, b)")
    assert "w" in {i.name for i in graph.initializers}
    graph = quantised(tmp_path, "y = MatMul(x, w)")
    assert "w" not in {i.name for i in graph.initializers}


def test_a_weight_that_a_branch_reads_is_kept(tmp_path: Path) -> None:
    body = """a = MatMul(x, w) s = ReduceSum<keepdims = 0>(a) o = Constant<value_float = 0.0>() c = Greater(s, o)
              y = If (c) <then_branch = t () => (float[b, 64] p) { p = MatMul(a, w) },
                          else_branch = f () => (float[b, 64] q) { q = MatMul(x, w) }>"""
    graph = quantised(tmp_path, body)
    assert "w" in {i.name for i in graph.initializers}
    want, got = both(tmp_path, x=X)
    assert want.shape == got.shape


@pytest.mark.parametrize("ids", [np.array([[5, 1023], [0, 5]]), np.array([7]), np.array(3), np.array([-1])], ids=str)
def test_a_large_table_is_stored_as_integers(ids: Array, tmp_path: Path) -> None:
    given = "int64" + (f"[{', '.join('ab'[: ids.ndim])}]" if ids.ndim else "")
    answered = f"float[{', '.join([*'ab'[: ids.ndim], '64'])}]"
    body = "h = Gather(table, ids) y = MatMul(h, w)"
    graph = quantised(tmp_path, body, inputs=f"{given} ids", outputs=f"{answered} y")
    table = next(i for i in graph.initializers if i.shape == (1024, 64))
    assert table.dtype == "int8"
    assert_near(tmp_path, ids=ids)


@pytest.mark.parametrize(
    "body",
    [
        "h = Gather(table, ids) t = Transpose(table) a = MatMul(h, t) y = Relu(a) z = MatMul(h, w)",  # tied to the output
        "h = Gather<axis = 1>(table, ids) y = Relu(h) g = Gather(w, ids) z = MatMul(g, w)",
        "h = Gather(table, ids) g = Gather<axis = 1>(table, ids) y = Relu(g) z = MatMul(h, w)",
    ],
    ids=["tied", "along the other axis", "both"],
)
def test_a_table_with_other_readers_stays_in_float(body: str, tmp_path: Path) -> None:
    """Stored twice it would be larger than before."""
    graph = quantised(tmp_path, body, inputs="int64[a] ids")
    assert {i.dtype for i in graph.initializers if i.shape == (1024, 64)} == {"float32"}


def test_dimensions_before_the_last_are_all_rows(tmp_path: Path) -> None:
    quantised(tmp_path, "y = MatMul(x, w)", inputs="float[a, b, c, 64] x", outputs="float[a, b, c, 64] y")
    x = RNG.normal(size=(2, 3, 4, 64)).astype(np.float32)
    assert_near(tmp_path, x=x)
    whole = engine.open(tmp_path / "q.onnx", EngineSettings())
    np.testing.assert_array_equal(whole.run({"x": x})["y"][1, 2, 3], whole.run({"x": x[1:, 2:, 3:]})["y"][0, 0, 0])


def test_the_layer_that_a_node_came_from_is_still_told(tmp_path: Path) -> None:
    quantised(tmp_path, "y = MatMul(x, w)")
    model = onnx.load(tmp_path / "m.onnx")
    model.ir_version = 10
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'encoder', 'encoder.up', 'matmul']")
    onnx.save(model, tmp_path / "m.onnx")
    int8_rowwise.quantise(tmp_path / "m.onnx", tmp_path / "q.onnx", CONTRACT)
    (node,) = (n for n in read_graph(tmp_path / "q.onnx").nodes if n.op == "MatMulIntegerToFloat")
    assert node.origin == "encoder.up"


def test_a_weight_that_an_old_file_lists_as_input_is_taken_out_with_its_listing(tmp_path: Path) -> None:
    quantised(tmp_path, "y = MatMul(x, w)", opset=13)
    model = onnx.load(tmp_path / "m.onnx")
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [64, 64]))
    onnx.save(model, tmp_path / "m.onnx")
    int8_rowwise.quantise(tmp_path / "m.onnx", tmp_path / "q.onnx", CONTRACT)
    assert [v.name for v in read_graph(tmp_path / "q.onnx").inputs] == ["x"]


def test_what_is_not_a_number_stays_none(tmp_path: Path) -> None:
    """A NaN row must not come out as numbers, and must not reach its neighbours."""
    quantised(tmp_path, "y = MatMul(x, w)")
    for bad in (np.nan, np.inf, -np.inf):
        x = X.copy()
        x[1, 5] = bad
        _, got = both(tmp_path, x=x)
        assert not np.isfinite(got[1]).any()
        np.testing.assert_array_equal(got[[0, 2]], both(tmp_path, x=X)[1][[0, 2]])


def test_every_channel_uses_all_of_its_range(tmp_path: Path) -> None:
    quantised(tmp_path, "h = Gather(table, ids) y = MatMul(h, w)", inputs="int64[a] ids")
    by_shape = {tuple(t.dims): numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert (np.abs(by_shape[64, 64].astype(int)).max(axis=0) == 127).all()
    assert (np.abs(by_shape[1024, 64].astype(int)).max(axis=1) == 127).all()
