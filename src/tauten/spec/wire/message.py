"""What both directions share: a message in parts, how a client wants its outputs, and JSON read with messages for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tauten.spec.errors import BadRequest

Part = bytes | memoryview
Scalar = str | int | float | bool | None
T = TypeVar("T")

_PATH = re.compile(r"^(?P<what>.*?) - at `\$(?P<path>.*)`$")
_BYTE = re.compile(r"\(byte (\d+)\)")
_MISSING = re.compile(r"^Object missing required field `(?P<field>\w+)`")


@dataclass(frozen=True, slots=True)
class Message:
    """A body in parts. `head_length` is the value of Inference-Header-Content-Length; None where everything is JSON."""

    parts: tuple[Part, ...]
    head_length: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(len(p) if isinstance(p, bytes) else p.nbytes for p in self.parts)

    def join(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], bytes) else b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a client wants its outputs. A wish for one output wins over the request-wide one."""

    binary: bool = False
    each: Mapping[str, bool] = field(default_factory=dict)

    def wants_binary(self, output: str) -> bool:
        return self.each.get(output, self.binary)


class _Named(msgspec.Struct):
    name: str | None = None


class _Names(msgspec.Struct):
    inputs: list[_Named] = []
    outputs: list[_Named] = []


_NAMES = msgspec.json.Decoder(_Names)


def read_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decodes, or raises BadRequest that names the tensor and the field."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(_explain(str(error), body), fix="send the fields of the Open Inference Protocol") from error
    except msgspec.DecodeError as error:
        if word := literal(str(error), body):
            raise BadRequest(f"the JSON has {word}, which is no JSON number", fix="send the tensor as binary data") from error
        raise BadRequest(f"the body is not valid JSON: {error}", fix="send JSON as RFC 8259 has it") from error
    except RecursionError as error:
        raise BadRequest("the JSON is nested too deeply", fix="nest data no deeper than the tensor's shape") from error


def literal(told: str, raw: bytes) -> str:
    """NaN or Infinity where the decoder stopped, for a better message; empty when it stopped at something else."""
    stopped = _BYTE.search(told)
    if not stopped:
        return ""
    at = int(stopped[1])
    found = re.search(rb"-?(?:NaN|Infinity|nan|inf)\b", raw[max(at - 3, 0) : at + 12])
    return found.group().decode() if found else ""


def _explain(told: str, body: bytes) -> str:
    match = _PATH.match(told)
    what, path = (match["what"], match["path"].replace("[...]", "")) if match else (told, "")
    if missing := _MISSING.match(what):
        return f"Unable to parse {missing['field']!r}: it is missing{_where(path, body)}"
    return f"Unable to parse {path.rpartition('.')[2] or 'request'!r}: {what}{_where(path, body)}"


def _where(path: str, body: bytes) -> str:
    """ " in input 'x'" for a path such as .inputs[0].shape; the name is looked up again, since decoding has failed."""
    match = re.match(r"^\.(input|output)s\[(\d+)\]", path)
    if not match:
        return ""
    label, position = match[1], int(match[2])
    try:
        named = getattr(_NAMES.decode(body), f"{label}s")[position].name
    except (msgspec.DecodeError, RecursionError, IndexError):
        named = None
    return f" in {label} {named!r}" if named is not None else f" in {label} number {position}"
