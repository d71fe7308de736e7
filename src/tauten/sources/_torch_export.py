"""The child program that exports one PyTorch module in a process of its own: `python -m tauten.sources._torch_export FOLDER`.

An exporter keeps state between calls: a second RNN exported in one process silently loses its time axis. A fresh process also
keeps what it prints, and what it takes in memory, out of the caller. FOLDER has job.json and the module; model.onnx is written
into it, or failure.json with the reason.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tauten.formats.onnx_finish import finish
from tauten.measure.draw import draw, mask_like
from tauten.sources._torch import call, parameters_of
from tauten.spec.contract import Contract
from tauten.spec.errors import TautenError, Unsupported
from tauten.spec.signature import BATCH, Axis
from tauten.spec.tensors import Array

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)
SCOPE = "model"  # the attribute under which the wrapper holds the module
# Names that no graph has. The exporter would not notice that a name of ours is taken by a value inside.
INPUT, OUTPUT = "tauten_input_{}", "tauten_output_{}"
ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-f]+")
PATH = re.compile(r"(?:/[^\s/:'\"]+)+/(?=[^\s/:'\"]+)")


def main(folder: Path) -> None:
    """Writes model.onnx. Whatever is raised on the way becomes failure.json and exit code 1."""
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # its warnings would be the last words in the log of a crash
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    contract = Contract.parse(job["contract"])
    torch.set_num_threads(job["threads"])
    try:
        module = _module(folder)
        with torch.no_grad():
            if isinstance(module, torch.jit.ScriptModule):
                _scripted(module, contract, folder / "raw.onnx", exporter=job["exporter"])
            else:
                wrapped = _wrapped(module, contract, positional=job["positional"])
                EXPORTERS[job["exporter"]](wrapped, contract, folder / "raw.onnx")
        finish(folder / "raw.onnx", folder / "model.onnx", contract, _names(contract), scope=SCOPE)
    except Exception as error:
        reason, fix = _told(error)
        (folder / "failure.json").write_text(json.dumps({"reason": reason, "fix": fix}), encoding="utf-8")
        raise SystemExit(1) from error


def _module(folder: Path) -> Any:
    import torch

    script = folder / "module.script"
    if script.exists():
        load: Any = torch.jit.load  # untyped
        return load(str(script)).eval()
    # Our parent wrote it just now: classes that are not installed come by value, which is code by nature.
    return torch.load(folder / "module.pt", weights_only=False).eval()


def _wrapped(module: Any, contract: Contract, *, positional: bool) -> Any:
    """The module with inputs by position in the contract's order and outputs as a flat tuple in the contract's order."""
    import torch

    names, outputs = list(contract.inputs), list(contract.outputs)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(SCOPE, module)

        def forward(self, *values: Any) -> tuple[Any, ...]:
            answer = call(self.get_submodule(SCOPE), dict(zip(names, values, strict=True)), positional=positional)
            if len(answer) != len(outputs):
                raise ExportMismatch(f"the model returns {len(answer)} outputs, the contract names {', '.join(outputs)}")
            order = outputs if set(answer) == set(outputs) else list(answer)
            return tuple(answer[name] for name in order)

    return Flat().eval()


class ExportMismatch(Exception):
    """The contract has another number of outputs than the model."""


def _dynamo(module: Any, contract: Contract, target: Path) -> None:
    import torch

    sizes = trace_sizes(contract)
    dims: dict[str, Any] = {}
    for number, (name, size) in enumerate(sizes.items()):
        axis, label = contract.axes.get(name), f"axis_{number}"  # a Dim is named like a variable, an axis as people like
        step = axis.multiple_of if axis else 1
        low, high = (max(axis.min // step, 0 if step == 1 else 1), max(axis.max, size) // step) if axis else (1, None)
        bounds = {"min": low, "max": high} if high is not None and low < high else {}
        dim = torch.export.Dim(label, **bounds)
        dims[name] = dim * step if step > 1 else dim
    shapes = tuple({i: dims[d] for i, d in enumerate(spec.shape) if isinstance(d, str)} for spec in contract.inputs.values())
    torch.onnx.export(
        module, _examples(contract, sizes), str(target), dynamo=True, dynamic_shapes={"values": shapes}, external_data=True,
        input_names=_labels(INPUT, contract.inputs), output_names=_labels(OUTPUT, contract.outputs),
        opset_version=contract.target.opset, verbose=False,
    )  # fmt: skip


def _legacy(module: Any, contract: Contract, target: Path, *, labels: Sequence[str] = ()) -> None:
    import torch

    inputs, outputs = labels or _labels(INPUT, contract.inputs), _labels(OUTPUT, contract.outputs)
    specs = zip((*inputs, *outputs), (*contract.inputs.values(), *contract.outputs.values()), strict=True)
    axes = {label: {i: d for i, d in enumerate(spec.shape) if isinstance(d, str)} for label, spec in specs}
    torch.onnx.export(
        module, _examples(contract, trace_sizes(contract)), str(target), dynamo=False, dynamic_axes=axes,
        input_names=inputs, output_names=outputs, opset_version=contract.target.opset,
    )  # fmt: skip


def _scripted(module: Any, contract: Contract, target: Path, *, exporter: str) -> None:
    """A scripted module is no part of a trace, so it goes as it is, inputs in the order of its forward, without a wrapper."""
    if exporter != "legacy":
        raise Unsupported("a TorchScript module has no Python code to export", fix="give the original module")
    order = [p.name for p in parameters_of(module) if p.name in contract.inputs]
    sorted_inputs = {name: contract.inputs[name] for name in order}
    labels = dict(zip(contract.inputs, _labels(INPUT, contract.inputs), strict=True))
    _legacy(module, msgspec.structs.replace(contract, inputs=sorted_inputs), target, labels=[labels[name] for name in order])


EXPORTERS = {"dynamo": _dynamo, "legacy": _legacy}


def _labels(pattern: str, specs: dict[str, Any]) -> list[str]:
    return [pattern.format(i) for i in range(len(specs))]


def _names(contract: Contract) -> dict[str, str]:
    inputs = zip(_labels(INPUT, contract.inputs), contract.inputs, strict=True)
    return dict(chain(inputs, zip(_labels(OUTPUT, contract.outputs), contract.outputs, strict=True)))


def trace_sizes(contract: Contract) -> dict[str, int]:
    """One size for every axis of the inputs: strictly inside its bounds and no other axis's or fixed size, where there is one.

    Never 0 or 1, which exporters specialise on, even where the bounds end at 1. Odd primes show mixed-up axes.
    """
    taken = {d for spec in contract.inputs.values() for d in spec.shape if isinstance(d, int)}
    sizes: dict[str, int] = {}
    for name in dict.fromkeys(a for spec in contract.inputs.values() for a in spec.axes):
        axis = contract.axes.get(name, Axis(min=1, max=1 << 30))
        sizes[name] = _size(axis, (2, *PRIMES) if name == BATCH else PRIMES, taken)
        taken.add(sizes[name])
    return sizes


def _size(axis: Axis, wanted: tuple[int, ...], taken: set[int]) -> int:
    step = axis.multiple_of
    first = -(-axis.min // step)
    multiples: list[int] = [n * step for n in (*wanted, *range(first, first + len(wanted)))]
    inside = [s for s in multiples if axis.min <= s <= axis.max and s > 1]
    strictly = [s for s in inside if axis.min < s < axis.max]
    for choice in ([s for s in strictly if s not in taken], [s for s in inside if s not in taken], inside):
        if choice:
            return choice[0]
    least = max(2, axis.min)
    return -(-least // step) * step


def _examples(contract: Contract, sizes: dict[str, int]) -> tuple[Any, ...]:
    """Example inputs inside the declared ranges; masks have ones and zeros, so that no branch on "all ones" is taken."""
    import torch

    rng = np.random.default_rng(0)

    def values() -> Iterator[Array]:
        for spec in contract.inputs.values():
            array = draw(spec, spec.sized(sizes), rng)
            if mask_like(spec) and array.ndim and array.shape[-1] > 1:
                array[..., -1] = 0
            yield array

    return tuple(torch.from_numpy(v) for v in values())


def _told(error: BaseException) -> tuple[str, str]:
    """The root cause in one line without paths, and the fix: exporters wrap it several times and add advice by the page."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, TautenError):
        return error.message, error.fix
    if isinstance(error, ExportMismatch):
        return str(error), "list every output in the contract, in the order in which forward returns them"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = PATH.sub("", " ".join(lines)).partition(" For more information")[0]
    text = textwrap.shorten(ADDRESS.sub("", told), 300, placeholder=" …")
    return f"{type(error).__name__}: {text}", _fix(type(error).__name__ + text)


def _fix(text: str) -> str:
    if re.search(r"onstraint|specializ|[gG]uard|[dD]ata-dependent", text):
        return "the code branches on a size or on values: use tensor operations instead, or fix the size in the contract"
    if re.search(r"[uU]nsupported|not supported|No ONNX function|ConversionError|opset", text):
        return "replace the operation, ask for another target.opset, or give an ONNX file"
    return "change the model so that it can be exported, or give an ONNX file"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
