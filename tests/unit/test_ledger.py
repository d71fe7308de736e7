"""The ledger records what happened, also when it went wrong."""

import json
from pathlib import Path

import pytest

from tauten.delivery.files import write_whole
from tauten.delivery.ledger import Ledger
from tauten.spec.errors import BadModel, BadUsage


def clock(times: list[float]):  # type: ignore[no-untyped-def]  # a generator of readings
    return lambda: times.pop(0)


def test_steps_are_timed_and_told(tmp_path: Path) -> None:
    heard: list[str] = []
    ledger = Ledger(heard.append, clock=clock([0, 1.5, 2, 2.25]))
    with ledger.step("export") as note:
        note.say("held", subject="sha256:aa")
    with ledger.step("seal"):
        pass
    assert heard == ["export", "seal"]
    assert [(e.step, e.outcome, e.seconds) for e in ledger.entries] == [("export", "held", 1.5), ("seal", "done", 0.25)]
    ledger.write(tmp_path / "l.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert lines[0] == {"step": "export", "outcome": "held", "seconds": 1.5, "subject": "sha256:aa"}


def test_a_failure_is_recorded_and_goes_on() -> None:
    ledger = Ledger()
    with pytest.raises(BadModel), ledger.step("open"):
        raise BadModel("damaged")
    assert (ledger.entries[0].outcome, ledger.entries[0].reason) == ("failed", "damaged")


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b.txt"
    write_whole(target, b"one")
    write_whole(target, b"two")
    assert target.read_bytes() == b"two"
    assert [p.name for p in target.parent.iterdir()] == ["b.txt"]
    with pytest.raises(BadUsage, match="cannot be written"):
        write_whole(target / "c", b"")
