"""The calling side: a small synchronous client on the same wire as the server.

with tauten.Client("http://127.0.0.1:8000") as client:
    answer = client.infer("minilm", {"input_ids": ids, "attention_mask": mask})["embedding"]
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

import numpy as np

from tauten.spec.errors import (
    BadRequest,
    BadUsage,
    DeadlineExceeded,
    EngineFailed,
    NotFound,
    Overloaded,
    TautenError,
    Unavailable,
    Unsupported,
)  # fmt: skip
from tauten.spec.tensors import Array
from tauten.spec.wire import Message, decode_reply, encode_request
from tauten.spec.wire.address import address

HEAD_LENGTH = "Inference-Header-Content-Length"
_STALE = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
_BY_STATUS: dict[int, type[TautenError]] = {
    400: BadRequest, 404: NotFound, 405: BadRequest, 408: DeadlineExceeded, 500: EngineFailed, 501: Unsupported,
    503: Unavailable, 504: DeadlineExceeded,
}  # fmt: skip


class _Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Client:
    """One server. Threads may share it: each has a connection of its own, kept alive between calls.

    `timeout_s` bounds every wait for the server. Errors of the server are raised as the errors of the house, a server that
    cannot be reached as Unavailable.
    """

    def __init__(self, url: str, *, timeout_s: float = 60.0) -> None:
        self._host, self._port, self._base = address(url)
        self._timeout_s = timeout_s
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._mine = threading.local()
        self._all: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections of all threads. The client may be used again."""
        with self._lock:
            for connection in self._all:
                connection.close()

    # --- inference

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        version: str = "",
        timeout_s: float | None = None,
    ) -> dict[str, Array]:
        """Sends tensors as binary data; returns the outputs by name, all of them unless some are named.

        Arrays may be of any type the protocol has, text included; bfloat16 comes back as float32 of the same value. `timeout_s`
        is also told to the server, which then spends nothing on the request after it.
        """
        parameters = {} if timeout_s is None else {"timeout": max(1, int(timeout_s * 1e6))}
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        message = encode_request(arrays, outputs=outputs or (), parameters=parameters)
        headers = {"Content-Type": "application/octet-stream", HEAD_LENGTH: str(message.head_length)}
        path = f"{_model_path(model, version)}/infer"
        answer = self._call("POST", path, message, headers=headers, timeout_s=timeout_s)
        length = answer.headers.get(HEAD_LENGTH)
        try:
            reply = decode_reply(answer.body, None if length is None else int(length))
        except (BadRequest, ValueError) as error:
            raise EngineFailed(f"the reply of {self.url} cannot be read: {error}",
                               fix="check that it speaks the Open Inference Protocol") from error  # fmt: skip
        return {name: _widened(array, reply.datatypes.get(name, "")) for name, array in reply.outputs.items()}

    def predict(
        self,
        model: str,
        item: str | list[str] | bytes,
        content_type: str = "",
        *,
        version: str = "",
        timeout_s: float | None = None,
    ) -> Any:
        """Sends natural input: one text or several as {"text": …} in JSON, bytes as they are under their `content_type`.

        Returns what the model's processor answers: data where that is JSON, bytes otherwise.
        """
        if isinstance(item, str | list):
            body, content_type = json.dumps({"text": item}).encode(), content_type or "application/json"
        elif not content_type:
            raise BadUsage("bytes were given without their content type", fix="give one, such as image/png")
        else:
            body = item
        path = f"{_model_path(model, version)}/predict"
        answer = self._call("POST", path, body, headers={"Content-Type": content_type}, timeout_s=timeout_s)
        told = answer.headers.get("Content-Type", "")
        return json.loads(answer.body) if told.startswith("application/json") else answer.body

    # --- what is there

    def live(self) -> bool:
        """Whether the server answers at all; False when it cannot be reached."""
        return self._holds("/v2/health/live")

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether the server, or one model, would answer an inference now."""
        return self._holds(f"{_model_path(model, version)}/ready" if model else "/v2/health/ready")

    def metadata(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Of the server, or of a model: its inputs and outputs as the protocol tells them."""
        told: dict[str, Any] = self._json("GET", _model_path(model, version) if model else "/v2")
        return told

    def index(self) -> list[dict[str, Any]]:
        """Every model and version the server knows, with its state."""
        found: list[dict[str, Any]] = self._json("POST", "/v2/repository/index")
        return found

    def contract(self, model: str, version: str = "") -> dict[str, Any]:
        told: dict[str, Any] = self._json("GET", f"{_model_path(model, version)}/contract")
        return told

    def metrics(self) -> str:
        """The metrics as Prometheus reads them."""
        return self._call("GET", "/metrics").body.decode()

    # --- the connection

    def _json(self, method: str, path: str) -> Any:
        return json.loads(self._call(method, path).body)

    def _holds(self, path: str) -> bool:
        try:
            return self._exchange("GET", path, b"", {}, None).status == 200
        except (Unavailable, DeadlineExceeded):
            return False

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | Message = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> _Answer:
        data = body.join() if isinstance(body, Message) else body
        answer = self._exchange(method, path, data, dict(headers or {}), timeout_s)
        if answer.status != 200:
            _raise(answer, f"{method} {self.url}{path}")
        return answer

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str], timeout_s: float | None) -> _Answer:
        """One request and its whole response. A kept connection that the server has closed meanwhile is opened again, once."""
        connection = self._connection(timeout_s)
        kept = connection.sock is not None
        for again in (kept, False):
            try:
                connection.request(method, self._base + path, body or None, headers)
                response = connection.getresponse()
                return _Answer(response.status, response.headers, response.read())
            except TimeoutError as error:
                connection.close()
                raise DeadlineExceeded(f"{self.url} did not answer within {connection.timeout:g} s",
                                       fix="allow more time, or send less") from error  # fmt: skip
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not (again and isinstance(error, _STALE)):
                    raise Unavailable(f"{self.url} cannot be reached: {error or type(error).__name__}",
                                      fix="start it with 'tauten serve', or correct the address") from error  # fmt: skip
        raise AssertionError("bug: neither answered nor failed")

    def _connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        """This thread's connection, with the timeout of this call."""
        timeout = self._timeout_s if timeout_s is None else timeout_s
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = http.client.HTTPConnection(self._host, self._port)
            with self._lock:
                self._all.append(connection)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection


def _model_path(model: str, version: str) -> str:
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _raise(answer: _Answer, what: str) -> NoReturn:
    try:
        told = json.loads(answer.body)["error"]
    except (ValueError, LookupError, TypeError):
        told = f"status {answer.status} without a reason"
    message = str(told) if answer.status in _BY_STATUS else f"{what}: {told}"
    wait = answer.headers.get("Retry-After", "")
    if answer.status in {429, 503} and wait.isdigit():
        raise Overloaded(message, retry_after_s=float(wait))
    raise _BY_STATUS.get(answer.status, BadRequest if 400 <= answer.status < 500 else EngineFailed)(message)


def _widened(array: Array, datatype: str) -> Array:
    """bfloat16 from its bits: float32 has the same sign and exponent, and 16 more bits of fraction."""
    if datatype != "BF16":
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
