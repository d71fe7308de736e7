"""Results appear whole or not at all: written beside the target, synced, renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tauten.spec.errors import BadUsage


def write_whole(target: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, never half. Raises BadUsage."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise BadUsage(f"{str(target)!r} cannot be written: {error.strerror}", fix="give another -o") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
