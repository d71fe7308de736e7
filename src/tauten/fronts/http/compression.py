"""gzip and deflate, bounded: what comes in never grows beyond the limit, and only what is worth it is packed on its way out."""

from __future__ import annotations

import asyncio
import zlib

from tauten.spec.errors import BadRequest
from tauten.spec.wire.message import Part

WINDOW = {"gzip": 31, "deflate": 15}  # zlib's numbers for the two containers
WORTH = 1 << 10
QUICK = 64 << 10  # bytes that may be worked through on the event loop


async def unpack(body: bytes, coding: str, limit: int) -> bytes:
    """The body as it was before `coding`. Raises BadRequest for damaged data and for more than `limit` bytes."""
    work = asyncio.to_thread(_unpack, body, coding, limit) if len(body) > QUICK // 8 else None
    return _unpack(body, coding, limit) if work is None else await work


def _unpack(body: bytes, coding: str, limit: int) -> bytes:
    unpacker = zlib.decompressobj(WINDOW[coding])
    try:
        data = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadRequest(f"the body is not {coding}: {error}", fix="send what Content-Encoding says") from error
    if len(data) > limit:
        raise BadRequest(f"the body is more than {limit} bytes after decompression", fix="send less in one request")
    if not unpacker.eof or unpacker.unused_data:
        raise BadRequest(f"the {coding} body is cut or has bytes after its end", fix="send one whole stream")
    return data


async def pack(parts: tuple[Part, ...], coding: str) -> bytes:
    """All parts as one stream."""
    if sum(map(len, parts)) > QUICK:
        return await asyncio.to_thread(_pack, parts, coding)
    return _pack(parts, coding)


def _pack(parts: tuple[Part, ...], coding: str) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, WINDOW[coding])
    return b"".join((*(packer.compress(p) for p in parts), packer.flush()))


def accepted(header: str) -> str:
    """The coding of ours that an Accept-Encoding prefers; empty for none."""
    best, weight = "", 0.0
    for item in header.lower().split(","):
        coding, _, parameters = item.strip().partition(";")
        value = parameters.strip().removeprefix("q=") if parameters else "1"
        try:
            q = float(value)
        except ValueError:
            q = 0.0
        if coding.strip() in WINDOW and q > weight:
            best, weight = coding.strip(), q
    return best
