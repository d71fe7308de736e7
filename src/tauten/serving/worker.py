"""Performs: a thread that owns the calls of one engine session, runs batches and completes replies.

A batch that the engine fails is run again one request at a time, so that a bad one fails alone. A loop that crashes on
anything else is a bug of ours or of the engine: its batch is failed, the session opened afresh, the crash counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from tauten.serving.room import Room, Ticket
from tauten.serving.shapes import Shapes
from tauten.spec.engine import Session
from tauten.spec.errors import DeadlineExceeded, EngineFailed, TautenError
from tauten.spec.tensors import Array

log = logging.getLogger(__name__)
LATE = "the deadline passed while the request waited"
Answer = dict[str, Array] | TautenError


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the engine, as it happened. Durations in seconds; answers in the order of the tickets."""

    tickets: tuple[Ticket, ...]
    answers: Sequence[Answer]
    started: float
    assemble_s: float = 0.0
    compute_s: float = 0.0
    split_s: float = 0.0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a worker is given. `done` and `changed` are called from its thread and must hand over at once.

    open     a new session, warmed; raises TautenError
    clock    the clock of arrivals and deadlines
    done     takes a finished run
    changed  told when the worker's health changed
    ended    told when the worker has gone for good, its session closed
    """

    room: Room
    shapes: Shapes
    open: Callable[[], Session]
    clock: Callable[[], float]
    done: Callable[[Run], None]
    changed: Callable[[Worker], None]
    ended: Callable[[], None]


class Worker:
    """`healthy` while its loop runs; `crashes` counts how often it had to be started again; `dead` says why it gave up."""

    def __init__(self, name: str, session: Session, around: Surroundings) -> None:
        self.healthy, self.crashes, self.reason, self.dead = True, 0, "", False
        self._session, self._around = session, around
        self._current: tuple[Ticket, ...] = ()
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)

    def __repr__(self) -> str:
        state = "dead" if self.dead else "healthy" if self.healthy else "restarting"
        return f"<Worker {self._thread.name} {state} crashes={self.crashes}>"

    def start(self) -> None:
        """Runs until the room is closed and its last run has ended."""
        self._thread.start()

    def _supervise(self) -> None:
        at_work = True
        while at_work:
            try:
                self._work()
                at_work = False
            except Exception as error:  # noqa: BLE001  the edge of a thread: whatever it was, its callers must be answered
                at_work = self._recover(error)
        self._session.close()
        self._around.ended()

    def _work(self) -> None:
        while (decision := self._around.room.take()) is not None:
            if decision.expired:
                self._report(decision.expired, lambda: DeadlineExceeded(LATE, fix="allow more time, or send less"))
            if decision.start:
                self._current = decision.start
                self._run(decision.start)
                self._current = ()

    def _run(self, tickets: tuple[Ticket, ...]) -> None:
        run = self._attempt(tickets)
        if not run.failed or len(tickets) == 1:
            self._around.done(run)
            return
        now = self._around.clock()
        for ticket in tickets:
            if ticket.deadline is not None and ticket.deadline <= now:
                self._report((ticket,), lambda: DeadlineExceeded("the deadline passed after the batch had failed"))
            elif not ticket.future.cancelled():
                self._around.done(self._attempt((ticket,)))
            now = self._around.clock()

    def _attempt(self, tickets: tuple[Ticket, ...]) -> Run:
        """Gathers, runs and cuts once. What the engine refuses is in the answers, anything else is a crash."""
        started, t0 = self._around.clock(), perf_counter()
        shapes = [t.shape for t in tickets]
        batch = self._around.shapes.gather([t.inputs for t in tickets], shapes)
        t1 = t2 = perf_counter()
        try:
            outputs = self._session.run(batch)
            t2 = perf_counter()
            answers: Sequence[Answer] = self._around.shapes.cut(outputs, shapes)
        except EngineFailed as error:
            return Run(tickets, [error] * len(tickets), started, t1 - t0, perf_counter() - t1, failed=True)
        return Run(tickets, answers, started, t1 - t0, t2 - t1, perf_counter() - t2)

    def _report(self, tickets: tuple[Ticket, ...], error: Callable[[], TautenError]) -> None:
        """Answers without a run; each with an error of its own, since raising one writes into it."""
        self._around.done(Run(tickets, [error() for _ in tickets], self._around.clock(), failed=True))

    def _recover(self, error: Exception) -> bool:
        """After a crash: answers the batch, opens a new session. False when that fails too."""
        self.healthy, self.crashes = False, self.crashes + 1
        self.reason = f"{type(error).__name__}: {error}"
        log.error("worker %s crashed, crash number %d", self._thread.name, self.crashes, exc_info=error)
        self._around.changed(self)
        tickets, self._current = self._current, ()
        if tickets:
            message = f"the worker crashed while running this batch: {self.reason}"
            self._report(tickets, lambda: EngineFailed(message, fix="see the server's log"))
        self._session.close()
        try:
            self._session = self._around.open()
        except Exception as again:  # noqa: BLE001  the edge of a thread: it ends here, and its version is told why
            self.reason, self.dead = f"{self.reason}; a new session failed: {again}", True
            self._around.changed(self)
            return False
        self.healthy = True
        self._around.changed(self)
        return True
