"""The façade: what fronts, the console and governance may ask of a running server. All of it is called on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tauten
from tauten.serving import swap
from tauten.serving.registry import Entry, Registry
from tauten.serving.served import Served
from tauten.serving.settings import ROOMY, QueueLimits
from tauten.spec import plugins
from tauten.spec.bundle import Bundle
from tauten.spec.contract import Contract
from tauten.spec.errors import BadBundle, BadRequest, Code, NotFound, TautenError, Unavailable, Unsupported
from tauten.spec.events import RequestRefused, Sink, StateChanged, silent
from tauten.spec.infer import InferReply, InferRequest
from tauten.spec.lifecycle import Move, State
from tauten.spec.signature import Signature
from tauten.spec.tensors import TensorSpec

EXTENSIONS = ("binary_tensor_data",)

# what the protocol's repository index calls our states
_INDEX = {
    State.STAGED: "LOADING", State.WARMING: "LOADING", State.SHADOW: "LOADING", State.LIVE: "READY",
    State.DRAINING: "UNLOADING", State.CLOSED: "UNAVAILABLE", State.FAILED: "UNAVAILABLE",
}  # fmt: skip


class Service:
    """Loads bundles, answers requests, drains, closes. `clock` is that of deadlines; `load` finds plug-ins."""

    def __init__(
        self,
        *,
        queue: QueueLimits = ROOMY,
        sink: Sink = silent,
        clock: Callable[[], float] = time.monotonic,
        load: swap.Load = plugins.load,
    ) -> None:
        self._queue, self._sink, self._clock, self._load = queue, sink, clock, load
        self._registry: Registry[Served] = Registry()
        self._draining = self._closed = False
        self._in_flight = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "draining" if self._draining else "open"
        return f"<Service {state} {self._in_flight} in flight {self._registry!r}>"

    # --- the life of a version

    async def load(self, path: Path, *, in_repository: bool = False) -> Entry[Served]:
        """Verifies, opens, warms and takes live what lies in a bundle directory.

        On failure the error is raised, the reason stays visible in the index, and nothing else changes. `in_repository` holds
        the bundle to the name and version of the folders it lies in.
        """
        named = swap.label(path)
        entry = self._registry.stage(named.name, named.version)
        started = self._clock()
        try:
            bundle = await asyncio.to_thread(Bundle.open, path)
            if in_repository and (why := swap.place_trouble(path, bundle)):
                raise BadBundle(why, fix="move it to the folder that its manifest names")
            self._move(entry, Move.WARM)
            prepared = await asyncio.to_thread(swap.prepare, bundle, self._load)
        except TautenError as error:
            self._move(entry, Move.FAIL, reason=error.message)
            raise
        served = Served(prepared, self._queue, self._sink, self._clock, partial(self._died, entry))
        served.start()
        self._move(entry, Move.PROMOTE, served=served, took_s=self._clock() - started)
        return entry

    def _move(
        self, entry: Entry[Served], move: Move, *, reason: str = "", served: Served | None = None, took_s: float = 0.0
    ) -> None:
        state = self._registry.move(entry, move, reason=reason, served=served)
        self._sink(StateChanged(entry.name, entry.version, state, reason, took_s))

    def _died(self, entry: Entry[Served], reason: str) -> None:
        if entry.state is State.LIVE:
            self._move(entry, Move.FAIL, reason=reason)

    async def drain(self, deadline_s: float) -> bool:
        """Stops admitting at once; returns when nothing is in flight, or after `deadline_s` seconds. True when empty."""
        self._draining = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Answers with Unavailable who still waits, ends the workers, frees the sessions. Closing twice is fine."""
        self._draining = self._closed = True
        for entry in self._registry.entries():
            served = entry.served
            if entry.state is State.LIVE and served is not None:
                self._move(entry, Move.DRAIN)
                await served.close()
                self._move(entry, Move.CLOSE)

    # --- the way of a request

    async def infer(self, request: InferRequest) -> InferReply:
        """Answers one request. Raises the errors of the tree in spec/errors.py."""
        with self._entered(request.model, request.version) as (entry, served):
            wanted = _wanted(request.outputs, served.signature)
            outputs = await served.infer(request.inputs, request.deadline)
            return InferReply(
                model=entry.name,
                version=entry.version,
                outputs={name: outputs[name] for name in wanted} if wanted else outputs,
                id=request.id,
            )

    async def predict(self, model: str, version: str, content_type: str, body: bytes) -> tuple[str, bytes]:
        """Answers natural input in natural form: content type and body. Every item goes its own way through the batcher."""
        with self._entered(model, version) as (_, served):
            processor = served.processor
            if processor is None:
                raise Unsupported(f"model {model!r} has no processor for natural input", fix="send tensors to …/infer")
            rows, context = await asyncio.to_thread(processor.encode, content_type, body)
            tasks = [asyncio.ensure_future(served.infer(row, None)) for row in rows]
            try:
                outputs = await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
            return processor.decode(outputs, context)

    @contextmanager
    def _entered(self, model: str, version: str) -> Iterator[tuple[Entry[Served], Served]]:
        """A request in flight: it holds a lease on its version, and whatever goes wrong is announced."""
        self._in_flight += 1
        self._empty.clear()
        try:
            if self._draining:
                raise Unavailable("the server is shutting down", fix="send to another server")
            entry, served = self._registry.resolve(model, version)
            with entry.lease():
                yield entry, served
        except asyncio.CancelledError:
            self._sink(RequestRefused(model, version, Code.CANCELLED))
            raise
        except TautenError as error:
            # names that clients invent must not become labels of a metric
            known = not isinstance(error, NotFound)
            self._sink(RequestRefused(model if known else "", version if known else "", error.code))
            raise
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._empty.set()

    # --- what is there

    def live(self) -> bool:
        """The process answers."""
        return not self._closed

    def ready(self) -> bool:
        """Every model has a live version, and a real inference has succeeded on every instance of every live version."""
        entries = self._registry.entries()
        live = [e for e in entries if e.state is State.LIVE]
        named = {e.name for e in entries}
        return not self._draining and bool(live) and {e.name for e in live} == named and all(map(_healthy, live))

    def model_ready(self, model: str, version: str = "") -> bool:
        """The same for one model. Raises NotFound."""
        entry = self._registry.find(model, version)
        return not self._draining and _healthy(entry)

    def server_metadata(self) -> dict[str, Any]:
        return {"name": "tauten", "version": tauten.__version__, "extensions": list(EXTENSIONS)}

    def model_metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """As the Open Inference Protocol has it; a dynamic axis is -1. Raises NotFound or Unavailable."""
        entry, served = self._registry.resolve(model, version)
        versions = [e.version for e in self._registry.versions(model) if e.state is State.LIVE]
        return {
            "name": entry.name,
            "versions": versions,
            "platform": f"{served.facts['engine']}_onnx",
            "inputs": [_told(n, s) for n, s in served.signature.inputs.items()],
            "outputs": [_told(n, s) for n, s in served.signature.outputs.items()],
        }

    def index(self) -> list[dict[str, str]]:
        """Every version known, with its state, and the reason where it is not ready."""
        return [
            {"name": e.name, "version": e.version, "state": _INDEX[e.state], **({"reason": e.reason} if e.reason else {})}
            for e in self._registry.entries()
        ]

    def pending(self) -> dict[tuple[str, str], int]:
        """Requests that wait for a run, by name and version."""
        return {(e.name, e.version): e.served.waiting for e in self._registry.entries() if e.served is not None}

    def contract(self, model: str, version: str = "") -> Contract:
        return self._registry.resolve(model, version)[1].contract

    def signature(self, model: str, version: str = "") -> Signature:
        return self._registry.resolve(model, version)[1].signature


def _healthy(entry: Entry[Served]) -> bool:
    return entry.state is State.LIVE and entry.served is not None and entry.served.healthy


def _wanted(outputs: tuple[str, ...], signature: Signature) -> tuple[str, ...]:
    for name in outputs:
        if name not in signature.outputs:
            raise BadRequest(f"there is no output {name!r}; this model gives {', '.join(signature.outputs)}",
                             fix="ask only for outputs that the model's metadata lists")  # fmt: skip
    return outputs


def _told(name: str, spec: TensorSpec) -> dict[str, Any]:
    return {"name": name, "datatype": spec.element.wire, "shape": [-1 if isinstance(d, str) else d for d in spec.shape]}
