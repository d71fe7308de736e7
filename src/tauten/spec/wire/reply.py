"""The reply and the error: encoded by fronts, decoded by the client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tauten.spec.errors import BadRequest
from tauten.spec.infer import InferReply
from tauten.spec.signature import Signature
from tauten.spec.tensors import Array, ElementType
from tauten.spec.wire import payload
from tauten.spec.wire.message import Message, Part, Scalar, Wishes, read_json

SIZE = "binary_data_size"


class _Output(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Scalar] | None = None
    data: Raw | UnsetType = UNSET


class _Head(msgspec.Struct):
    model_name: str
    outputs: list[_Output] = []
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Scalar] | None = None


_HEAD = msgspec.json.Decoder(_Head)


def encode_reply(reply: InferReply, wishes: Wishes, *, signature: Callable[[], Signature]) -> Message:
    """Outputs in the order of the reply. JSON data is flat; a value that JSON cannot say is an error that names the output.

    The body always parses with a strict JSON parser: NaN and infinities travel only as binary data, which keeps every bit.
    `signature` is asked only where an output is uint16, which may be bfloat16.
    """
    outputs: list[dict[str, Any]] = []
    parts: list[Part] = []
    for name, array in reply.outputs.items():
        what = f"output {name!r}"
        element = _element(what, name, array, signature)
        output: dict[str, Any] = {"name": name, "datatype": element.wire, "shape": array.shape}
        if wishes.wants_binary(name):
            part = payload.to_bytes(array, element)
            output["parameters"] = {SIZE: len(part)}
            if len(part):
                parts.append(part)
        else:
            output["data"] = payload.to_json(what, array, element)
        outputs.append(output)
    head: dict[str, Any] = {"id": reply.id} if reply.id else {}
    head |= {"model_name": reply.model, "model_version": reply.version}
    if reply.parameters:
        head["parameters"] = dict(reply.parameters)
    head["outputs"] = outputs
    text = msgspec.json.encode(head)
    return Message((text, *parts), len(text) if parts else None)


@dataclass(slots=True)
class Decoded(InferReply):
    """A reply as a client sees it: also the datatype of every output, since bfloat16 is carried in uint16."""

    datatypes: dict[str, str] = field(default_factory=dict)


def decode_reply(body: bytes, head_length: int | None) -> Decoded:
    """The reply a server sent. Raises BadRequest where it is none."""
    head = read_json(_HEAD, body if head_length is None else body[:head_length])
    at = len(body) if head_length is None else head_length
    reply = Decoded(head.model_name, head.model_version, {}, head.id, head.parameters or {})
    for output in head.outputs:
        what, shape = f"output {output.name!r}", tuple(output.shape)
        element = payload.element_of(what, output.datatype)
        reply.datatypes[output.name] = output.datatype
        size = (output.parameters or {}).get(SIZE)
        if isinstance(size, int):
            if not 0 <= size <= len(body) - at:
                raise BadRequest(f"{what} announces {size} bytes, {len(body) - at} are there")
            reply.outputs[output.name] = payload.from_bytes(what, element, shape, body, start=at, size=size)
            at += size
        elif output.data is not UNSET:
            reply.outputs[output.name] = payload.from_json(what, element, shape, bytes(output.data))
        else:
            raise BadRequest(f"{what} has no data")
    return reply


def encode_error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})


def _element(what: str, name: str, array: Array, signature: Callable[[], Signature]) -> ElementType:
    element = payload.element_of_array(what, array)
    if element.name == "uint16" and name in (outputs := signature().outputs):
        return outputs[name].element
    return element
