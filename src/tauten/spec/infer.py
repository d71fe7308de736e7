"""Request, reply, deadline and lease: what travels the way of a request, the same for every front."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tauten.spec.tensors import Array


@dataclass(slots=True)
class InferRequest:
    """One request for one model. `deadline` is absolute, in seconds of the monotonic clock; None waits for ever.

    `outputs` names the outputs that are wanted; empty means all. `version` empty means the live one.
    """

    model: str
    inputs: dict[str, Array]
    version: str = ""
    id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    deadline: float | None = None


@dataclass(slots=True)
class InferReply:
    """One answer, and the version that computed it."""

    model: str
    version: str
    outputs: dict[str, Array]
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Lease:
    """Held by whoever waits: a place in the queue, a version in use. Releasing twice is fine, forgetting is a leak."""

    __slots__ = ("_release",)

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        give_back, self._release = self._release, None
        if give_back is not None:
            give_back()

    @property
    def held(self) -> bool:
        return self._release is not None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
