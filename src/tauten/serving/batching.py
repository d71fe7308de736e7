"""Which requests start together. Pure: it is asked when an instance is idle, and `now` is an argument.

There is no waiting for company: an idle instance starts what is there at once, and requests gather while it is busy.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import ceil
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
    """`max_rows` in one run; a single request with more rows goes alone. `instances` share what waits."""

    max_rows: int
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What to run now, as one batch, and what to answer with a missed deadline."""

    start: tuple[T, ...]
    expired: tuple[T, ...]


def decide(now: float, waiting: Collection[T], policy: Policy) -> Decision[T]:
    """The oldest request decides the bucket; younger ones of its key fill the batch as far as rows allow.

    The oldest always starts, so a request can be passed over at most once for each request that was ahead of it. Where several
    instances run, each takes its share, so that none idles while another has all.
    """
    start: list[T] = []
    expired: list[T] = []
    rows = limit = 0
    for one in islice(waiting, REACH):
        if one.deadline is not None and one.deadline <= now:
            expired.append(one)
        elif not start:
            start.append(one)
            rows, limit = one.rows, _share(one, waiting, policy)
        elif one.key == start[0].key and rows + one.rows <= limit:
            start.append(one)
            rows += one.rows
        if start and rows >= limit:
            break
    return Decision(tuple(start), tuple(expired))


def _share(first: T, waiting: Collection[T], policy: Policy) -> int:
    """How many rows the batch of `first` may have."""
    if first.key is None:
        return 0
    if policy.instances == 1:
        return policy.max_rows
    rows = sum(w.rows for w in islice(waiting, REACH) if w.key == first.key)
    return min(policy.max_rows, ceil(rows / policy.instances))


def split(rows: int, limit: int) -> Iterator[slice]:
    """Cuts a request that has more rows than one run may have."""
    return (slice(first, min(first + limit, rows)) for first in range(0, rows, limit))
