"""Composition root of the server: settings in, running system out. Wires service, metrics and fronts; decides nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import uvloop

from tauten.fronts.http import HttpFront
from tauten.fronts.http.messages import HttpLimits
from tauten.govern.metrics import Metrics
from tauten.serving import swap
from tauten.serving.service import Service
from tauten.serving.settings import ServerSettings
from tauten.spec.bundle import Bundle

Where = dict[str, Any]
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class System:
    """The running parts of one server, on the event loop that started them."""

    def __init__(self, settings: ServerSettings, service: Service, fronts: tuple[HttpFront, ...]) -> None:
        self._settings, self.service, self._fronts = settings, service, fronts

    @classmethod
    async def start(cls, settings: ServerSettings) -> System:
        """Listens, then loads every bundle; *ready* is false until the last one is warm. On any error all is closed again.

        Raises PortInUse, BadBundle, BadModel, MissingExtra.
        """
        metrics = Metrics()
        service = Service(queue=settings.queue, sink=metrics)
        limits = HttpLimits(max_input_size=settings.max_input_bytes)
        system = cls(settings, service, ())
        try:
            front = await HttpFront.start(service, settings.http_address, settings.http_port, limits, metrics.render)
            system._fronts = (front,)
            if settings.metrics_port >= 0:
                scrape = await HttpFront.start(None, settings.http_address, settings.metrics_port, limits, metrics.render)
                system._fronts = (front, scrape)
            for bundle in settings.bundles:
                await service.load(bundle)
            if settings.repository is not None:
                for bundle in swap.in_repository(settings.repository):
                    await service.load(bundle, in_repository=True)
        except BaseException:
            await system.stop(0)
            raise
        return system

    @property
    def url(self) -> str:
        return self._fronts[0].url

    def where(self) -> Where:
        """The first line of the server: where it listens, and who it is."""
        told: Where = {"http": self.url, "pid": os.getpid()}
        if len(self._fronts) > 1:
            told["metrics"] = f"{self._fronts[1].url}/metrics"
        return told

    async def stop(self, deadline_s: float) -> bool:
        """Not ready at once; answers what is in flight, at most for `deadline_s`; closes. True when nothing was cut."""
        empty = await self.service.drain(deadline_s)
        for front in self._fronts:
            empty &= await front.close(deadline_s if empty else 0)
        await self.service.close()
        return empty


def run_server(settings: ServerSettings, announce: Callable[[Where], None]) -> bool:
    """Serves until SIGTERM or SIGINT; a second signal cuts what is in flight. True when everybody was answered."""

    async def serve_until_told() -> bool:
        told, again = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, lambda: again.set() if told.is_set() else told.set())
        system = await System.start(settings)
        announce(system.where())
        await told.wait()
        stopping = asyncio.ensure_future(system.stop(settings.exit_timeout_s))
        impatient = asyncio.ensure_future(again.wait())
        await asyncio.wait({stopping, impatient}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            stopping.cancel()
            await asyncio.wait({stopping})
            await system.stop(0)
            return False
        impatient.cancel()
        return stopping.result()

    return uvloop.run(serve_until_told())


class Server:
    """A server in this process, on a thread of its own. Made by `serve`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tauten-server", daemon=True)
        self._thread.start()
        try:
            self._system = self._call(System.start(settings))
        except BaseException:
            self._end()
            raise

    def __repr__(self) -> str:
        return f"<Server {self.url} {self._system.service!r}>"

    @property
    def url(self) -> str:
        url: str = self._system.url
        return url

    def close(self) -> None:
        """Answers what is in flight, then stops. Closing twice is fine."""
        if self._thread.is_alive():
            self._call(self._system.stop(self._settings.exit_timeout_s))
            self._end()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def serve(bundle: Bundle | str | Path, *, port: int = 8000, address: str = "127.0.0.1") -> Server:
    """Serves one bundle in this process; returns when it is ready. A port of 0 takes a free one (`server.url`)."""
    root = bundle.root if isinstance(bundle, Bundle) else Path(bundle)
    return Server(ServerSettings(bundles=(root,), http_address=address, http_port=port, metrics_port=-1))
