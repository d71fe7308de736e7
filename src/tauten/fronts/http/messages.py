"""One request as it came, one response as it leaves, and the statuses between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from tauten.spec.errors import Code, Overloaded, TautenError
from tauten.spec.wire import encode_error
from tauten.spec.wire.message import Part

JSON = b"application/json"
BINARY = b"application/octet-stream"
TEXT = b"text/plain; version=0.0.4; charset=utf-8"

# Triton's map (what it does not list is 400). A deadline is ours: 504, so that "too late" is not taken for "come back later".
STATUS: dict[Code, int] = {
    Code.INVALID: 400, Code.ALREADY_EXISTS: 400, Code.NOT_HELD: 400, Code.UNDECIDED: 400,
    Code.NOT_FOUND: 404,
    Code.CANCELLED: 499,  # nobody reads it: the caller went away
    Code.INTERNAL: 500,
    Code.UNSUPPORTED: 501, Code.LACKING: 501,
    Code.OVERLOADED: 503, Code.UNAVAILABLE: 503,
    Code.DEADLINE: 504,
}  # fmt: skip

_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_LINES[499] = b"HTTP/1.1 499 Client Closed Request\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one listener takes. Sizes in bytes, times in seconds.

    max_input_size     a body, as sent and after decompression
    max_buffered       all bodies together that are being received or worked on
    receive_s, send_s  for a whole request or response; each `min_rate` bytes that really travel add a second
    idle_s             between requests of a connection
    """

    max_input_size: int = 64 << 20
    max_buffered: int = 1 << 30
    max_head: int = 64 << 10
    max_headers: int = 100
    max_connections: int = 1024
    receive_s: float = 10.0
    send_s: float = 30.0
    idle_s: float = 75.0
    linger_s: float = 2.0
    min_rate: int = 64 << 10


@dataclass(slots=True)
class Request:
    """A whole request. Header names are in lower case; `target` is as it came."""

    method: str
    target: bytes
    headers: dict[bytes, bytes]
    keep_alive: bool
    body: bytes = b""

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1").strip()


@dataclass(slots=True)
class Response:
    """`headers` besides Content-Type and Content-Length, which are written from the rest."""

    status: int = 200
    parts: tuple[Part, ...] = ()
    content_type: bytes = JSON
    headers: Mapping[bytes, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.parts))

    def head(self, date: bytes, *, keep_alive: bool, told: bool) -> bytes:
        """Status line and headers. `told` says to a client that asked for it that the connection stays open."""
        lines = [_LINES[self.status], b"Date: ", date, b"\r\nContent-Length: ", str(self.nbytes).encode(), b"\r\n"]
        if self.parts:
            lines += (b"Content-Type: ", self.content_type, b"\r\n")
        for name, value in self.headers.items():
            lines += (name, b": ", value, b"\r\n")
        if not keep_alive:
            lines.append(b"Connection: close\r\n")
        elif told:
            lines.append(b"Connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


# What a request gets: a response, or work that makes one. Not a coroutine, since work that is cancelled at once never starts.
Work = Callable[[], Coroutine[Any, Any, Response]]
Answer = Callable[[Request], Response | Work]


def refusal(status: int, text: str, headers: Mapping[bytes, bytes] | None = None) -> Response:
    """What HTTP itself refuses, in the protocol's form of an error."""
    return Response(status, (encode_error(text),), JSON, headers or {})


def failure(error: TautenError) -> Response:
    """An error of the tree as a response: the code decides the status, nothing else does."""
    headers = {}
    if isinstance(error, Overloaded):
        headers[b"Retry-After"] = str(max(1, math.ceil(error.retry_after_s))).encode()
    return refusal(STATUS[error.code], str(error), headers)
