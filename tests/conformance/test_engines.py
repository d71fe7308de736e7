"""What every engine promises: dynamic shapes, a batch of one like any batch, closing twice, errors of our own, no leak."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tauten.measure.memory import pss
from tauten.spec import plugins
from tauten.spec.engine import Engine, EngineSettings, Session
from tauten.spec.errors import BadModel, EngineFailed
from tauten.spec.tensors import Array

OPENS = 1000
ENGINES = plugins.names("engines")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    module: Engine = plugins.load("engines", request.param)
    return module


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """ids[batch, seq] -> the sum of their embeddings, [batch, 3]. An id above 7 makes the engine fail."""
    table = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("ReduceSum", ["rows", "axes"], ["y"], keepdims=0),
        ],
        "sums",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(table, "table"), onnx.numpy_helper.from_array(np.array([1]), "axes")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture
def session(engine: Engine, model: Path) -> Iterator[Session]:
    opened = engine.open(model, EngineSettings())
    yield opened
    opened.close()


def ids(batch: int, seq: int) -> Array:
    return np.random.default_rng(batch * 100 + seq).integers(0, 8, (batch, seq))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 3), (17, 5), (3, 1)])
def test_dynamic_shapes(session: Session, shape: tuple[int, int]) -> None:
    assert session.run({"ids": ids(*shape)})["y"].shape == (shape[0], 3)


def test_a_batch_of_one_is_a_row_of_a_batch(session: Session) -> None:
    many = ids(6, 4)
    together = session.run({"ids": many})["y"]
    alone = np.concatenate([session.run({"ids": many[i : i + 1]})["y"] for i in range(6)])
    np.testing.assert_array_equal(together, alone)


def test_it_tells_its_facts(session: Session, engine: Engine) -> None:
    assert [p.name for p in session.inputs] == ["ids"]
    assert [(p.name, p.dtype) for p in session.outputs] == [("y", "float32")]
    assert session.facts()["version"] == engine.version()


def test_closing_twice_is_fine(engine: Engine, model: Path) -> None:
    opened = engine.open(model, EngineSettings())
    opened.close()
    opened.close()


def test_what_the_engine_raises_becomes_ours(session: Session) -> None:
    with pytest.raises(EngineFailed):
        session.run({"ids": np.array([[99]])})
    assert session.run({"ids": ids(1, 2)})["y"].shape == (1, 3)  # and it goes on


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x0a" * 40])
def test_a_damaged_file_is_refused(engine: Engine, tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(content)
    with pytest.raises(BadModel):
        engine.open(bad, EngineSettings())


def test_a_thousand_opens_leave_nothing_behind(engine: Engine, model: Path) -> None:
    """The second half must not grow: what the first opens cost once is no leak."""

    def open_and_close(times: int) -> None:
        for _ in range(times):
            opened = engine.open(model, EngineSettings())
            opened.run({"ids": ids(1, 2)})
            opened.close()
        gc.collect()

    open_and_close(OPENS // 2)
    before = pss(os.getpid())
    open_and_close(OPENS // 2)
    after = pss(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before < (OPENS // 2) * 2048  # bytes; one leaked session holds far more than 2 KiB
