"""What every source promises: same export twice, same bytes; original and export agree; the caller's module untouched.

A source in the folder without a sample here fails: one function that makes its smallest model is all that it needs.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tauten import testing
from tauten.delivery.probes import make_probes
from tauten.engines import onnxruntime
from tauten.formats import onnx_file, onnx_finish
from tauten.sources import _torch, pytorch
from tauten.spec import plugins
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings
from tauten.spec.errors import BadSource, ExportFailed, MissingExtra
from tauten.spec.signature import Axis
from tauten.spec.source import Export, Opened

pytestmark = pytest.mark.slow
BATCH = {"batch": Axis(min=1, opt=3, max=6)}
NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.body = nn.Sequential(nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2))

        def forward(self, x, linear, scale=None):
            y = self.body(self.linear(x)) + helper(linear)
            return {"relu": torch.relu(y), "y": y if scale is None else y * scale}

    def helper(x):
        return x.sum(1, keepdim=True)

    def factory():
        torch.manual_seed(0)
        return Net(), {"x": torch.ones(1, 4), "linear": torch.ones(1, 2)}
"""


def pytorch_sample(folder: Path) -> str:
    (folder / "net.py").write_text(textwrap.dedent(NET))
    return f"{folder / 'net.py'}:factory"


def onnx_sample(folder: Path) -> Path:
    testing.write_tiny_model(folder / "tiny.onnx")
    return folder / "tiny.onnx"


def huggingface_sample(folder: Path) -> Path:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                        max_position_embeddings=40)  # fmt: skip
    BertModel(config).save_pretrained(folder)
    kinds = ("Transformer", "Pooling", "Normalize")
    (folder / "modules.json").write_text(json.dumps([{"type": f"sentence_transformers.models.{k}"} for k in kinds]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


SAMPLES: dict[str, Callable[[Path], Any]] = {
    "pytorch": pytorch_sample, "onnx": onnx_sample, "huggingface": huggingface_sample,
}  # fmt: skip


@pytest.fixture(params=plugins.names("sources"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(name: str) -> ModuleType:
    return plugins.load("sources", name)


@pytest.fixture
def sample(name: str, tmp_path: Path) -> Any:
    (tmp_path / "sample").mkdir()
    return SAMPLES[name](tmp_path / "sample")


def contract_of(opened: Opened) -> Contract:
    found = opened.suggested
    return Contract(contract=1, inputs=found.inputs, outputs=found.outputs, axes=BATCH | found.axes if found.axes else BATCH)


def export(opened: Opened, contract: Contract, exporter: str, target: Path) -> Export:
    assert opened.export is not None
    return opened.export(contract, exporter, target)


def worst(contract: Contract, opened: Opened, model: Path) -> float:
    """The largest error in units of 1 + the original's magnitude: probes reach from tiny values to large ones."""
    assert opened.reference is not None
    reference = opened.reference()
    session = onnxruntime.open(model, EngineSettings())
    found = 0.0
    for probe in make_probes(contract)[:12]:
        want, got = reference(probe.inputs), session.run(probe.inputs)
        assert set(want) == set(got)
        found = max(found, *(float(np.max(np.abs(want[n] - got[n]) / (1 + np.abs(want[n])), initial=0)) for n in want))
    return found


def test_every_source_takes_its_own_sample_and_no_other(name: str, source: ModuleType, tmp_path: Path) -> None:
    for other, make in SAMPLES.items():
        (tmp_path / other).mkdir()
        assert source.accepts(make(tmp_path / other)) is (other == name)
    assert not source.accepts(None)
    assert isinstance(source.EXTRA, str)


def test_what_is_opened_is_whole_and_names_no_machine(name: str, source: ModuleType, sample: Any, tmp_path: Path) -> None:
    opened = source.open(sample)
    assert opened.kind == name
    assert opened.suggested.trouble() == ""
    assert opened.suggested.inputs
    assert opened.suggested.outputs
    assert bool(opened.exporters) == (opened.export is not None) == (opened.model is None) == (opened.reference is not None)
    assert str(tmp_path) not in json.dumps(opened.provenance)
    assert source.open(sample).provenance == opened.provenance


def test_an_export_is_the_same_twice_and_agrees_with_the_original(source: ModuleType, sample: Any, tmp_path: Path) -> None:
    opened = source.open(sample)
    contract = contract_of(opened)
    for exporter in opened.exporters:
        first = export(opened, contract, exporter, tmp_path / "a" / f"{exporter}.onnx")
        second = export(source.open(sample), contract, exporter, tmp_path / "b" / f"{exporter}.onnx")
        assert hashlib.sha256(first.path.read_bytes()).digest() == hashlib.sha256(second.path.read_bytes()).digest()
        assert (first.exporter, first.path.parent.name) == (exporter, "a")
        assert str(tmp_path).encode() not in first.path.read_bytes()
        assert f"{Path.home()}/".encode() not in first.path.read_bytes()
        graph = onnx_file.read_graph(first.path)
        assert [v.name for v in graph.inputs] == list(contract.inputs)
        assert [v.name for v in graph.outputs] == list(contract.outputs)
        assert [v.shape for v in graph.inputs] == [s.shape for s in contract.inputs.values()]
        assert set(json.loads(graph.metadata[onnx_finish.AXES_KEY])) == set(contract.axes)
        assert any(n.origin for n in graph.nodes)
        assert onnx_file.invalid(onnx_file.load(first.path)) == ""
        assert worst(contract, opened, first.path) < 1e-5
    assert sorted(p.name for p in (tmp_path / "a").glob("*")) == sorted(f"{e}.onnx" for e in opened.exporters)


# What only the PyTorch exporters have


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y


X = "x: {dtype: float32, shape: [batch, 4]}"


def contract(
    inputs: str = X, outputs: str = "y: {dtype: float32, shape: [batch, 4]}", axes: str = "batch: {max: 6}"
) -> Contract:
    return Contract.parse(f"{{contract: 1, inputs: {{{inputs}}}, outputs: {{{outputs}}}, axes: {{{axes}}}}}")


@pytest.mark.parametrize("exporter", _torch.EXPORTERS)
def test_a_module_in_training_is_exported_in_eval_mode_and_stays_as_it_was(exporter: str, tmp_path: Path) -> None:
    module = Trained().train()
    module.body[1].eval()
    modes = [m.training for m in module.modules()]
    state = {k: v.clone() for k, v in module.state_dict().items()}
    opened = pytorch.open(module)
    made = export(opened, contract(), exporter, tmp_path / "m.onnx")
    assert [m.training for m in module.modules()] == modes
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    assert "Dropout" not in {n.op for n in onnx_file.read_graph(made.path).nodes}


def test_bounds_that_end_at_one_and_steps_are_exported_dynamic(tmp_path: Path) -> None:
    """A model that must not be batched is still traced away from 1, where exporters freeze what they see."""

    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(x.shape[0], x.shape[1] // 4, 4).sum(2)

    asked = contract("x: {dtype: float32, shape: [batch, n]}", "y: {dtype: float32, shape: [batch, m]}",
                     "batch: {max: 1}, n: {min: 4, max: 64, multiple_of: 4}, m: {min: 1, max: 16}")  # fmt: skip
    opened = pytorch.open(Halves())
    for exporter in _torch.EXPORTERS:
        made = export(opened, asked, exporter, tmp_path / f"{exporter}.onnx")
        assert onnx_file.read_graph(made.path).inputs[0].shape == ("batch", "n")
        session = onnxruntime.open(made.path, EngineSettings())
        assert session.run({"x": np.ones((1, 64), np.float32)})["y"].shape == (1, 16)


def test_the_second_recurrent_model_keeps_its_time_axis(tmp_path: Path) -> None:
    """Exported twice in one process, the second loses it silently; hence the fresh process."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.lstm(x)[0]
            return y

    asked = contract("x: {dtype: float32, shape: [batch, t, 4]}", "y: {dtype: float32, shape: [batch, t, 8]}",
                     "batch: {max: 6}, t: {max: 40}")  # fmt: skip
    for attempt in "ab":
        made = export(pytorch.open(Recurrent()), asked, "dynamo", tmp_path / f"{attempt}.onnx")
        session = onnxruntime.open(made.path, EngineSettings())
        for t in (1, 33):
            assert session.run({"x": np.ones((3, t, 4), np.float32)})["y"].shape == (3, t, 8)


def test_a_traced_module_that_was_in_training_stays_random_in_the_file(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace: Any = torch.jit.trace  # untyped
        traced = trace(Trained().train(), torch.ones(2, 4), check_trace=False)
    opened = pytorch.open(traced.eval())
    made = export(opened, contract(), "legacy", tmp_path / "m.onnx")
    assert "Dropout" in {n.op for n in onnx_file.read_graph(made.path).nodes}
    with pytest.raises(ExportFailed, match="no Python code to export"):
        export(opened, contract(), "dynamo", tmp_path / "n.onnx")


class Failing(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "branch" and x.sum() > 0:
            return x * 2
        if torch.compiler.is_exporting():
            if self.how == "die":
                os.abort()
            if self.how == "hang":
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
                Path(os.environ["TAUTEN_TEST_MARKER"]).write_text(str(child.pid))
                time.sleep(600)
        return x


@pytest.mark.parametrize(
    ("how", "message", "fix"),
    [
        ("branch", "the dynamo exporter could not write the model: GuardOnDataDependentSymNode: ", "use tensor operations"),
        ("die", "the dynamo exporter was ended by signal 6", "memory"),
    ],
)
def test_a_failed_export_is_one_paragraph_and_leaves_nothing(how: str, message: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(ExportFailed) as error:
        export(pytorch.open(Failing(how)), contract(), "dynamo", tmp_path / "m.onnx")
    assert error.value.message.startswith(message)
    assert len(error.value.message) < 400
    assert "\n" not in error.value.message
    assert sys.prefix not in error.value.message
    assert fix in error.value.fix
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "child"
    monkeypatch.setenv("TAUTEN_TEST_MARKER", str(marker))
    monkeypatch.setattr(_torch, "TIMEOUT_S", 20.0)
    with pytest.raises(ExportFailed, match="the dynamo exporter was not done after 20 s"):
        export(pytorch.open(Failing("hang")), contract(), "dynamo", tmp_path / "out" / "m.onnx")
    state = Path(f"/proc/{marker.read_text()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    assert list((tmp_path / "out").iterdir()) == []


def test_a_contract_that_does_not_fit_forward_is_told_before_anything_starts(tmp_path: Path) -> None:
    opened = pytorch.open(Trained())
    with pytest.raises(BadSource, match="forward takes x, but no 'mask'"):
        export(opened, contract(f"{X}, mask: {{dtype: int64, shape: [batch]}}"), "dynamo", tmp_path / "m.onnx")
    two = "y: {dtype: float32, shape: [batch, 4]}, z: {dtype: float32, shape: [batch, 4]}"
    with pytest.raises(ExportFailed, match="returns 1 outputs, the contract names y, z"):
        export(opened, contract(outputs=two), "legacy", tmp_path / "m.onnx")


def test_a_missing_package_names_the_extra(sample: Any, name: str, source: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"pytorch": "torch", "huggingface": "transformers", "onnx": "onnx"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=package) as error:
        source.open(sample)
    assert error.value.fix == f"pip install 'tauten[{source.EXTRA}]'"


def test_the_real_encoder_agrees_with_its_export(tmp_path: Path) -> None:
    folder = os.environ.get("TAUTEN_MINILM", "")
    if not Path(folder, "model.safetensors").is_file():
        pytest.skip("TAUTEN_MINILM names no directory with the MiniLM encoder; scripts/fetch gets it")
    shutil.copytree(folder, tmp_path / "minilm")
    opened = plugins.load("sources", "huggingface").open(tmp_path / "minilm")
    asked = contract_of(opened)
    made = export(opened, asked, "dynamo", tmp_path / "m.onnx")
    assert worst(asked, opened, made.path) < 1e-5
