"""Every pass on every graph here: valid, the same answers and shapes, idempotent, no random operator folded, no larger.

A new file in passes/ needs a row in REWRITES: a graph that it changes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from tauten.delivery.probes import make_probes
from tauten.engines import onnxruntime as engine
from tauten.formats.onnx_file import read_graph
from tauten.spec import plugins
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings, Tensors
from tauten.spec.errors import BadModel
from tauten.spec.tensors import Array

PASSES = plugins.names("passes")
WIDTH = 16
ROUNDING = 2e-5  # of float32, relative to the largest answer: fused norms sum in another order, and divide by what they summed
MOST_GROWTH, ALLOWANCE = 1.2, 64 * 1024  # bytes of the result: at most 1.2 times as many, and 64 KiB
RANDOM = {"RandomNormalLike", "RandomUniformLike", "Bernoulli"}

GRAPHS = {
    "gelu and norm": """
        up = MatMul(x, wide) biased = Add(up, row)
        scaled = Div(biased, root_two) curve = Erf(scaled) shifted = Add(curve, one)
        product = Mul(biased, shifted) gelu = Mul(product, half)
        down = MatMul(gelu, wide) out = Add(down, row) sum = Add(out, x)
        y = LayerNormalization<axis = -1>(sum, scale, row)""",
    "norm of a broadcast sum": """
        sum = Add(x, row) y = LayerNormalization<axis = -1>(sum, scale, row)""",
    "one layer": "up = MatMul(x, wide) y = Relu(up)",
    "overridable weight": "up = MatMul(x, wide) y = Add(up, row)",
    "random": "noise = RandomNormalLike<seed = 3.0>(x) still = Mul(noise, zero) y = Add(x, still)",
    "stored by a recipe": """
        large = ConstantOfShape<value = float[1] {1.0}>(megabytes) mean = ReduceMean<keepdims = 0>(large) y = Mul(x, mean)""",
    "branch": """
        total = ReduceSum<keepdims = 0>(x) positive = Greater(total, zero)
        y = If (positive) <then_branch = a () => (float[batch, seq, 16] p) { p = Mul(x, row) },
                           else_branch = b () => (float[batch, seq, 16] q) { q = Mul(x, scale) }>""",
    "idle input": "y = Relu(x)",
}
REWRITES = {"demote_inputs": "overridable weight", "transformer_fusions": "gelu and norm"}


def contract(*more: str) -> Contract:
    tensor = {"dtype": "float32", "shape": ["batch", "seq", WIDTH], "range": [-3, 3]}
    return Contract.of(
        {
            "contract": 1,
            "inputs": {"x": tensor, **dict.fromkeys(more, tensor)},
            "outputs": {"y": {k: v for k, v in tensor.items() if k != "range"}},
            "axes": {"batch": {"min": 1, "max": 5}, "seq": {"min": 1, "max": 9}},
        }
    )


def weights(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    floats = {
        "wide": rng.normal(size=(WIDTH, WIDTH)) / 4, "row": rng.normal(size=WIDTH), "scale": rng.normal(size=WIDTH),
        "root_two": np.sqrt(2), "one": 1, "half": 0.5, "zero": 0,
    }  # fmt: skip
    return {**{k: np.asarray(v, np.float32) for k, v in floats.items()}, "megabytes": np.array([1024, 1024])}


def write(path: Path, name: str, seed: int = 0) -> Path:
    more = ", float[batch, seq, 16] idle" if name == "idle input" else ""
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]>'
        f"g (float[batch, seq, 16] x{more}) => (float[batch, seq, 16] y) {{ {GRAPHS[name]} }}"
    )
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights(seed).items())
    if name == "overridable weight":
        model.graph.input.append(onnx.helper.make_tensor_value_info("row", onnx.TensorProto.FLOAT, [WIDTH]))
    onnx.save(model, path)
    return path


def answers(path: Path, inputs: Tensors) -> dict[str, Array]:
    session = engine.open(path, EngineSettings())
    taken = {p.name for p in session.inputs}
    answer = session.run({k: v for k, v in inputs.items() if k in taken})
    session.close()
    return answer


def apply(name: str, source: Path, out: Path) -> bool:
    changed: bool = plugins.load("passes", name).apply(source, out, contract())
    return changed


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(params=PASSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_rewritten_model_is_the_same_model(name: str, graph: str, tmp_path: Path) -> None:
    source, out = write(tmp_path / "m.onnx", graph), tmp_path / "new" / "m.onnx"
    before = digest(source)
    changed = apply(name, source, out)
    assert digest(source) == before, "the source is untouched"
    assert out.exists() is changed, "it writes what it changed, and nothing else"
    assert [p.name for p in tmp_path.iterdir() if p != out.parent] == ["m.onnx"]
    if not changed:
        return
    onnx.checker.check_model(out, full_check=True)
    was, now = read_graph(source), read_graph(out)
    stored = {w.name for w in was.initializers}
    assert now.inputs == tuple(v for v in was.inputs if v.name not in stored or v in now.inputs)
    assert now.outputs == was.outputs
    assert {n.op for n in was.nodes} & RANDOM <= {n.op for n in now.nodes}
    assert out.stat().st_size <= source.stat().st_size * MOST_GROWTH + ALLOWANCE
    assert set(now.opsets) - set(was.opsets) <= {n.domain for n in now.nodes}, "no domain that nothing uses"
    if {n.op for n in was.nodes} & RANDOM:
        return
    names = ["idle"] if graph == "idle input" else []
    for probe in make_probes(contract(*names)):
        want, got = answers(source, probe.inputs)["y"], answers(out, probe.inputs)["y"]
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= ROUNDING * max(1.0, float(np.abs(want).max())), probe.name


@pytest.mark.parametrize("graph", GRAPHS)
def test_applied_to_its_own_result_it_changes_nothing(name: str, graph: str, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    if not apply(name, write(tmp_path / "m.onnx", graph), once):
        assert not once.exists()
        return
    assert not apply(name, once, twice)
    assert not twice.exists()


def test_it_changes_the_graph_that_it_is_for_and_writes_the_same_bytes_each_time(name: str, tmp_path: Path) -> None:
    assert name in REWRITES, f"give {name!r} a graph in REWRITES"
    source = write(tmp_path / "m.onnx", REWRITES[name])
    assert [apply(name, source, tmp_path / f"{i}.onnx") for i in range(2)] == [True, True]
    assert digest(tmp_path / "0.onnx") == digest(tmp_path / "1.onnx") != digest(source)


@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), length=st.integers(1, 9), scale=st.sampled_from([1e-3, 1.0, 30.0])
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_are_equal_for_any_weights_and_inputs(
    name: str, tmp_path: Path, seed: int, rows: int, length: int, scale: float
) -> None:
    source, out = write(tmp_path / "m.onnx", REWRITES[name], seed), tmp_path / "out.onnx"
    assert apply(name, source, out)
    x = np.random.default_rng(seed).normal(scale=scale, size=(rows, length, WIDTH)).astype(np.float32)
    want, got = answers(source, {"x": x})["y"], answers(out, {"x": x})["y"]
    assert np.abs(got - want).max() <= ROUNDING * max(1.0, float(np.abs(want).max()))


def test_it_talks_to_nobody(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for graph in GRAPHS:
        apply(name, write(tmp_path / "m.onnx", graph), tmp_path / "out.onnx")
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_file_that_is_no_model_is_refused_with_the_fix(name: str, tmp_path: Path, content: Any) -> None:
    if content is not None:
        (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(BadModel, match=r"m\.onnx") as refused:
        apply(name, tmp_path / "m.onnx", tmp_path / "out.onnx")
    assert refused.value.fix
    assert not (tmp_path / "out.onnx").exists()
