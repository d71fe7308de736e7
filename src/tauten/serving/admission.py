"""May this request enter? A lease, or a refusal at once. Pure: it only counts."""

from __future__ import annotations

from tauten.serving.settings import QueueLimits
from tauten.spec.errors import Overloaded
from tauten.spec.infer import Lease

SOONEST_S, LATEST_S = 0.05, 30.0  # bounds of what is told to a client that must come back


class Admission:
    """Counts what is inside, in rows and bytes, and admits while there is room."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self.requests = self.rows = self.bytes = 0

    def __repr__(self) -> str:
        return f"<Admission {self.requests} requests, {self.rows} rows, {self.bytes} bytes>"

    def enter(self, rows: int, nbytes: int, rows_per_s: float | None = None) -> Lease:
        """A place inside, given back by releasing the lease.

        `rows_per_s` is the pace lately, from which the time to come back is told. Raises Overloaded.
        """
        limits = self._limits
        if self.rows + rows > limits.rows:
            raise self._full(f"{rows} rows do not fit: {self.rows} of {limits.rows} are taken", rows_per_s)
        if self.bytes + nbytes > limits.bytes:
            raise self._full(f"{nbytes} bytes do not fit: {self.bytes} of {limits.bytes} are taken", rows_per_s)
        self._count(1, rows, nbytes)
        return Lease(lambda: self._count(-1, -rows, -nbytes))

    def _count(self, requests: int, rows: int, nbytes: int) -> None:
        self.requests += requests
        self.rows += rows
        self.bytes += nbytes

    def _full(self, message: str, rows_per_s: float | None) -> Overloaded:
        """Half of what is inside is gone by then, at the pace of late."""
        wait = self.rows / 2 / rows_per_s if rows_per_s else 1.0
        return Overloaded(
            message, retry_after_s=min(max(wait, SOONEST_S), LATEST_S), fix="send again later, or send less at once"
        )
