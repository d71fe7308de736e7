"""One connection: bytes -> requests in order -> responses in order. It knows HTTP/1.1 and the limits, no routes.

    receiving   parser callbacks fill the next request; what HTTP refuses becomes a response that ends the connection
    waiting     whole requests (and a last refusal) in the order they came; reading stops while one waits
    current     the one request being answered; if the peer goes away, its task is cancelled

No timers of its own: `sweep(now)` is called about once a second for all connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import cast

import httptools

from tauten.fronts.http.messages import Answer, HttpLimits, Request, Response, Work, refusal

JOINED = 64 << 10  # smaller responses leave in one write


@dataclass(slots=True)
class Shared:
    """What the connections of one listener share. `buffered` counts the bytes of all bodies held."""

    answer: Answer
    limits: HttpLimits
    date: bytes = b""
    draining: bool = False
    buffered: int = 0
    connections: set[Connection] = field(default_factory=set)
    deserted: asyncio.Event = field(default_factory=asyncio.Event)


class _Refused(Exception):
    """Raised through the parser to stop it."""


class Connection(asyncio.Protocol):
    """A server's end of a connection."""

    def __init__(self, shared: Shared, loop: asyncio.AbstractEventLoop) -> None:
        self._shared, self._loop = shared, loop
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Request | Response] = deque()
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        self._deaf = self._closing = self._paused_reading = self._in_body = self._expects = False  # deaf: reads no more
        self._writable = True
        self._receiving_since: float | None = None
        self._lingers_since: float | None = None
        self._idle_since, self._send_by = loop.time(), 0.0
        self._received = self._begun = 0
        self._transport: asyncio.Transport
        self._begin()

    def __repr__(self) -> str:
        return f"<Connection {self.state} {len(self._waiting)} waiting>"

    @property
    def state(self) -> str:
        """For people."""
        if self._closing:
            return "closing"
        return "answering" if self._current else "receiving" if self._receiving_since is not None else "idle"

    @property
    def busy(self) -> bool:
        """A request is being received, waits or is being answered."""
        return self._current is not None or bool(self._waiting) or self._receiving_since is not None

    # --- the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        shared = self._shared
        shared.connections.add(self)
        shared.deserted.clear()
        if len(shared.connections) > shared.limits.max_connections:
            full = refusal(503, f"all {shared.limits.max_connections} connections are taken", {b"Retry-After": b"1"})
            self._write(full, keep_alive=False)
            self._end()

    def connection_lost(self, _: Exception | None) -> None:
        self._shared.connections.discard(self)
        if not self._shared.connections:
            self._shared.deserted.set()
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        self._shared.buffered -= self._received
        for request in (self._current, *self._waiting):
            if isinstance(request, Request):
                self._shared.buffered -= len(request.body)
        self._waiting.clear()

    def eof_received(self) -> None:
        """A peer that stops sending has gone away; the transport closes itself."""

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._advance()

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._closing:
            return
        try:
            self._feed(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_http1(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _Refused):
                raise
        except httptools.HttpParserError as error:
            self._refuse(refusal(400, f"the request is not HTTP/1.1: {error}"))
        self._advance()

    # --- the parser calls

    def on_message_begin(self) -> None:
        self._begin()
        self._begun += 1
        self._receiving_since = self._loop.time()

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > self._shared.limits.max_head:
            self._stop(414, f"the target is more than {self._shared.limits.max_head} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._head += len(name) + len(value)
        if len(self._headers) >= self._shared.limits.max_headers or self._head > self._shared.limits.max_head:
            self._stop(
                431, f"the headers are more than {self._shared.limits.max_headers} or {self._shared.limits.max_head} bytes"
            )
        self._headers[name] = self._headers[name] + b", " + value if name in self._headers else value

    def on_headers_complete(self) -> None:
        self._in_body = True
        headers, limit = self._headers, self._shared.limits.max_input_size
        method = self._parser.get_method().decode()
        self._request = Request(method, self._target, headers, self._parser.should_keep_alive())
        length = headers.get(b"content-length", b"0")
        if int(length) > limit:  # the parser has checked that these are digits
            self._stop(400, f"the body is {int(length)} bytes, allowed are {limit}")
        if (expected := headers.get(b"expect")) is not None:
            if expected.lower() != b"100-continue":
                self._stop(417, f"cannot meet the expectation {expected.decode('latin-1')!r}")
            self._expects = True

    def on_body(self, part: bytes) -> None:
        self._received += len(part)
        self._shared.buffered += len(part)
        limits = self._shared.limits
        if self._received > limits.max_input_size:
            self._stop(400, f"the body is more than {limits.max_input_size} bytes")
        if self._shared.buffered > limits.max_buffered:
            self._stop(503, "the server holds as many request bodies as it may", {b"Retry-After": b"1"})
        self._chunks.append(part)

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        assert request is not None, "bug: a message ended before its headers"
        request.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._received = 0  # the request holds them now
        self._receiving_since = None
        self._waiting.append(request)
        self._begin()
        if not request.keep_alive:
            self._deaf = True

    # --- receiving

    def _begin(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._head = self._fed = 0
        self._in_body = self._expects = False

    def _feed(self, data: bytes) -> None:
        begun = self._begun
        self._parser.feed_data(data)
        if self._receiving_since is None or self._in_body or begun != self._begun:
            return
        self._fed += len(data)  # a header without end never reaches on_header
        if self._fed > self._shared.limits.max_head:
            self._refuse(refusal(431, f"the head of the request is more than {self._shared.limits.max_head} bytes"))

    def _stay_with_http1(self, rest: bytes) -> None:
        """The client offers another protocol (Java's offers h2c) and takes HTTP/1.1 as well: parsed again without the offer."""
        request = self._waiting.pop()
        assert isinstance(request, Request), "bug: an upgrade that is not a request"
        self._deaf = False
        if request.method == "CONNECT":
            self._refuse(refusal(405, "this is no proxy"))
            return
        headers = {n: v for n, v in request.headers.items() if n not in {b"upgrade", b"connection", b"http2-settings"}}
        if not request.keep_alive:
            headers[b"connection"] = b"close"
        head = b"%s %s HTTP/1.1\r\n" % (request.method.encode(), request.target)
        head += b"".join(b"%s: %s\r\n" % pair for pair in headers.items())
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(head + b"\r\n" + rest)

    def _stop(self, status: int, text: str, headers: dict[bytes, bytes] | None = None) -> None:
        self._refuse(refusal(status, text, headers))
        raise _Refused

    def _refuse(self, response: Response) -> None:
        """The last response of this connection, after those that are due before it."""
        if self._deaf:
            return
        self._deaf = True
        self._shared.buffered -= self._received
        self._received = 0
        self._chunks = []
        self._receiving_since = None
        self._waiting.append(response)

    # --- answering

    def _advance(self) -> None:
        """Starts what may start. Called whenever something has changed."""
        while self._waiting and self._current is None and self._writable and not self._closing:
            first = self._waiting.popleft()
            if isinstance(first, Response):
                self._write(first, keep_alive=False)
                self._linger()
                return
            self._current = first
            result = self._shared.answer(first)
            if isinstance(result, Response):
                self._respond(first, result)
            else:
                self._task = self._loop.create_task(self._perform(first, result))
        if self._expects and self._current is None and not self._waiting and self._request is not None and not self._closing:
            self._expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._read_or_pause()

    async def _perform(self, request: Request, work: Work) -> None:
        response = await work()
        self._task = None
        if self._closing:  # the peer went away, and the answer came all the same
            return
        self._respond(request, response)
        self._advance()

    def _respond(self, request: Request, response: Response) -> None:
        self._current = None
        self._shared.buffered -= len(request.body)
        keep_alive = request.keep_alive and not (self._shared.draining and not self._waiting)
        told = request.headers.get(b"connection", b"").lower() == b"keep-alive"
        self._write(response, keep_alive=keep_alive, told=told, bodiless=request.method == "HEAD")
        self._idle_since = self._loop.time()
        if not keep_alive:
            self._end()

    def _write(self, response: Response, *, keep_alive: bool, told: bool = False, bodiless: bool = False) -> None:
        head = response.head(self._shared.date, keep_alive=keep_alive, told=told)
        limits, nbytes = self._shared.limits, response.nbytes
        self._send_by = self._loop.time() + limits.send_s + nbytes / limits.min_rate
        if bodiless:
            self._transport.write(head)
        elif nbytes <= JOINED:
            self._transport.write(b"".join((head, *response.parts)))
        else:
            self._transport.writelines((head, *response.parts))

    def _end(self) -> None:
        self._closing = True
        self._transport.close()  # after what is written has left

    def _linger(self) -> None:
        """Ends our side and drops what still comes, since closing at once would reset the response on its way."""
        self._closing = True
        self._lingers_since = self._loop.time()
        self._transport.write_eof()
        if self._paused_reading:  # its goodbye must be heard
            self._transport.resume_reading()

    def _read_or_pause(self) -> None:
        if self._closing:
            return
        pause = bool(self._waiting) or not self._writable
        if pause and not self._paused_reading:
            self._transport.pause_reading()
        elif self._paused_reading and not pause:
            if self._receiving_since is not None:
                self._receiving_since = self._loop.time()  # we did not listen meanwhile
            self._transport.resume_reading()
        self._paused_reading = pause

    # --- the front calls

    def sweep(self, now: float) -> None:
        """Ends what has taken too long: a request's arrival, a response's departure, idleness, a last goodbye."""
        limits = self._shared.limits
        if self._transport.get_write_buffer_size() and now > self._send_by:
            self._transport.abort()
        elif self._lingers_since is not None:
            if now - self._lingers_since > limits.linger_s:
                self._transport.abort()
        elif self._receiving_since is not None and not self._paused_reading:
            if now - self._receiving_since > limits.receive_s + self._received / limits.min_rate:
                self._refuse(refusal(408, f"the request did not arrive within {limits.receive_s:g} s"))
                self._advance()
        elif not self.busy and now - self._idle_since > limits.idle_s:
            self._end()

    def drain(self) -> None:
        """Closes at once if nothing is due; otherwise after the last answer."""
        if not self.busy and not self._closing:
            self._end()

    def abort(self) -> None:
        self._transport.abort()
