"""How a clause speaks: what it measured, where the limit is in the contract, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tauten.spec.verdict import Status, Verdict


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
