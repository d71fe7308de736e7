"""PyTorch modules: `file.py:factory`, `package.module:factory`, or a module or a factory given in Python.

A factory takes nothing and returns an nn.Module, or (module, example_inputs). Pickled checkpoints are refused without being
opened: unpickling runs whatever code they name.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tauten.formats import pickles
from tauten.sources import _torch
from tauten.spec.errors import BadSource, MissingExtra, TautenError, Unsupported
from tauten.spec.signature import BATCH, Signature
from tauten.spec.source import Opened
from tauten.spec.tensors import ELEMENT_TYPES, TensorSpec

if TYPE_CHECKING:
    import torch

EXTRA = "torch"
FACTORY = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")
CHECKPOINTS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".pt2", ".joblib")
AS_FACTORY = "give file.py:factory, a function that builds the module and loads its weights"


def accepts(given: object) -> bool:
    """A factory by name, a checkpoint (to refuse it well), or an object that is a module or can be called to get one."""
    if isinstance(given, str | Path):
        return bool(FACTORY.fullmatch(str(given))) or Path(given).suffix in {*CHECKPOINTS, ".py"}
    return _is_module(given) or callable(given)


def open(given: object, example_inputs: object = None) -> Opened:  # noqa: A001  the name every source has
    """Makes the module. Raises BadSource, Unsupported or MissingExtra.

    Without example inputs nothing is suggested: the signature is then the contract's to say.
    """
    if isinstance(given, str | Path) and not FACTORY.fullmatch(str(given)):
        _refuse_file(Path(given))
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra("torch", EXTRA, needed_for="a PyTorch model") from error
    made, label = _made(given)
    if isinstance(made, tuple) and len(made) == 2:
        made, example_inputs = made[0], made[1] if example_inputs is None else example_inputs
    if not isinstance(made, torch.nn.Module):
        raise BadSource(f"{label} returned {type(made).__name__}", fix="return an nn.Module, or (module, example_inputs)")
    module = _torch.frozen_copy(made)
    return Opened(
        kind="pytorch",
        name=_name(label),
        suggested=_suggested(module, example_inputs),
        reference=lambda: _torch.runner(module),
        exporters=_torch.EXPORTERS,
        export=lambda contract, exporter, target: _torch.export(module, contract, exporter, target),
        provenance={
            "torch": str(torch.__version__),
            "class": type(made).__qualname__,
            "weights": _torch.digest(module),
            **_code_digest(given),
        },
    )


def _is_module(given: object) -> bool:
    """Without importing torch: whoever holds a module has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.nn.Module)


def _made(given: object) -> tuple[Any, str]:
    """The module (or pair) and what to call it. Code of the user runs here: what it raises becomes one message."""
    if _is_module(given):
        return given, type(given).__name__
    factory, label = _factory(str(given)) if isinstance(given, str | Path) else (given, getattr(given, "__name__", "factory"))
    assert callable(factory), "bug: accepts() lets only callables through"
    try:
        return factory(), label
    except TautenError:
        raise
    except Exception as error:
        raise BadSource(f"{label} raised {type(error).__name__}: {_torch.one_line(error)}",
                        fix="run the factory on its own to see why; it takes no arguments") from error  # fmt: skip


def _factory(given: str) -> tuple[Callable[[], Any], str]:
    match = FACTORY.fullmatch(given)
    assert match, "bug: accepts() looked already"
    place, name = match["place"], match["name"]
    module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    factory = getattr(module, name, None)
    if not callable(factory):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__ and callable(v)]
        raise BadSource(f"{place!r} has no factory {name!r}", fix=f"it has {', '.join(sorted(own)) or 'no functions'}")
    return factory, given


def _file_module(path: Path) -> Any:
    """Runs a file as a module of its own; what lies beside it can be imported from it, as if it were run as a program."""
    if not path.is_file():
        raise BadSource(f"there is no file {str(path)!r}", fix="check the path")
    name = _torch.FILE_MODULE + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if (beside := str(path.resolve().parent)) not in sys.path:
        sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _not_importable(repr(str(path)), error, "run the file on its own to see why") from error
    return module


def _named_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _not_importable(f"module {name!r}", error, "install it, or give file.py:factory") from error


def _not_importable(what: str, error: Exception, fix: str) -> TautenError:
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return MissingExtra("torch", EXTRA, needed_for="a PyTorch model")
    return BadSource(f"{what} cannot be imported: {type(error).__name__}: {_torch.one_line(error)}", fix=fix)


def _name(label: str) -> str:
    """A model's name from `folder/net.py:factory`, `package.net:factory` or a class's name."""
    place = label.partition(":")[0]
    stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._").lower() or "model"


def _code_digest(given: object) -> dict[str, str]:
    """SHA-256 of the factory's file, and its name without the folder."""
    match = FACTORY.fullmatch(str(given)) if isinstance(given, str | Path) else None
    if match is None or not match["place"].endswith(".py"):
        return {"factory": match[0]} if match else {}
    path = Path(match["place"])
    return {"factory": f"{path.name}:{match['name']}", "code": f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"}


def _suggested(module: torch.nn.Module, example_inputs: object) -> Signature:
    """Names from forward's parameters, types and sizes from the examples; a leading dimension that all share is the batch."""
    examples = _by_name(module, example_inputs)
    if not examples:
        return Signature(inputs={}, outputs={})
    rows = next((v.shape[0] for v in examples.values() if v.ndim), 0)
    vocabularies: dict[str, int] = {}
    outputs, out_rows = _run(module, examples, vocabularies), rows
    try:  # twice the rows show which outputs lead with the batch, also where a size of one was squeezed away
        twice = {n: v.repeat(2, *[1] * (v.ndim - 1)) if v.ndim and v.shape[0] == rows else v for n, v in examples.items()}
        outputs, out_rows = _run(module, twice, {}), 2 * rows
    except BadSource:
        pass  # the model takes one number of rows only; the gate `axes` will say so
    return Signature(
        inputs={name: _spec(name, value, rows, vocabularies.get(name)) for name, value in examples.items()},
        outputs={name: _spec(name, value, out_rows) for name, value in outputs.items()},
    )


def _run(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], vocabularies: dict[str, int]) -> dict[str, torch.Tensor]:
    """One eager run. Notes for every input that goes straight into an embedding how many entries that has."""
    import torch

    def note(layer: Any, given: tuple[Any, ...]) -> None:
        for name, value in inputs.items():
            if given and given[0] is value:
                vocabularies[name] = min(layer.num_embeddings, vocabularies.get(name, layer.num_embeddings))

    hooks = [m.register_forward_pre_hook(note) for m in module.modules() if isinstance(m, torch.nn.Embedding)]
    positional = _torch.by_position(module, list(inputs))
    try:
        with torch.no_grad():
            return _torch.call(module, inputs, positional=positional)
    except TautenError:
        raise
    except Exception as error:
        raise BadSource(f"the model fails on its example inputs: {type(error).__name__}: {_torch.one_line(error)}",
                        fix="give example inputs that forward can take") from error  # fmt: skip
    finally:
        for hook in hooks:
            hook.remove()


def _by_name(module: torch.nn.Module, example_inputs: object) -> dict[str, torch.Tensor]:
    """Example inputs by the names of forward's parameters: one tensor, several in order, or a mapping; arrays are fine."""
    if example_inputs is None:
        return {}
    if isinstance(example_inputs, Mapping):
        return {str(name): _tensor(str(name), value) for name, value in example_inputs.items()}
    values = example_inputs if isinstance(example_inputs, list | tuple) else (example_inputs,)
    names: list[str] = []
    for parameter in _torch.parameters_of(module):
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{i}" for i in range(len(values) - len(names))]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
    if len(values) > len(names):
        raise BadSource(f"{len(values)} example inputs, but forward takes {', '.join(names) or 'nothing'}",
                        fix="give one for each parameter of forward")  # fmt: skip
    return {name: _tensor(name, value) for name, value in zip(names, values, strict=False)}


def _tensor(name: str, value: object) -> torch.Tensor:
    import torch

    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.array(value))
    if not isinstance(value, torch.Tensor):
        raise BadSource(f"example input {name!r} is {type(value).__name__}", fix="give tensors or numpy arrays")
    return value.detach().cpu()


def _spec(name: str, value: torch.Tensor, rows: int, vocabulary: int | None = None) -> TensorSpec:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in ELEMENT_TYPES:
        raise BadSource(f"{name!r} has type {dtype}", fix=f"use one of {', '.join(ELEMENT_TYPES)}")
    lead = (BATCH,) if value.ndim and value.shape[0] == rows else tuple(value.shape[:1])
    return TensorSpec(
        dtype=dtype, shape=(*lead, *value.shape[1:]), range=None if vocabulary is None else (0, float(vocabulary - 1))
    )


def _refuse_file(path: Path) -> NoReturn:
    """Says no to what is no factory, without unpickling anything: a pickle is told by what it would have run."""
    if path.suffix == ".py":
        raise BadSource(f"{str(path)!r} is a file of code", fix=f"say which factory: {path}:NAME")
    if not path.is_file():
        raise BadSource(f"there is no file {str(path)!r}", fix="check the path")
    kind = pickles.kind_of(path)
    if kind == "torchscript":
        raise Unsupported(f"{path.name!r} is a TorchScript archive, which cannot be delivered yet", fix=AS_FACTORY)
    if kind == "torch_export":
        raise Unsupported(f"{path.name!r} is a torch.export program, which cannot be delivered yet", fix=AS_FACTORY)
    if kind != "pickle":
        raise BadSource(f"{path.name!r} is neither a model nor a checkpoint that is known", fix=AS_FACTORY)
    names = pickles.globals_of(path)
    runs = [n for n in names if not pickles.harmless(n)]
    if not runs:
        raise BadSource(f"{path.name!r} is a pickled checkpoint with weights alone, no model",
                        fix=f"{AS_FACTORY} with torch.load(…, weights_only=True)")  # fmt: skip
    more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
    raise BadSource(f"{path.name!r} is a pickled checkpoint, which was not opened: loading it would run "
                    f"{', '.join(runs[:5])}{more}",
                    fix=f"{AS_FACTORY} from safetensors, or from a checkpoint of weights alone")  # fmt: skip
