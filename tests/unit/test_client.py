"""The client alone: addresses, stale connections, threads, servers that are not there or answer nonsense."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tauten.client import Client
from tauten.spec.errors import BadRequest, BadUsage, DeadlineExceeded, EngineFailed, Overloaded, TautenError, Unavailable

X = {"x": np.ones((1, 2), np.float32)}


class Scripted:
    """A server that gives each connection the next answer of a list and closes it."""

    def __init__(self, answers: list[bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.served = 0
        self._thread = threading.Thread(target=self._serve, args=(answers,))
        self._thread.start()

    def _serve(self, answers: list[bytes]) -> None:
        for answer in answers:
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
                self.served += 1

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


def answer(status: int, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    server = Scripted(request.param)
    yield server
    server.close()


@pytest.mark.parametrize(
    "url", ["https://host", "ftp://host", "http://", "http://host:99999", "http://host:x", "http://[::1", " ", "http://a\nb"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(BadUsage, match=r"address|port"):
        Client(url)


def test_an_address_without_scheme_is_enough(edge: Any) -> None:
    with Client(f"127.0.0.1:{edge.front.port}") as client:
        assert client.live()
        assert client.url == edge.front.url


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client:
        assert not client.live()
        assert not client.ready()
        with pytest.raises(Unavailable, match=rf"127.0.0.1:{port} cannot be reached.*tauten serve"):
            client.infer("m", X)


def test_a_server_that_does_not_answer_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url) as client, pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.01 s"):
            client.infer("m", X, timeout_s=0.01)
        with Client(url, timeout_s=0.01) as client:
            assert not client.live()


@pytest.mark.parametrize("scripted", [[answer(200, b"{}"), answer(200, b"[]")]], indirect=True)
def test_a_connection_that_went_stale_is_opened_again(scripted: Scripted) -> None:
    with Client(scripted.url) as client:
        assert client.metadata() == {}
        assert client.index() == []  # the server had closed the first connection
    assert scripted.served == 2


@pytest.mark.parametrize("scripted", [[b""]], indirect=True)
def test_a_fresh_connection_that_is_cut_is_not_tried_again(scripted: Scripted) -> None:
    with Client(scripted.url) as client, pytest.raises(Unavailable, match="cannot be reached"):
        client.metadata()
    assert scripted.served == 1


@pytest.mark.parametrize(
    ("scripted", "error", "words"),
    [
        ([answer(200, b"<html>")], EngineFailed, "cannot be read"),
        ([answer(200, b"{}", "Inference-Header-Content-Length: x")], EngineFailed, "cannot be read"),
        ([b"no http\r\n\r\n"], Unavailable, "cannot be reached"),
        ([answer(502, b"<html>")], EngineFailed, "status 502"),
        ([answer(418, b'{"error": "teapot"}')], BadRequest, "teapot"),
        ([answer(503, b'{"error": "full"}', "Retry-After: 7")], Overloaded, "full"),
        ([answer(503, b'{"error": "down"}')], Unavailable, "down"),
        ([answer(500, b"[]")], EngineFailed, "status 500"),
    ],
    indirect=["scripted"],
)
def test_odd_answers_become_errors_of_the_house(scripted: Scripted, error: type[TautenError], words: str) -> None:
    with Client(scripted.url) as client, pytest.raises(error, match=words):
        client.infer("m", X)


def test_threads_share_a_client(edge: Any) -> None:
    with Client(edge.front.url) as client, ThreadPoolExecutor(8) as pool:

        def ask(n: int) -> bool:
            array = np.full((1, 3), n, np.float32)
            return bool((client.infer("float32", {"x": array})["y"] == n).all())

        assert all(pool.map(ask, range(200)))
        assert 1 <= edge.front.connections <= 8


def test_lists_and_texts_are_arrays_too(edge: Any) -> None:
    with Client(edge.front.url) as client:
        assert client.infer("string", {"x": [["a", "b"]]})["y"].tolist() == [[b"a", b"b"]]  # type: ignore[dict-item]  # on purpose
        assert client.infer("int64", {"x": [[1, 2]]})["y"].tolist() == [[1, 2]]  # type: ignore[dict-item]  # on purpose


def test_bytes_need_a_content_type(edge: Any) -> None:
    with Client(edge.front.url) as client, pytest.raises(BadUsage, match="content type"):
        client.predict("m", b"abc")


def test_names_are_quoted(edge: Any) -> None:
    with Client(edge.front.url) as client, pytest.raises(TautenError, match="'a/b c' in version ''"):
        client.infer("a/b c", X)


def test_a_closed_client_works_again(edge: Any) -> None:
    client = Client(edge.front.url)
    assert client.live()
    client.close()
    edge.until(lambda: edge.front.connections == 0)
    assert client.live()
    client.close()
