"""The examples: each broken model is refused by the gate that is for it, naming layer and fix; each good one passes them all.

And faults of exporters on real modules: what was asked for is not what was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tauten.delivery.origin import open_source
from tauten.delivery.probes import make_probes
from tauten.delivery.subject import Wish, open_subject
from tauten.spec import plugins
from tauten.spec.contract import Contract
from tauten.spec.errors import BadSource, ExportFailed
from tauten.spec.judging import Subject
from tauten.spec.verdict import Status, Verdict

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the framework, while it loads and traces
]
EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = sorted(p.stem for p in (EXAMPLES / "good").glob("*.py"))

# The gates that must refuse it, and no others; the message and the fix of the first.
BROKEN: dict[str, tuple[set[str], str, str]] = {
    "batch_norm": ({"batch_invariance"}, "(layer 'bn1') uses batch statistics", "track_running_stats=True"),
    "branch_on_batch": ({"parity"}, "it differs only where batch = 1", "do not branch on the size of 'batch'"),
    "squeeze": ({"axes", "batch_invariance"}, "at batch = 1: output 'y' has shape [4]", "squeeze(dim)"),
    "live_dropout": ({"determinism", "parity"}, "Dropout ", "training=self.training"),
}
REFUSED_BY_EXPORTER = {("batch_norm", "legacy")}


@contextmanager
def exported(given: object, contract: Contract, exporter: str, folder: Path) -> Iterator[Subject]:
    opened = open_source(given)
    assert opened.export is not None
    made = opened.export(contract, exporter, folder / "model.onnx")
    wish = Wish(model=made.path, parity=contract.tolerances.parity, asked_opset=contract.target.opset)
    with open_subject(contract, opened, wish, make_probes(contract)) as subject:
        yield subject


def judged(subject: Subject) -> dict[str, Verdict]:
    return {name: plugins.load("gates", name).judge(subject) for name in plugins.names("gates")}


def example(folder: str, name: str) -> tuple[str, Contract]:
    path = EXAMPLES / folder / name
    return f"{path}.py:factory", Contract.load(f"{path}.yaml")


def test_there_are_enough_of_both_kinds() -> None:
    assert len(GOOD) >= 3
    assert set(BROKEN) == {p.stem for p in (EXAMPLES / "broken").glob("*.py")} - {"minilm_batch_norm"}


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
@pytest.mark.parametrize("name", GOOD)
def test_a_good_model_passes_every_gate(name: str, exporter: str, tmp_path: Path) -> None:
    with exported(*example("good", name), exporter, tmp_path) as subject:
        verdicts = judged(subject)
    assert [v.message for v in verdicts.values() if not v.ok] == []
    held = {name for name, v in verdicts.items() if v.status is Status.HELD}
    assert {"lint", "compatibility", "signature", "axes", "parity", "batch_invariance", "determinism", "finite"} <= held
    assert ("padding_invariance" in held) == (name == "text_encoder")


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_refused_for_the_right_reason(name: str, exporter: str, tmp_path: Path) -> None:
    gates, message, fix = BROKEN[name]
    if (name, exporter) in REFUSED_BY_EXPORTER:
        with pytest.raises(ExportFailed), exported(*example("broken", name), exporter, tmp_path):
            pass
        return
    with exported(*example("broken", name), exporter, tmp_path) as subject:
        verdicts = judged(subject)
    assert {n for n, v in verdicts.items() if not v.ok} == gates
    verdict = verdicts[min(gates)]
    assert verdict.status is Status.BROKEN
    assert message in verdict.message
    assert fix in verdict.fix


class Unused(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * 2


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(self.norm(x)).sum(1, keepdim=True)


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        for i in range(x.shape[1]):
            h = torch.tanh(h + x[:, i])
        return h


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y


def contract(inputs: str, outputs: str, axes: str = "batch: {min: 1, opt: 4, max: 8}", opset: int = 20) -> Contract:
    return Contract.parse(
        f"{{contract: 1, target: {{opset: {opset}}}, inputs: {{{inputs}}}, outputs: {{{outputs}}}, axes: {{{axes}}}}}"
    )


X = "x: {dtype: float32, shape: [batch, 4]}"
Y = "y: {dtype: float32, shape: [batch, 4]}"


@pytest.mark.parametrize(("exporter", "status"), [("legacy", Status.BROKEN), ("dynamo", Status.HELD)])
def test_an_unused_input_that_the_exporter_drops_is_told(exporter: str, status: Status, tmp_path: Path) -> None:
    asked = contract(f"{X.replace('x:', 'a:')}, {X.replace('x:', 'b:')}", Y)
    opened = open_source(Unused())
    assert opened.export is not None
    made = opened.export(asked, exporter, tmp_path / "model.onnx")
    wish = Wish(model=made.path, parity=asked.tolerances.parity)
    with open_subject(asked, opened, wish, make_probes(asked)) as subject:
        verdict = plugins.load("gates", "signature").judge(subject)
    assert verdict.status is status
    if status is Status.BROKEN:
        assert "input 'b' is unused and was dropped by the exporter; the file has a" in verdict.message
        assert verdict.fix == "use 'b' in forward, or take it out of the contract"


@pytest.mark.parametrize(("exporter", "opset", "got"), [("dynamo", 11, 18), ("legacy", 11, 11)])
def test_another_opset_than_asked_is_told_with_both_numbers(exporter: str, opset: int, got: int, tmp_path: Path) -> None:
    with exported(Normed(), contract(X, "y: {dtype: float32, shape: [batch, 1]}", opset=opset), exporter, tmp_path) as subject:
        verdict = plugins.load("gates", "signature").judge(subject)
    if got == opset:
        assert verdict.status is Status.HELD
    else:
        assert (verdict.status, verdict.message) == (Status.BROKEN, f"opset {opset} was asked, the exporter wrote opset {got}")


@pytest.mark.parametrize("exporter", ["dynamo", "legacy"])
def test_a_loop_over_the_sequence_never_passes_as_dynamic(exporter: str, tmp_path: Path) -> None:
    """One exporter writes an axis that is dynamic in name, the other freezes or refuses it; none gets through."""
    asked = contract("x: {dtype: float32, shape: [batch, t]}", "y: {dtype: float32, shape: [batch]}",
                     "batch: {max: 4}, t: {min: 2, opt: 5, max: 16}")  # fmt: skip
    try:
        with exported(Loop(), asked, exporter, tmp_path) as subject:
            verdicts = {name: plugins.load("gates", name).judge(subject) for name in ("signature", "axes")}
    except (ExportFailed, BadSource):
        return
    broken = {n: v.message for n, v in verdicts.items() if not v.ok}
    assert "axes" in broken
    assert any("t" in message for message in broken.values())


def test_a_module_left_in_training_is_judged_in_eval_mode_and_keeps_its_own(tmp_path: Path) -> None:
    module = Trained().train()
    with exported(module, contract(X, Y), "dynamo", tmp_path) as subject:
        verdicts = {n: plugins.load("gates", n).judge(subject) for n in ("determinism", "parity", "batch_invariance")}
    assert [v.message for v in verdicts.values() if not v.ok] == []
    assert all(m.training for m in module.modules())
