"""Which requests start together. Pure: it is asked when an instance is idle, and `now` is an argument.

There is no waiting for company: an idle instance starts what is there at once, and requests gather while it is busy.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

REACH = 512  # how many waiting requests are looked at for mates of the oldest


class Waiting(Protocol):
    """What is known of a waiting request. Equal keys may share a batch; None goes alone. `deadline` as `now`."""

    @property
    def rows(self) -> int: ...

    @property
    def key(self) -> Hashable: ...

    @property
    def deadline(self) -> float | None: ...


T = TypeVar("T", bound=Waiting)


@dataclass(frozen=True, slots=True)
class Policy:
    """`max_rows` in one run. A single request with more rows goes alone."""

    max_rows: int


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What to run now, as one batch, and what to answer with a missed deadline."""

    start: tuple[T, ...]
    expired: tuple[T, ...]


def decide(now: float, waiting: Iterable[T], policy: Policy) -> Decision[T]:
    """The oldest request decides the bucket; younger ones of its key fill the batch as far as rows allow.

    The oldest always starts, so a request can be passed over at most once for each request that was ahead of it.
    """
    start: list[T] = []
    expired: list[T] = []
    room = 0
    for one in islice(waiting, REACH):
        if one.deadline is not None and one.deadline <= now:
            expired.append(one)
        elif not start:
            start.append(one)
            room = policy.max_rows - one.rows if one.key is not None else 0
        elif one.key == start[0].key and one.rows <= room:
            start.append(one)
            room -= one.rows
        if start and room <= 0:
            break
    return Decision(tuple(start), tuple(expired))


def split(rows: int, limit: int) -> Iterator[slice]:
    """Cuts a request that has more rows than one run may have."""
    return (slice(first, min(first + limit, rows)) for first in range(0, rows, limit))
