"""Runners: a fresh process that answers as this one does and fails in words, taps, and subjects that close what they open."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import parser

from tauten.delivery import runners
from tauten.delivery.probes import make_probes
from tauten.delivery.runners import fresh_process_runner, pack, tapped, unpack
from tauten.delivery.subject import Memo, Wish, open_subject
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings, Tensors
from tauten.spec.errors import BadModel, EngineFailed
from tauten.spec.judging import Score
from tauten.spec.source import Opened
from tauten.spec.tensors import Array

TEXT = '<ir_version: 10, opset_import: ["" : 20]> g (float[batch, 4] x) => (float[batch, 4] y) {h = Neg(x) y = Exp(h)}'
CONTRACT = Contract.of(
    {
        "contract": 1,
        "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4], "range": [-1, 1]}},
        "outputs": {"y": {"dtype": "float32", "shape": ["batch", 4]}},
        "axes": {"batch": {"max": 4}},
    }
)
ONES = {"x": np.ones((2, 4), np.float32)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(parser.parse_model(TEXT).SerializeToString())
    return path


def wish(model: Path, **fields: Any) -> Wish:
    return Wish(model=model, parity=CONTRACT.tolerances.parity, **fields)


def source(model: Path | None, **fields: Any) -> Opened:
    return Opened(kind="onnx", name="m", suggested=CONTRACT.signature, **{"reference": None, "model": model, **fields})


def test_a_fresh_process_answers_many_calls_as_this_one_does(model: Path) -> None:
    here, close_here = runners.engine_runner("onnxruntime", model, EngineSettings())
    there, close_there = fresh_process_runner("onnxruntime", model, EngineSettings())
    for rows in (1, 3):
        x = {"x": np.linspace(0, 1, rows * 4, dtype=np.float32).reshape(rows, 4)}
        assert np.array_equal(here(x)["y"], there(x)["y"])
    close_here()
    close_there()
    close_there()


def test_a_failed_run_in_a_fresh_process_is_told_in_the_engines_words_and_the_next_one_works(model: Path) -> None:
    run, close = fresh_process_runner("onnxruntime", model, EngineSettings())
    with pytest.raises(EngineFailed, match=r"ONNX Runtime failed: .*Expected"):
        run({"x": np.ones((2, 5), np.float32)})
    assert run(ONES)["y"].shape == (2, 4)
    close()


def test_a_fresh_process_that_cannot_open_the_model_says_why(model: Path) -> None:
    model.write_bytes(b"no model")
    run, close = fresh_process_runner("onnxruntime", model, EngineSettings())
    with pytest.raises(EngineFailed, match=r"the fresh process ended: .*refuses 'model\.onnx'"):
        run(ONES)
    close()


def test_a_fresh_process_that_is_killed_is_told_as_such(model: Path) -> None:
    child = runners._Child(["onnxruntime", str(model), "{}"], 60.0)
    assert child.run(ONES)["y"].shape == (2, 4)
    os.kill(child._process.pid, signal.SIGKILL)
    with pytest.raises(EngineFailed, match="the fresh process ended"):
        child.run(ONES)
    child.close()


def test_patience_ends(model: Path) -> None:
    """A process that never answers: stopped, so that the time runs out whatever the machine does."""
    child = runners._Child(["onnxruntime", str(model), "{}"], 0.2)
    os.kill(child._process.pid, signal.SIGSTOP)
    with pytest.raises(EngineFailed, match="the fresh process ended: exit code -9"):
        child.run(ONES)
    child.close()


names = st.text(min_size=1, max_size=5, alphabet=st.characters(codec="utf-8", exclude_characters="\0"))
numbers = hnp.arrays(st.sampled_from([np.float32, np.float16, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, min_side=0))


@given(st.dictionaries(names, numbers, max_size=4))
def test_frames_keep_names_types_shapes_and_bits(tensors: dict[str, Array]) -> None:
    again = unpack(pack(tensors))
    assert list(again) == list(tensors)
    for name, value in tensors.items():
        assert (again[name].dtype, again[name].shape, again[name].tobytes()) == (value.dtype, value.shape, value.tobytes())


def test_strings_travel_without_pickles() -> None:
    words = {"file": np.array([["", "Grüße"], ["漢字", "a b"]], dtype=object)}
    again = unpack(pack(words))["file"]
    assert (again.dtype, again.tolist()) == (np.dtype(object), words["file"].tolist())


def test_taps_give_inner_values_and_leave_the_file_alone(model: Path) -> None:
    before = model.read_bytes()
    with tapped("onnxruntime", model, ("h",)) as run:
        found = run(ONES)
    assert found["h"].tolist() == [[-1.0] * 4] * 2
    assert set(found) == {"h", "y"}
    assert model.read_bytes() == before


def test_a_subject_runs_its_candidate_its_original_and_every_condition(model: Path) -> None:
    with open_subject(CONTRACT, source(model), wish(model), make_probes(CONTRACT)) as subject:
        want = np.exp(-ONES["x"])
        assert np.allclose(subject.delivered(ONES)["y"], want)
        assert subject.reference is not None
        assert np.allclose(subject.reference(ONES)["y"], want)
        assert set(subject.again) == {"second run", "two threads at once", "second session", "fresh process", "threads=2"}
        assert all(np.array_equal(run(ONES)["y"], subject.delivered(ONES)["y"]) for run in subject.again.values())
        assert subject.taps is not None
        assert set(subject.taps(("h",))(ONES)) == {"h", "y"}
        assert subject.graph is not None
        assert [n.op for n in subject.graph.nodes] == ["Neg", "Exp"]
        assert subject.engine["engine"] == "onnxruntime"
        delivered = subject.delivered
    with pytest.raises(EngineFailed, match="closed"):
        delivered(ONES)


def test_each_probe_is_answered_once_by_the_original_for_all_candidates(model: Path) -> None:
    calls: list[int] = []

    def make() -> Any:
        def run(inputs: Tensors) -> dict[str, Array]:
            calls.append(len(inputs["x"]))
            return {"y": np.exp(-inputs["x"])}

        return run

    memo, probes = Memo(), make_probes(CONTRACT)
    for _ in range(2):
        with open_subject(CONTRACT, source(None, reference=make), wish(model), make_probes(CONTRACT), memo) as subject:
            assert subject.reference is not None
            for probe in subject.probes:
                subject.reference(probe.inputs)
                subject.reference(probe.inputs)
            assert len(calls) == len(probes)
    assert len(calls) == len(probes)


def test_what_the_originals_own_code_raises_is_a_failed_run(model: Path) -> None:
    def broken(_: Tensors) -> dict[str, Array]:
        raise ValueError("expected more than\n1 value")

    with open_subject(CONTRACT, source(None, reference=lambda: broken), wish(model), make_probes(CONTRACT)) as subject:
        assert subject.reference is not None
        with pytest.raises(EngineFailed, match="ValueError: expected more than 1 value"):
            subject.reference(ONES)


def test_a_memo_hands_on_the_parents_score(model: Path) -> None:
    memo = Memo().parent(Score("spearman", 0.7, 353))
    with open_subject(
        CONTRACT, source(model), wish(model, score=Score("spearman", 0.6, 353)), make_probes(CONTRACT), memo
    ) as s:
        assert (s.parent_score, s.score) == (Score("spearman", 0.7, 353), Score("spearman", 0.6, 353))


def test_a_file_that_the_engine_refuses_is_told_at_once(model: Path) -> None:
    model.write_bytes(b"no model")
    with pytest.raises(BadModel, match=r"refuses 'model\.onnx'"), open_subject(CONTRACT, source(model), wish(model), ()):
        pass
