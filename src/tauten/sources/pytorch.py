"""PyTorch modules: `file.py:factory`, `package.module:factory`, or a module or factory given in Python.

A factory takes nothing and returns an nn.Module, or (module, example_inputs). Pickled checkpoints are refused without being
opened: unpickling runs whatever code they name.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pickletools
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tauten.sources import _torch
from tauten.spec.errors import BadSource, MissingExtra, TautenError, Unsupported
from tauten.spec.signature import BATCH, Signature
from tauten.spec.source import Opened
from tauten.spec.tensors import ELEMENT_TYPES, TensorSpec

if TYPE_CHECKING:
    import torch

EXTRA = "torch"
FACTORY = re.compile(r"(?P<place>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_]\w*)")
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".pt2")
SAFE_STEMS = {"torch", "collections"}


def accepts(given: object) -> bool:
    """A factory by name, a checkpoint (to refuse it well), or an object that is a module or can be called to get one."""
    if isinstance(given, str | Path):
        return bool(FACTORY.fullmatch(str(given))) or Path(given).suffix in PICKLES
    return _is_module(given) or callable(given)


def open(given: object, example_inputs: object = None) -> Opened:  # noqa: A001  the name every source has
    """Makes the module. Raises BadSource, MissingExtra, Unsupported."""
    if isinstance(given, str | Path) and Path(given).suffix in PICKLES:
        refuse_checkpoint(Path(given))
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra("torch", EXTRA, needed_for="a PyTorch model") from error
    made, label = _made(given)
    if isinstance(made, tuple) and len(made) == 2 and _is_module(made[0]):
        made, example_inputs = made[0], made[1] if example_inputs is None else example_inputs
    if not isinstance(made, torch.nn.Module):
        raise BadSource(f"{label} returned {type(made).__name__}",
                        fix="return an nn.Module, or (module, example_inputs)")  # fmt: skip
    module = _torch.frozen_copy(made)
    return Opened(
        kind="pytorch",
        name=_name(label),
        suggested=_suggested(module, example_inputs),
        reference=lambda: _torch.runner(module),
        exporters=_torch.EXPORTERS,
        export=lambda contract, exporter, target: _torch.export(module, contract, exporter, target),
        provenance={"torch": str(torch.__version__), "weights": digest(module), "class": type(made).__qualname__},
    )


def digest(module: torch.nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of all parameters and buffers."""
    found = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(dtype=_bytes()).numpy().tobytes())
    return f"sha256:{found.hexdigest()}"


def _bytes() -> Any:
    import torch

    return torch.uint8


def _is_module(given: object) -> bool:
    """Without importing torch: whoever holds a module has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.nn.Module)


def _made(given: object) -> tuple[Any, str]:
    """The module (or pair) and what to call it. Code of the user runs here: what it raises becomes one message."""
    if _is_module(given):
        return given, type(given).__name__
    factory, label = (given, getattr(given, "__name__", "factory")) if callable(given) else _factory(str(given))
    assert callable(factory), "bug: accepts() lets only callables through"
    try:
        return factory(), label
    except TautenError:
        raise
    except Exception as error:
        raise BadSource(f"{label} raised {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                        fix="a factory takes no arguments and returns the model") from error  # fmt: skip


def _factory(given: str) -> tuple[Callable[[], Any], str]:
    match = FACTORY.fullmatch(given)
    assert match, "bug: accepts() looked already"
    place, name = match["place"], match["name"]
    module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    factory = getattr(module, name, None)
    if not callable(factory):
        there = ", ".join(sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))[:8])
        raise BadSource(f"{place!r} has no factory {name!r}", fix=f"it has {there or 'no functions'}")
    return factory, given


def _file_module(path: Path) -> Any:
    if not path.is_file():
        raise BadSource(f"there is no file {str(path)!r}", fix="check the path")
    name = "tauten_source_" + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BadSource(f"{str(path)!r} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                        fix="run the file on its own to see why") from error  # fmt: skip
    return module


def _named_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise BadSource(f"module {name!r} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
                        fix="install it, or give file.py:factory") from error  # fmt: skip


def _name(label: str) -> str:
    """A model's name from `folder/net.py:factory`, `package.net:factory` or a class's name."""
    place = label.partition(":")[0]
    stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem).strip("-._").lower() or "model"


def _suggested(module: torch.nn.Module, example_inputs: object) -> Signature:
    """Names from forward's parameters, types and sizes from the examples, the first dimension taken as the batch."""
    examples = _by_name(module, example_inputs)
    if not examples:
        return Signature(inputs={}, outputs={})
    run = _torch.runner(module)
    given = {name: np.asarray(value) for name, value in examples.items()}
    outputs = run(given)
    return Signature(
        inputs={name: _spec(value) for name, value in given.items()},
        outputs={name: _spec(value) for name, value in outputs.items()},
    )


def _by_name(module: torch.nn.Module, example_inputs: object) -> dict[str, Any]:
    if example_inputs is None:
        return {}
    if isinstance(example_inputs, Mapping):
        return dict(example_inputs)
    values = example_inputs if isinstance(example_inputs, list | tuple) else (example_inputs,)
    names = [p.name for p in _torch.parameters_of(module)]
    if len(values) > len(names):
        raise BadSource(
            f"{len(values)} example inputs, but forward takes {', '.join(names) or 'nothing'}", fix="give one for each"
        )
    return dict(zip(names, values, strict=False))


def _spec(value: np.ndarray[Any, Any]) -> TensorSpec:
    dtype = value.dtype.name
    if dtype not in ELEMENT_TYPES:
        raise BadSource(f"an example has type {dtype}", fix=f"use one of {', '.join(ELEMENT_TYPES)}")
    shape = (BATCH, *value.shape[1:]) if value.ndim else ()
    limits = (float(value.min()), float(value.max())) if np.issubdtype(value.dtype, np.integer) and value.size else None
    return TensorSpec(dtype=dtype, shape=shape, range=limits)


def refuse_checkpoint(path: Path) -> None:
    """Says no to a pickle, naming what it would have run, without unpickling anything. Always raises."""
    if not path.is_file():
        raise BadSource(f"there is no file {str(path)!r}", fix="check the path")
    members: list[str] = []
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            inner = next((n for n in members if n.endswith("data.pkl")), None)
            code = archive.read(inner) if inner else b""
        if any(n.split("/")[1:2] == ["code"] for n in members) or any(n.endswith("constants.pkl") for n in members):
            raise Unsupported(f"{path.name!r} is a TorchScript archive, which cannot be delivered yet",
                              fix="give file.py:factory with the original module")  # fmt: skip
        if any(n.endswith((".json", "model.pt2")) for n in members) and inner is None:
            raise Unsupported(f"{path.name!r} is a torch.export program, which cannot be delivered yet",
                              fix="give file.py:factory with the original module")  # fmt: skip
    else:
        code = path.read_bytes()
    names = globals_of(code)
    risky = [n for n in names if n.partition(".")[0] not in SAFE_STEMS] or names
    would = f"; it would have run {', '.join(risky[:5])}" if risky else ""
    raise BadSource(f"{path.name!r} is a pickled checkpoint, and loading a pickle runs code{would}",
                    fix="give file.py:factory that builds the module and loads weights with "
                        "torch.load(…, weights_only=True), or safetensors")  # fmt: skip


def globals_of(code: bytes) -> list[str]:
    """Every `module.name` that a pickle would import, in order, found by reading its instructions. Empty for no pickle at all."""
    found: list[str] = []
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(code):
            if opcode.name == "GLOBAL":
                found.append(str(argument).replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL" and len(strings) >= 2:
                found.append(f"{strings[-2]}.{strings[-1]}")
            elif isinstance(argument, str):
                strings.append(argument)
    except (ValueError, IndexError, UnicodeDecodeError):
        pass  # damaged, or not a pickle: what was found up to here is what can be told
    return list(dict.fromkeys(found))
