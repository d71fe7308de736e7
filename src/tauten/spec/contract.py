"""The delivery contract: what is promised of a model, in numbers, before and after it goes live."""

from __future__ import annotations

import datetime
import difflib
import hashlib
import math
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from tauten.spec.errors import BadContract
from tauten.spec.signature import Axis, Signature, raise_on_trouble
from tauten.spec.tensors import ELEMENT_TYPES, TensorSpec


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A section of the contract: immutable, keyword-only, unknown keys are errors."""


class Target(_Part, frozen=True):
    """What the delivered model must run on. `precision` lists what may be delivered, in order of preference."""

    engine: str = "onnxruntime"
    engine_version: str = ""
    device: str = "cpu"
    opset: int = 20
    precision: tuple[str, ...] = ("float32",)


class Tolerance(_Part, frozen=True):
    """|delivered - reference| <= atol + rtol * |reference|, at the worst element."""

    atol: float = 0.0
    rtol: float = 0.0


class Tolerances(_Part, frozen=True):
    """How far numbers may differ, by comparison.

    parity       delivered model against the original framework, every output
    layers       the same inside the graph
    batch        a row alone = among others = padded = in another bucket
    determinism  the same input twice, across threads and processes
    """

    parity: Tolerance = Tolerance(atol=1e-5, rtol=1e-4)
    layers: Tolerance = Tolerance(atol=1e-4)
    batch: Tolerance = Tolerance(atol=1e-5)
    determinism: Literal["exact"] | Tolerance = "exact"


class Accuracy(_Part, frozen=True):
    """Labelled data and how much of the metric a variant may lose against the reference."""

    data: str
    metric: str
    max_drop: float = 0.0
    min: float | None = None


class Slo(_Part, frozen=True):
    """Latency promised at a Poisson arrival rate (requests/s). `jitter_ms` is half the range of p99 over windows."""

    rate: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    jitter_ms: float | None = None
    errors: float | None = None


class Memory(_Part, frozen=True):
    """Peak resident memory of the server, and how much it may grow."""

    peak_mb: float | None = None
    growth_mb_per_day: float | None = None


class Drift(_Part, frozen=True):
    """How far the golden probes may move in production, and the profile that new data is compared to."""

    max_abs: float | None = None
    probe_every_s: float = 60.0
    reference: str | None = None


class Privacy(_Part, frozen=True):
    """Inputs that are never logged, traced, cached or put into a report."""

    private: tuple[str, ...] = ()


class Waiver(_Part, frozen=True):
    """A gate that may fail until a day, and why."""

    gate: str
    reason: str
    until: datetime.date


class Contract(_Part, frozen=True):
    """The whole contract. Only `contract`, `inputs` and `outputs` are required."""

    contract: Literal[1]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    name: str = "model"
    target: Target = Target()
    axes: dict[str, Axis] = {}
    tolerances: Tolerances = Tolerances()
    accuracy: Accuracy | None = None
    slo: Slo | None = None
    memory: Memory | None = None
    drift: Drift | None = None
    privacy: Privacy = Privacy()
    waivers: tuple[Waiver, ...] = ()

    @property
    def signature(self) -> Signature:
        return Signature(inputs=self.inputs, outputs=self.outputs, axes=self.axes)

    @classmethod
    def load(cls, path: str | Path) -> Contract:
        """Reads a contract from a YAML (or JSON) file. Raises BadContract."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise BadContract(f"contract {str(path)!r} cannot be read: {reason}",
                              fix="give a YAML file, or write a first one with 'tauten init'") from error  # fmt: skip
        return cls.parse(text, where=str(path))

    @classmethod
    def parse(cls, text: str, *, where: str = "contract") -> Contract:
        """Reads a contract from YAML text. Raises BadContract that names the key and the nearest known one."""
        try:
            data = yaml.load(text, Loader=_Loader)  # noqa: S506  _Loader derives from SafeLoader
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date, number or float that its type cannot hold
            raise BadContract(f"{where} is not valid YAML: {_one_line(error)}", fix="correct the syntax") from error
        except RecursionError as error:
            raise BadContract(f"{where} is nested too deeply", fix="see 'tauten contract schema'") from error
        if not isinstance(data, dict):
            raise BadContract(f"{where} holds {type(data).__name__}, expected a mapping",
                              fix="see 'tauten contract schema'")  # fmt: skip
        return cls.of(data, where=where)

    @classmethod
    def of(cls, data: dict[str, Any], *, where: str = "contract") -> Contract:
        """Builds a contract from plain data. Raises BadContract."""
        try:
            contract = msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise _bad(str(error), where) from error
        if why := _trouble(contract):
            raise BadContract(f"{where}: {why}", fix="correct it in the contract")
        raise_on_trouble(contract.signature)
        return contract

    def dumps(self) -> str:
        """The contract as YAML, in the order of its fields."""
        data: Any = msgspec.to_builtins(self, builtin_types=(datetime.date,))
        target = {**msgspec.structs.asdict(self.target), "precision": list(self.target.precision)}
        head = {"contract": self.contract, "name": self.name, "target": target}
        data["axes"] = {name: {"min": axis.min, **data["axes"][name]} for name, axis in self.axes.items()}
        text: str = yaml.dump({**head, **{k: v for k, v in data.items() if k not in head}}, Dumper=_Dumper, sort_keys=False)
        return text

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form: independent of comments, order, white space, and of defaults that are written out."""
        return "sha256:" + hashlib.sha256(msgspec.json.encode(_canonical(self), order="deterministic")).hexdigest()

    @staticmethod
    def schema() -> dict[str, Any]:
        """JSON Schema of the contract."""
        return msgspec.json.schema(Contract)


def _trouble(contract: Contract) -> str:
    """The first contradiction outside the signature; empty when there is none."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", contract.name):
        return f"name {contract.name!r} must be letters, digits, '.', '_' or '-', and start with a letter or digit"
    for where, specs in (("inputs", contract.inputs), ("outputs", contract.outputs)):
        if not specs:
            return f"{where} is empty"
        for name, spec in specs.items():
            if spec.dtype not in ELEMENT_TYPES:
                return f"{where}.{name}: dtype {spec.dtype!r} is not known{_nearest(spec.dtype, ELEMENT_TYPES)}"
            if any(isinstance(d, int) and d < 0 for d in spec.shape):
                return f"{where}.{name}: shape {list(spec.shape)} has a negative size; name the axis instead"
    tolerances = contract.tolerances
    for key in ("parity", "layers", "batch", "determinism"):
        value = getattr(tolerances, key)
        if isinstance(value, Tolerance) and not (value.atol >= 0 and value.rtol >= 0):
            return f"tolerances.{key} must not be negative"
    if contract.slo and not contract.slo.rate > 0:
        return f"slo.rate is {contract.slo.rate:g}, must be greater than 0"
    if why := _limit_trouble(contract):
        return why
    if unknown := [n for n in contract.privacy.private if n not in contract.inputs and n not in contract.outputs]:
        return f"privacy.private names {unknown[0]!r}, which is neither an input nor an output"
    return _target_trouble(contract.target)


def _limit_trouble(contract: Contract) -> str:
    """A limit that nothing or everything would keep. `accuracy.min` may be below zero: a correlation can be."""
    parts = {"accuracy": contract.accuracy, "slo": contract.slo, "memory": contract.memory, "drift": contract.drift}
    for name, part in parts.items():
        for key, value in msgspec.structs.asdict(part).items() if part else ():
            if isinstance(value, int | float) and not (math.isfinite(value) and (value >= 0 or key == "min")):
                return f"{name}.{key} is {value:g}, must be a finite number of 0 or more"
    return ""


def _target_trouble(target: Target) -> str:
    if not target.precision:
        return "target.precision is empty, so nothing may be delivered"
    if unknown := [p for p in target.precision if p not in ELEMENT_TYPES]:
        return f"target.precision has {unknown[0]!r}, which is no data type{_nearest(unknown[0], ELEMENT_TYPES)}"
    if target.opset < 1:
        return f"target.opset is {target.opset}, must be at least 1"
    return ""


def _canonical(value: Any) -> Any:
    """Plain data without whatever equals its default. (The library's own omission goes by identity, so it is no help here.)"""
    if isinstance(value, msgspec.Struct):
        fields = ((f, getattr(value, f.name)) for f in msgspec.structs.fields(value))
        odd = (f for f in fields if f[1] != f[0].default or isinstance(f[1], bool) is not isinstance(f[0].default, bool))
        return {f.encode_name: _canonical(v) for f, v in odd}
    if isinstance(value, dict):
        return {k: _canonical(v) for k, v in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 60 and 60.0 are the same promise
    return [_canonical(v) for v in value] if isinstance(value, list | tuple) else value


_PARTS = (Contract, Target, Tolerance, Tolerances, Accuracy, Slo, Memory, Drift, Privacy, Waiver, Axis, TensorSpec)
_KNOWN_KEYS = sorted({f.encode_name for part in _PARTS for f in msgspec.structs.fields(part)})


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _bad(message: str, where: str) -> BadContract:
    """Rewords the schema library's message: which key, at which place, the nearest known one."""
    place = re.search(r" - at `\$\.?(.*)`$", message)
    at = f" at {place[1]}" if place and place[1] else ""
    body = re.sub(r" - at `.*`$", "", message)
    if unknown := re.search(r"unknown field `(.*?)`", body):
        return BadContract(f"{where}: unknown key {unknown[1]!r}{at}{_nearest(unknown[1], _KNOWN_KEYS)}",
                           fix="see 'tauten contract schema' for the known keys")  # fmt: skip
    if missing := re.search(r"missing required field `(.*?)`", body):
        return BadContract(f"{where}: key {missing[1]!r} is missing{at}", fix="see 'tauten contract schema'")
    return BadContract(f"{where}: {body[:1].lower()}{body[1:]}{at}", fix="see 'tauten contract schema'")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with two mends: 1e-5 is a number, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _Dumper(yaml.SafeDumper):
    """Lists of plain values on one line, as people write shapes."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        flat = all(not isinstance(item, dict | list | tuple) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat or flow_style)
