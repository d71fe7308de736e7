"""PyTorch sources: what is taken, what is suggested, what is refused and how; the reference runner."""

import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tauten.sources import _torch, pytorch
from tauten.spec.errors import BadSource, Unsupported
from tauten.spec.source import Opened
from tauten.spec.tensors import TensorSpec

FLOAT4 = TensorSpec(dtype="float32", shape=("batch", 4))
CODE = """
import torch
from helper_beside import WIDTH

class Net(torch.nn.Linear):
    pass

def factory():
    return Net(WIDTH, 2), torch.zeros(1, WIDTH)

def broken():
    raise RuntimeError("no weights\\nhere")

def number():
    return 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "helper_beside.py").write_text("WIDTH = 3\n")
    (tmp_path / "net.py").write_text(CODE)
    yield tmp_path / "net.py"
    sys.modules.pop("helper_beside", None)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, ids: Tensor, scale: Tensor, flag: bool = False) -> dict[str, Tensor]:
        mean = self.drop(self.embed(ids)).mean(1)
        return {"mean": mean * scale, "tokens": self.embed(ids)}


def test_a_factory_in_a_file_finds_what_lies_beside_it(code: Path) -> None:
    opened = pytorch.open(f"{code}:factory")
    assert (opened.kind, opened.name, opened.exporters) == ("pytorch", "net", ("dynamo", "legacy"))
    assert opened.suggested.inputs == {"input": TensorSpec(dtype="float32", shape=("batch", 3))}
    assert opened.suggested.outputs == {"output": TensorSpec(dtype="float32", shape=("batch", 2))}
    assert opened.provenance["factory"] == "net.py:factory"
    assert str(code.parent) not in str(opened.provenance)


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("nothing", "has no factory 'nothing'", "it has Net, broken, factory, number"),
        ("broken", "broken raised RuntimeError: no weights here", "run the factory on its own"),
        ("number", "number returned int", "return an nn.Module, or (module, example_inputs)"),
    ],
)
def test_a_factory_that_gives_no_module_is_one_message(name: str, message: str, fix: str, code: Path) -> None:
    with pytest.raises(BadSource) as error:
        pytorch.open(f"{code}:{name}")
    assert message in error.value.message
    assert "\n" not in error.value.message
    assert fix in error.value.fix


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{folder}/none.py:factory", "there is no file"),
        ("{folder}/net.py", "is a file of code"),
        ("{folder}/none.pt", "there is no file"),
        ("no_such_package.net:factory", "module 'no_such_package.net' cannot be imported: ModuleNotFoundError"),
        ("{folder}/bad.py:factory", "cannot be imported: SyntaxError"),
    ],
)
def test_what_is_not_there_is_told(given: str, message: str, code: Path) -> None:
    (code.parent / "bad.py").write_text("def :")
    given = given.format(folder=code.parent)
    assert pytorch.accepts(given)
    with pytest.raises(BadSource) as error:
        pytorch.open(given)
    assert message in error.value.message
    assert error.value.fix


@pytest.mark.parametrize("given", ["model.onnx", "some/folder", "http://host/model", 3, None])
def test_what_is_for_others_is_left_to_them(given: object) -> None:
    assert not pytorch.accepts(given)


def test_what_is_suggested_comes_from_forward_and_one_eager_run() -> None:
    opened = pytorch.open(Words(), (torch.zeros(1, 6, dtype=torch.int64), torch.ones(4)))
    assert opened.suggested.inputs == {
        "ids": TensorSpec(dtype="int64", shape=("batch", 6), range=(0, 19)),  # the embedding's
        "scale": TensorSpec(dtype="float32", shape=(4,)),  # shares no leading dimension
    }
    assert opened.suggested.outputs == {"mean": FLOAT4, "tokens": TensorSpec(dtype="float32", shape=("batch", 6, 4))}


def test_an_integer_of_no_embedding_has_no_range() -> None:
    class Add(nn.Module):
        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            return x + n

    opened = pytorch.open(Add(), {"n": torch.ones(2, 1, dtype=torch.int32), "x": torch.ones(2, 4)})
    assert opened.suggested.inputs == {"n": TensorSpec(dtype="int32", shape=("batch", 1)), "x": FLOAT4}


def test_a_batch_of_one_that_is_squeezed_away_still_leads_the_output() -> None:
    class Squeezing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1, keepdim=True).squeeze()

    assert pytorch.open(Squeezing(), torch.ones(1, 3, 4)).suggested.outputs == {"output": FLOAT4}


def test_without_examples_nothing_is_suggested() -> None:
    suggested = pytorch.open(nn.Linear(4, 2)).suggested
    assert (suggested.inputs, suggested.outputs) == ({}, {})


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ((torch.ones(2, 4), torch.ones(1)), "2 example inputs, but forward takes input"),
        ({"x": torch.ones(2, 4)}, "forward takes input, but no 'x'"),
        (torch.ones(2, 5), "the model fails on its example inputs: RuntimeError: mat1 and mat2"),
        (["text"], "example input 'input' is str"),
        (torch.ones(2, 4, dtype=torch.complex64), "type complex64"),
    ],
)
def test_examples_that_do_not_fit_are_told(examples: Any, message: str) -> None:
    module: nn.Module = nn.Identity() if "complex" in message else nn.Linear(4, 2)
    with pytest.raises(BadSource) as error:
        pytorch.open(module, examples)
    assert message in error.value.message


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (lambda x: x, ["output"]),
        (lambda x: [x], ["output"]),
        (lambda x: (x, None, {"a": x, "b": (x,)}), ["output_0", "output_1", "output_2"]),
        (lambda x: {"b": x, "a": x}, ["b", "a"]),
        (lambda x: Pair(x, x), ["output_0", "output_1"]),
    ],
)
def test_outputs_are_named_by_key_or_place(answer: Callable[[Tensor], Any], names: list[str]) -> None:
    assert list(_torch.named(answer(torch.ones(1)))) == names


def test_an_output_that_holds_no_tensors_is_told() -> None:
    with pytest.raises(BadSource, match="forward returns str"):
        _torch.named(("text",))


def test_the_reference_runs_a_copy_in_eval_mode_and_leaves_the_caller_s_module_alone() -> None:
    module = Words().train()
    module.embed.eval()
    modes = {name: m.training for name, m in module.named_modules()}
    weights = {k: v.clone() for k, v in module.state_dict().items()}
    opened = pytorch.open(module)
    run = reference(opened)
    inputs = {"ids": np.array([[1, 2, 3]]), "scale": np.ones(4, np.float32)}
    for value in inputs.values():
        value.flags.writeable = False  # as a view of a request's bytes is
    first = run(inputs)
    np.testing.assert_array_equal(first["mean"], run(inputs)["mean"])
    np.testing.assert_allclose(first["mean"], weights["embed.weight"][1:4].numpy().mean(0, keepdims=True), rtol=1e-6)
    assert {name: m.training for name, m in module.named_modules()} == modes
    with torch.no_grad():
        module.embed.weight.zero_()
    np.testing.assert_array_equal(reference(opened)(inputs)["mean"], first["mean"])
    assert torch.is_grad_enabled()


def test_what_is_random_in_eval_mode_too_shows() -> None:
    class Live(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.dropout(x, 0.5)

    run = reference(pytorch.open(Live()))
    inputs = {"x": np.ones((8, 64), np.float32)}
    assert not np.array_equal(run(inputs)["output"], run(inputs)["output"])


def test_a_scripted_module_runs_and_keeps_its_random_layers() -> None:
    """Traced while in training, it stays random after eval(): that must be seen, not mended."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace: Any = torch.jit.trace  # untyped
        traced = trace(module, torch.ones(2, 4), check_trace=False)
    opened = pytorch.open(traced, torch.ones(1, 4))
    assert list(opened.suggested.inputs) == ["input"]
    run, x = reference(opened), {"input": np.ones((16, 4), np.float32)}
    assert not np.array_equal(run(x)["output"], run(x)["output"])


def test_inputs_without_names_are_given_in_order() -> None:
    class Many(nn.Module):
        def forward(self, *parts: Tensor) -> Tensor:
            return parts[0] - parts[1]

    opened = pytorch.open(Many(), (torch.ones(2, 4), torch.zeros(2, 4)))
    assert list(opened.suggested.inputs) == ["parts_0", "parts_1"]
    a, b = np.full((1, 4), 3, np.float32), np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(reference(opened)({"parts_0": a, "parts_1": b})["output"], a - b)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "nothing tells what forward's ids, scale look like"),
        (["ids"], "forward needs 'scale'"),
        (["ids", "scale", "mask"], "forward takes ids, scale, flag, but no 'mask'"),
    ],
)
def test_inputs_that_forward_does_not_take_or_lacks_are_told(names: list[str], message: str) -> None:
    with pytest.raises(BadSource, match=message):
        _torch.by_position(Words(), names)
    assert _torch.by_position(Words(), ["scale", "ids"]) is False


def test_bfloat16_is_carried_as_its_bits() -> None:
    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.bfloat16)

    half = reference(pytorch.open(Half()))({"x": np.array([1, -2], np.float32)})["output"]
    assert half.dtype == np.uint16
    np.testing.assert_array_equal(half, [0x3F80, 0xC000])


def test_a_module_that_cannot_be_copied_is_told() -> None:
    module = nn.Linear(2, 2)
    module.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(BadSource, match="cannot be copied"):
        pytorch.open(module)


def test_the_digest_of_weights_is_that_of_their_values() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    assert _torch.digest(first) != _torch.digest(second)
    second.load_state_dict(first.state_dict())
    assert _torch.digest(first) == _torch.digest(second)


# Checkpoints


class Marked(nn.Linear):
    """Makes a file when it is unpickled."""

    marker = ""

    def __reduce__(self) -> Any:
        return open, (self.marker, "w")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickled_checkpoint_is_refused_by_what_it_would_run_and_not_run(
    suffix: str, legacy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Marked, "marker", str(tmp_path / "ran"))
    path = tmp_path / f"model{suffix}"
    torch.save(Marked(2, 2), path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(BadSource, match=r"pickled checkpoint, which was not opened: loading it would run .*open") as error:
        pytorch.open(str(path))
    assert "safetensors" in error.value.fix
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_a_whole_module_names_its_class(tmp_path: Path) -> None:
    torch.save(Words(), tmp_path / "model.pt")
    with pytest.raises(BadSource, match=r"would run .*Words"):
        pytorch.open(tmp_path / "model.pt")


def test_a_checkpoint_of_weights_is_told_apart(tmp_path: Path) -> None:
    torch.save(Words().state_dict(), tmp_path / "model.pt")
    with pytest.raises(BadSource, match="weights alone, no model") as error:
        pytorch.open(tmp_path / "model.pt")
    assert "weights_only=True" in error.value.fix


def test_other_archives_are_not_supported_yet(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), str(tmp_path / "script.pt"))
        torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "program.pt2")
    for name, what in (("script.pt", "TorchScript archive"), ("program.pt2", r"torch\.export program")):
        with pytest.raises(Unsupported, match=what):
            pytorch.open(tmp_path / name)
    (tmp_path / "noise.pt").write_bytes(b"hello")
    with pytest.raises(BadSource, match="neither a model nor a checkpoint"):
        pytorch.open(tmp_path / "noise.pt")
    (tmp_path / "sk.joblib").write_bytes(pickle.dumps(threading.Event))
    with pytest.raises(BadSource, match=r"would run threading\.Event"):
        pytorch.open(tmp_path / "sk.joblib")


def reference(opened: Opened) -> Any:
    assert opened.reference is not None
    return opened.reference()
