"""Results appear whole or not at all: written beside the target, synced, renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tauten.spec.errors import AlreadyExists, BadUsage


def write_whole(target: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, never half. Raises BadUsage.

    A link is followed. A device or a pipe is written to as it is: a rename would put a file in its place.
    """
    with writing(target):
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return
        target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
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


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """What the system says against writing a result becomes BadUsage."""
    try:
        yield
    except OSError as error:
        raise BadUsage(f"{str(target)!r} cannot be written: {error.strerror}", fix="give another path") from error


def free_place(target: Path) -> None:
    """Refuses a target before any work is done for it. Raises AlreadyExists, or BadUsage where it cannot be made."""
    if target.exists():
        raise AlreadyExists(f"{str(target)!r} exists already", fix="give another -o or --version, or remove it first")
    nearest = next(p for p in target.absolute().parents if p.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        why = "is not a directory" if not nearest.is_dir() else "may not be written to"
        raise BadUsage(f"{str(target)!r} cannot be written: {str(nearest)!r} {why}", fix="give another -o")
