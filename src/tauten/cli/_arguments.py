"""Values on the command line that several verbs read: durations, sizes of axes, numbers with bounds."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")


def duration(text: str) -> float:
    """Seconds of "30s", "10m", "1h30m", "500ms"; a bare number is seconds."""
    parts = _PART.findall(text)
    bare = sum(unit == "" for _, unit in parts)
    if not parts or "".join(n + u for n, u in parts) != text or (bare and len(parts) > 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; give one such as 30s, 10m or 1h30m")
    seconds = sum(float(n) * _UNITS[u] for n, u in parts)
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} lasts no time; give more than 0")
    return seconds


def axis_size(text: str) -> tuple[str, int]:
    """("seq", 32) of "seq=32"."""
    name, equals, size = text.partition("=")
    if not equals or not name or not size.isdigit() or int(size) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE; give one such as seq=32")
    return name, int(size)


def seed(text: str) -> int:
    """A seed of random numbers."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed; give a whole number of 0 or more")
    return int(text)


def above_zero(kind: type[int] | type[float]) -> Callable[[str], float]:
    """A reader of numbers greater than 0."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} must be greater than 0")
        return value

    return read
