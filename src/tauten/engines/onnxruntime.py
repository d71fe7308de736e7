"""ONNX Runtime on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as native

from tauten.spec.engine import EngineSettings, Port, Tensors
from tauten.spec.errors import BadModel, BadUsage, EngineFailed, Unsupported
from tauten.spec.tensors import ELEMENT_TYPES, Array

EXTRA = ""
PROVIDER = "CPUExecutionProvider"

_LEVELS = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

# "tensor(float)" and the like; what it calls by C names, we call by numpy's.
_C_NAMES = {"float": "float32", "double": "float64"}

# The runtime's exceptions have no common base; the plain ones come from its binding and its Python wrapper.
_REFUSALS: tuple[type[Exception], ...] = (
    *(e for e in vars(native).values() if isinstance(e, type) and issubclass(e, Exception)),
    RuntimeError, ValueError, TypeError,
)  # fmt: skip
_SILENT = 4  # only fatal messages: what fails is raised, and people see it once


def version() -> str:
    return str(ort.__version__)


def open(model: Path, settings: EngineSettings) -> OrtSession:  # noqa: A001  the name every engine has
    """Opens a model file.

    Raises BadModel with the runtime's own words on one line, Unsupported for inputs or outputs that numpy cannot carry,
    BadUsage for a graph level that is not known.
    """
    if settings.graph_level not in _LEVELS:
        raise BadUsage(f"graph level {settings.graph_level!r} is not known", fix=f"use one of {', '.join(_LEVELS)}")
    try:
        native_session = ort.InferenceSession(
            str(model), sess_options=_options(settings), providers=[PROVIDER], enable_fallback=0
        )
    except _REFUSALS as error:
        raise BadModel(f"ONNX Runtime {version()} refuses {model.name!r}: {_one_line(error)}",
                       fix="export the model again, or check the file with 'tauten check'") from error  # fmt: skip
    return OrtSession(native_session, settings)


class OrtSession:
    """An opened model. `run` may be called from several threads at once."""

    def __init__(self, session: Any, settings: EngineSettings) -> None:
        self._session, self._settings = session, settings
        self._inputs = tuple(_port(node) for node in session.get_inputs())
        self._outputs = tuple(_port(node) for node in session.get_outputs())
        self._names = [port.name for port in self._outputs]

    def __repr__(self) -> str:
        return f"<OrtSession {'closed' if self._session is None else 'open'} threads={self._settings.threads}>"

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self._outputs

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Runs one batch. Raises EngineFailed with the runtime's own words."""
        session = self._session  # one read: `close` may come from another thread, and this run then ends first
        if session is None:
            raise EngineFailed("the session is closed")
        try:
            return dict(zip(self._names, session.run(self._names, dict(inputs)), strict=True))
        except _REFUSALS as error:
            raise EngineFailed(f"ONNX Runtime failed: {_one_line(error)}") from error

    def facts(self) -> dict[str, Any]:
        s = self._settings
        return {"engine": "onnxruntime", "version": version(), "provider": PROVIDER, "threads": s.threads,
                "graph_level": s.graph_level, "spinning": s.spinning}  # fmt: skip

    def close(self) -> None:
        self._session = None


def _options(settings: EngineSettings) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = _LEVELS[settings.graph_level]
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spinning else "0")
    return options


def _port(node: Any) -> Port:
    kind: str = node.type
    name = kind.removeprefix("tensor(").removesuffix(")")
    dtype = _C_NAMES.get(name, name)
    if not kind.startswith("tensor(") or dtype not in ELEMENT_TYPES or dtype == "bfloat16":
        raise Unsupported(f"{node.name!r} has type {kind}, which this engine's Python binding cannot carry",
                          fix="cast it to float32 inside the model")  # fmt: skip
    return Port(node.name, dtype, tuple(d if d is None or isinstance(d, int) else str(d) for d in node.shape))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
