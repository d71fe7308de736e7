"""A model's graph as gates see it: plain data, without the library that reads the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `origin` is the layer of the original framework it came from, where the exporter noted it.

    Nodes of subgraphs are listed too, with `depth` > 0. Attributes hold plain Python values; tensors and graphs are left out.
    """

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    depth: int = 0

    @property
    def label(self) -> str:
        """How people find it: operator, name, and the layer it came from."""
        return f"{self.op} {self.name!r}" + (f" (layer {self.origin!r})" if self.origin else "")


@dataclass(frozen=True, slots=True)
class Value:
    """A declared input or output. Shape metadata can be wrong: never size anything from it."""

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Initializer:
    """A stored weight. `location` names the external file that holds it, if any."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    location: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Graph:
    """Facts read back from a model file. `files` are name -> bytes on disk, the model file first."""

    ir_version: int
    opsets: Mapping[str, int]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    initializers: tuple[Initializer, ...]
    metadata: Mapping[str, str]
    producer: str
    files: Mapping[str, int]

    @property
    def opset(self) -> int:
        return self.opsets.get("", 0)

    def producer_of(self, value: str) -> Node | None:
        return next((n for n in self.nodes if value in n.outputs), None)
