"""The load generator against small real servers: schedule, stalls, broken connections, what it tells of itself."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tauten.measure.load import LoadPlan, arrivals, http_message, run
from tauten.spec.errors import BadInput, Unavailable

Answer = Callable[[int], bytes]  # number of the request on this server -> bytes; empty closes the connection
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def server(answer: Answer) -> Iterator[int]:
    """One thread that accepts and answers requests one after another, like a server with a single worker."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    stop, count, clients = threading.Event(), 0, []

    def serve() -> None:
        nonlocal count
        while not stop.is_set():
            try:
                clients.append(listener.accept()[0])
                clients[-1].settimeout(0.0005)
                listener.settimeout(0.0005)
            except TimeoutError:
                pass
            for client in list(clients):
                try:
                    got = client.recv(1 << 16)
                except TimeoutError:
                    continue
                for _ in range(got.count(b"HTTP/1.1")):
                    said = answer(count)
                    count += 1
                    if said:
                        client.sendall(said)
                if not got or not said:
                    client.close()
                    clients.remove(client)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        thread.join()
        for client in [listener, *clients]:
            client.close()


def plan(port: int, **options: float) -> LoadPlan:
    return LoadPlan(host="127.0.0.1", port=port, requests=(http_message("x", "/", b"{}", {}),), **options)  # type: ignore[arg-type]


def test_arrivals_are_poisson_and_the_same_for_the_same_seed() -> None:
    times = arrivals(200, 50, seed=3)
    gaps = np.diff(times)
    assert np.array_equal(times, arrivals(200, 50, seed=3))
    assert not np.array_equal(times[:100], arrivals(200, 50, seed=4)[:100])
    assert abs(times.size - 10_000) < 5 * 100  # five standard deviations
    assert 0.95 < gaps.std() / gaps.mean() < 1.05  # exponential: deviation equals mean
    assert times[-1] < 50


def test_open_loop_answers_every_arrival() -> None:
    with server(lambda _: OK) as port:
        seen = run(plan(port, rate=150, seconds=0.5, seed=1, connections=4))
    assert np.array_equal(seen.due, arrivals(150, 0.5, seed=1))
    assert seen.ok.all()
    assert seen.failed == 0
    assert (seen.sent >= seen.due).all()
    assert (seen.done > seen.sent).all()
    assert seen.lag.count == seen.due.size
    assert 0 < seen.cpu_s < 0.5


def test_a_stall_is_charged_to_all_that_were_due_meanwhile() -> None:
    stall_s = 0.4

    def answer(n: int) -> bytes:
        if n == 20:
            time.sleep(stall_s)  # the server under test is what stalls; the test itself waits for nothing
        return OK

    with server(answer) as port:
        seen = run(plan(port, rate=200, seconds=1, seed=5, connections=2))
    begin = seen.done[np.argmax(seen.latencies)] - stall_s
    hit = (seen.due > begin) & (seen.due < begin + stall_s / 2)
    assert np.count_nonzero(hit) > 20
    assert (seen.latencies[hit] > stall_s / 3).all()  # each waited for the rest of the stall, though only two were in flight
    assert np.count_nonzero(seen.done - seen.sent > stall_s / 3) <= 2  # what a generator without a schedule would have seen


def test_closed_loop_keeps_so_many_in_flight() -> None:
    with server(lambda _: OK) as port:
        seen = run(plan(port, concurrency=3, seconds=0.3))
    order = np.sort(np.concatenate([seen.sent, seen.done]))
    flying = [np.count_nonzero(seen.sent <= t) - np.count_nonzero(seen.done <= t) for t in order]
    assert max(flying) == 3
    assert seen.requests_per_s > 0
    assert seen.done.max() >= 0.3


def test_failures_are_counted_by_kind_and_are_no_quick_answers() -> None:
    def answer(n: int) -> bytes:
        odd = {2: b"", 4: b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 6: b"nonsense\r\n\r\n"}
        return odd.get(n, OK)

    with server(answer) as port:
        seen = run(plan(port, rate=100, seconds=0.5, seed=2, connections=2))
    assert seen.errors == {"closed": 1, "status 503": 1, "not HTTP": 1}
    assert seen.failed == 3
    assert seen.latencies.size == seen.due.size - 3


def test_what_is_given_up_took_at_least_as_long_as_it_was_waited_for() -> None:
    silent = b"HTTP/1.1 100 Continue\r\n\r\n"
    with server(lambda n: OK if n < 5 else silent) as port:
        seen = run(plan(port, rate=60, seconds=0.4, seed=2, connections=2, timeout_s=0.2))
    given_up = seen.errors["time-out"]
    assert set(seen.errors) == {"time-out"}
    assert given_up == seen.due.size - 5
    assert seen.latencies.size == seen.due.size
    assert np.sort(seen.latencies)[-given_up:].min() >= 0.2


def test_a_server_that_vanishes_does_not_stop_the_run() -> None:
    with server(lambda n: OK if n < 3 else b"") as port:
        seen = run(plan(port, concurrency=2, seconds=0.4))
    assert seen.ok.sum() == 3
    assert seen.errors["closed"] >= 2
    assert seen.due.size < 30  # it rests between attempts instead of hammering


def test_a_large_request_is_written_in_pieces() -> None:
    got = 0

    def read(connection: socket.socket) -> None:
        nonlocal got
        with connection:
            while got < len(message):
                got += len(connection.recv(1 << 16))
            connection.sendall(OK)

    message = http_message("x", "/", bytes(16 << 20), {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: read(listener.accept()[0]))
        thread.start()
        port = listener.getsockname()[1]
        seen = run(LoadPlan(host="127.0.0.1", port=port, requests=(message,), rate=1, seconds=0.9, seed=0, connections=1))
        thread.join()
    assert seen.due.size == 1, "the seed no longer gives one arrival"
    assert seen.ok.all()
    assert got == len(message)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rate": 5, "concurrency": 1},
        {"rate": 0},
        {"rate": -1},
        {"rate": 1e9},
        {"concurrency": 0},
        {"rate": 5, "seconds": 0},
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(BadInput) as caught:
        run(plan(1, **{"seconds": 1, **options}))
    assert caught.value.fix


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable, match=str(port)):
        run(plan(port, rate=5, seconds=0.1))
