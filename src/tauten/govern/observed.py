"""What was seen of a live server. Clauses judge it; nothing here judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tauten.measure.traffic import Observations
from tauten.spec.verdict import Status, Verdict


@dataclass(frozen=True, slots=True)
class Moved:
    """A golden probe answered again: worst absolute difference from what it should be; NaN or a changed shape counts as inf."""

    at: float
    probe: str
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that clauses may look at. Times in seconds since the load began.

    ready       answers of the readiness probe
    resident    resident memory of the server, in MB (2^20 bytes), where it tells
    moved       golden probes; `against` says what they were compared with
    served      digests that the server says it serves: "bundle", "contract"; empty where it does not tell
    expected    the same, as the caller has them
    """

    load: Observations
    ready: tuple[tuple[float, bool], ...] = ()
    resident: tuple[tuple[float, float], ...] = ()
    moved: tuple[Moved, ...] = ()
    against: str = "its first answers"
    served: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a clause measured, before it is weighed. `key` is where the contract has the limit."""

    name: str
    unit: str
    key: str
    limit: float | None
    measured: float | None = None
    samples: int = 0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def says(self, status: Status, message: str, fix: str = "") -> Verdict:
        return Verdict(
            name=self.name, status=status, message=message, measured=self.measured, limit=self.limit, unit=self.unit,
            samples=self.samples, fix=fix, evidence=dict(self.evidence),
        )  # fmt: skip

    def reported(self) -> Verdict:
        """What is left out of the contract is measured and reported, not judged."""
        told = "not measured" if self.measured is None else "reported only"
        return self.says(Status.SKIPPED, f"{told}: the contract has no {self.key}")
