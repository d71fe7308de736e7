"""The waiting room of one served version: requests come in from the event loop, batches go out to the workers' threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from tauten.serving.batching import Decision, Policy, decide
from tauten.serving.shapes import Shape
from tauten.spec.errors import Unavailable
from tauten.spec.tensors import Array

BACK = "ask the repository index for a version that is ready"


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that waits, and the future on which its caller waits. `arrived` and `deadline` as the clock tells."""

    inputs: dict[str, Array]
    shape: Shape
    arrived: float
    deadline: float | None
    future: asyncio.Future[dict[str, Array]] = field(repr=False)

    @property
    def rows(self) -> int:
        return self.shape.rows

    @property
    def key(self) -> Hashable:
        return self.shape.key


class Room:
    """In order of arrival. A ticket is in exactly one place: here, in a decision that a worker took, or answered."""

    def __init__(self, policy: Policy, clock: Callable[[], float]) -> None:
        self._policy, self._clock = policy, clock
        self._waiting: dict[Ticket, None] = {}  # a dict is an ordered set that forgets any member at once
        self._changed = threading.Condition(threading.Lock())
        self._open = True

    def __repr__(self) -> str:
        return f"<Room {'open' if self._open else 'closed'} {len(self._waiting)} waiting>"

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, ticket: Ticket) -> None:
        """Raises Unavailable once the room is closed."""
        with self._changed:
            if not self._open:
                raise Unavailable("this version is closed", fix=BACK)
            self._waiting[ticket] = None
            self._changed.notify()

    def leave(self, ticket: Ticket) -> bool:
        """Takes a ticket out that nobody waits for any more. False when a worker has it already."""
        with self._changed:
            if ticket not in self._waiting:
                return False
            del self._waiting[ticket]
            return True

    def take(self) -> Decision[Ticket] | None:
        """Blocks the calling worker until there is something to do. None once the room is closed and empty."""
        with self._changed:
            while not self._waiting:
                if not self._open:
                    return None
                self._changed.wait()
            decision = decide(self._clock(), self._waiting, self._policy)
            for ticket in (*decision.start, *decision.expired):
                del self._waiting[ticket]
            return decision

    def close(self) -> list[Ticket]:
        """Sends the workers home once they are done; returns the tickets that were left waiting."""
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
            self._open = False
            self._changed.notify_all()
            return left
