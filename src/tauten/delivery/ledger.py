"""The append-only record of a delivery: every step with what it worked on, how long it took, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tauten.spec.errors import TautenError

Progress = Callable[[str], None]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. `subject` is the digest of the file it produced or judged; `outcome` is held, refused, kept, failed or done."""

    step: str
    outcome: str
    seconds: float
    subject: str = ""
    reason: str = ""


class Note:
    """Filled in by the step while it runs; what is not said is recorded as done."""

    def __init__(self) -> None:
        self.outcome, self.reason, self.subject = "done", "", ""

    def say(self, outcome: str, reason: str = "", *, subject: str = "") -> None:
        self.outcome, self.reason, self.subject = outcome, reason, subject or self.subject


class Ledger:
    """Entries in the order in which the steps ended. `progress` hears the name of each step as it begins."""

    def __init__(self, progress: Progress | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: list[Entry] = []
        self._progress = progress or (lambda _: None)
        self._clock = clock

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries)

    @contextmanager
    def step(self, name: str) -> Iterator[Note]:
        """Times a step. An error of ours is recorded as failed with its message and goes on to the caller."""
        self._progress(name)
        note, start = Note(), self._clock()
        try:
            yield note
        except TautenError as error:
            note.say("failed", error.message)
            raise
        finally:
            took = round(self._clock() - start, 3)
            self._entries.append(Entry(step=name, outcome=note.outcome, seconds=took, subject=note.subject, reason=note.reason))

    def write(self, path: Path) -> None:
        """One JSON object a line."""
        path.write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in self._entries))
