"""Everything the running system may announce. Serving announces to one sink that it was given; who listens is wired above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tauten.spec.errors import Code
from tauten.spec.lifecycle import State


@dataclass(frozen=True, slots=True)
class BatchRan:
    """One run of an engine. Durations in seconds; one entry per request in the tuples.

    rows         rows that ran, of which `padded_rows` were filled up to a bucket
    sizes        of the axes other than batch, as run
    """

    model: str
    version: str
    rows: int
    padded_rows: int
    sizes: tuple[tuple[str, int], ...]
    queue_s: tuple[float, ...]
    assemble_s: float
    compute_s: float
    split_s: float
    failed: bool


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request that was not answered with a result, and why."""

    model: str
    version: str
    code: Code


@dataclass(frozen=True, slots=True)
class StateChanged:
    model: str
    version: str
    state: State
    reason: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """An instance crashed (`healthy` false) or serves again. `crashes` counts since it was started."""

    model: str
    version: str
    healthy: bool
    crashes: int
    reason: str = ""


Event = BatchRan | RequestRefused | StateChanged | WorkerChanged
Sink = Callable[[Event], None]


def silent(_: Event) -> None:
    """A sink that drops everything."""
