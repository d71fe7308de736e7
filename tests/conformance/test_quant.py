"""Every precision scheme on real graphs: smaller, within its declared tolerance, the same signature, twice the same bytes;
what is quantised already, or has nothing to quantise, is refused with the fix."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tauten.delivery.probes import make_probes
from tauten.engines import onnxruntime as engine
from tauten.formats.onnx_file import read_graph
from tauten.measure.compare import most_excessive, worst_of
from tauten.spec import plugins
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings, Tensors
from tauten.spec.errors import BadModel
from tauten.spec.tensors import Array

SCHEMES = plugins.names("quant")
PRECISIONS = {"int8"}
WORDS = 2048

# name: (inputs, body); every output is float[batch, 32] y
GRAPHS = {
    "mlp": ("float[batch, 96] x", """
        a = Gemm<transB = 1>(x, first, bias) h = Relu(a) y = Gemm(h, last, small_bias)"""),
    "text": ("int64[batch, seq] ids, int64[batch, seq] mask", """
        words = Gather(table, ids) m0 = Cast<to = 1>(mask) m = Unsqueeze(m0, end)
        up = MatMul(words, first_t) h = Tanh(up) kept = Mul(h, m)
        sum = ReduceSum<keepdims = 0>(kept, middle) count = ReduceSum<keepdims = 0>(m, middle) safe = Max(count, one)
        mean = Div(sum, safe) y = MatMul(mean, last)"""),
    "conv": ("float[batch, 3, 8, 8] x", """
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, filters, filter_bias) r = Relu(c)
        p = GlobalAveragePool(r) f = Flatten(p)
        a = Gemm<transB = 1>(f, first, bias) h = Relu(a) y = Gemm(h, last, small_bias)"""),
}  # fmt: skip


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(11)
    first = rng.normal(size=(128, 96)) / 10
    floats = {
        "first": first, "first_t": first.T, "last": rng.normal(size=(128, 32)) / 10, "bias": rng.normal(size=128) / 10,
        "small_bias": rng.normal(size=32) / 10, "table": rng.normal(size=(WORDS, 96)), "one": np.ones(()),
        "filters": rng.normal(size=(96, 3, 3, 3)) / 5, "filter_bias": rng.normal(size=96) / 10,
    }  # fmt: skip
    return {k: v.astype(np.float32) for k, v in floats.items()} | {"end": np.array([2]), "middle": np.array([1])}


def contract(graph: str) -> Contract:
    inputs: dict[str, object]
    axes: dict[str, object] = {"batch": {"min": 1, "opt": 4, "max": 6}}
    match graph:
        case "text":
            inputs = {"ids": {"dtype": "int64", "shape": ["batch", "seq"], "range": [0, WORDS - 1], "pad": 0},
                      "mask": {"dtype": "int64", "shape": ["batch", "seq"], "range": [0, 1], "pad": 0}}  # fmt: skip
            axes["seq"] = {"min": 1, "max": 12}
        case "conv":
            inputs = {"x": {"dtype": "float32", "shape": ["batch", 3, 8, 8], "range": [-1, 1]}}
        case _:
            inputs = {"x": {"dtype": "float32", "shape": ["batch", 96], "range": [-1, 1]}}
    outputs = {"y": {"dtype": "float32", "shape": ["batch", 32]}}
    return Contract.of({"contract": 1, "inputs": inputs, "outputs": outputs, "axes": axes})


def write(path: Path, graph: str, *, opset: int = 20, body: str = "") -> Path:
    inputs, own = GRAPHS[graph]
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => (float[batch, 32] y) {{ {body or own} }}'
    )
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights().items() if k in read)
    onnx.save(model, path)
    return path


def answers(path: Path, inputs: Tensors) -> dict[str, Array]:
    session = engine.open(path, EngineSettings())
    answer = session.run(inputs)
    session.close()
    return answer


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> ModuleType:
    return plugins.load("quant", request.param)


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_declares_its_precision_and_its_tolerance(scheme: ModuleType) -> None:
    assert scheme.PRECISION in PRECISIONS
    assert 0 < scheme.TOLERANCE.atol + scheme.TOLERANCE.rtol < 1, "beyond the answers' own size nothing is promised"


def test_it_stays_within_its_tolerance_at_a_smaller_size(scheme: ModuleType, graph: str, tmp_path: Path) -> None:
    source, out, asked = write(tmp_path / "m.onnx", graph), tmp_path / "new" / "q.onnx", contract(graph)
    scheme.quantise(source, out, asked)
    onnx.checker.check_model(out, full_check=False)
    was, now = read_graph(source), read_graph(out)
    assert out.stat().st_size < source.stat().st_size / 2
    assert (now.inputs, now.outputs) == (was.inputs, was.outputs)
    assert any(w.dtype in {"int8", "uint8"} and w.nbytes > 1000 for w in now.initializers)
    apart = 0.0
    for probe in make_probes(asked):
        want, got = answers(source, probe.inputs), answers(out, probe.inputs)
        worst = most_excessive(worst_of(got, want, scheme.TOLERANCE, asked.outputs, scale=None).values())
        assert worst.held, f"{probe.name}: {worst.told()}"
        apart = max(apart, worst.max_abs)
    assert apart > 0, "nothing was quantised"


def test_twice_is_the_same_file_and_the_source_is_untouched(scheme: ModuleType, graph: str, tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", graph)
    before = source.read_bytes()
    for name in ("a", "b"):
        scheme.quantise(source, tmp_path / f"{name}.onnx", contract(graph))
    a, b = (hashlib.sha256((tmp_path / f"{name}.onnx").read_bytes()).digest() for name in ("a", "b"))
    assert a == b
    assert source.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "m.onnx"]


def test_it_talks_to_nobody(scheme: ModuleType, graph: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scheme.quantise(write(tmp_path / "m.onnx", graph), tmp_path / "q.onnx", contract(graph))
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.parametrize("by", SCHEMES)
def test_what_is_quantised_already_is_refused(scheme: ModuleType, by: str, tmp_path: Path) -> None:
    once = tmp_path / "once.onnx"
    plugins.load("quant", by).quantise(write(tmp_path / "m.onnx", "mlp"), once, contract("mlp"))
    with pytest.raises(BadModel, match="quantised already") as refused:
        scheme.quantise(once, tmp_path / "twice.onnx", contract("mlp"))
    assert refused.value.fix
    assert not (tmp_path / "twice.onnx").exists()


@pytest.mark.parametrize("body", ["y = Relu(x)", "a = Gather(x, middle) y = Tanh(a)", "t = Transpose(x) y = MatMul(x, t)"])
def test_what_has_no_weight_to_quantise_is_refused(scheme: ModuleType, body: str, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="nothing to quantise") as refused:
        scheme.quantise(write(tmp_path / "m.onnx", "mlp", body=body), tmp_path / "q.onnx", contract("mlp"))
    assert refused.value.fix
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_file_that_is_no_model_is_refused(scheme: ModuleType, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(BadModel, match=r"m\.onnx") as refused:
        scheme.quantise(tmp_path / "m.onnx", tmp_path / "q.onnx", contract("mlp"))
    assert refused.value.fix


@pytest.mark.parametrize("case", ["zeros", "dead channel", "constant", "next to nothing"])
def test_a_range_of_nothing_gives_no_nan(scheme: ModuleType, case: str, tmp_path: Path) -> None:
    """A scale of zero would divide by it."""
    source = write(tmp_path / "m.onnx", "mlp")
    model = onnx.load(source)
    first = next(t for t in model.graph.initializer if t.name == "first")
    values = numpy_helper.to_array(first).copy()
    match case:
        case "zeros":
            values[:] = 0
        case "dead channel":
            values[7] = 0
        case "constant":
            values[:] = 0.25
        case _:
            values *= np.float32(1e-40)
    first.CopyFrom(numpy_helper.from_array(values, "first"))
    onnx.save(model, source)
    scheme.quantise(source, tmp_path / "q.onnx", contract("mlp"))
    spread = np.random.default_rng(0).normal(size=(3, 96))
    for x in (np.zeros((3, 96)), np.full((3, 96), -5.0), spread, spread * 1e-40):
        inputs = {"x": x.astype(np.float32)}
        want, got = answers(source, inputs)["y"], answers(tmp_path / "q.onnx", inputs)["y"]
        assert np.isfinite(got).all()
        assert np.abs(got - want).max() <= scheme.TOLERANCE.atol * np.abs(want).max()
