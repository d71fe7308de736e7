"""The request: decoded by fronts, encoded by the client."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from tauten.spec.errors import BadRequest, Unsupported
from tauten.spec.infer import InferRequest
from tauten.spec.signature import BATCH, Signature
from tauten.spec.tensors import Array, ElementType
from tauten.spec.wire import payload
from tauten.spec.wire.message import Message, Scalar, Wishes, read_json

SIZE = "binary_data_size"
SHARED_MEMORY = "shared_memory_region"
_OWN = {"binary_data_output", "timeout"}  # request parameters that end here; all others travel on
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
_ALIGN = 8
_TWINS = {"UINT16", "BF16"}  # one numpy type: only the signature tells which is meant


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Scalar] | None = None
    data: Raw | UnsetType = UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Scalar] | None = None


class _Head(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Output] | None = None
    id: str | None = None
    parameters: dict[str, Scalar] | None = None


_HEAD = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One input as the head announces it: `size` bytes of the binary part, or JSON `data`."""

    name: str
    element: ElementType
    shape: tuple[int, ...]
    size: int = 0
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything a head says, checked. Equal heads share one plan, so nothing in it is ever changed."""

    tensors: tuple[_Tensor, ...]
    outputs: tuple[str, ...]
    wishes: Wishes
    id: str
    parameters: Mapping[str, Scalar]
    timeout_s: float | None
    twins: bool

    @property
    def reusable(self) -> bool:
        """Only shapes and names are kept: no data, no parameters of the caller, no id that will not come again."""
        return not self.id and not self.parameters and all(t.data is None for t in self.tensors)


class _Plans:
    """The latest plans by the bytes of their heads: clients that send binary tensors repeat theirs. Bounded both ways."""

    def __init__(self, most: int = 256, longest: int = 4096) -> None:
        self.most, self.longest = most, longest
        self._kept: OrderedDict[bytes, _Plan] = OrderedDict()

    def of(self, head: bytes) -> _Plan:
        plan = self._kept.get(head)
        if plan is not None:
            self._kept.move_to_end(head)
            return plan
        plan = _plan(read_json(_HEAD, head))
        if plan.reusable and len(head) <= self.longest:
            self._kept[head] = plan
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return plan

    def __len__(self) -> int:
        return len(self._kept)


_plans = _Plans()


def decode_request(
    model: str, version: str, body: bytes, *, head_length: int | None, now: float, signature: Callable[[], Signature]
) -> tuple[InferRequest, Wishes]:
    """A request and how its outputs are wanted. Raises BadRequest, or Unsupported for an extension that is not here.

    `head_length` is the value of Inference-Header-Content-Length, None without it; 0 says that the body is the one input.
    `now` is the monotonic clock. `signature` is asked only where the bytes do not tell: a raw body, bfloat16 or uint16.
    """
    if head_length == 0:
        inputs = {(name := _only_input(signature(), model)): _raw(name, signature(), body)}
        return InferRequest(model=model, version=version, inputs=inputs), Wishes(binary=True)
    if head_length is None:
        plan, start = _plan(read_json(_HEAD, body)), len(body)
        if any(t.data is None for t in plan.tensors):
            raise BadRequest("the request announces binary data, but has no header Inference-Header-Content-Length",
                             fix="send the byte length of the JSON part in it")  # fmt: skip
    else:
        if not 0 < head_length <= len(body):
            raise BadRequest(f"inference header size should be in range (0, {len(body)}), got: {head_length}",
                             fix="send the byte length of the JSON part in Inference-Header-Content-Length")  # fmt: skip
        plan, start = _plans.of(body[:head_length]), head_length
    inputs = _arrays(plan, body, start, model)
    if plan.twins:
        _tell_twins(plan, signature())
    deadline = None if plan.timeout_s is None else now + plan.timeout_s
    request = InferRequest(model=model, version=version, inputs=inputs, id=plan.id,
                           outputs=plan.outputs, parameters=plan.parameters, deadline=deadline)  # fmt: skip
    return request, plan.wishes


def _arrays(plan: _Plan, body: bytes, start: int, model: str) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    for t in plan.tensors:
        what = f"input {t.name!r}"
        if t.data is not None:
            inputs[t.name] = payload.from_json(what, t.element, t.shape, t.data)
            continue
        if start + t.size > len(body):
            raise BadRequest(f"unexpected size for {what}, expecting {start + t.size - len(body)} additional bytes for model "
                             f"{model!r}: {t.size} announced, {len(body) - start} there",
                             fix="send as many bytes as binary_data_size says")  # fmt: skip
        inputs[t.name] = payload.from_bytes(what, t.element, t.shape, body, start=start, size=t.size)
        start += t.size
    if start != len(body):
        raise BadRequest(f"unexpected additional input data for model {model!r}: {len(body) - start} bytes after the last "
                         f"tensor", fix="send as many bytes as binary_data_size says")  # fmt: skip
    return inputs


def _plan(head: _Head) -> _Plan:
    tensors = tuple(_tensor(i) for i in head.inputs)
    names = [t.name for t in tensors]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise BadRequest(f"input {twice!r} is given more than once", fix="send each input once")
    parameters = head.parameters or {}
    binary = parameters.get("binary_data_output", False)
    if not isinstance(binary, bool):
        raise BadRequest(f"parameter 'binary_data_output' is {binary!r}", fix="send true or false")
    outputs = head.outputs or []
    return _Plan(
        tensors=tensors, outputs=tuple(dict.fromkeys(o.name for o in outputs)), id=head.id or "",
        wishes=Wishes(binary, {o.name: b for o in outputs if (b := _wish(o)) is not None}),
        parameters=_passed_on(parameters), timeout_s=_timeout(parameters.get("timeout")),
        twins=any(t.element.wire in _TWINS for t in tensors),
    )  # fmt: skip


def _tensor(given: _Input) -> _Tensor:
    what = f"input {given.name!r}"
    element = payload.element_of(what, given.datatype)
    parameters = given.parameters or {}
    if SHARED_MEMORY in parameters:
        raise Unsupported(f"{what} is in shared memory, which this server does not read", fix="send its data in the request")
    size = parameters.get(SIZE)
    if size is None:
        if given.data is UNSET:
            raise BadRequest(f"Unable to parse 'data': it is missing in {what}", fix=f"send data, or binary data with {SIZE!r}")
        return _Tensor(given.name, element, tuple(given.shape), data=bytes(given.data))
    if given.data is not UNSET:
        raise BadRequest(f"{what} has both data and {SIZE!r}", fix="send one of them")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadRequest(f"{what} has {SIZE!r} {size!r}", fix="send a number of bytes")
    payload.count(what, given.shape, element)
    return _Tensor(given.name, element, tuple(given.shape), size)


def _wish(output: _Output) -> bool | None:
    parameters = output.parameters or {}
    if SHARED_MEMORY in parameters:
        raise Unsupported(f"output {output.name!r} is wanted in shared memory, which this server does not write",
                          fix="take it from the response")  # fmt: skip
    if parameters.get("classification"):
        raise Unsupported(f"output {output.name!r} is wanted as a classification, which this server does not make",
                          fix="ask for the output itself and take its largest values")  # fmt: skip
    binary = parameters.get("binary_data")
    if binary is not None and not isinstance(binary, bool):
        raise BadRequest(f"output {output.name!r} has 'binary_data' {binary!r}", fix="send true or false")
    return binary


def _passed_on(parameters: Mapping[str, Scalar]) -> dict[str, Scalar]:
    for key, value in parameters.items():
        if key.startswith("triton_"):
            raise BadRequest(f"parameter {key!r} is reserved", fix="give it a name that does not start with 'triton_'")
        if key in _SEQUENCE and value:
            raise Unsupported(f"parameter {key!r} asks for a sequence; this server keeps no state between requests",
                              fix="send requests that stand alone")  # fmt: skip
    return {k: v for k, v in parameters.items() if k not in _OWN and k not in _SEQUENCE}


def _timeout(given: Scalar) -> float | None:
    """Seconds from microseconds; 0 and nothing wait for ever."""
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise BadRequest(f"parameter 'timeout' is {given!r}", fix="send microseconds as a whole number")
    return given / 1e6 if given else None


def _tell_twins(plan: _Plan, signature: Signature) -> None:
    for tensor in plan.tensors:
        spec = signature.inputs.get(tensor.name)
        if spec is not None and {spec.element.wire, tensor.element.wire} == _TWINS:
            raise BadRequest(f"input {tensor.name!r} has type {tensor.element.name}, expected {spec.dtype}",
                             fix=f"send datatype {spec.element.wire}")  # fmt: skip


def _only_input(signature: Signature, model: str) -> str:
    if len(signature.inputs) != 1:
        raise BadRequest(f"a raw request needs a model with one input; {model!r} has {len(signature.inputs)}",
                         fix="send a JSON head, and its length in Inference-Header-Content-Length")  # fmt: skip
    return next(iter(signature.inputs))


def _raw(name: str, signature: Signature, body: bytes) -> Array:
    """The whole body as one tensor: batch 1, and the one open dimension from the length."""
    spec = signature.inputs[name]
    element = spec.element
    shape = [1 if size == BATCH else size for size in spec.shape]
    if element.name == "string":
        if any(size != 1 for size in shape):
            raise BadRequest(f"a raw request of BYTES needs an input of one element; {name!r} is {spec.describe()}",
                             fix="send a JSON head")  # fmt: skip
        array = np.empty(1, object)
        array[0] = body
        return array.reshape([1] * len(shape))
    known = [size for size in shape if isinstance(size, int)]
    if len(shape) - len(known) > 1:
        raise BadRequest(f"a raw request needs an input with at most one open dimension; {name!r} is {spec.describe()}",
                         fix="send a JSON head")  # fmt: skip
    unit = math.prod(known) * element.size
    open_size = len(body) // unit if unit else 0
    sizes = tuple(size if isinstance(size, int) else open_size for size in shape)
    return payload.from_bytes(f"input {name!r}", element, sizes, body, start=0, size=len(body))


def encode_request(
    inputs: Mapping[str, Array],
    *,
    outputs: Sequence[str] = (),
    request_id: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> Message:
    """Every input as binary data, every output wanted so. The head is filled up so that tensors start aligned."""
    announced, parts = [], []
    for name, given in inputs.items():
        element = payload.element_of_array(f"input {name!r}", given)
        array = given.view(np.uint16) if element.name == "bfloat16" else given
        part = payload.to_bytes(array, element)
        parts.append(part)
        announced.append({"name": name, "shape": given.shape, "datatype": element.wire, "parameters": {SIZE: len(part)}})
    head: dict[str, Any] = {"id": request_id} if request_id else {}
    head |= {"parameters": {**(parameters or {}), "binary_data_output": True}, "inputs": announced}
    if outputs:
        head["outputs"] = [{"name": name} for name in outputs]
    text = msgspec.json.encode(head)
    text += b" " * (-len(text) % _ALIGN)
    return Message((text, *parts), len(text))
