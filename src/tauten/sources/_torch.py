"""What the PyTorch sources share: calling a module by its inputs' names, a reference runner, export in a fresh process."""

from __future__ import annotations

import copy
import hashlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tauten.measure.host import allowed_cpus
from tauten.spec.contract import Contract
from tauten.spec.engine import Runner, Tensors
from tauten.spec.errors import BadSource, ExportFailed
from tauten.spec.source import Export
from tauten.spec.tensors import Array

if TYPE_CHECKING:
    import torch

EXPORTERS = ("dynamo", "legacy")  # in the order to try
TIMEOUT_S = 900.0
LOG_TAIL = 4000  # characters of what an exporter printed that are kept
FILE_MODULE = "tauten_source_"  # how a module that was loaded from a file begins; no other process can import it


def frozen_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy in eval mode on the CPU; the caller's module, its mode and its device stay as they are. Raises BadSource."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return _script_from(io.BytesIO(_script_bytes(module))).eval()  # a deep copy of one would be no leaf for autograd
    try:
        return copy.deepcopy(module).cpu().eval()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise BadSource(f"the module cannot be copied: {one_line(error)}",
                        fix="keep locks, open files and computed tensors out of the module") from error  # fmt: skip


def _script_bytes(module: torch.jit.ScriptModule) -> bytes:
    import torch

    file = io.BytesIO()
    with _deprecation_is_known():
        torch.jit.save(module, file)
    return file.getvalue()


def _script_from(file: BinaryIO) -> torch.nn.Module:
    import torch

    load: Any = torch.jit.load  # untyped
    with _deprecation_is_known():
        found: torch.nn.Module = load(file, map_location="cpu")
    return found


@contextmanager
def _deprecation_is_known() -> Iterator[None]:
    """TorchScript is deprecated, and people still have it: they chose it, and nobody here can do anything about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def digest(module: torch.nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of all parameters and buffers."""
    import torch

    found = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if not isinstance(value, torch.Tensor):
            continue
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"sha256:{found.hexdigest()}"


def parameters_of(module: torch.nn.Module) -> list[inspect.Parameter]:
    """The parameters of forward, `self` left out."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        schema: Any = module.forward.schema  # type: ignore[attr-defined]  # a script method has one
        return [
            inspect.Parameter(
                a.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
            )
            for a in schema.arguments
            if a.name != "self"
        ]
    return list(inspect.signature(module.forward).parameters.values())


def by_position(module: torch.nn.Module, names: Sequence[str]) -> bool:
    """Whether inputs of these names have to be given in their order, since forward has no names for them.

    Raises BadSource when forward does not take one of them, or needs one that is not among them.
    """
    parameters = parameters_of(module)
    kinds = {p.kind for p in parameters}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if inspect.Parameter.POSITIONAL_ONLY in kinds or (inspect.Parameter.VAR_POSITIONAL in kinds and not named):
        return True
    takes = [p.name for p in named]
    if unknown := [n for n in names if n not in takes and inspect.Parameter.VAR_KEYWORD not in kinds]:
        raise BadSource(f"forward takes {', '.join(takes) or 'nothing'}, but no {unknown[0]!r}",
                        fix="name the inputs in the contract as forward's parameters")  # fmt: skip
    needed = [p.name for p in named if p.default is p.empty and p.name not in names]
    if needed and not names:
        raise BadSource(f"nothing tells what forward's {', '.join(needed)} look like",
                        fix="let the factory return (module, example_inputs)")  # fmt: skip
    if needed:
        raise BadSource(f"forward needs {needed[0]!r}, which is no input ({', '.join(names) or 'none are given'})",
                        fix=f"add {needed[0]!r} to the inputs, or give it a default in forward")  # fmt: skip
    return False


def call(module: Any, inputs: Mapping[str, Any], *, positional: bool) -> dict[str, Any]:
    """Runs forward; its tensors by name, or as output, or output_0, output_1, … in their order."""
    return named(module(*inputs.values()) if positional else module(**inputs))


def named(answer: Any) -> dict[str, Any]:
    """Tensors of what a forward returned: a tensor, a tuple, a mapping (whose keys are kept), or these nested."""
    if isinstance(answer, Mapping) and all(_is_tensor(v) for v in answer.values()):
        return {str(k): v for k, v in answer.items()}
    tensors = list(_flat(answer))
    return {"output": tensors[0]} if len(tensors) == 1 else {f"output_{i}": t for i, t in enumerate(tensors)}


def _flat(answer: Any) -> Iterator[Any]:
    if _is_tensor(answer):
        yield answer
    elif isinstance(answer, Mapping | list | tuple):
        for value in answer.values() if isinstance(answer, Mapping) else answer:
            yield from _flat(value)
    elif answer is not None:
        raise BadSource(f"forward returns {type(answer).__name__}, which holds no tensors that have a name",
                        fix="return a tensor, a tuple, or a dict of tensors")  # fmt: skip


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def runner(module: torch.nn.Module) -> Runner:
    """Runs a fresh copy in eval mode, numpy in by the names of forward's parameters, numpy out by the names of `named`.

    Nothing is seeded: a layer that is random in eval mode too must show.
    """
    import torch

    frozen = frozen_copy(module)

    def run(inputs: Tensors) -> dict[str, Array]:
        given = {name: _to_torch(value) for name, value in inputs.items()}
        with torch.no_grad(), _allowed_threads():
            answer = call(frozen, given, positional=by_position(frozen, list(given)))
        return {name: _to_numpy(value) for name, value in answer.items()}

    return run


@contextmanager
def _allowed_threads() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(before, allowed_cpus()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _to_torch(value: Array) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.array(value))  # a copy: torch wants to write, and what came may be a read-only view


def _to_numpy(value: torch.Tensor) -> Array:
    import torch

    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(np.uint16)
    return value.numpy()


def export(module: torch.nn.Module, contract: Contract, exporter: str, target: Path) -> Export:
    """Exports in a fresh process; the file has the contract's names, axes and bounds. Raises ExportFailed, BadSource.

    What the exporter silently did to the model is not hidden: a dropped input, a fixed axis or another opset is in the file.
    """
    start = time.monotonic()
    positional = by_position(module, list(contract.inputs))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as scratch:
        folder = Path(scratch)
        job = {"exporter": exporter, "contract": contract.dumps(), "positional": positional, "threads": allowed_cpus()}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        _ship(module, folder)
        log = _run_child(folder, exporter)
        from tauten.formats.onnx_file import publish

        (folder / "model.onnx").rename(folder / target.name)
        if (folder / "model.onnx.data").exists():
            (folder / "model.onnx.data").rename(folder / f"{target.name}.data")
        publish(folder / target.name, target)
    return Export(path=target, exporter=exporter, seconds=time.monotonic() - start, log=log)


def _ship(module: torch.nn.Module, folder: Path) -> None:
    """Writes the module for another process; classes that are not installed travel with it by value. Raises BadSource."""
    import cloudpickle
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        (folder / "module.script").write_bytes(_script_bytes(module))
        return
    visitors = {name for sub in module.modules() if not _installed(name := type(sub).__module__)}
    visitors |= {name for name in sys.modules if name.startswith(FILE_MODULE)}
    for name in visitors:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        torch.save(module, folder / "module.pt", pickle_module=cloudpickle, pickle_protocol=5)
    except Exception as error:
        # Objects of any kind may hang at a module, and refuse in any way.
        raise BadSource(f"the module cannot be sent to a fresh process: {type(error).__name__}: {one_line(error)}",
                        fix="keep locks, open files and scripted parts out of the module") from error  # fmt: skip
    finally:
        for name in visitors:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


def _installed(name: str) -> bool:
    """Whether another process can import this module: it lies where packages are installed. `__main__` is by value anyway."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or file is None:
        return True
    homes = [sysconfig.get_path(key) for key in ("purelib", "platlib", "stdlib")]
    return name.partition(".")[0] == "tauten" or any(Path(file).is_relative_to(home) for home in homes)


def _run_child(folder: Path, exporter: str) -> str:
    """Runs the child program and returns the end of what it printed. Ends it and its children when the time is over."""
    log = folder / "log.txt"
    command = [sys.executable, "-P", "-m", "tauten.sources._torch_export", str(folder)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(p).absolute()) for p in sys.path),
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
    }
    with log.open("wb") as out:
        child = subprocess.Popen(  # noqa: S603  our own program
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            child.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ExportFailed(f"the {exporter} exporter was not done after {TIMEOUT_S:g} s",
                               fix="export a smaller part of the model, or give an ONNX file") from error  # fmt: skip
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    printed = log.read_text(errors="replace")[-LOG_TAIL:]
    if child.returncode:
        raise _failure(exporter, folder / "failure.json", printed, child.returncode)
    return printed


def _failure(exporter: str, told: Path, printed: str, code: int) -> ExportFailed:
    if told.exists():
        found = json.loads(told.read_text(encoding="utf-8"))
        return ExportFailed(f"the {exporter} exporter could not write the model: {found['reason']}", fix=found["fix"])
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    last = next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "it printed nothing")
    return ExportFailed(f"the {exporter} exporter {how}: {last[:300]}", fix="see whether memory ran out")


def one_line(error: BaseException) -> str:
    """What an exception says, without line breaks and not longer than a paragraph."""
    return textwrap.shorten(str(error), 300, placeholder=" …")
