"""The HTTP front: listens, and gives every connection the routes. It translates; policy lives behind the façade.

front = await HttpFront.start(service, "127.0.0.1", 8000, metrics=metrics.render)
…
await front.close(deadline_s=30)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate

from tauten.fronts.http.connection import Connection, Shared
from tauten.fronts.http.messages import STATUS, HttpLimits
from tauten.fronts.http.routes import Routes, Serving
from tauten.spec.errors import BadUsage, PortInUse

__all__ = ["STATUS", "HttpFront", "HttpLimits", "Serving"]

BACKLOG = 1024
SWEEP_S = 1.0
DEFAULT_LIMITS = HttpLimits()


class HttpFront:
    """A listening server on the running event loop. Made by `start`."""

    def __init__(self, server: asyncio.Server, shared: Shared) -> None:
        self._server, self._shared = server, shared
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.host, self.port = server.sockets[0].getsockname()[:2]
        self._tick()

    def __repr__(self) -> str:
        counts = Counter(c.state for c in self._shared.connections)
        states = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "no connections"
        return f"<HttpFront {self.url} {'draining' if self._shared.draining else 'open'}: {states}, {self.buffered} bytes held>"

    @classmethod
    async def start(
        cls,
        service: Serving | None,
        host: str = "127.0.0.1",
        port: int = 8000,
        limits: HttpLimits = DEFAULT_LIMITS,
        metrics: Callable[[], str | bytes] | None = None,
    ) -> HttpFront:
        """Listens on `host`:`port` (0 takes a free port). Without a service only /metrics is there.

        Raises PortInUse, or BadUsage for an address that cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        shared = Shared(Routes(service, metrics, limits), limits)
        try:
            server = await loop.create_server(lambda: Connection(shared, loop), host, port, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"port {port} on {host} is in use", fix="stop who listens there, or give another port "
                                "(0 takes a free one)") from error  # fmt: skip
            raise BadUsage(f"cannot listen on {host}:{port}: {error.strerror or error}",
                           fix="give an address of this host, and a port that this user may take") from error  # fmt: skip
        return cls(server, shared)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._shared.connections)

    @property
    def buffered(self) -> int:
        """Bytes of all request bodies that are held now."""
        return self._shared.buffered

    def sweep(self, now: float) -> None:
        """Ends every connection that has taken too long. `now` is the event loop's clock."""
        for connection in tuple(self._shared.connections):
            connection.sweep(now)

    def _tick(self) -> None:
        self._shared.date = formatdate(time.time(), usegmt=True).encode()
        self.sweep(self._loop.time())
        self._timer = self._loop.call_later(SWEEP_S, self._tick)

    async def close(self, deadline_s: float = 30.0) -> bool:
        """Stops accepting, answers what is in flight, closes. After `deadline_s` the rest is cut; True when nothing was."""
        self._shared.draining = True
        self._server.close()
        for connection in tuple(self._shared.connections):
            connection.drain()
        if self._shared.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._shared.deserted.wait()
        cut = tuple(self._shared.connections)
        for connection in cut:
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.sleep(0)  # their loss is told before we return
        return not cut
