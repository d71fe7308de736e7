"""What a gate or a clause answers, offline and online alike."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from tauten.spec.contract import Waiver


class Status(StrEnum):
    HELD = "held"
    BROKEN = "broken"
    UNDECIDED = "undecided"
    WAIVED = "waived"
    SKIPPED = "skipped"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One judgement: what was measured against which limit, on how many samples, and what to do if it does not hold.

    `evidence` is plain JSON data. A measured value that is not finite is given in `evidence`, since JSON has no NaN.
    """

    name: str
    status: Status
    message: str
    measured: float | None = None
    limit: float | None = None
    unit: str = ""
    samples: int = 0
    fix: str = ""
    evidence: dict[str, Any] = {}

    @property
    def ok(self) -> bool:
        return self.status in {Status.HELD, Status.WAIVED, Status.SKIPPED}


def from_troubles(
    name: str, troubles: Sequence[tuple[str, str]], *, fine: str, unit: str, samples: int, evidence: dict[str, Any]
) -> Verdict:
    """A verdict on a list of (what is wrong, the fix): the message tells the first, the evidence all."""
    what, fix = troubles[0] if troubles else (fine, "")
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    return Verdict(
        name=name,
        status=Status.BROKEN if troubles else Status.HELD,
        message=what + more,
        measured=float(len(troubles)),
        limit=0.0,
        unit=unit,
        samples=samples,
        fix=fix,
        evidence={**evidence, "troubles": [what for what, _ in troubles]},
    )


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All verdicts on one subject under one contract. `subject` and `contract` are digests."""

    subject: str
    contract: str
    verdicts: tuple[Verdict, ...]

    @property
    def held(self) -> bool:
        return all(v.ok for v in self.verdicts)

    @property
    def status(self) -> Status:
        """BROKEN outweighs UNDECIDED outweighs HELD."""
        found = {v.status for v in self.verdicts}
        return next((s for s in (Status.BROKEN, Status.UNDECIDED) if s in found), Status.HELD)

    @property
    def broken(self) -> tuple[Verdict, ...]:
        return tuple(v for v in self.verdicts if v.status is Status.BROKEN)

    def summary(self) -> str:
        """One line for an exception's message: every verdict that is not fine, with its fix."""
        bad = [v for v in self.verdicts if not v.ok]
        return "; ".join(f"{v.name} {v.status}: {v.message}" + (f" (fix: {v.fix})" if v.fix else "") for v in bad) or "held"

    def to_json(self) -> bytes:
        data = {"held": self.held, "subject": self.subject, "contract": self.contract, "verdicts": self.verdicts}
        return msgspec.json.encode(data)


def waive(verdicts: Iterable[Verdict], waivers: Sequence[Waiver], *, today: datetime.date) -> tuple[Verdict, ...]:
    """Turns broken verdicts that a valid waiver names into waived ones. A waiver that has run out is itself a failure."""
    by_gate = {w.gate: w for w in waivers}

    def one(verdict: Verdict) -> Verdict:
        waiver = by_gate.get(verdict.name)
        if waiver is None or verdict.status is not Status.BROKEN:
            return verdict
        if waiver.until < today:
            note = f"{verdict.message} (its waiver ran out on {waiver.until})"
            return msgspec.structs.replace(verdict, message=note)
        return msgspec.structs.replace(
            verdict, status=Status.WAIVED, message=f"{verdict.message} (waived until {waiver.until}: {waiver.reason})"
        )

    judged = tuple(one(v) for v in verdicts)
    expired = tuple(
        Verdict(name="waiver", status=Status.BROKEN, message=f"the waiver of {w.gate!r} ran out on {w.until}",
                fix="mend the cause, or renew the waiver with a reason")
        for w in waivers if w.until < today
    )  # fmt: skip
    return judged + expired
