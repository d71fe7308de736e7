"""Where a server listens, as people write it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from tauten.spec.errors import BadUsage


class Address(NamedTuple):
    """`base` is the path that every request goes below; it has no slash at its end."""

    host: str
    port: int
    base: str


def address(url: str) -> Address:
    """Of "http://host:8000/path", or the same without "http://". Raises BadUsage."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or 80
    except ValueError as error:
        raise BadUsage(f"{url!r} is no address of a server: {error}", fix=_FIX) from error
    if parts.scheme != "http" or not parts.hostname or not url.isprintable() or " " in url:
        raise BadUsage(f"{url!r} is no address of a server", fix=_FIX)
    return Address(parts.hostname, port, parts.path.rstrip("/"))


_FIX = "give one such as http://127.0.0.1:8000"
