"""What load is and what came of it: a plan, its Poisson arrivals, and one entry per request of what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tauten.measure.digests import Digest, Floats
from tauten.spec.errors import BadInput

MOST_REQUESTS = 5_000_000
GIVEN_UP = -1  # the status of a request that was given up after its time-out


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What to send where. Exactly one of `rate` (requests/s, open loop) and `concurrency` (closed loop).

    requests     complete HTTP messages; each arrival draws one of them
    connections  most connections of the open loop; requests that are due beyond it wait, and the waiting counts
    timeout_s    after which a request counts as failed
    """

    host: str
    port: int
    requests: tuple[bytes, ...]
    seconds: float
    rate: float | None = None
    concurrency: int | None = None
    seed: int = 0
    connections: int = 64
    timeout_s: float = 10.0

    def check(self) -> None:
        """Raises BadInput for a plan that cannot be run."""
        if not self.requests:
            raise BadInput("the load has no requests", fix="give at least one")
        if (self.rate is None) == (self.concurrency is None):
            raise BadInput("the load needs a rate or a concurrency", fix="give exactly one of them")
        if not self.seconds > 0 or not self.timeout_s > 0:
            raise BadInput(f"the load lasts {self.seconds:g} s", fix="give a duration above 0")
        if self.rate is not None and not 0 < self.rate * self.seconds <= MOST_REQUESTS:
            raise BadInput(f"rate {self.rate:g} over {self.seconds:g} s is outside 1 to {MOST_REQUESTS:,} requests",
                           fix="give a rate above 0 and a shorter time")  # fmt: skip
        wanted = self.connections if self.concurrency is None else self.concurrency
        if not 1 <= wanted <= 4096:
            raise BadInput(f"{wanted} connections", fix="give 1 to 4096")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """One entry per request, in the order they were due. Times in seconds since the start; `done` is when it was answered,
    failed or given up; `status` is the HTTP status, 0 where the connection broke, GIVEN_UP after the time-out. `errors` counts
    failures by kind."""

    due: Floats
    noticed: Floats
    sent: Floats
    done: Floats
    status: NDArray[np.int32]
    errors: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_s: float = 0.0
    open_loop: bool = True

    @property
    def ok(self) -> NDArray[np.bool_]:
        return np.asarray(self.status == 200)

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Requests with a latency: the answered ones, and those given up, which took at least as long as they were waited for.

        Refusals and broken connections are errors, not quick answers.
        """
        return np.asarray(self.ok | (self.status == GIVEN_UP))

    @property
    def latencies(self) -> Floats:
        """Seconds from due to done."""
        return (self.done - self.due)[self.timed]

    @property
    def lag(self) -> Digest:
        """How late the generator itself looked at what was due, in seconds."""
        return Digest(np.maximum(self.noticed - self.due, 0))

    @property
    def failed(self) -> int:
        return int(self.status.size - np.count_nonzero(self.ok))

    @property
    def requests_per_s(self) -> float:
        """Answered requests over the time until the last answer."""
        answered = self.done[self.ok]
        return float(answered.size / max(self.seconds, float(answered.max()))) if answered.size else 0.0


def arrivals(rate: float, seconds: float, seed: int) -> Floats:
    """Poisson arrivals in [0, seconds): the same for the same seed."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / rate, int(rate * seconds + 8 * (rate * seconds) ** 0.5 + 16)))
    return times[times < seconds]


def http_message(host: str, path: str, body: bytes, headers: Mapping[str, str], *, method: str = "POST") -> bytes:
    """A complete HTTP/1.1 request that keeps its connection."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(body)}",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
