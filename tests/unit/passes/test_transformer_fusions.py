"""Attention as exporters write it with dynamic axes is fused, and answers right for masks of any form."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tauten import testing
from tauten.engines import onnxruntime as engine
from tauten.formats.onnx_file import read_graph
from tauten.passes import transformer_fusions
from tauten.spec.engine import EngineSettings
from tauten.spec.errors import Unsupported
from tauten.spec.tensors import Array

CONTRACT = testing.tiny_contract()  # the pass does not look at it
WIDTH, SIZE = 64, 16

# One self-attention with a residual, as torch's legacy exporter writes it: the split is [batch, seq, -1, size].
ATTENTION = """
<ir_version: 10, opset_import: ["" : 20, "ai.onnx.ml" : 3]>
attention (float[batch, seq, 64] given, int64[batch, seq] mask) => (float[batch, seq, 64] y) {
  x = LayerNormalization<axis = -1>(given, gamma, beta)
  shape = Shape(x)
  batch = Gather<axis = 0>(shape, zero)   rows = Unsqueeze(batch, first)
  seq = Gather<axis = 0>(shape, one)      columns = Unsqueeze(seq, first)
  split = Concat<axis = 0>(rows, columns, heads, size)
  joined = Concat<axis = 0>(rows, columns, width)
  m0 = Unsqueeze(mask, second)   m1 = Unsqueeze(m0, third)   m2 = Cast<to = 1>(m1)
  m3 = Sub(float_one, m2)        hidden = Mul(m3, lowest)
  q0 = MatMul(x, wq)  q1 = Add(bq, q0)  q2 = Reshape(q1, split)  q = Transpose<perm = [0, 2, 1, 3]>(q2)
  k0 = MatMul(x, wk)  k1 = Add(bk, k0)  k2 = Reshape(k1, split)  k = Transpose<perm = [0, 2, 3, 1]>(k2)
  v0 = MatMul(x, wv)  v1 = Add(bv, v0)  v2 = Reshape(v1, split)  v = Transpose<perm = [0, 2, 1, 3]>(v2)
  scores = MatMul(q, k)  scaled = Div(scores, root)  masked = Add(scaled, hidden)  weights = Softmax<axis = -1>(masked)
  mixed = MatMul(weights, v)  back = Transpose<perm = [0, 2, 1, 3]>(mixed)  flat = Reshape(back, joined)
  out0 = MatMul(flat, wo)  out = Add(bo, out0)  sum = Add(out, x)
  y = LayerNormalization<axis = -1>(sum, gamma, beta)
}"""


def attention(path: Path, **changes: Array) -> Path:
    rng = np.random.default_rng(0)
    floats: dict[str, object] = {
        "gamma": np.ones(WIDTH), "beta": np.zeros(WIDTH), "float_one": 1, "root": 4, "lowest": np.finfo(np.float32).min,
        **{f"w{n}": rng.normal(size=(WIDTH, WIDTH)) / 8 for n in "qkvo"}, **{f"b{n}": rng.normal(size=WIDTH) for n in "qkvo"},
    }  # fmt: skip
    whole = {"zero": 0, "one": 1, "first": [0], "second": [1], "third": [2], "heads": [-1], "size": [SIZE], "width": [WIDTH]}
    stored = {k: np.asarray(v, np.float32) for k, v in floats.items()} | {k: np.asarray(v) for k, v in whole.items()} | changes
    model = parser.parse_model(ATTENTION)
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in stored.items())
    onnx.save(model, path)
    return path


def mask_of(kind: str, rows: int, length: int) -> Array:
    mask = np.ones((rows, length), np.int64)
    match kind:
        case "holes":
            mask[:, 1::2] = 0
        case "padded left":
            mask[:, : length // 2] = 0
        case "padded right":
            mask[:, length // 2 + 1 :] = 0
        case "one row empty":
            mask[0] = 0
    return mask


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(as exported, fused)"""
    folder = tmp_path_factory.mktemp("attention")
    source = attention(folder / "m.onnx")
    assert transformer_fusions.apply(source, folder / "fused.onnx", CONTRACT)
    return source, folder / "fused.onnx"


def test_attention_with_dynamic_axes_is_one_operator(pair: tuple[Path, Path]) -> None:
    """Alone, the tool does not find the number of heads here."""
    graph = read_graph(pair[1])
    ops = [n.op for n in graph.nodes]
    assert ops.count("Attention") == 1
    assert "Softmax" not in ops
    (fused,) = (n for n in graph.nodes if n.op == "Attention")
    assert fused.attributes["num_heads"] == WIDTH // SIZE


def test_the_file_names_the_domains_that_it_uses(pair: tuple[Path, Path]) -> None:
    assert read_graph(pair[0]).opsets == {"": 20, "ai.onnx.ml": 3}
    assert read_graph(pair[1]).opsets == {"": 20, "com.microsoft": 1}


@pytest.mark.parametrize("kind", ["all", "holes", "padded left", "padded right", "one row empty"])
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 7), (3, 8)])
def test_masks_of_any_form_answer_as_before(pair: tuple[Path, Path], kind: str, rows: int, length: int) -> None:
    x = np.random.default_rng(1).normal(size=(rows, length, WIDTH)).astype(np.float32)
    inputs = {"given": x, "mask": mask_of(kind, rows, length)}
    want, got = (engine.open(path, EngineSettings()).run(inputs)["y"] for path in pair)
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_an_empty_constant_where_heads_are_looked_for_is_no_trouble(tmp_path: Path) -> None:
    source = attention(tmp_path / "m.onnx", size=np.array([], np.int64))
    assert not transformer_fusions.apply(source, tmp_path / "fused.onnx", CONTRACT)


def test_a_graph_that_the_tool_fails_on_is_refused_with_its_words(tmp_path: Path) -> None:
    """A scalar bias is fine by the standard; the tool takes it for a vector."""
    source = attention(tmp_path / "m.onnx", bq=np.array(1, np.float32))
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(Unsupported, match="AssertionError") as refused:
        transformer_fusions.apply(source, tmp_path / "fused.onnx", CONTRACT)
    assert refused.value.fix
    assert not (tmp_path / "fused.onnx").exists()
    assert logging.getLogger().handlers == handlers


def test_what_it_says_goes_to_who_set_up_logging(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tool warns that no other tool is known to have made this file."""
    source = attention(tmp_path / "m.onnx")
    model = onnx.load(source)
    model.producer_name = "somebody"
    onnx.save(model, source)
    assert transformer_fusions.apply(source, tmp_path / "fused.onnx", CONTRACT)
    assert "somebody" in caplog.text
    assert tuple(capfd.readouterr()) == ("", "")
    assert read_graph(tmp_path / "fused.onnx").producer == "somebody", "who made it stays told"
