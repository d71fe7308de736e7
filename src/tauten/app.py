"""Composition root of the online way: settings in, a running server out. The offline way is wired in workbench.py."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from tauten.fronts.http import HttpFront, HttpLimits
from tauten.govern.metrics import Metrics
from tauten.serving import swap
from tauten.serving.service import Service
from tauten.serving.settings import ServerSettings
from tauten.spec.bundle import Bundle

T = TypeVar("T")
LAST_WORDS_S = 2.0  # after the exit timeout: for the refusals to reach their clients, and for runs to end
SWITCH_S = 0.0005  # a worker whose run has ended waits at most this long for the interpreter, not the default 5 ms


class Running:
    """A server on the running event loop: the service, and the fronts before it."""

    def __init__(self, service: Service, http: HttpFront, metrics: HttpFront | None) -> None:
        self._service, self._http, self._metrics = service, http, metrics

    @classmethod
    async def start(cls, settings: ServerSettings) -> Running:
        """Listens, then loads; ready when it returns. Leaves nothing behind when it raises."""
        metrics = Metrics(lambda: service.pending())  # noqa: PLW0108  the service is made in the next line
        service = Service(queue=settings.queue, sink=metrics)
        limits = HttpLimits(max_input_size=settings.max_input_bytes)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(service.close)
            http = await HttpFront.start(service, settings.http_address, settings.http_port, limits, metrics.render)
            undo.push_async_callback(http.close, 0.0)
            second = None
            if settings.metrics_port >= 0:
                second = await HttpFront.start(None, settings.http_address, settings.metrics_port, limits, metrics.render)
                undo.push_async_callback(second.close, 0.0)
            for path in settings.bundles:
                await service.load(path)
            for path in swap.in_repository(settings.repository) if settings.repository else ():
                await service.load(path, in_repository=True)
            undo.pop_all()
        return cls(service, http, second)

    @property
    def url(self) -> str:
        return self._http.url

    def where(self) -> dict[str, Any]:
        """Where it listens, as the server prints it."""
        return {"http": self.url, "metrics": f"{(self._metrics or self._http).url}/metrics", "pid": os.getpid()}

    async def stop(self, timeout_s: float) -> bool:
        """Not ready at once, accepts nothing more, answers what is in flight for `timeout_s`, refuses the rest, closes."""

        async def answer() -> None:
            await self._service.drain(timeout_s)
            closing = asyncio.ensure_future(self._service.close())
            await asyncio.wait({closing}, timeout=LAST_WORDS_S)  # a run that never ends is left to the end of the process

        await asyncio.gather(answer(), self._http.close(timeout_s + LAST_WORDS_S))
        if self._metrics is not None:
            await self._metrics.close(0.0)
        return True


class Server(AbstractContextManager["Server"]):
    """A server in this process, on a thread of its own. A context manager; made by `serve`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._timeout_s = settings.exit_timeout_s
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tauten server", daemon=True)
        self._thread.start()
        with ExitStack() as undo:
            undo.callback(self._end)
            self._running = self._do(Running.start(settings))
            undo.pop_all()

    @property
    def url(self) -> str:
        return self._running.url

    def close(self) -> None:
        """Answers what is in flight, then ends. Closing twice is fine."""
        if self._thread.is_alive():
            self._do(self._running.stop(self._timeout_s))
            self._end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something on the server's loop and waits for it here."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._do(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def serve(bundle: Bundle | str | Path, *more: Bundle | str | Path, port: int = 0, **settings: Any) -> Server:
    """Serves bundles in this process and returns once they are ready. `settings` are those of ServerSettings."""
    paths = tuple(b.root if isinstance(b, Bundle) else Path(b) for b in (bundle, *more))
    return Server(ServerSettings(bundles=paths, http_port=port, **{"metrics_port": -1, **settings}))


def run_server(settings: ServerSettings, announce: Callable[[dict[str, Any]], None]) -> None:
    """Serves until SIGTERM or SIGINT, as the only business of this process. `announce` is told where, once it is ready."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_signalled(settings, announce))


async def _until_signalled(settings: ServerSettings, announce: Callable[[dict[str, Any]], None]) -> None:
    """The first signal ends it in order, a second one at once."""
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    if (running := await _unless(signalled, Running.start(settings))) is None:
        return
    announce(running.where())
    await signalled.wait()
    signalled.clear()
    if await _unless(signalled, running.stop(settings.exit_timeout_s)) is None:
        await running.stop(0.0)


async def _unless(signalled: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work gives; None when the signal came first, and the work was cancelled."""
    task, alarm = asyncio.ensure_future(work), asyncio.ensure_future(signalled.wait())
    await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
    for one in (task, alarm):
        one.cancel()
    await asyncio.wait({task, alarm})
    return None if task.cancelled() else task.result()
