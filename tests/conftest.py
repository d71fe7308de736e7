"""A real HTTP front on a real socket, before a small service that echoes tensors. Shared by every test of the edge."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
import pytest
import uvloop

from tauten.fronts.http import HttpFront, HttpLimits
from tauten.spec.errors import BadRequest, NotFound, TautenError, Unsupported
from tauten.spec.infer import InferReply, InferRequest
from tauten.spec.signature import Axis, Signature
from tauten.spec.tensors import ELEMENT_TYPES, TensorSpec

T = TypeVar("T")


class EchoService:
    """Knows one model a datatype ("float32" …): input x comes back as output y. Besides: "pair" with two inputs.

    `fail` is raised instead of an answer. While `gate` is unset, answers wait; `entered` and `cancelled` count.
    """

    def __init__(self) -> None:
        self.fail: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = self.cancelled = 0
        self.requests: list[InferRequest] = []
        self.is_live = self.is_ready = True

    def signature(self, model: str, version: str = "") -> Signature:
        if model == "pair" and version in {"", "1"}:
            spec = TensorSpec(dtype="float32", shape=("batch", 2))
            return Signature(inputs={"a": spec, "b": spec}, outputs={"a": spec, "b": spec})
        if model not in ELEMENT_TYPES or version not in {"", "1"}:
            raise NotFound(f"there is no model {model!r} in version {version!r}")
        spec = TensorSpec(dtype=model, shape=("batch", "n"))
        return Signature(
            inputs={"x": spec}, outputs={"y": spec}, axes={"batch": Axis(max=1 << 40), "n": Axis(min=0, max=1 << 40)}
        )

    async def infer(self, request: InferRequest) -> InferReply:
        signature = self.signature(request.model, request.version)
        self.requests.append(request)
        self.entered += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fail is not None:
            raise self.fail
        signature.check(request.inputs)
        if unknown := [o for o in request.outputs if o not in signature.outputs]:
            raise BadRequest(f"there is no output {unknown[0]!r}")
        outputs = dict(zip(signature.outputs, request.inputs.values(), strict=True))
        wanted = request.outputs or tuple(outputs)
        return InferReply(request.model, request.version or "1", {o: outputs[o] for o in wanted}, request.id)

    async def predict(self, model: str, version: str, content_type: str, body: bytes) -> tuple[str, bytes]:
        self.signature(model, version)
        if content_type == "application/json":
            return content_type, body
        if content_type != "text/plain":
            raise Unsupported(f"{content_type!r} is not understood")
        return "text/plain", body[::-1]

    def live(self) -> bool:
        return self.is_live

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, model: str, version: str = "") -> bool:
        self.signature(model, version)
        return self.is_ready

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "echo", "version": "0", "extensions": ["binary_tensor_data"]}

    def model_metadata(self, model: str, version: str = "") -> dict[str, Any]:
        signature = self.signature(model, version)

        def told(specs: dict[str, TensorSpec]) -> list[dict[str, Any]]:
            return [
                {"name": n, "datatype": s.element.wire, "shape": [-1 if isinstance(d, str) else d for d in s.shape]}
                for n, s in specs.items()
            ]

        return {"name": model, "versions": ["1"], "platform": "echo", "inputs": told(signature.inputs),
                "outputs": told(signature.outputs)}  # fmt: skip

    def index(self) -> list[dict[str, str]]:
        return [{"name": "float32", "version": "1", "state": "READY"},
                {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "no file"}]  # fmt: skip

    def contract(self, model: str, version: str = "") -> object:
        return {"contract": 1, "name": model, "inputs": msgspec.to_builtins(self.signature(model, version).inputs)}


class Edge:
    """The front with its service, on an event loop in a thread of its own."""

    def __init__(self, limits: HttpLimits) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.service, self.front = self.run(self._start(limits))

    async def _start(self, limits: HttpLimits) -> tuple[EchoService, HttpFront]:
        service = EchoService()
        return service, await HttpFront.start(service, "127.0.0.1", 0, limits, lambda: "up 1\n")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.submit(coroutine).result(30)

    def do(self, act: Callable[[], T]) -> T:
        """Calls something on the loop."""

        async def once() -> T:
            return act()

        return self.run(once())

    def sweep(self, after_s: float) -> None:
        """Sweeps as if `after_s` seconds had passed."""
        self.do(lambda: self.front.sweep(self._loop.time() + after_s))

    def until(self, condition: Callable[[], bool]) -> None:
        """Lets the loop work until something is so."""

        async def wait() -> None:
            async with asyncio.timeout(20):
                while not condition():  # noqa: ASYNC110  the condition is of code under test, which has no event for it
                    await asyncio.sleep(0)

        self.run(wait())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.front.port), timeout=20)

    def fail_with(self, error: TautenError | Exception | None) -> None:
        self.service.fail = error

    def close(self) -> None:
        self.do(self.service.gate.set)
        self.run(self.front.close(5))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def start_edge() -> Iterator[Callable[[HttpLimits], Edge]]:
    """Starts fronts with given limits; all are closed in the end."""
    started: list[Edge] = []

    def start(limits: HttpLimits) -> Edge:
        started.append(Edge(limits))
        return started[-1]

    yield start
    for edge in started:
        edge.close()


@pytest.fixture
def edge(start_edge: Callable[[HttpLimits], Edge]) -> Edge:
    return start_edge(HttpLimits())
