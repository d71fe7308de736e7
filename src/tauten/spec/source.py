"""What a source hands over: the original model with a reference runner, and a way to export it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tauten.spec.contract import Contract
from tauten.spec.engine import Runner
from tauten.spec.signature import Signature


@dataclass(frozen=True, slots=True)
class Export:
    """A file that an exporter wrote. `log` is the end of what it printed."""

    path: Path
    exporter: str
    seconds: float
    log: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model as it was handed over.

    suggested   the signature as far as it can be told from the model; `init` starts from it
    reference   a new runner of the original framework in eval mode, on a fresh copy; None where there is none
    exporters   names in the order to try; empty where the model is already in the delivered format (`model` is its file)
    export      runs one exporter in a fresh process: (contract, exporter, target file) -> Export; raises ExportFailed
    processor   folder with what natural input needs (a tokenizer), if the source has one
    provenance  plain data for the manifest: kind, digests, framework versions; never a machine's paths
    """

    kind: str
    name: str
    suggested: Signature
    reference: Callable[[], Runner] | None
    exporters: tuple[str, ...] = ()
    export: Callable[[Contract, str, Path], Export] | None = None
    model: Path | None = None
    processor: Path | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """The shape of a module in sources/. It imports its framework inside `open`, so that asking `accepts` costs nothing."""

    EXTRA: str

    def accepts(self, given: object) -> bool:
        """Whether this source is for what was given: a path or `module:factory` string, or an object in Python."""
        ...

    def open(self, given: object, example_inputs: object = None) -> Opened:
        """Loads it. Raises BadSource, BadModel or MissingExtra."""
        ...
