"""HTTP as it is on the wire: routes, verbs, heads, compression, order, and what other stacks send."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tauten.fronts.http import HttpLimits
from tauten.fronts.http.compression import accepted
from tauten.fronts.http.routes import Place, place
from tauten.spec.wire import encode_request

INFER = "/v2/models/float32/infer"
ONE = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


class Peer:
    """A client that writes and reads HTTP by hand."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.file = connection.makefile("rb")

    def send(self, method: str, target: str, body: bytes = b"", **headers: str) -> None:
        lines = [f"{method} {target} HTTP/1.1", "Host: x"]
        if body or method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def read(self, *, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
        status = int(self.file.readline().split()[1])
        headers = {}
        while (line := self.file.readline().decode().strip()) != "":
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return status, headers, b"" if bodiless else self.file.read(int(headers.get("content-length", 0)))

    def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        self.send(method, target, body, **headers)
        return self.read()

    def ended(self) -> bool:
        return self.file.read(1) == b""

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def peer(edge: Any) -> Any:
    peer = Peer(edge.connect())
    yield peer
    peer.close()


def error_of(body: bytes) -> str:
    told = json.loads(body)
    assert list(told) == ["error"]
    return str(told["error"])


# --- routes


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v2", 200), ("GET", "/v2/", 200), ("GET", "/v2?x=1", 200), ("GET", "http://h:1/v2", 200), ("POST", "/v2", 405),
        ("GET", "/v2/health/live", 200), ("GET", "/v2/health/ready", 200), ("POST", "/v2/health/live", 405),
        ("GET", "/v2/models/float32", 200), ("GET", "/v2/models/float32/versions/1", 200), ("GET", "/v2/models/no", 404),
        ("GET", "/v2/models/float32/versions/2", 404), ("GET", "/v2/models/float32/versions/latest", 400),
        ("GET", "/v2/models/float32/ready", 200), ("GET", "/v2/models/float32/versions/1/ready", 200),
        ("GET", "/v2/models/float32/contract", 200), ("GET", INFER, 405), ("PUT", INFER, 405),
        ("POST", "/v2/repository/index", 200), ("GET", "/v2/repository/index", 405), ("GET", "/metrics", 200),
        ("GET", "/", 404), ("GET", "/v3", 404), ("GET", "/v2/models", 404), ("GET", "/v2/models/float32/config", 404),
        ("GET", "/v2/models/float32/versions", 404), ("GET", "/v2/models/a%2Fb", 404), ("GET", "/v2/health", 404),
    ],
)  # fmt: skip
def test_every_path_and_verb(peer: Peer, method: str, target: str, status: int) -> None:
    got, headers, body = peer.ask(method, target)
    assert got == status
    if status == 405:
        assert headers["allow"] in {"GET", "POST"}
    if status >= 400:
        assert error_of(body)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/float32/ready"])
def test_what_is_not_so_is_400(peer: Peer, edge: Any, path: str) -> None:
    edge.service.is_live = edge.service.is_ready = False
    assert peer.ask("GET", path)[0] == 400


def test_names_are_unquoted_once() -> None:
    assert place(b"/v2/models/a%20b%2Fc/versions/7/infer") == Place("/v2/models/M/infer", "a b/c", "7")
    assert place(b"/v2/models/a%2520b") == Place("/v2/models/M", "a%20b")


def test_the_index_can_be_asked_for_what_is_ready(peer: Peer) -> None:
    assert len(json.loads(peer.ask("POST", "/v2/repository/index")[2])) == 2
    assert len(json.loads(peer.ask("POST", "/v2/repository/index", b'{"ready": true}')[2])) == 1
    assert peer.ask("POST", "/v2/repository/index", b"[]")[0] == 400


def test_head_answers_as_get_without_a_body(peer: Peer) -> None:
    peer.send("HEAD", "/v2/health/live")
    status, headers, _ = peer.read(bodiless=True)
    assert status == 200
    assert int(headers["content-length"]) > 0
    assert peer.ask("GET", "/v2")[0] == 200  # nothing of a body came in between


# --- inference


def test_json_in_json_out(peer: Peer) -> None:
    status, headers, body = peer.ask("POST", INFER, ONE)
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in headers
    assert json.loads(body)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]


def test_binary_in_binary_out_with_any_spelling_of_the_header(peer: Peer) -> None:
    message = encode_request({"x": np.array([[1, 2, 3]], np.float32)})
    for name in ("Inference_Header_Content_Length", "inference_header_content_length"):
        status, headers, body = peer.ask("POST", INFER, message.join(), **{name: str(message.head_length)})
        assert status == 200
        assert headers["content-type"] == "application/octet-stream"
        length = int(headers["inference-header-content-length"])
        assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 12}
        assert np.frombuffer(body[length:], np.float32).tolist() == [1, 2, 3]


def test_a_raw_body(peer: Peer) -> None:
    status, headers, body = peer.ask("POST", INFER, bytes(8), Inference_Header_Content_Length="0")
    assert status == 200
    assert body[int(headers["inference-header-content-length"]) :] == bytes(8)


@pytest.mark.parametrize("value", ["", "x", "-1", "1.5", "9" * 30])
def test_a_head_length_that_is_none(peer: Peer, value: str) -> None:
    status, _, body = peer.ask("POST", INFER, ONE, Inference_Header_Content_Length=value)
    assert status == 400
    assert "Inference-Header-Content-Length" in error_of(body)


def five(data: list[Any]) -> bytes:
    """Announces five values, whatever is in `data`."""
    return json.dumps({"inputs": [{"name": "x", "shape": [1, 5], "datatype": "FP32", "data": data}]}).encode()


def test_a_bad_request_leaves_the_connection_and_neighbours_alone(edge: Any) -> None:
    """Two clients at once; one announces five values and sends seven or three."""
    good, bad = Peer(edge.connect()), Peer(edge.connect())
    for n in range(20):
        values = [1000.0 + n] * 5
        sent = 7 - n % 2 * 4
        bad.send("POST", INFER, five(list(range(sent))))
        good.send("POST", INFER, five(values))
        status, _, body = bad.read()
        assert status == 400
        assert all(word in error_of(body) for word in ("input 'x'", "5 values", f"{sent} values"))
        assert json.loads(good.read()[2])["outputs"][0]["data"] == values
    good.close()
    bad.close()


def test_overload_says_when_to_come_back(peer: Peer, edge: Any) -> None:
    from tauten.spec.errors import Overloaded

    edge.fail_with(Overloaded("full", retry_after_s=2.3))
    status, headers, _ = peer.ask("POST", INFER, ONE)
    assert (status, headers["retry-after"]) == (503, "3")


# --- the message


def test_chunked_bodies(peer: Peer) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(ONE[i : i + 7]), ONE[i : i + 7]) for i in range(0, len(ONE), 7))
    peer.socket.sendall(f"POST {INFER} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks + b"0\r\n\r\n")
    assert peer.read()[0] == 200


def test_a_body_in_many_pieces(peer: Peer, edge: Any) -> None:
    message = f"POST {INFER} HTTP/1.1\r\nContent-Length: {len(ONE)}\r\n\r\n".encode() + ONE
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for i in range(0, len(message), 3):
        peer.socket.sendall(message[i : i + 3])
    assert peer.read()[0] == 200


def test_a_large_tensor_there_and_back(peer: Peer) -> None:
    array = np.arange(3_000_000, dtype=np.float32).reshape(1, -1)
    message = encode_request({"x": array})
    status, headers, body = peer.ask("POST", INFER, message.join(), Inference_Header_Content_Length=str(message.head_length))
    assert status == 200
    assert body[int(headers["inference-header-content-length"]) :] == array.tobytes()


def test_pipelined_requests_are_answered_in_order(peer: Peer) -> None:
    def one(n: int) -> bytes:
        body = ONE.replace(b'{"inputs"', b'{"id": "%d", "inputs"' % n)
        return f"POST {INFER} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    live = b"GET /v2/health/live HTTP/1.1\r\n\r\n"
    peer.socket.sendall(b"".join(one(n) + live for n in range(50)))
    for n in range(50):
        assert json.loads(peer.read()[2])["id"] == str(n)
        assert json.loads(peer.read()[2]) == {"live": True}


def test_a_continue_is_given_before_the_body_comes(peer: Peer) -> None:
    peer.socket.sendall(f"POST {INFER} HTTP/1.1\r\nContent-Length: {len(ONE)}\r\nExpect: 100-continue\r\n\r\n".encode())
    assert peer.read()[0] == 100
    peer.socket.sendall(ONE)
    assert peer.read()[0] == 200


def test_another_expectation_is_not_met(peer: Peer) -> None:
    assert peer.ask("POST", INFER, ONE, Expect="a-miracle")[0] == 417


def test_a_connection_is_kept_or_closed_as_the_client_says(edge: Any) -> None:
    peer = Peer(edge.connect())
    assert "connection" not in peer.ask("GET", "/v2")[1]
    assert peer.ask("GET", "/v2", Connection="keep-alive")[1]["connection"] == "keep-alive"
    assert peer.ask("GET", "/v2", Connection="close")[1]["connection"] == "close"
    assert peer.ended()
    peer.close()
    peer = Peer(edge.connect())
    peer.socket.sendall(b"GET /v2 HTTP/1.0\r\n\r\n")
    assert peer.read()[1]["connection"] == "close"
    assert peer.ended()
    peer.close()


@pytest.mark.parametrize("more", ["", ", close"])
def test_an_offer_of_http2_is_passed_over(peer: Peer, more: str) -> None:
    """As java.net.http.HttpClient sends it by default."""
    headers = {"Connection": "Upgrade, HTTP2-Settings" + more, "Upgrade": "h2c", "HTTP2_Settings": "AAEAAEAAAAIAAAAB"}
    for _ in range(1 if more else 3):
        assert peer.ask("POST", INFER, ONE, **headers)[0] == 200
    if more:
        assert peer.ended()


def test_this_is_no_proxy(peer: Peer) -> None:
    peer.socket.sendall(b"CONNECT host:443 HTTP/1.1\r\n\r\n")
    assert peer.read()[0] == 405
    assert peer.ended()


# --- compression


@pytest.mark.parametrize(("coding", "squeeze"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes)])
def test_packed_requests(peer: Peer, coding: str, squeeze: Callable[[bytes], bytes]) -> None:
    assert peer.ask("POST", INFER, squeeze(ONE), Content_Encoding=coding)[0] == 200


@pytest.mark.parametrize(("coding", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
@pytest.mark.parametrize("size", [1000, 100_000])
def test_packed_responses(peer: Peer, coding: str, unpack: Callable[[bytes], bytes], size: int) -> None:
    message = encode_request({"x": np.ones((1, size), np.float32)})
    told = {"Inference_Header_Content_Length": str(message.head_length), "Accept_Encoding": f"br, {coding}"}
    _, headers, body = peer.ask("POST", INFER, message.join(), **told)
    assert headers["content-encoding"] == coding
    assert len(body) < size
    assert unpack(body)[int(headers["inference-header-content-length"]) :] == np.ones(size, np.float32).tobytes()


def test_small_responses_are_not_packed(peer: Peer) -> None:
    assert "content-encoding" not in peer.ask("POST", INFER, ONE, Accept_Encoding="gzip")[1]


@pytest.mark.parametrize(
    ("header", "coding"),
    [("gzip", "gzip"), ("deflate, gzip;q=0.5", "deflate"), ("br", ""), ("gzip;q=0", ""), ("*", ""), ("gzip;q=x", ""), ("", "")],
)
def test_the_preferred_coding(header: str, coding: str) -> None:
    assert accepted(header) == coding


def test_packed_bodies_that_are_none(peer: Peer) -> None:
    for body in (b"no gzip", gzip.compress(ONE)[:-9], gzip.compress(ONE) + b"more"):
        status, _, told = peer.ask("POST", INFER, body, Content_Encoding="gzip")
        assert status == 400
        assert "gzip" in error_of(told)
    status, headers, _ = peer.ask("POST", INFER, ONE, Content_Encoding="br")
    assert status == 415
    assert headers["accept-encoding"] == "gzip, deflate"


def test_a_packed_body_is_bounded_by_what_it_becomes(start_edge: Any) -> None:
    peer = Peer(start_edge(HttpLimits(max_input_size=1 << 20)).connect())
    for size in ((1 << 20) + 1, 1 << 25):
        status, _, body = peer.ask("POST", INFER, zlib.compress(bytes(size)), Content_Encoding="deflate")
        assert status == 400
        assert "more than 1048576 bytes after decompression" in error_of(body)
    peer.close()
