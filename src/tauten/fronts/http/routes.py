"""Which request means which call of the façade, and how its answer is written. Nothing is decided here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from tauten.fronts.http import compression
from tauten.fronts.http.messages import BINARY, JSON, TEXT, HttpLimits, Request, Response, Work, failure, refusal
from tauten.spec.errors import BadRequest, TautenError
from tauten.spec.infer import InferReply, InferRequest
from tauten.spec.signature import Signature
from tauten.spec.wire import decode_request, encode_reply

log = logging.getLogger(__name__)
CODINGS = {"identity", *compression.WINDOW}
HEAD_LENGTH = b"Inference-Header-Content-Length"


class Serving(Protocol):
    """The part of the façade that this front calls."""

    async def infer(self, request: InferRequest) -> InferReply: ...
    async def predict(self, model: str, version: str, content_type: str, body: bytes) -> tuple[str, bytes]: ...
    def live(self) -> bool: ...
    def ready(self) -> bool: ...
    def model_ready(self, model: str, version: str = "") -> bool: ...
    def server_metadata(self) -> Mapping[str, Any]: ...
    def model_metadata(self, model: str, version: str = "") -> Mapping[str, Any]: ...
    def index(self) -> Iterable[Mapping[str, str]]: ...
    def contract(self, model: str, version: str = "") -> object: ...
    def signature(self, model: str, version: str = "") -> Signature: ...


class Place(NamedTuple):
    """Where a target points: the path with M for the model, and which model and version."""

    path: str
    model: str = ""
    version: str = ""


@lru_cache(maxsize=1024)
def place(target: bytes) -> Place:
    """Reads a request's target. Names are one URL-quoted segment each; a version is optional."""
    path = target.partition(b"?")[0].decode("latin-1")
    if not path.startswith("/"):  # the absolute form that proxies send
        path = "/" + path.partition("://")[2].partition("/")[2]
    segments = path.strip("/").split("/")
    if segments[:2] != ["v2", "models"] or len(segments) < 3:
        return Place("/" + "/".join(segments))
    model, rest, version = unquote(segments[2]), segments[3:], ""
    if rest[:1] == ["versions"] and len(rest) > 1:
        version, rest = unquote(rest[1]), rest[2:]
    return Place("/".join(("/v2/models/M", *rest)), model, version)


class Routes:
    """Answers requests with what `service` says. Without a service there are only metrics."""

    def __init__(self, service: Serving | None, metrics: Callable[[], str | bytes] | None, limits: HttpLimits) -> None:
        self._limits = limits
        self._table: dict[str, tuple[str, Callable[[Request, Place], Response | Work]]] = {}
        if metrics is not None:
            self._table["/metrics"] = ("GET", partial(_metrics, metrics))
        if service is None:
            return
        self._service = service
        self._table |= {
            "/v2": ("GET", lambda *_: _json(service.server_metadata())),
            "/v2/health/live": ("GET", lambda *_: _health("live", service.live())),
            "/v2/health/ready": ("GET", lambda *_: _health("ready", service.ready())),
            "/v2/models/M": ("GET", lambda _, at: _json(service.model_metadata(at.model, at.version))),
            "/v2/models/M/ready": ("GET", self._model_ready),
            "/v2/models/M/contract": ("GET", lambda _, at: _json(service.contract(at.model, at.version))),
            "/v2/models/M/infer": ("POST", lambda *asked: partial(self._infer, *asked)),
            "/v2/models/M/predict": ("POST", lambda *asked: partial(self._predict, *asked)),
            "/v2/repository/index": ("POST", self._index),
        }

    def __call__(self, request: Request) -> Response | Work:
        at = place(request.target) if len(request.target) <= 256 else place.__wrapped__(request.target)
        known = self._table.get(at.path)
        if known is None:
            return refusal(404, f"there is nothing at {request.target.decode('latin-1')!r}")
        method, answer = known
        if unfit := _unfit(request, at, method):
            return unfit
        try:
            result = answer(request, at)
        except TautenError as error:
            return failure(error)
        except Exception as error:  # noqa: BLE001  the outermost frame of a front: a bug of ours answers 500 and is logged
            return _bug(request, error)
        return result if isinstance(result, Response) else partial(self._guarded, request, result)

    async def _guarded(self, request: Request, work: Work) -> Response:
        try:
            return await work()
        except TautenError as error:
            return failure(error)
        except Exception as error:  # noqa: BLE001  as above
            return _bug(request, error)

    async def _infer(self, request: Request, at: Place) -> Response:
        service = self._service
        body = await self._unpacked(request) if b"content-encoding" in request.headers else request.body
        asked, wishes = decode_request(
            at.model, at.version, body, head_length=_head_length(request), now=time.monotonic(),
            signature=partial(service.signature, at.model, at.version),
        )  # fmt: skip
        reply = await service.infer(asked)
        message = encode_reply(reply, wishes, signature=partial(service.signature, reply.model, reply.version))
        response = Response(200, message.parts, JSON)
        if message.head_length is not None:
            response.content_type = BINARY
            response.headers = {HEAD_LENGTH: str(message.head_length).encode()}
        return await self._packed(request, response)

    async def _predict(self, request: Request, at: Place) -> Response:
        body = await self._unpacked(request) if b"content-encoding" in request.headers else request.body
        content_type, answer = await self._service.predict(at.model, at.version, request.header(b"content-type"), body)
        return await self._packed(request, Response(200, (answer,), content_type.encode("latin-1")))

    async def _unpacked(self, request: Request) -> bytes:
        coding = request.header(b"content-encoding").lower()
        if coding not in compression.WINDOW:
            return request.body
        return await compression.unpack(request.body, coding, self._limits.max_input_size)

    async def _packed(self, request: Request, response: Response) -> Response:
        if b"accept-encoding" not in request.headers or response.nbytes < compression.WORTH:
            return response
        if coding := compression.accepted(request.header(b"accept-encoding")):
            response.parts = (await compression.pack(response.parts, coding),)
            response.headers = {**response.headers, b"Content-Encoding": coding.encode()}
        return response

    def _model_ready(self, _: Request, at: Place) -> Response:
        if self._service.model_ready(at.model, at.version):
            return _json({"name": at.model, "ready": True})
        return refusal(400, "Model version not ready")

    def _index(self, request: Request, _: Place) -> Response:
        try:
            asked = msgspec.json.decode(request.body or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise BadRequest(f"the body is not a JSON object: {error}", fix='send {"ready": true} or nothing') from error
        models = list(self._service.index())
        return _json([m for m in models if m.get("state") == "READY"] if asked.get("ready") else models)


def _unfit(request: Request, at: Place, method: str) -> Response | None:
    """What HTTP says to a request that is not for this place, if it is not."""
    if request.method != method and (request.method, method) != ("HEAD", "GET"):
        return refusal(405, f"Method Not Allowed: {request.method} (use {method})", {b"Allow": method.encode()})
    if (coding := request.header(b"content-encoding").lower() or "identity") not in CODINGS:
        return refusal(415, f"Content-Encoding {coding!r} is not known", {b"Accept-Encoding": b"gzip, deflate"})
    if at.version and not (at.version.isascii() and at.version.isdigit()):
        return refusal(400, f"the version in the URL is {at.version!r}, it must be a decimal number")
    return None


def _metrics(render: Callable[[], str | bytes], *_: object) -> Response:
    text = render()
    return Response(200, (text.encode() if isinstance(text, str) else text,), TEXT)


def _json(data: object) -> Response:
    return Response(200, (msgspec.json.encode(data),), JSON)


def _health(name: str, good: bool) -> Response:
    """Triton's status (400 for no), with the protocol's body."""
    return Response(200 if good else 400, (msgspec.json.encode({name: good}),), JSON)


def _head_length(request: Request) -> int | None:
    given = request.headers.get(HEAD_LENGTH.lower())
    if given is None:
        return None
    if not given.strip().isdigit() or len(given) > 18:
        raise BadRequest(f"Inference-Header-Content-Length is {given.decode('latin-1')!r}", fix="send a number of bytes")
    return int(given)


def _bug(request: Request, error: Exception) -> Response:
    log.error("bug: %s %s failed", request.method, request.target.decode("latin-1"), exc_info=error)
    return refusal(500, "internal error of the server; its log has the details")
