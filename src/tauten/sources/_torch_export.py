"""The child program that exports one PyTorch module in a process of its own: `python -m tauten.sources._torch_export JOB`.

An exporter keeps state between calls: a second RNN exported in one process silently loses its time axis. A fresh process also
keeps what it prints, and what it takes in memory, out of the caller. JOB is a directory with job.pickle; result.json is written
into it.
"""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

TEMPORARY = "tauten_output_{}"  # a name no graph has: the exporter would not notice a collision with an inner value


def main(folder: Path) -> int:
    """Exit code 0 when the file was written; the reason is in result.json otherwise."""
    import cloudpickle  # noqa: F401  the module may be pickled by value
    import torch

    job: dict[str, Any] = pickle.loads((folder / "job.pickle").read_bytes())  # noqa: S301  written by our parent just now
    module = torch.jit.load(str(folder / "module.pt")) if job["scripted"] else job["module"]
    module.eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            EXPORTERS[job["exporter"]](module, job, folder / "raw.onnx")
    except Exception as error:  # noqa: BLE001  the edge of this process: whatever the exporter raises becomes its answer
        (folder / "result.json").write_text(json.dumps({"error": f"{type(error).__name__}: {_reason(error)}"}))
        return 1
    (folder / "result.json").write_text(json.dumps({}))
    return 0


def _reason(error: BaseException) -> str:
    """The root cause in one line: exporters wrap it several times and add advice by the page."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:300]


def _dynamo(module: Any, job: dict[str, Any], target: Path) -> None:
    import torch

    dims = {name: torch.export.Dim(name, min=bounds["min"], max=bounds["max"]) for name, bounds in job["axes"].items()}
    scaled = {name: job["axes"][name]["multiple_of"] * dim if job["axes"][name]["multiple_of"] > 1 else dim
              for name, dim in dims.items()}  # fmt: skip
    shapes = {
        name: {i: scaled[axis] for i, axis in enumerate(shape) if axis in scaled} for name, shape in job["shapes"].items()
    }
    args, kwargs = _arguments(job)
    torch.onnx.export(
        module, args, str(target), kwargs=kwargs, dynamo=True, input_names=list(job["inputs"]), output_names=_outputs(job),
        dynamic_shapes=shapes if kwargs else tuple(shapes.values()), opset_version=job["opset"], external_data=True, verbose=False,
    )  # fmt: skip


def _legacy(module: Any, job: dict[str, Any], target: Path) -> None:
    import torch

    axes = {name: {i: axis for i, axis in enumerate(shape) if axis in job["axes"]} for name, shape in job["shapes"].items()}
    outputs = _outputs(job)
    axes |= {
        temporary: {i: axis for i, axis in enumerate(shape) if axis in job["axes"]}
        for temporary, shape in zip(outputs, job["output_shapes"], strict=True)
    }
    args, kwargs = _arguments(job)
    torch.onnx.export(
        module, args, str(target), kwargs=kwargs, dynamo=False, input_names=list(job["inputs"]), output_names=outputs,
        dynamic_axes=axes, opset_version=job["opset"], do_constant_folding=True,
    )  # fmt: skip


EXPORTERS = {"dynamo": _dynamo, "legacy": _legacy}


def _outputs(job: dict[str, Any]) -> list[str]:
    return [TEMPORARY.format(i) for i in range(len(job["output_shapes"]))]


def _arguments(job: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any] | None]:
    """Positional where the inputs are the first parameters of forward, by keyword where a parameter between them is left out."""
    import torch

    tensors = {name: torch.from_numpy(value) for name, value in job["inputs"].items()}
    return (tuple(tensors.values()), None) if job["positional"] else ((), tensors)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
