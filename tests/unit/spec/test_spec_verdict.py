"""Verdicts and judgements: which outweighs which, what is printed, what a waiver does and what it does when it has run out."""

import datetime
import json

import pytest

from tauten.spec.contract import Waiver
from tauten.spec.errors import NotHeld
from tauten.spec.verdict import Judgement, Status, Verdict, waive

TODAY = datetime.date(2026, 6, 1)


def verdict(status: Status, name: str = "parity") -> Verdict:
    return Verdict(name=name, status=status, message="off by 2", measured=2.0, limit=1.0, samples=7, fix="mend it")


def judgement(*states: Status) -> Judgement:
    return Judgement(subject="sha256:s", contract="sha256:c", verdicts=tuple(verdict(s) for s in states))


@pytest.mark.parametrize(
    ("states", "status", "held"),
    [
        ((), Status.HELD, True),
        ((Status.HELD, Status.SKIPPED, Status.WAIVED), Status.HELD, True),
        ((Status.HELD, Status.UNDECIDED), Status.UNDECIDED, False),
        ((Status.UNDECIDED, Status.BROKEN, Status.HELD), Status.BROKEN, False),
    ],
)
def test_broken_outweighs_undecided_outweighs_held(states: tuple[Status, ...], status: Status, held: bool) -> None:
    found = judgement(*states)
    assert (found.status, found.held) == (status, held)
    assert len(found.broken) == states.count(Status.BROKEN)


def test_the_summary_has_what_is_not_fine_with_its_fix() -> None:
    assert judgement(Status.HELD).summary() == "held"
    told = judgement(Status.HELD, Status.BROKEN, Status.UNDECIDED).summary()
    assert told == "parity broken: off by 2 (fix: mend it); parity undecided: off by 2 (fix: mend it)"
    assert str(NotHeld(judgement(Status.BROKEN))) == "parity broken: off by 2 (fix: mend it)"


def test_json_has_the_names_of_the_surface() -> None:
    data = json.loads(judgement(Status.BROKEN).to_json())
    assert data["held"] is False
    assert (data["subject"], data["contract"]) == ("sha256:s", "sha256:c")
    assert set(data["verdicts"][0]) == {
        "name", "status", "message", "measured", "limit", "unit", "samples", "fix", "evidence",
    }  # fmt: skip
    assert data["verdicts"][0]["status"] == "broken"


def waiver(gate: str = "parity", days: int = 0) -> Waiver:
    return Waiver(gate=gate, reason="known", until=TODAY + datetime.timedelta(days=days))


def test_a_waiver_covers_its_gate_until_its_last_day() -> None:
    (only,) = waive([verdict(Status.BROKEN)], [waiver(days=0)], today=TODAY)
    assert only.status is Status.WAIVED
    assert "known" in only.message
    assert only.measured == 2.0


def test_a_waiver_that_ran_out_is_a_failure_of_its_own() -> None:
    broken, expired = waive([verdict(Status.BROKEN)], [waiver(days=-1)], today=TODAY)
    assert broken.status is expired.status is Status.BROKEN
    assert "ran out on 2026-05-31" in broken.message
    assert expired.name == "waiver"
    assert expired.fix
    held, expired = waive([verdict(Status.HELD)], [waiver(days=-1)], today=TODAY)
    assert (held.status, expired.status) == (Status.HELD, Status.BROKEN)


@pytest.mark.parametrize("status", [Status.HELD, Status.UNDECIDED, Status.SKIPPED])
def test_a_waiver_changes_only_what_is_broken(status: Status) -> None:
    assert waive([verdict(status)], [waiver(days=9)], today=TODAY) == (verdict(status),)


def test_a_waiver_of_another_gate_changes_nothing() -> None:
    assert waive([verdict(Status.BROKEN)], [waiver("fusion", days=9)], today=TODAY) == (verdict(Status.BROKEN),)
