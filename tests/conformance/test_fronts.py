"""The same cases through every front: it translates, says every error, and lets go of what nobody waits for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tauten.client import Client
from tauten.spec import errors, plugins
from tauten.spec.errors import Code, Overloaded, TautenError
from tauten.spec.tensors import ELEMENT_TYPES
from tauten.spec.wire import encode_request

FRONTS = plugins.names("fronts")


def _http_request_without_waiting(port: int) -> socket.socket:
    body = encode_request({"x": np.zeros((1, 1), np.float32)})
    head = f"POST /v2/models/float32/infer HTTP/1.1\r\nContent-Length: {body.nbytes}\r\n"
    head += f"Inference-Header-Content-Length: {body.head_length}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head.encode() + body.join())
    return connection


CLIENTS: dict[str, Callable[[str], Client]] = {"http": Client}
SENDERS: dict[str, Callable[[int], socket.socket]] = {"http": _http_request_without_waiting}


@pytest.fixture(params=FRONTS)
def client(request: pytest.FixtureRequest, edge: Any) -> Any:
    with CLIENTS[request.param](edge.front.url) as client:
        yield client


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_every_datatype_goes_through_unchanged(client: Client, name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([[b"a", b"\xff\0", b""]], object) if name == "string" else np.array([[0, 1, 1]])
    array = values.astype(ml_dtypes.bfloat16 if name == "bfloat16" else ELEMENT_TYPES[name].numpy)
    got = client.infer(name, {"x": array})["y"]
    assert got.dtype == (np.float32 if name == "bfloat16" else ELEMENT_TYPES[name].numpy)
    assert got.tolist() == array.tolist()


def test_an_empty_tensor_goes_through(client: Client) -> None:
    assert client.infer("float32", {"x": np.empty((1, 0), np.float32)})["y"].shape == (1, 0)


def test_wanted_outputs_and_versions_are_passed_on(client: Client, edge: Any) -> None:
    a, b = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    assert list(client.infer("pair", {"a": a, "b": b}, ["b"], version="1")) == ["b"]
    assert edge.service.requests[-1].version == "1"
    with pytest.raises(errors.BadRequest, match="'c'"):
        client.infer("pair", {"a": a, "b": b}, ["c"])


def test_a_deadline_is_passed_on_as_a_point_in_time(client: Client, edge: Any) -> None:
    client.infer("float32", {"x": np.zeros((1, 1), np.float32)}, timeout_s=20)
    client.infer("float32", {"x": np.zeros((1, 1), np.float32)})
    with_deadline, without = edge.service.requests[-2:]
    assert with_deadline.deadline is not None
    assert without.deadline is None


class Odd(TautenError):
    """Any code, for those that no request can cause today."""


@pytest.mark.parametrize("code", Code)
def test_every_code_comes_out_as_an_error_with_its_message(client: Client, edge: Any, code: Code) -> None:
    error = Odd("what happened", fix="what to do")
    error.code = code  # type: ignore[misc]  # one class with every code
    edge.fail_with(error)
    with pytest.raises(TautenError, match="what happened"):
        client.infer("float32", {"x": np.zeros((1, 1), np.float32)})


@pytest.mark.parametrize(
    "error",
    [
        errors.BadRequest("r"), errors.NotFound("r"), errors.Unavailable("r"), errors.DeadlineExceeded("r"),
        errors.Unsupported("r"), errors.EngineFailed("r"), Overloaded("r", retry_after_s=3),
    ],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_a_request_s_errors_arrive_as_what_they_are(client: Client, edge: Any, error: TautenError) -> None:
    edge.fail_with(error)
    with pytest.raises(type(error)) as caught:
        client.infer("float32", {"x": np.zeros((1, 1), np.float32)})
    if isinstance(error, Overloaded):
        assert isinstance(caught.value, Overloaded)
        assert caught.value.retry_after_s == 3


def test_a_bug_of_ours_answers_without_details_and_is_logged(
    client: Client, edge: Any, caplog: pytest.LogCaptureFixture
) -> None:
    edge.fail_with(ZeroDivisionError("secret"))
    with pytest.raises(errors.EngineFailed, match="internal error") as caught:
        client.infer("float32", {"x": np.zeros((1, 1), np.float32)})
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


@pytest.mark.parametrize("front", FRONTS)
def test_a_client_that_goes_away_cancels_its_request(edge: Any, front: str) -> None:
    edge.do(edge.service.gate.clear)
    connections = [SENDERS[front](edge.front.port) for _ in range(3)]
    edge.until(lambda: edge.service.entered == 3)
    for connection in connections:
        connection.close()
    edge.until(lambda: edge.service.cancelled == 3)
    edge.until(lambda: edge.front.connections == 0)


def test_what_is_there_is_told(client: Client) -> None:
    assert client.live()
    assert client.ready()
    assert client.ready("float32", "1")
    assert not client.ready("unknown")
    assert client.metadata()["extensions"] == ["binary_tensor_data"]
    assert client.metadata("int64")["inputs"] == [{"name": "x", "datatype": "INT64", "shape": [-1, -1]}]
    assert [m["state"] for m in client.index()] == ["READY", "UNAVAILABLE"]
    assert client.contract("float32")["contract"] == 1
    assert client.metrics() == "up 1\n"


def test_natural_input_goes_through(client: Client) -> None:
    assert client.predict("float32", "grüß dich") == {"text": "grüß dich"}
    assert client.predict("float32", b"abc", "text/plain") == b"cba"
    with pytest.raises(errors.Unsupported, match="image/png"):
        client.predict("float32", b"abc", "image/png")
