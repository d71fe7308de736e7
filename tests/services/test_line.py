"""The whole line on models of a few hundred weights: from Python as in the README, and every verb of it on the command line."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import torch
from torch import nn

import tauten
from tauten import testing
from tauten.cli.main import main
from tauten.spec.contract import Contract, Slo
from tauten.spec.errors import AlreadyExists, Undecided
from tauten.spec.verdict import Status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the framework, while it loads and traces
]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROMISED = """
contract: 1
name: mlp
target: {precision: [float32, int8]}
inputs: {x: {dtype: float32, shape: [batch, 16], range: [-1, 1]}}
outputs: {y: {dtype: float32, shape: [batch, 4]}}
axes: {batch: {min: 1, opt: 4, max: 8}}
slo: {rate: 20, p50_ms: 1000, p99_ms: 10000}
"""


NET = """
import torch
def factory():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.Tanh()), torch.randn(3, 16)
"""


class Mlp(nn.Module):
    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(64, track_running_stats=not broken)
        self.body = nn.Sequential(nn.Linear(16, 64), norm, nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return y


@pytest.fixture(scope="module")
def contract() -> Contract:
    return Contract.parse(PROMISED)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return Mlp().eval()


@pytest.fixture(scope="module")
def bundle(module: nn.Module, contract: Contract, tmp_path_factory: pytest.TempPathFactory) -> tauten.Bundle:
    """Delivered with an SLO, so that other forms of the model compete."""
    return tauten.deliver(module, contract, tmp_path_factory.mktemp("delivered"), example_inputs=torch.zeros(2, 16))


def evidence(bundle: tauten.Bundle, name: str) -> Any:
    return json.loads((bundle.root / "evidence" / name).read_text())


def test_a_module_is_checked(module: nn.Module, contract: Contract) -> None:
    judgement = tauten.check(module, contract, example_inputs=torch.zeros(2, 16))
    assert judgement.held, judgement.summary()
    assert judgement.contract == contract.digest
    assert [v.name for v in judgement.verdicts] == ["lint", "compatibility", "signature", "axes", "parity", "batch_invariance",
                                                    "padding_invariance", "determinism", "finite"]  # fmt: skip
    assert all(v.samples > 0 for v in judgement.verdicts if v.status is Status.HELD)


def test_what_is_delivered_is_served_and_answers_as_the_original(bundle: tauten.Bundle, module: nn.Module) -> None:
    x = np.random.default_rng(3).uniform(-1, 1, (5, 16)).astype(np.float32)
    with tauten.serve(bundle, port=0) as server, tauten.Client(server.url) as client:
        answer = client.infer("mlp", {"x": x})["y"]
    np.testing.assert_allclose(answer, module(torch.from_numpy(x)).detach().numpy(), atol=1e-5, rtol=1e-4)


def test_every_rival_is_kept_with_its_figures_or_its_reason(bundle: tauten.Bundle) -> None:
    rows = {row["name"]: row for row in evidence(bundle, "tuning.json")["candidates"]}
    assert list(rows) == ["fp32", "fp32-fused", "int8-dynamic", "int8-dynamic-channel", "int8-rowwise"]
    assert [name for name, row in rows.items() if row["chosen"]] == ["fp32"]  # nothing is gained on a model as small as this
    for name, row in rows.items():
        assert row["samples_per_s"] or row["reason"], name
        assert row["refused_by"] or row["chosen"], name
    assert "batch_invariance" in rows["int8-dynamic"]["refused_by"]


def test_the_bundle_has_its_evidence(bundle: tauten.Bundle, module: nn.Module, contract: Contract) -> None:
    assert bundle.root.name == "mlp-1"
    assert bundle.contract().digest == contract.digest
    judged = evidence(bundle, "verdicts.json")
    assert judged["held"] is True
    assert {"accuracy", "parity"} <= {v["name"] for v in judged["verdicts"]}
    steps = [json.loads(line)["step"] for line in (bundle.root / "evidence" / "ledger.jsonl").read_text().splitlines()]
    assert steps[:2] == ["open the source", "export with dynamo"]
    assert steps[-2:] == ["gates on fp32 (dynamo)", "seal"]
    report = (bundle.root / "evidence" / "report.html").read_text()
    assert "batch_invariance" in report
    inputs = np.load(bundle.root / "golden" / "inputs.npz")
    outputs = np.load(bundle.root / "golden" / "outputs.npz")
    assert len(inputs.files) >= 5
    for key in inputs.files:
        want = module(torch.from_numpy(inputs[key])).detach().numpy()
        np.testing.assert_array_equal(outputs[key.replace("/x", "/y")], want)
    assert not [name for name in bundle.manifest.files if "/work" in name or "tmp" in name]


def test_a_place_that_is_taken_is_told_before_anything_is_done(bundle: tauten.Bundle, contract: Contract) -> None:
    with pytest.raises(AlreadyExists, match="mlp-1"):
        tauten.deliver(lambda: pytest.fail("the model was made"), contract, bundle.root.parent)


def test_a_broken_twin_is_refused_with_its_verdicts_and_leaves_nothing(contract: Contract, tmp_path: Path) -> None:
    with pytest.raises(tauten.NotHeld, match="batch_invariance broken") as caught:
        tauten.deliver(Mlp(broken=True), contract, tmp_path / "out")
    broken = {v.name: v for v in caught.value.judgement.broken}
    assert "batch_invariance" in broken
    assert "body.1" in broken["batch_invariance"].message
    assert "axes.batch.max: 1" in broken["batch_invariance"].fix
    assert list(tmp_path.iterdir()) == []


def test_only_a_precision_of_the_contract_is_delivered(module: nn.Module, contract: Contract, tmp_path: Path) -> None:
    eight = msgspec.structs.replace(contract, target=msgspec.structs.replace(contract.target, precision=("int8",)))
    with pytest.raises((tauten.NotHeld, Undecided)) as caught:
        tauten.deliver(module, eight, tmp_path / "out")
    assert {"speed", "batch_invariance"} & {v.name for v in caught.value.judgement.verdicts if not v.ok}
    assert list(tmp_path.iterdir()) == []


# --- the command line


@pytest.fixture
def cnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return [f"{EXAMPLES}/good/cnn.py:factory", "-c", f"{EXAMPLES}/good/cnn.yaml"]


def test_build_says_what_it_did_and_seals(cnn: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["build", *cnn, "-o", "out", "--version", "3"]) == 0
    said = capfd.readouterr()
    assert "held: all" in said.out
    assert "· export with dynamo" in said.err
    bundle = tauten.Bundle.open("out/cnn-3")
    assert bundle.identity in said.out
    assert (bundle.manifest.version, bundle.manifest.provenance["source"]) == ("3", "pytorch")
    assert [p.name for p in Path("out").iterdir()] == ["cnn-3"]


def test_build_says_no_in_json(cnn: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    source = [f"{EXAMPLES}/broken/squeeze.py:factory", "-c", f"{EXAMPLES}/broken/squeeze.yaml"]
    assert main(["build", *source, "-o", "out", "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert told["held"] is False
    assert {v["name"] for v in told["verdicts"] if v["status"] == "broken"} == {"axes", "batch_invariance"}
    assert not Path("out").exists()


def test_check_prints_reports_and_leaves_the_rest_alone(cnn: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *cnn, "--json", "--report", "r.html"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["held"], len(told["verdicts"])) == (True, 9)
    assert "batch_invariance" in Path("r.html").read_text()
    assert [p.name for p in Path().iterdir()] == ["r.html"]


def test_export_writes_what_the_gates_accepted(cnn: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *cnn, "-o", "new/cnn.onnx"]) == 0
    model = onnx.load("new/cnn.onnx")
    assert {o.version for o in model.opset_import if o.domain == ""} == {20}
    assert ([i.name for i in model.graph.input], [o.name for o in model.graph.output]) == (["image"], ["logits"])
    assert [p.name for p in Path("new").iterdir()] == ["cnn.onnx"]
    source = [f"{EXAMPLES}/broken/live_dropout.py:factory", "-c", f"{EXAMPLES}/broken/live_dropout.yaml"]
    assert main(["export", *source, "-o", "new/dropout.onnx"]) == 1
    assert "determinism broken" in capfd.readouterr().err
    assert not Path("new/dropout.onnx").exists()


def test_export_of_a_file_onto_itself(cnn: list[str]) -> None:
    testing.write_tiny_model(Path("tiny.onnx"))
    Path("tiny.yaml").write_text(testing.tiny_contract().dumps())
    before = onnx.load("tiny.onnx")
    assert main(["export", "tiny.onnx", "-c", "tiny.yaml", "-o", "tiny.onnx"]) == 0
    assert onnx.load("tiny.onnx").graph.node == before.graph.node
    assert sorted(p.name for p in Path().iterdir()) == ["tiny.onnx", "tiny.yaml"]


def test_init_writes_a_contract_that_the_model_keeps(cnn: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(NET)
    assert main(["init", "net.py:factory", "-o", "net.yaml"]) == 0
    said = capfd.readouterr().out
    written = Contract.load("net.yaml")
    assert (written.name, written.inputs["input"].shape) == ("net", ("batch", 16))
    assert written.slo is not None
    assert written.slo.p50_ms is not None
    assert written.slo.p99_ms is not None
    assert 1 <= written.slo.p50_ms < written.slo.p99_ms
    assert "p99" in said
    assert main(["check", "net.py:factory", "-c", "net.yaml"]) == 0
    assert main(["init", "net.py:factory", "-o", "net.yaml"]) == 2
    assert main(["init", "net.py:factory", "-o", "net.yaml", "--name", "other", "--force"]) == 0
    assert Contract.load("net.yaml").name == "other"


def test_ship_serves_verifies_reports_and_then_stops(cnn: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    Path("then.py").write_text("import sys, urllib.request\n"
                               "print('then:', urllib.request.urlopen(sys.argv[1] + '/v2/health/ready').status, flush=True)\n"
                               "sys.exit(int(sys.argv[2]))\n")  # fmt: skip
    then = ["--http-port", "0", "--for", "2s", "--then", f"{sys.executable} then.py {{url}}"]
    # Nothing is promised of latency here, so two seconds are enough to decide.
    assert main(["ship", *cnn, "-o", "out", *then[:-1], then[-1] + " 0", "--then", f"{sys.executable} then.py {{url}} 7"]) == 7
    said = capfd.readouterr().out
    assert said.count("then: 200") == 2
    assert "report out/cnn-1-report.html" in said
    assert sorted(p.name for p in Path("out").iterdir()) == ["cnn-1", "cnn-1-report.html"]
    report = Path("out/cnn-1-report.html").read_text()
    assert "availability" in report
    assert "batch_invariance" in report


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ship_serves_until_it_is_told_to_end_and_leaves_no_server(cnn: list[str], number: signal.Signals) -> None:
    testing.write_tiny_model(Path("tiny.onnx"))
    Path("tiny.yaml").write_text(testing.tiny_contract().dumps())
    command = [sys.executable, "-m", "tauten", "ship", "tiny.onnx", "-c", "tiny.yaml", "--http-port", "0", "--for", "1s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as shipping:
        assert shipping.stdout is not None
        lines = iter(shipping.stdout.readline, "")
        url = next(line.split()[1] for line in lines if line.startswith("serving http"))
        assert any("until interrupted" in line for line in lines)
        with tauten.Client(url) as client:
            assert client.ready("tiny")
            shipping.send_signal(number)
            assert shipping.wait(60) == 0
            assert not client.live()


# --- verify: yes, no, and not enough to say


@pytest.mark.parametrize(
    ("seconds", "slo", "code"),
    [
        ("5s", Slo(rate=100, p50_ms=1000, p99_ms=10000, errors=0), 0),
        ("3s", Slo(rate=100, p50_ms=0.001), 1),
        ("1s", Slo(rate=10, p50_ms=1000, p99_ms=10000), 4),
    ],
)
def test_verify_says_yes_no_or_that_it_cannot_say(
    seconds: str, slo: Slo, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    contract = msgspec.structs.replace(testing.tiny_contract(), slo=slo)
    bundle = testing.tiny_bundle(tmp_path, contract=contract)
    with tauten.serve(bundle) as server:
        assert main(["verify", server.url, "--bundle", str(bundle.root), "--for", seconds, "--json"]) == code
    told = json.loads(capfd.readouterr().out)
    assert told["held"] is (code == 0)
    assert (told["subject"], told["contract"]) == (bundle.identity, contract.digest)
    status = {0: "held", 1: "broken", 4: "undecided"}[code]
    assert status in {v["status"] for v in told["verdicts"] if v["name"] == "latency"}
    assert all(v["samples"] > 0 for v in told["verdicts"] if v["status"] in {"held", "broken"})
