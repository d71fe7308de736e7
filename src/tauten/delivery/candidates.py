"""The forms of a model that compete to be delivered, and the pure choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tauten.delivery.tune import Tuned
from tauten.spec.contract import Contract
from tauten.spec.errors import BadModel, NotHeld, Undecided
from tauten.spec.judging import Score, Speed
from tauten.spec.verdict import Judgement, Status


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One form of the model with everything that was found out about it.

    made_by   exporter, pass or precision scheme that wrote the file
    parent    the candidate that it was made from; empty for what came from the exporter
    raced     samples/s of a parent over all races against it; 0 where there was none
    """

    name: str
    precision: str
    made_by: str
    model: Path
    parent: str = ""
    judgement: Judgement | None = None
    score: Score | None = None
    tuned: Tuned | None = None
    speed: Speed | None = None
    raced: float = 0.0
    failure: str = ""

    @property
    def held(self) -> bool:
        return not self.failure and self.judgement is not None and self.judgement.held

    @property
    def refused_by(self) -> str:
        """Names of the gates that said no, or of the step that failed."""
        if self.failure:
            return self.made_by
        return ", ".join(v.name for v in self.judgement.verdicts if not v.ok) if self.judgement else ""

    @property
    def samples_per_s(self) -> float:
        if self.speed is not None:
            return self.speed.samples_per_s
        return self.raced or (self.tuned.best.samples_per_s if self.tuned else 0.0)


def choose(candidates: Sequence[Candidate], contract: Contract) -> tuple[Candidate, str]:
    """The candidate that keeps every promise at the least cost, and why it was chosen.

    Cost is time per row on this host. With nothing promised that could be optimised for (neither accuracy nor slo), the
    exported model is taken as it is. Raises NotHeld, Undecided or BadModel when no precision that may be delivered holds.
    """
    if contract.accuracy is None and contract.slo is None:
        return candidates[0], "nothing is promised that could be optimised for"
    may = [c for c in candidates if allowed(contract, c.precision)]
    held = [c for c in may if c.held]
    if not held:
        for candidate in may:
            raise_unless_held(candidate)
        failed = "; ".join(f"{c.name}: {c.failure}" for c in may) or "none is known"
        raise BadModel(f"nothing could be made in {', '.join(contract.target.precision)} ({failed})",
                       fix="put another precision into target.precision")  # fmt: skip
    best = max(held, key=lambda c: c.samples_per_s)
    others = len(candidates) - 1
    return best, f"the most samples/s of {len(held)} that keep every promise ({others} other candidates tried)"


def raise_unless_held(candidate: Candidate) -> None:
    """Raises NotHeld or Undecided with the verdicts of a candidate that was judged and did not hold."""
    judgement = candidate.judgement
    if judgement is not None and judgement.status is Status.BROKEN:
        raise NotHeld(judgement)
    if judgement is not None and judgement.status is Status.UNDECIDED:
        raise Undecided(judgement)


def allowed(contract: Contract, precision: str) -> bool:
    return precision in contract.target.precision
