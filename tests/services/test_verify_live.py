"""bench and verify against the real HTTP front with a real model behind it, from another thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tauten import testing
from tauten.cli import main
from tauten.fronts.http import HttpFront
from tauten.govern.verify import CLAUSES, verify
from tauten.measure.live import Live, requests
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract, Drift, Memory, Slo
from tauten.spec.errors import BadUsage, NotFound, Unavailable
from tauten.spec.verdict import Status

pytest.importorskip("onnx", reason="tiny bundles need it")
MEMORY = "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes 104857600.0\n"


@contextmanager
def serving(bundle: Bundle, *, metrics: Callable[[], str] | None = lambda: MEMORY) -> Iterator[str]:
    """The service and its HTTP front on an event loop of their own."""
    there, done = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        async with testing.service(bundle) as service:
            front = await HttpFront.start(service, port=0, metrics=metrics)
            found.update(url=front.url, loop=asyncio.get_running_loop())
            there.set()
            await done.wait()
            await front.close(5)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert there.wait(30), "the server did not start"
        yield found["url"]
    finally:
        found["loop"].call_soon_threadsafe(done.set)
        thread.join()


def promised(**parts: Any) -> Contract:
    """Rather generous: this machine is shared."""
    slo = Slo(rate=100.0, p50_ms=500.0, p99_ms=5000.0, errors=0.0)
    known = {"slo": slo, "drift": Drift(max_abs=1e-5), "memory": Memory(peak_mb=200.0)}
    return msgspec.structs.replace(testing.tiny_contract(), **{**known, **parts})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return testing.tiny_bundle(tmp_path_factory.mktemp("bundle"), contract=promised())


@pytest.fixture(scope="module")
def url(bundle: Bundle) -> Iterator[str]:
    with serving(bundle) as address:
        yield address


def test_every_clause_has_its_say(url: str, bundle: Bundle) -> None:
    ticks: list[tuple[float, int, int]] = []
    judgement, seen = verify(url, promised(), seconds=4.5, bundle=bundle, progress=lambda *now: ticks.append(now))
    found = {f"{v.name} {v.unit}": v for v in judgement.verdicts}
    assert [v.name for v in judgement.verdicts] == ["latency", "latency", *CLAUSES]
    assert judgement.held, judgement.summary()
    assert (judgement.subject, judgement.contract) == (bundle.identity, promised().digest)
    assert found["latency ms p99"].samples == seen.load.due.size > 368
    assert found["memory MB"].measured == 100
    assert found["integrity digests"].status is Status.HELD
    assert found["drift max_abs"].samples >= 3
    assert found["jitter ms"].status is Status.SKIPPED
    assert ticks[-1][1] == seen.load.due.size


def test_a_broken_promise_is_named(url: str) -> None:
    tight = promised(slo=Slo(rate=50, p50_ms=0.001), memory=Memory(peak_mb=50))
    judgement, _ = verify(url, tight, seconds=1)
    assert judgement.status is Status.BROKEN
    assert {v.name for v in judgement.broken} == {"latency", "memory", "integrity"}  # it is served under another contract
    assert all(v.fix for v in judgement.broken)


def test_too_short_is_undecided(url: str) -> None:
    judgement, _ = verify(url, promised(), seconds=0.5)
    assert judgement.status is Status.UNDECIDED


def test_a_server_without_metrics_leaves_memory_undecided(bundle: Bundle) -> None:
    with serving(bundle, metrics=None) as url:
        judgement, _ = verify(url, promised(), seconds=0.5)
    assert next(v for v in judgement.verdicts if v.name == "memory").status is Status.UNDECIDED


def test_moved_numbers_break_drift(tmp_path: Path, url: str) -> None:
    """The bundle at hand says other answers than the server gives."""
    other = testing.tiny_bundle(tmp_path, contract=promised())
    answers = other.root / "variants" / "fp32" / "answers.npz"
    with np.load(other.root / "golden" / "outputs.npz") as sealed:
        np.savez(answers, **{key: sealed[key] + np.float32(0.25) for key in sealed.files})
    judgement, seen = verify(url, promised(), seconds=1, bundle=other)
    drift = next(v for v in judgement.verdicts if v.name == "drift")
    assert drift.status is Status.BROKEN
    assert drift.measured == pytest.approx(0.25, abs=1e-3)
    assert seen.against == "its sealed answers"


def test_requests_fit_the_contract_and_are_the_same_for_the_same_seed(url: str) -> None:
    with Live(url) as live:
        made = requests(live, promised(), rows=3, sizes={"seq": 5}, seed=1)
        assert made == requests(live, promised(), rows=3, sizes={"seq": 5}, seed=1)
        assert made != requests(live, promised(), rows=3, sizes={"seq": 5}, seed=2)
        assert all(b'"shape":[3,5]' in message for message in made)
        varied = requests(live, promised())
        assert len({message.partition(b'"shape":')[2][:8] for message in varied}) > 1
        for wrong in ({"rows": 33}, {"sizes": {"sequence": 4}}, {"sizes": {"seq": 17}}):
            with pytest.raises(BadUsage):
                requests(live, promised(), **wrong)


def test_nobody_there_and_nothing_there(url: str) -> None:
    with pytest.raises(NotFound, match="ready are tiny"):
        verify(url, msgspec.structs.replace(promised(), name="other"), seconds=1)
    with pytest.raises(Unavailable):
        verify("http://127.0.0.1:9", promised(), seconds=1)
    for wrong in ("https://x", "ftp://x:1", "http://:0x"):
        with pytest.raises(BadUsage):
            Live(wrong)


def test_the_verb_verify(url: str, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    root = str(bundle.root)
    assert main.main(["verify", url, "--bundle", root, "--for", "500ms", "--json", "--report", str(report)]) == 4
    told = json.loads(capsys.readouterr().out)
    assert told["held"] is False
    assert {v["name"] for v in told["verdicts"]} == set(CLAUSES)
    assert "Undecided" in report.read_text(encoding="utf-8")
    assert main.main(["verify", url, "--bundle", root, "--for", "4500ms"]) == 0
    assert "latency" in capsys.readouterr().out


def test_the_verb_bench(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = ["bench", url, "--concurrency", "4", "--for", "500ms", "--rows", "2", "--size", "seq=4", "--warm-up", "100ms"]
    assert main.main([*closed, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["failed"] == 0
    assert told["samples_per_s"] == pytest.approx(2 * told["requests_per_s"], rel=1e-3)
    assert told["latency_ms"]["p50"]["low"] <= told["latency_ms"]["p50"]["value"] <= told["latency_ms"]["p50"]["high"]
    assert told["generator"]["lag_p99_ms"] is None
    report = tmp_path / "report.html"
    assert main.main(["bench", url, "--for", "1s", "--warm-up", "100ms", "--report", str(report)]) == 0
    shown = capsys.readouterr().out
    assert "Poisson at 100 requests/s" in " ".join(shown.split())  # the contract's rate
    assert "p99.9" in shown
    assert "Measured" in report.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["bench", "nonsense"], 2, "neither an address nor a bundle"),
        (["bench", "http://127.0.0.1:9"], 3, "cannot be reached"),
        (["verify", "http://127.0.0.1:9", "--for", "1s"], 2, "no contract"),
    ],
)
def test_bad_input_is_one_message(words: list[str], code: int, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words) == code
    told = capsys.readouterr().err
    assert hint in " ".join(told.split())
    assert "fix:" in told
    assert "Traceback" not in told
