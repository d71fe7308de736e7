"""Frozen limits and settings of the online way. Read once, checked once, then fixed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tauten.spec.errors import BadUsage


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What one version of a model may hold at once, waiting and running together.

    rows   rows (samples, not requests)
    bytes  bytes of input tensors
    """

    rows: int = 2048
    bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.rows < 1 or self.bytes < 1:
            raise BadUsage(
                f"queue limits of {self.rows} rows and {self.bytes} bytes leave no room", fix="give at least 1 of each"
            )


ROOMY = QueueLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """One server process. A port of 0 takes a free one; a metrics port below 0 opens none.

    bundles          bundle directories given one by one
    repository       a directory with <name>/<version>/ bundles; of every name the highest version is served
    exit_timeout_s   how long a stopping server may still answer what is in flight
    """

    bundles: tuple[Path, ...] = ()
    repository: Path | None = None
    http_address: str = "127.0.0.1"
    http_port: int = 8000
    metrics_port: int = 8002
    max_input_bytes: int = 64 << 20
    exit_timeout_s: float = 30.0
    queue: QueueLimits = ROOMY

    def __post_init__(self) -> None:
        if not self.bundles and self.repository is None:
            raise BadUsage("nothing to serve", fix="give a bundle directory, or --model-repository")
        for name, port, least in (("--http-port", self.http_port, 0), ("--metrics-port", self.metrics_port, -1)):
            if not least <= port <= 65535:
                raise BadUsage(f"{name} {port} is not a port", fix=f"give a number from {least} to 65535")
        if self.max_input_bytes < 1:
            raise BadUsage(f"--http-max-input-size {self.max_input_bytes} admits nothing", fix="give a number of bytes")
        if not self.exit_timeout_s >= 0:
            raise BadUsage(f"--exit-timeout-secs {self.exit_timeout_s:g} is negative", fix="give 0 or more seconds")
