"""What a runtime is to us: open, run a batch, tell its facts, close. Everything that runs models takes these shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tauten.spec.tensors import Array

Tensors = Mapping[str, Array]
Runner = Callable[[Tensors], dict[str, Array]]  # inputs by name -> outputs by name; always whole batches


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a session is opened.

    threads      intra-operator threads of one session
    graph_level  the engine's own optimiser: disabled, basic, extended or all
    spinning     busy-wait between runs: faster alone on a machine, costly otherwise
    """

    threads: int = 1
    graph_level: str = "all"
    spinning: bool = False


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a variant is served: settings.json of the bundle.

    instances      sessions that run beside each other
    batch          most rows in one run; 1 where batch mates change answers
    pad            whether inputs may be padded up to a bucket
    buckets        by axis, the sizes that inputs are padded up to
    """

    engine: str = "onnxruntime"
    session: EngineSettings = EngineSettings()
    instances: int = 1
    batch: int = 1
    pad: bool = True
    buckets: dict[str, tuple[int, ...]] = {}


class Port(msgspec.Struct, frozen=True):
    """An input or output as the engine itself declares it. Dynamic dimensions are names or None; never trust them for sizes."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


class Session(Protocol):
    """An opened model. `run` may be called from several threads at once."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...

    @property
    def outputs(self) -> tuple[Port, ...]: ...

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Runs one batch. Raises EngineFailed with the engine's own words."""
        ...

    def facts(self) -> dict[str, Any]:
        """What a verdict or a report should know: engine, version, provider, threads, graph level."""
        ...

    def close(self) -> None:
        """Frees everything; closing twice is fine."""
        ...


class Engine(Protocol):
    """The shape of a module in engines/."""

    EXTRA: str

    def version(self) -> str: ...

    def open(self, model: Path, settings: EngineSettings) -> Session:
        """Opens a model file. Raises BadModel when the engine refuses it, with the engine's own words."""
        ...
