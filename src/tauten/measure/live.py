"""A live server as an outsider sees it: what it says of itself, what it answers, and requests that fit its contract."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import msgspec
import numpy as np

from tauten.measure.draw import draw_all
from tauten.measure.traffic import http_message
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.errors import BadContract, BadUsage, NotFound, Unavailable
from tauten.spec.signature import BATCH, Axis
from tauten.spec.wire import encode_request
from tauten.spec.wire.address import address

HEAD_LENGTH = "Inference-Header-Content-Length"
RESIDENT = "process_resident_memory_bytes "
DISTINCT = 64  # different requests in a load


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    head_length: int | None = None


class Live:
    """One server and its address. Not shared between threads: it keeps one connection."""

    def __init__(self, url: str, *, timeout_s: float = 10.0) -> None:
        self.url = url
        self.host, self.port, self.base = address(url)
        self._http = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, method: str = "GET") -> Answer:
        """One exchange; tried again once where the server had closed the kept connection. Raises Unavailable."""
        for again in (self._http.sock is not None, False):
            try:
                self._http.request(method, self.base + path, body or None, dict(headers or {}))
                response = self._http.getresponse()
                length = response.getheader(HEAD_LENGTH)
                return Answer(response.status, response.read(), int(length) if length and length.isdigit() else None)
            except (OSError, http.client.HTTPException) as error:
                self._http.close()
                if not again:
                    raise Unavailable(f"{self.url} cannot be reached: {error or type(error).__name__}",
                                      fix="start it with 'tauten serve', or correct the address") from error  # fmt: skip
        raise AssertionError("bug: neither answered nor failed")

    def ready(self) -> bool:
        return self.ask("/v2/health/ready").status == 200

    def models(self) -> list[str]:
        """Names of the models that are ready."""
        answer = self.ask("/v2/repository/index", b"{}", method="POST")
        found = msgspec.json.decode(answer.body) if answer.status == 200 else []
        return sorted({m["name"] for m in found if m.get("state", "READY") == "READY"})

    def require(self, model: str) -> None:
        """Raises NotFound that lists what is there."""
        if self.ask(f"/v2/models/{quote(model, safe='')}").status != 200:
            raise NotFound(f"{self.url} has no model {model!r}; ready are {', '.join(self.models()) or 'none'}",
                           fix="name one that is there, or serve it first")  # fmt: skip

    def contract(self, model: str) -> Contract | None:
        """The contract the server serves the model under; None where it does not tell one."""
        answer = self.ask(f"/v2/models/{quote(model, safe='')}/contract")
        if answer.status != 200:
            return None
        try:
            return Contract.of(msgspec.json.decode(answer.body), where=f"contract of {self.url}")
        except (msgspec.DecodeError, BadContract):
            return None  # another server's answer at this path, or another version's contract

    def resident_mb(self) -> float | None:
        """Resident memory of the server's process, in 2^20 bytes; None where /metrics does not tell it."""
        answer = self.ask("/metrics")
        lines = answer.body.decode("utf-8", "replace").splitlines() if answer.status == 200 else []
        told = next((x for x in lines if x.startswith(RESIDENT)), None)
        return float(told.split()[1]) / 2**20 if told else None

    def infer(self, model: str, inputs: Tensors) -> Answer:
        message = encode_request(inputs)
        headers = {HEAD_LENGTH: str(message.head_length), "Content-Type": "application/octet-stream"}
        return self.ask(f"/v2/models/{quote(model, safe='')}/infer", message.join(), headers, method="POST")


def requests(
    live: Live, contract: Contract, *, rows: int = 1, sizes: Mapping[str, int] | None = None, seed: int = 0
) -> tuple[bytes, ...]:
    """Ready HTTP messages: values drawn from the declared ranges, every axis but the batch around its optimum.

    `sizes` fixes axes. Raises BadUsage for an axis or a size that the contract does not have.
    """
    fixed = {**({BATCH: rows} if BATCH in contract.axes else {}), **(sizes or {})}
    for name, size in fixed.items():
        axis = contract.axes.get(name)
        if axis is None or not axis.min <= size <= axis.max:
            allowed = axis.describe() if axis else f"one of {', '.join(contract.axes) or 'no axes'}"
            raise BadUsage(f"size {size} of axis {name!r} is not in the contract", fix=f"give {allowed}")
    random = np.random.default_rng(seed)
    path = f"{live.base}/v2/models/{quote(contract.name, safe='')}/infer"
    made = []
    for number in range(DISTINCT):
        drawn = {name: fixed.get(name, around(axis, random)) for name, axis in contract.axes.items()}
        message = encode_request(draw_all(contract.signature, drawn, seed=seed * DISTINCT + number))
        headers = {HEAD_LENGTH: str(message.head_length), "Content-Type": "application/octet-stream"}
        made.append(http_message(f"{live.host}:{live.port}", path, message.join(), headers))
    return tuple(made)


def around(axis: Axis, random: np.random.Generator) -> int:
    """A size from half the optimum to one and a half times it, within the bounds and the axis' step."""
    step = axis.multiple_of
    low, high = max(axis.min, axis.optimum // 2), min(axis.max, axis.optimum * 3 // 2)
    steps = random.integers(-(-low // step), max(high // step, -(-low // step)), endpoint=True)
    return int(steps) * step
