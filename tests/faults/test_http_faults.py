"""What clients do to a server: slowness, half messages, floods, garbage, going away. Nobody else may notice.

Time is never waited for: the front's sweep is told that it has passed.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tauten.client import Client
from tauten.fronts.http import HttpFront, HttpLimits
from tauten.spec.errors import BadRequest, BadUsage, PortInUse
from tauten.spec.wire import Message, encode_request

INFER = b"POST /v2/models/float32/infer HTTP/1.1\r\n"
LENGTH = b"Content-Length: %d\r\n"


def head(message: Message) -> bytes:
    return INFER + LENGTH % message.nbytes + b"Inference-Header-Content-Length: %d\r\n\r\n" % (message.head_length or 0)


def request(message: Message) -> bytes:
    return head(message) + message.join()


BODY = encode_request({"x": np.ones((1, 4), np.float32)})
HEAD, REQUEST = head(BODY), request(BODY)
LIMITS = HttpLimits(max_input_size=1 << 16, max_head=4096, max_headers=20, max_buffered=1 << 18, max_connections=8)
Start = Callable[[HttpLimits], Any]


def everything(connection: socket.socket) -> bytes:
    """All that comes until the server ends the connection."""
    data = b""
    while piece := connection.recv(1 << 16):
        data += piece
    return data


def status(data: bytes) -> int:
    return int(data.split()[1])


def error(data: bytes) -> str:
    return str(json.loads(data.partition(b"\r\n\r\n")[2])["error"])


def unharmed(edge: Any) -> bool:
    """Another client is served."""
    with Client(edge.front.url) as client:
        return bool((client.infer("float32", {"x": np.ones((1, 2), np.float32)})["y"] == 1).all())


# --- slow


@pytest.mark.parametrize("sent", [b"P", HEAD[:40], HEAD, REQUEST[:-1]], ids=["byte", "head", "no body", "almost all"])
def test_a_request_that_does_not_arrive_in_time_is_ended(edge: Any, sent: bytes) -> None:
    with edge.connect() as slow:
        slow.sendall(sent)
        edge.until(lambda: "1 receiving" in repr(edge.front))
        edge.sweep(9)  # not yet
        assert edge.front.connections == 1
        edge.sweep(11)
        answer = everything(slow)
        assert status(answer) == 408
        assert b"Connection: close" in answer
        edge.sweep(14)
    edge.until(lambda: edge.front.connections == 0)
    assert edge.service.entered == 0


def test_bytes_that_trickle_in_win_no_time(edge: Any) -> None:
    with edge.connect() as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n in range(30):
            slow.sendall(REQUEST[n : n + 1])
        edge.until(lambda: "1 receiving" in repr(edge.front))
        edge.sweep(11)
        assert status(everything(slow)) == 408


def test_what_really_travels_wins_time(start_edge: Start) -> None:
    edge = start_edge(HttpLimits(min_rate=1000))
    with edge.connect() as slow:
        slow.sendall(INFER + LENGTH % 10001 + b"\r\n" + bytes(10_000))
        edge.until(lambda: edge.front.buffered == 10_000)
        edge.sweep(19)
        slow.sendall(b"x")
        assert status(slow.recv(1 << 16)) == 400  # all of it came: it is no JSON


def test_many_slow_clients_do_not_keep_out_good_ones(edge: Any) -> None:
    slow = [edge.connect() for _ in range(200)]
    for connection in slow:
        connection.sendall(INFER + LENGTH % 1048576 + b"\r\n")
    edge.until(lambda: edge.front.connections == 200)
    assert unharmed(edge)
    assert edge.front.buffered == 0  # nothing is held for what was only announced
    edge.sweep(11)
    assert {status(everything(c)) for c in slow} == {408}
    for connection in slow:
        connection.close()
    edge.until(lambda: edge.front.connections == 0)


def test_a_reader_that_does_not_read_is_cut_off(start_edge: Start) -> None:
    edge = start_edge(HttpLimits(send_s=5))
    message = encode_request({"x": np.ones((1, 4_000_000), np.float32)})
    with edge.connect() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(request(message))
        edge.until(lambda: edge.service.entered == 1 and "answering" not in repr(edge.front))
        assert edge.front.connections == 1
        edge.sweep(5 + message.nbytes / HttpLimits().min_rate + 1)
        edge.until(lambda: edge.front.connections == 0)
    assert unharmed(edge)


def test_an_idle_connection_ends_and_a_client_does_not_notice(edge: Any) -> None:
    with Client(edge.front.url) as client:
        assert client.live()
        edge.sweep(80)
        edge.until(lambda: edge.front.connections == 0)
        assert client.live()


# --- cut


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, REQUEST[:-1]], ids=["nothing", "verb", "head", "body"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_is_cut_leaves_nothing(edge: Any, sent: bytes, reset: bool) -> None:
    connection = edge.connect()
    connection.sendall(sent)
    edge.until(lambda: edge.front.connections == 1)
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()
    edge.until(lambda: edge.front.connections == 0)
    assert (edge.front.buffered, edge.service.entered) == (0, 0)


def test_going_away_cancels_and_frees_what_was_held(edge: Any) -> None:
    edge.do(edge.service.gate.clear)
    connections = [edge.connect() for _ in range(30)]
    for connection in connections:
        connection.sendall(REQUEST * 3)  # two more wait behind the first
    edge.until(lambda: edge.service.entered == 30)
    assert edge.front.buffered == 90 * BODY.nbytes
    for connection in connections:
        connection.close()
    edge.sweep(31)  # a peer whose requests wait is not read from; it ends when its time is over
    edge.do(edge.service.gate.set)
    edge.until(lambda: edge.front.connections == 0)
    assert edge.front.buffered == 0
    assert unharmed(edge)


# --- too much


@pytest.mark.parametrize("more", [b"", b"Expect: 100-continue\r\n"], ids=["at once", "asking first"])
def test_a_body_over_the_limit_is_refused_before_it_comes(start_edge: Start, more: bytes) -> None:
    edge = start_edge(LIMITS)
    with edge.connect() as big:
        big.sendall(INFER + LENGTH % 65537 + more + b"\r\n")
        answer = everything(big)
        assert status(answer) == 400
        assert "65537 bytes, allowed are 65536" in error(answer)
    with Client(edge.front.url) as client, pytest.raises(BadRequest, match="allowed are 65536"):
        client.infer("float32", {"x": np.ones((1, 1 << 20), np.float32)})  # the answer arrives though more was on its way
    assert edge.service.entered == 0


def test_a_chunked_body_over_the_limit_is_refused_while_it_comes(start_edge: Start) -> None:
    edge = start_edge(LIMITS)
    with edge.connect() as big:
        big.sendall(INFER + b"Transfer-Encoding: chunked\r\n\r\n")
        big.sendall((b"8000\r\n" + bytes(0x8000) + b"\r\n") * 3)
        assert status(everything(big)) == 400
    assert edge.front.buffered == 0


def test_all_bodies_together_are_bounded(start_edge: Start) -> None:
    edge = start_edge(LIMITS)
    edge.do(edge.service.gate.clear)
    connections = [edge.connect() for _ in range(6)]
    for connection in connections:
        connection.sendall(INFER + LENGTH % 65536 + b"\r\n" + bytes(65535))
    edge.until(lambda: "2 closing" in repr(edge.front))
    assert edge.front.buffered <= LIMITS.max_buffered
    for connection in connections:
        connection.close()
    edge.until(lambda: edge.front.connections == 0)
    assert edge.front.buffered == 0


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /v2 HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(21)) + b"\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\nX: " + b"x" * 5000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n", 414),
    ],
    ids=["many", "long", "target"],
)
def test_heads_are_bounded(start_edge: Start, head: bytes, expected: int) -> None:
    edge = start_edge(LIMITS)
    with edge.connect() as connection:
        connection.sendall(head)
        assert status(everything(connection)) == expected
    assert unharmed(edge)


def test_a_header_without_end_is_bounded(start_edge: Start) -> None:
    edge = start_edge(LIMITS)
    with edge.connect() as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nA: 1\r\nX: ")
        edge.until(lambda: "1 receiving" in repr(edge.front))
        connection.sendall(b"x" * 5000)
        assert status(everything(connection)) == 431


def test_connections_are_bounded_and_places_come_back(start_edge: Start) -> None:
    edge = start_edge(LIMITS)
    taken = [edge.connect() for _ in range(8)]
    edge.until(lambda: edge.front.connections == 8)
    with edge.connect() as late:
        answer = everything(late)
        assert status(answer) == 503
        assert b"Retry-After: 1" in answer
    for connection in taken:
        connection.close()
    edge.until(lambda: edge.front.connections == 0)
    assert unharmed(edge)


# --- garbage


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3", b"hello\r\n\r\n", b"GET /v2 HTTP/9.9\r\n\r\n", b"GET\0/v2 HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"GET / HTTP/1.1\r\nA B: c\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_not_http_gets_400_and_an_end(edge: Any, sent: bytes) -> None:
    with edge.connect() as connection:
        connection.sendall(sent)
        answer = everything(connection)
    assert status(answer) == 400
    assert "not HTTP/1.1" in error(answer)
    assert unharmed(edge)


def test_garbage_after_good_requests_is_answered_after_them(start_edge: Start) -> None:
    edge = start_edge(HttpLimits(linger_s=1000))
    with edge.connect() as connection:
        connection.sendall(REQUEST * 2 + b"\0\0\0\0")
        answer = everything(connection)
    edge.until(lambda: edge.front.connections == 0)  # its goodbye was heard; nobody lingers for nothing
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.rindex(b"HTTP/1.1 400") > answer.rindex(b"HTTP/1.1 200")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_requests_never_harm_the_server(edge: Any, data: st.DataObject) -> None:
    damaged = bytearray(REQUEST)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        if data.draw(st.booleans()):
            damaged[at] = data.draw(st.integers(0, 255))
        else:
            del damaged[at : at + data.draw(st.integers(1, 30))]
            damaged += b"\r\n"
    with edge.connect() as connection:
        connection.sendall(bytes(damaged))
        connection.shutdown(socket.SHUT_WR)
        everything(connection)
    edge.until(lambda: edge.front.connections == 0)
    assert edge.front.buffered == 0
    assert unharmed(edge)


# --- the end


def test_closing_answers_what_is_in_flight_and_ends_what_is_idle(edge: Any) -> None:
    edge.do(edge.service.gate.clear)
    busy, idle, half = edge.connect(), edge.connect(), edge.connect()
    busy.sendall(REQUEST * 2)
    half.sendall(REQUEST[:-1])
    edge.until(lambda: edge.service.entered == 1 and edge.front.connections == 3 and edge.front.buffered > 2 * BODY.nbytes)
    closing = edge.submit(edge.front.close(20))
    assert everything(idle) == b""
    with pytest.raises(ConnectionRefusedError):
        edge.connect()
    half.sendall(REQUEST[-1:])
    edge.do(edge.service.gate.set)
    answer = everything(busy)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"Connection: close") == 1
    assert status(everything(half)) == 200
    assert closing.result(20)
    for connection in (busy, idle, half):
        connection.close()


def test_closing_cuts_what_is_late(edge: Any) -> None:
    edge.do(edge.service.gate.clear)
    with edge.connect() as busy:
        busy.sendall(REQUEST)
        edge.until(lambda: edge.service.entered == 1)
        assert not edge.run(edge.front.close(0))
        assert everything(busy) == b""
    edge.until(lambda: edge.service.cancelled == 1)


def test_a_port_that_is_taken(edge: Any) -> None:
    with pytest.raises(PortInUse, match=f"port {edge.front.port} on 127.0.0.1 is in use") as caught:
        edge.run(HttpFront.start(edge.service, "127.0.0.1", edge.front.port))
    assert "another port" in caught.value.fix


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host"])
def test_an_address_that_is_not_ours(edge: Any, host: str) -> None:
    with pytest.raises(BadUsage, match=f"cannot listen on {host}"):
        edge.run(HttpFront.start(edge.service, host, 0))


def test_a_front_without_service_has_metrics_only(edge: Any) -> None:
    front = edge.run(HttpFront.start(None, "127.0.0.1", 0, metrics=lambda: b"up 1\n"))
    with Client(front.url) as client:
        assert client.metrics() == "up 1\n"
        assert not client.live()
    assert edge.run(front.close(5))
