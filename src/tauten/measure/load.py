"""Load over HTTP/1.1: open loop (Poisson arrivals at a rate) or closed loop (so many requests in flight).

In the open loop a request's latency counts from the moment it was due, not from when it could be sent: a server that stalls is
charged with everything that had to wait meanwhile (no coordinated omission; Tene, How NOT to measure latency, 2013). The
generator also tells how late it was itself, so that a tired generator is not taken for a slow server.

One thread, no event loop: select(2) waits to the microsecond, where epoll and the loops built on it round up to a millisecond.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import httptools
import numpy as np

from tauten.measure.traffic import GIVEN_UP, MOST_REQUESTS, LoadPlan, Observations, arrivals, http_message
from tauten.spec.errors import Unavailable

__all__ = ["LoadPlan", "Observations", "Progress", "arrivals", "http_message", "run"]

Progress = Callable[[float, int, int], None]  # seconds since the start, answered, failed

RECEIVE = 1 << 18
REST_S = 0.1  # how long a connection stays away after a failure
TICK_S = 0.1  # how often time-outs are looked for and progress is told


def run(plan: LoadPlan, progress: Progress | None = None) -> Observations:
    """Performs the plan and tells what happened. Raises BadInput, or Unavailable when nothing listens there at the start."""
    plan.check()
    generator = _Generator(plan)
    try:
        return generator.run(progress)
    finally:
        generator.close()


class _Connection:
    """One HTTP connection with at most one request in flight. Also the parser's protocol object."""

    __slots__ = ("answered", "deadline", "number", "out", "parser", "request", "sock")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sock: socket.socket | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.request = -1
        self.deadline = 0.0
        self.out = memoryview(b"")
        self.answered = False

    def on_message_complete(self) -> None:
        self.answered = self.parser.get_status_code() >= 200  # "100 Continue" is not the answer yet

    def connect(self, address: tuple[Any, ...], *, wait_s: float = 0.0) -> None:
        """Opens the socket; without `wait_s` the handshake goes on while others are served."""
        self.sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if wait_s:
            self.sock.settimeout(wait_s)
            self.sock.connect(address)
        self.sock.setblocking(False)
        if not wait_s:
            self.sock.connect_ex(address)
        self.parser = httptools.HttpResponseParser(self)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class _Generator:
    """The state of one run. Lists grow by one entry per request."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.open_loop = plan.rate is not None
        due = arrivals(plan.rate, plan.seconds, plan.seed) if plan.rate is not None else np.empty(0)
        self.due: list[float] = due.tolist()
        self.upcoming = 0  # index of the next arrival
        self.noticed: list[float] = []
        self.sent: list[float] = []
        self.done: list[float] = []
        self.status: list[int] = []
        self.errors: Counter[str] = Counter()
        self.finished = 0
        self.choice = np.random.default_rng([plan.seed, 1]).integers(len(plan.requests), size=1 << 16).tolist()
        self.epoll = select.epoll()
        self.connections = [_Connection(n) for n in range(plan.concurrency or min(plan.connections, max(1, len(self.due))))]
        self.free: list[_Connection] = []  # a stack: few connections stay busy, as in a client's pool
        self.waiting: deque[int] = deque()
        self.resting: list[tuple[float, int]] = []  # (when it may work again, index of the connection)
        self.by_fd: dict[int, _Connection] = {}
        self.start = 0.0

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.epoll.close()

    def run(self, progress: Progress | None) -> Observations:
        self._open_all()
        plan, cpu = self.plan, time.thread_time()
        self.start = time.perf_counter()
        tick = 0.0
        while True:
            now = self.now()
            self._admit(now)
            over = self._over(now)
            if now >= tick or over:
                tick = now + TICK_S
                self._give_up(now)
                if progress is not None:
                    failed = sum(self.errors.values())
                    progress(now, self.finished - failed, failed)
            if over:
                break
            self._wait(min(tick, self._next_due(), plan.seconds if now < plan.seconds else tick))
        return self._observations(time.thread_time() - cpu)

    def _open_all(self) -> None:
        host, port = self.plan.host, self.plan.port
        try:
            self.address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][:2]
            for connection in self.connections:
                connection.connect(self.address, wait_s=self.plan.timeout_s)
                self._watch(connection)
        except OSError as error:
            raise Unavailable(f"cannot connect to {host}:{port}: {error.strerror or error}",
                              fix="start the server, or give the address where it listens") from error  # fmt: skip
        self.free = list(reversed(self.connections))

    def _watch(self, connection: _Connection, events: int = select.EPOLLIN) -> None:
        assert connection.sock is not None, "bug: watching a closed connection"
        self.by_fd[connection.sock.fileno()] = connection
        self.epoll.register(connection.sock, events)

    def _next_due(self) -> float:
        due = self.due[self.upcoming] if self.open_loop and self.upcoming < len(self.due) else float("inf")
        return min(due, self.resting[0][0]) if self.resting else due

    def _over(self, now: float) -> bool:
        if self.open_loop:
            return self.finished == len(self.due)
        return now >= self.plan.seconds and self.finished == len(self.due)

    def _admit(self, now: float) -> None:
        """Starts what is due on the connections that are free."""
        while self.resting and self.resting[0][0] <= now:
            self.free.append(self.connections[heapq.heappop(self.resting)[1]])
        if self.open_loop:
            while self.upcoming < len(self.due) and self.due[self.upcoming] <= now:
                self._enter(now)
                self.waiting.append(self.upcoming)
                self.upcoming += 1
            while self.waiting and self.free:
                self._send(self.free.pop(), self.waiting.popleft())
        elif now < self.plan.seconds:
            while self.free and len(self.due) < MOST_REQUESTS:
                self._enter(now)
                self.due.append(now)
                self._send(self.free.pop(), len(self.due) - 1)

    def _enter(self, now: float) -> None:
        self.noticed.append(now)
        self.sent.append(float("nan"))
        self.done.append(float("nan"))
        self.status.append(0)

    def _send(self, connection: _Connection, request: int) -> None:
        now = self.now()
        self.sent[request] = now
        connection.request, connection.answered = request, False
        connection.deadline = (self.due[request] if self.open_loop else now) + self.plan.timeout_s
        connection.out = memoryview(self.plan.requests[self.choice[request & 0xFFFF]])
        if connection.sock is None:
            connection.connect(self.address)
            self._watch(connection, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._flush(connection, watched=False)

    def _flush(self, connection: _Connection, *, watched: bool) -> None:
        """Writes what the socket takes; the rest waits until it is writable."""
        assert connection.sock is not None, "bug: writing to a closed connection"
        try:
            while connection.out:
                connection.out = connection.out[connection.sock.send(connection.out):]  # fmt: skip
        except BlockingIOError:
            if not watched:
                self.epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)
            return
        except OSError as error:
            self._fail(connection, _kind(error))
            return
        if watched:
            self.epoll.modify(connection.sock, select.EPOLLIN)

    def _wait(self, until: float) -> None:
        timeout = max(0.0, until - self.now())
        if not select.select([self.epoll], [], [], timeout)[0]:
            return
        for fd, events in self.epoll.poll(0):
            connection = self.by_fd.get(fd)
            if connection is None or connection.sock is None:
                continue
            if events & select.EPOLLOUT and connection.out:
                self._flush(connection, watched=True)
            if connection.sock is not None and events & ~select.EPOLLOUT:
                self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        assert connection.sock is not None, "bug: reading from a closed connection"
        try:
            data = connection.sock.recv(RECEIVE)
            if data:
                connection.parser.feed_data(data)
        except BlockingIOError:
            return
        except (OSError, httptools.HttpParserError) as error:
            self._fail(connection, _kind(error))
            return
        if connection.answered and connection.request >= 0:
            self._answer(connection, closing=not data)
        elif not data:
            self._fail(connection, "closed")

    def _answer(self, connection: _Connection, *, closing: bool) -> None:
        status = connection.parser.get_status_code()
        self._finish(connection.request, status)
        if status != 200:
            self.errors[f"status {status}"] += 1
        connection.request = -1
        if closing or not connection.parser.should_keep_alive():
            self._drop(connection)
        else:
            connection.parser = httptools.HttpResponseParser(connection)
        self.free.append(connection)

    def _finish(self, request: int, status: int) -> None:
        self.done[request] = self.now()
        self.status[request] = status
        self.finished += 1

    def _fail(self, connection: _Connection, kind: str, status: int = 0) -> None:
        """Ends the connection, and the request on it if there is one."""
        self._drop(connection)
        if connection.request < 0:  # an idle connection that the server closed stays in the stack and connects anew when used
            return
        self.errors[kind] += 1
        self._finish(connection.request, status)
        connection.request = -1
        connection.out = memoryview(b"")
        heapq.heappush(self.resting, (self.now() + REST_S, connection.number))

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    def _drop(self, connection: _Connection) -> None:
        if connection.sock is not None:
            self.by_fd.pop(connection.sock.fileno(), None)
            with contextlib.suppress(OSError):  # the kernel may have removed it already
                self.epoll.unregister(connection.sock)
            connection.close()

    def _give_up(self, now: float) -> None:
        """Time-outs: of requests on a connection, and of those that never got one."""
        for connection in self.connections:
            if connection.request >= 0 and connection.deadline <= now:
                self._fail(connection, "time-out", status=GIVEN_UP)
        while self.waiting and self.due[self.waiting[0]] + self.plan.timeout_s <= now:
            self.errors["time-out"] += 1
            self._finish(self.waiting.popleft(), GIVEN_UP)

    def _observations(self, cpu_s: float) -> Observations:
        return Observations(
            due=np.asarray(self.due), noticed=np.asarray(self.noticed), sent=np.asarray(self.sent), done=np.asarray(self.done),
            status=np.asarray(self.status, np.int32), errors=dict(self.errors), seconds=self.plan.seconds, cpu_s=cpu_s,
            open_loop=self.open_loop,
        )  # fmt: skip


def _kind(error: Exception) -> str:
    if isinstance(error, httptools.HttpParserError):
        return "not HTTP"
    return "refused" if isinstance(error, ConnectionRefusedError) else "closed"
