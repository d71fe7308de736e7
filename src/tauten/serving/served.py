"""One version that serves: its waiting room, its workers, and the way of one request through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tauten.serving.admission import Admission
from tauten.serving.batching import Policy, split
from tauten.serving.room import BACK, Room, Ticket
from tauten.serving.settings import QueueLimits
from tauten.serving.shapes import Shape, Shapes
from tauten.serving.worker import LATE, Run, Surroundings, Worker
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.engine import ServingSettings, Session
from tauten.spec.errors import DeadlineExceeded, TautenError, Unavailable
from tauten.spec.events import BatchRan, Sink, WorkerChanged
from tauten.spec.signature import BATCH, Signature
from tauten.spec.tensors import Array

PACE = 0.2  # weight of the newest run in the running mean of rows per second


class Processor(Protocol):
    """Natural input to the inputs of single rows, and back. `context` is the processor's own."""

    def encode(self, content_type: str, body: bytes) -> tuple[list[dict[str, Array]], Any]: ...

    def decode(self, outputs: Sequence[Mapping[str, Array]], context: Any) -> tuple[str, bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A version that was opened and warmed, ready to start. `open` makes one more warmed session."""

    bundle: Bundle
    contract: Contract
    settings: ServingSettings
    batch_independent: bool
    sessions: tuple[Session, ...]
    open: Callable[[], Session]
    processor: Processor | None


class Served:
    """Made on the event loop that its requests come from; only its workers live elsewhere.

    `died` is called on that loop when the last worker has given up.
    """

    def __init__(
        self, prepared: Prepared, limits: QueueLimits, sink: Sink, clock: Callable[[], float], died: Callable[[str], None]
    ) -> None:
        self.bundle, self.contract, self.processor = prepared.bundle, prepared.contract, prepared.processor
        self.signature: Signature = prepared.contract.signature  # keeps the order of the contract
        self.facts = prepared.sessions[0].facts()
        self.max_rows = prepared.settings.batch
        self._split = prepared.batch_independent
        self._shapes = Shapes(self.signature, prepared.settings)
        self._admission = Admission(limits)
        self._room = Room(Policy(self.max_rows, len(prepared.sessions)), clock)
        self._clock, self._sink, self._died = clock, sink, died
        self._loop = asyncio.get_running_loop()
        self._rows_per_s: float | None = None
        self._dead, self._at_work, self._deserted = 0, len(prepared.sessions), asyncio.Event()
        around = Surroundings(self._room, self._shapes, prepared.open, clock, self._hand_over, self._tell, self._gone)
        name = f"{prepared.bundle.manifest.name}/{prepared.bundle.manifest.version}"
        self._workers = [Worker(f"{name}#{i}", s, around) for i, s in enumerate(prepared.sessions)]

    def __repr__(self) -> str:
        return f"<Served {self._admission!r} {self._room!r} workers={self._workers}>"

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    @property
    def healthy(self) -> bool:
        """Every instance has run a real inference since it was opened, and still runs."""
        return all(w.healthy for w in self._workers)

    @property
    def waiting(self) -> int:
        """Requests in the waiting room."""
        return len(self._room)

    async def infer(self, inputs: Mapping[str, Array], deadline: float | None) -> dict[str, Array]:
        """All outputs for one request. Nothing is queued before the request is held to the signature.

        Raises BadRequest, Overloaded, DeadlineExceeded, EngineFailed, Unavailable.
        """
        sizes = self.signature.check(inputs)
        complete = self._shapes.complete(inputs, sizes)
        if deadline is not None and deadline <= self._clock():
            raise DeadlineExceeded("the deadline had passed when the request arrived", fix="allow more time")
        shape = self._shapes.of(sizes)
        nbytes = sum(v.nbytes for v in complete.values())
        with self._admission.enter(max(shape.rows, 1), nbytes, self._rows_per_s):
            if shape.rows <= self.max_rows or not self._split or shape.key is None:
                return await self._wait(complete, shape, deadline)
            return await self._in_parts(complete, shape, deadline)

    async def _in_parts(self, inputs: Mapping[str, Array], shape: Shape, deadline: float | None) -> dict[str, Array]:
        """A request of more rows than a run may have: cut, run and joined. Where one part fails, all do."""
        tasks = [
            asyncio.ensure_future(
                self._wait(
                    {n: v[part] for n, v in inputs.items()},
                    self._shapes.of({**shape.sent, BATCH: part.stop - part.start}),
                    deadline,
                )
            )
            for part in split(shape.rows, self.max_rows)
        ]
        try:
            replies = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return {name: np.concatenate([r[name] for r in replies]) for name in replies[0]}

    async def _wait(self, inputs: dict[str, Array], shape: Shape, deadline: float | None) -> dict[str, Array]:
        now = self._clock()
        future: asyncio.Future[dict[str, Array]] = self._loop.create_future()
        ticket = Ticket(inputs, shape, now, deadline, future)
        alarm = None if deadline is None else self._loop.call_later(deadline - now, self._expire, ticket)
        self._room.enter(ticket)
        try:
            return await future
        finally:
            if alarm is not None:
                alarm.cancel()
            if future.cancelled():  # the caller went away: its place is free again
                self._room.leave(ticket)

    def _expire(self, ticket: Ticket) -> None:
        """The deadline passed. What a worker has already is left to it: the engine is spent."""
        if self._room.leave(ticket) and not ticket.future.done():
            ticket.future.set_exception(DeadlineExceeded(LATE, fix="allow more time, or send less"))

    def _hand_over(self, run: Run) -> None:
        """Called in a worker's thread."""
        self._loop.call_soon_threadsafe(self._finish, run)

    def _finish(self, run: Run) -> None:
        for ticket, answer in zip(run.tickets, run.answers, strict=True):
            if ticket.future.done():  # its caller went away
                continue
            if isinstance(answer, TautenError):
                ticket.future.set_exception(answer)
            else:
                ticket.future.set_result(answer)
        if run.compute_s > 0:
            rows = sum(t.rows for t in run.tickets)
            self._note(run, rows)

    def _note(self, run: Run, rows: int) -> None:
        shape = run.tickets[0].shape
        took = run.assemble_s + run.compute_s + run.split_s
        pace = rows * len(self._workers) / took
        self._rows_per_s = pace if self._rows_per_s is None else self._rows_per_s + PACE * (pace - self._rows_per_s)
        manifest = self.bundle.manifest
        self._sink(
            BatchRan(
                model=manifest.name,
                version=manifest.version,
                rows=rows,
                padded_rows=sum(t.rows for t in run.tickets if t.shape.padded),
                sizes=tuple(sorted((a, n) for a, n in shape.run.items() if a != BATCH)),
                queue_s=tuple(run.started - t.arrived for t in run.tickets),
                assemble_s=run.assemble_s,
                compute_s=run.compute_s,
                split_s=run.split_s,
                failed=run.failed,
            )
        )

    def _tell(self, worker: Worker) -> None:
        """Called in a worker's thread; what it says then is handed over, for the worker goes on."""
        self._loop.call_soon_threadsafe(self._changed, worker.healthy, worker.crashes, worker.reason, worker.dead)

    def _changed(self, healthy: bool, crashes: int, reason: str, dead: bool) -> None:
        manifest = self.bundle.manifest
        if not dead:  # a crash was told when it happened
            self._sink(WorkerChanged(manifest.name, manifest.version, healthy, crashes, reason))
        self._dead += dead
        if self._dead == len(self._workers):
            self.refuse(reason)
            self._died(reason)

    def refuse(self, reason: str) -> None:
        """Closes the room and answers who still waits in it. Workers end after the run they are in."""
        for ticket in self._room.close():
            if not ticket.future.done():
                ticket.future.set_exception(Unavailable(f"not answered: {reason}", fix=BACK))

    async def close(self) -> None:
        """Ends the workers, after the runs they are in, and frees the sessions. Who still waits gets Unavailable."""
        self.refuse("the version was closed")
        await self._deserted.wait()

    def _gone(self) -> None:
        """Called in a worker's thread, after whatever else it had to say."""
        self._loop.call_soon_threadsafe(self._count_out)

    def _count_out(self) -> None:
        self._at_work -= 1
        if self._at_work == 0:
            self._deserted.set()
