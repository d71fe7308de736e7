"""From a directory to a live version: what is verified, warmed, and refused."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tauten import testing
from tauten.engines import onnxruntime
from tauten.serving import swap
from tauten.serving.service import Service
from tauten.spec import plugins
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings, ServingSettings
from tauten.spec.errors import AlreadyExists, BadBundle, BadModel, EngineFailed, TautenError
from tauten.spec.events import Event, StateChanged
from tauten.spec.lifecycle import State


def load(*paths: Path, in_repository: bool = False) -> tuple[list[dict[str, str]], list[Event], TautenError | None]:
    """Loads one after the other; what the index says then, what was announced, and the error that ended it."""

    async def whole() -> tuple[list[dict[str, str]], list[Event], TautenError | None]:
        events: list[Event] = []
        service = Service(sink=events.append)
        failed = None
        try:
            for path in paths:
                await service.load(path, in_repository=in_repository)
        except TautenError as error:
            failed = error
        assert service.ready() is any(e["state"] == "READY" for e in service.index())
        index = service.index()
        await service.close()
        return index, events, failed

    return asyncio.run(whole())


def altered(folder: Path, **changes: Any) -> Bundle:
    """A tiny bundle sealed with something wrong in it."""
    contract = changes.pop("contract", None) or testing.tiny_contract()
    inputs = testing.tiny_inputs([1, 2, 3])
    recipe: dict[str, Any] = {
        "model": testing.write_tiny_model,
        "settings": ServingSettings(batch=4, buckets={"seq": (4, 8, 16)}),
        "golden": {"probe": (inputs, testing.tiny_answer(inputs))},
        **changes,
    }
    return testing.seal_bundle(folder / "tiny" / "1", contract, recipe.pop("model"), recipe.pop("settings"), **recipe)


def test_a_version_goes_live_by_way_of_every_state(tmp_path: Path) -> None:
    index, events, failed = load(testing.tiny_bundle(tmp_path).root)
    assert failed is None
    assert index == [{"name": "tiny", "version": "1", "state": "READY"}]
    states = [e.state for e in events if isinstance(e, StateChanged)]
    assert states == [State.WARMING, State.LIVE, State.DRAINING, State.CLOSED]


def test_several_names_and_versions_are_served_beside_each_other(tmp_path: Path) -> None:
    made = [testing.tiny_bundle(tmp_path, name=n, version=v).root for n, v in (("b", "2"), ("a", "10"), ("b", "10"))]
    index, _, failed = load(*made)
    assert failed is None
    assert [(i["name"], i["version"]) for i in index] == [("a", "10"), ("b", "2"), ("b", "10")]


def test_the_same_version_twice_is_refused(tmp_path: Path) -> None:
    path = testing.tiny_bundle(tmp_path).root
    index, _, failed = load(path, path)
    assert isinstance(failed, AlreadyExists)
    assert [i["state"] for i in index] == ["READY"]


def test_a_changed_byte_is_never_opened_and_its_reason_stays_visible(tmp_path: Path) -> None:
    path = testing.tiny_bundle(tmp_path).root
    model = path / "variants" / "fp32" / "model.onnx"
    model.write_bytes(model.read_bytes()[:-1] + b"!")
    index, events, failed = load(path)
    assert isinstance(failed, BadBundle)
    assert index[0]["state"] == "UNAVAILABLE"
    assert "'variants/fp32/model.onnx' has SHA-256" in index[0]["reason"]
    assert [e.state for e in events if isinstance(e, StateChanged)] == [State.FAILED], "nothing was warmed"


def test_a_directory_that_is_no_bundle_is_named_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    index, _, failed = load(tmp_path / "nothing")
    assert isinstance(failed, BadBundle)
    assert index == [{"name": "nothing", "version": "", "state": "UNAVAILABLE", "reason": failed.message}]


ONE = testing.tiny_inputs([1])
FAR = {name: value + 1 for name, value in testing.tiny_answer(ONE).items()}
WRONG: dict[str, tuple[dict[str, Any], type[TautenError], str]] = {
    "batch 0": ({"settings": ServingSettings(batch=0)}, BadBundle, "settings.json has batch 0, it must be 1 or more"),
    "no instance": ({"settings": ServingSettings(instances=0)}, BadBundle, "settings.json has instances 0"),
    "no thread": ({"settings": ServingSettings(session=EngineSettings(threads=0))}, BadBundle, "session.threads 0"),
    "no model": ({"model": lambda path: path.write_bytes(b"x")}, BadModel, "refuses 'model.onnx'"),
    "other answers": (
        {"golden": {"odd one": (ONE, FAR)}},
        EngineFailed, "golden probe 'odd one' is answered otherwise than when the bundle was sealed: ",
    ),
    "damaged tokenizer": ({"processor": {"tokenizer.json": b"{}"}}, BadBundle, "the tokenizer in 'processors' cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "says"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], error: type[TautenError], says: str
) -> None:
    index, _, failed = load(altered(tmp_path, **changes).root)
    assert type(failed) is error
    assert says in failed.message
    assert index[0]["reason"] == failed.message


def other(change: Callable[[dict[str, Any]], None]) -> Contract:
    data = msgspec.to_builtins(testing.tiny_contract())
    change(data)
    return Contract.of(data)


@pytest.mark.parametrize(
    ("contract", "says"),
    [
        (other(lambda d: d["inputs"]["input_ids"].update(dtype="int32")), "input 'input_ids' is int64 in the model, int32"),
        (other(lambda d: d["inputs"].pop("attention_mask")), "the model wants an input 'attention_mask'"),
        (other(lambda d: d["outputs"].update(more={"dtype": "float32", "shape": ["batch"]})), "output 'more' is missing"),
    ],
    ids=["type", "left out", "missing"],
)
def test_a_model_that_is_not_what_the_contract_says_is_refused(tmp_path: Path, contract: Contract, says: str) -> None:
    _, _, failed = load(altered(tmp_path, contract=contract).root)
    assert isinstance(failed, BadBundle)
    assert says in failed.message


def test_the_variants_own_answers_count_before_the_references(tmp_path: Path) -> None:
    """A quantised variant is as far from the reference as its gates allowed; at the start it is held to itself."""
    inputs = testing.tiny_inputs([1, 2])
    answer = testing.tiny_answer(inputs)

    def model(path: Path) -> None:
        testing.write_tiny_model(path)
        np.savez(path.with_name("answers.npz"), **{f"p/{k}": v for k, v in answer.items()})  # type: ignore[arg-type]

    far = {k: v + 0.1 for k, v in answer.items()}
    assert load(altered(tmp_path, model=model, golden={"p": (inputs, far)}).root)[2] is None


def test_warming_runs_every_bucket_at_every_batch_that_matters_the_largest_first(tmp_path: Path) -> None:
    contract = testing.tiny_contract()
    sizes = list(swap.warm_sizes(contract.signature, ServingSettings(batch=16, buckets={"seq": (4, 16)})))
    assert sizes == [{"batch": b, "seq": s} for b in (16, 8, 1) for s in (16, 4)]
    whole = list(swap.warm_sizes(contract.signature, ServingSettings(batch=1, buckets={"seq": (4,)}), whole=True))
    assert [s["batch"] for s in whole] == [32, 8, 1]
    bare = list(swap.warm_sizes(contract.signature, ServingSettings(batch=1)))
    assert [s["seq"] for s in bare] == [16, 4, 1]


def test_warm_inputs_keep_to_type_and_range() -> None:
    kinds = {"int8": [-3, 4], "uint64": None, "bool": None, "float16": [2, 3], "string": None, "float64": None}
    inputs = {k: {"dtype": k, "shape": ["batch", 50], **({"range": r} if r else {})} for k, r in kinds.items()}
    outputs = {"o": {"dtype": "bool", "shape": ["batch"]}}
    signature = Contract.of({"contract": 1, "inputs": inputs, "outputs": outputs}).signature
    values = swap.warm_inputs(signature, {"batch": 4})
    assert signature.check(values) == {"batch": 4}
    assert len(np.unique(values["int8"])) > 3
    assert all((v == swap.warm_inputs(signature, {"batch": 4})[k]).all() for k, v in values.items())


def test_threads_and_instances_are_capped_at_the_processors_there_are(tmp_path: Path) -> None:
    wide = ServingSettings(batch=2, instances=8, session=EngineSettings(threads=64))
    prepared = swap.prepare(altered(tmp_path, settings=wide), cpus=2)
    assert [s.facts()["threads"] for s in prepared.sessions] == [2, 2]
    for session in prepared.sessions:
        session.close()


def test_a_failed_load_leaves_no_session_open(tmp_path: Path) -> None:
    opened: list[Any] = []

    class Engine:
        @staticmethod
        def open(model: Path, settings: EngineSettings) -> Any:
            opened.append(onnxruntime.open(model, settings))
            return opened[-1]

    bad = altered(tmp_path, processor={"tokenizer.json": b"{}"}, settings=ServingSettings(instances=2))
    with pytest.raises(BadBundle):
        swap.prepare(bad, lambda folder, name: Engine if folder == "engines" else plugins.load(folder, name), cpus=4)
    assert [repr(s) for s in opened] == ["<OrtSession closed threads=1>"] * 2


def test_a_repository_serves_the_highest_version_of_every_name(tmp_path: Path) -> None:
    for name, version in (("a", "2"), ("a", "10"), ("b", "1")):
        testing.tiny_bundle(tmp_path, name=name, version=version)
    (tmp_path / "a" / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README").write_text("")
    found = swap.in_repository(tmp_path)
    assert [p.relative_to(tmp_path).as_posix() for p in found] == ["a/10", "b/1"]
    index, _, failed = load(*found, in_repository=True)
    assert failed is None
    assert [i["version"] for i in index] == ["10", "1"]


def test_a_bundle_in_the_wrong_folder_of_a_repository_is_refused(tmp_path: Path) -> None:
    root = testing.tiny_bundle(tmp_path, version="1").root
    root.rename(tmp_path / "tiny" / "2")
    _, _, failed = load(*swap.in_repository(tmp_path), in_repository=True)
    assert isinstance(failed, BadBundle)
    assert failed.message == "tiny/2 holds the bundle of tiny/1"


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_repository_without_bundles_says_what_belongs_there(tmp_path: Path, what: str) -> None:
    with pytest.raises(BadBundle, match="<name>/<version>/"):
        swap.in_repository(tmp_path if what == "empty" else tmp_path / what)
