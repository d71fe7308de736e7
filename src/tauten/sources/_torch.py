"""What the PyTorch sources share: a reference runner, and the export in a fresh process."""

from __future__ import annotations

import copy
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tauten.formats import onnx_file
from tauten.measure.draw import draw_all
from tauten.measure.host import allowed_cpus
from tauten.spec.contract import Contract
from tauten.spec.engine import Runner, Tensors
from tauten.spec.errors import BadSource, ExportFailed
from tauten.spec.source import Export
from tauten.spec.tensors import Array

if TYPE_CHECKING:
    import torch

EXPORTERS = ("dynamo", "legacy")  # in the order to try
TIMEOUT_S = 600.0
TRACE_SIZES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)  # away from 0 and 1, which exporters specialise on; primes show mix-ups


def frozen_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A copy in eval mode on the CPU; the caller's module and its mode stay as they are."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return module.copy().eval()  # type: ignore[no-untyped-call,no-any-return]  # TorchScript's copy is untyped
    was = {m: m.training for m in module.modules()}
    twin = copy.deepcopy(module).cpu().eval()
    assert was == {m: m.training for m in module.modules()}, "bug: copying changed the caller's mode"
    return twin


def parameters_of(module: torch.nn.Module) -> list[inspect.Parameter]:
    """The parameters of forward, `self` left out."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        names = [a.name for a in module.forward.schema.arguments if a.name != "self"]
        return [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    return list(inspect.signature(module.forward).parameters.values())


def runner(module: torch.nn.Module, names: Sequence[str] = ()) -> Runner:
    """Runs the original: numpy in by parameter name, numpy out by position under `names` (else output, or output_0, …)."""
    import torch

    frozen = frozen_copy(module)
    torch.set_num_threads(allowed_cpus())

    def run(inputs: Tensors) -> dict[str, Array]:
        given = {name: torch.from_numpy(np.array(value)) for name, value in inputs.items()}
        with torch.no_grad():
            answer = frozen(**given)
        outputs = [t.detach().cpu().numpy() for t in flatten(answer)]
        labels = names if len(names) == len(outputs) else default_names(len(outputs))
        return dict(zip(labels, outputs, strict=True))

    return run


def default_names(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def flatten(answer: Any) -> list[torch.Tensor]:
    """Tensors of what a forward returned, in order: a tensor, a tuple, a mapping, or these nested."""
    import torch

    if isinstance(answer, torch.Tensor):
        return [answer]
    if isinstance(answer, dict):
        return [t for value in answer.values() for t in flatten(value)]
    if isinstance(answer, list | tuple):
        return [t for value in answer for t in flatten(value)]
    if answer is None:
        return []
    raise BadSource(f"forward returns {type(answer).__name__}, which holds no tensors we can name",
                    fix="return a tensor, a tuple, or a dict of tensors")  # fmt: skip


def export(module: torch.nn.Module, contract: Contract, exporter: str, target: Path) -> Export:
    """Exports in a fresh process and puts the contract's names, axes and bounds into the file. Raises ExportFailed, BadSource."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tauten-export-") as scratch:
        folder = Path(scratch)
        _write_job(folder, frozen_copy(module), contract, exporter)
        log = _run_child(folder)
        result = folder / "result.json"
        if not result.exists():
            raise ExportFailed(f"the {exporter} exporter ended without a word: {_tail(log)}", fix="see what it printed last")
        if error := json.loads(result.read_text()).get("error"):
            raise ExportFailed(f"the {exporter} exporter refused the model: {error}", fix=_fix_of(error))
        target.parent.mkdir(parents=True, exist_ok=True)
        onnx_file.finish_export(folder / "raw.onnx", target, contract)
    return Export(path=target, exporter=exporter, seconds=time.monotonic() - start, log=_tail(log))


def _fix_of(error: str) -> str:
    if "onstraint" in error or "specializ" in error or "guard" in error.lower():
        return "the code branches on a size or on data: use tensor operations, or fix the axis in the contract"
    return "change the model so that it can be exported, or give an ONNX file"


def trace_sizes(contract: Contract) -> dict[str, int]:
    """One size per axis, inside its bounds, different from each other where the bounds allow."""
    sizes: dict[str, int] = {}
    for name in dict.fromkeys(a for s in contract.inputs.values() for a in s.axes):
        axis = contract.axes.get(name)
        if axis is None:
            fitting = [s for s in TRACE_SIZES if s not in sizes.values()]
            sizes[name] = fitting[0]
            continue
        step = axis.multiple_of
        possible = [s * step for s in TRACE_SIZES if axis.min <= s * step <= axis.max]
        fresh = [s for s in possible if s not in sizes.values()]
        sizes[name] = (fresh or possible or [max(axis.min, step)])[0]
    return sizes


def _write_job(folder: Path, module: torch.nn.Module, contract: Contract, exporter: str) -> None:
    import cloudpickle
    import torch

    known = parameters_of(module)
    names = [p.name for p in known if p.name in contract.inputs]
    variadic = any(p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} for p in known)
    if missing := [n for n in contract.inputs if n not in names and not variadic]:
        raise BadSource(f"the contract has an input {missing[0]!r}, but forward takes {', '.join(p.name for p in known)}",
                        fix="name the contract's inputs as forward's parameters")  # fmt: skip
    needed = [p.name for p in known if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    if left := [n for n in needed if n not in contract.inputs]:
        raise BadSource(f"forward needs {left[0]!r}, which the contract does not have", fix=f"add {left[0]!r} to the inputs")
    sizes = trace_sizes(contract)
    tensors = draw_all(contract.signature, sizes)
    job: dict[str, Any] = {
        "exporter": exporter,
        "scripted": isinstance(module, torch.jit.ScriptModule),
        "opset": contract.target.opset,
        "inputs": {name: tensors[name] for name in names},
        "positional": [p.name for p in known[: len(names)]] == names,
        "shapes": {name: contract.inputs[name].shape for name in names},
        "output_shapes": [spec.shape for spec in contract.outputs.values()],
        "axes": {
            name: {"min": max(1, axis.min // axis.multiple_of), "max": axis.max // axis.multiple_of, "multiple_of": axis.multiple_of}
            for name, axis in contract.axes.items()
            if axis.max > 1 and name in sizes and sizes[name] > 1
        },
    }  # fmt: skip
    if job["scripted"]:
        module.save(str(folder / "module.pt"))  # type: ignore[operator]  # a ScriptModule has it
    else:
        job["module"] = module
    by_value = [m for m in {type(sub).__module__ for sub in module.modules()} if not _installed(m)]
    for name in by_value:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        (folder / "job.pickle").write_bytes(cloudpickle.dumps(job))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise BadSource(f"the module cannot be sent to a fresh process: {error}",
                        fix="keep open files, locks and lambdas out of the module") from error  # fmt: skip
    finally:
        for name in by_value:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])


def _installed(name: str) -> bool:
    """Whether another process can import this module: it lies where packages are installed. `__main__` is by value anyway."""
    module: ModuleType | None = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or name == "__main__" or file is None:
        return True
    homes = {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib", "stdlib")}
    return any(Path(file).is_relative_to(home) for home in homes) or name.split(".")[0] == "tauten"


def _run_child(folder: Path) -> Path:
    """Runs the child program with all that it prints in a file; ends it and its children when the time is over."""
    log = folder / "log.txt"
    command = [sys.executable, "-m", "tauten.sources._torch_export", str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONHASHSEED": "0"}
    with log.open("wb") as out:
        child = subprocess.Popen(  # noqa: S603  our own program
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            child.wait(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ExportFailed(f"the exporter was not done after {TIMEOUT_S:g} s", fix="export a smaller part") from error
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    return log


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:])[:400]
