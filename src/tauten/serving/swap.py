"""Performs what the registry only notes: open, verify, warm, go live; and drain, close.

A version goes live only after the SHA-256 of every file matched, every bucket ran on every instance, and the golden probes
were answered as they were when the bundle was sealed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tauten.measure.compare import most_excessive, scale_of, worst_of
from tauten.measure.host import allowed_cpus
from tauten.serving.served import Prepared
from tauten.serving.shapes import Shapes
from tauten.spec import plugins
from tauten.spec.bundle import MANIFEST, Bundle
from tauten.spec.contract import Contract
from tauten.spec.engine import Engine, ServingSettings, Session, Tensors
from tauten.spec.errors import BadBundle, EngineFailed
from tauten.spec.golden import read_probes
from tauten.spec.judging import Probe
from tauten.spec.signature import BATCH, Axis, Signature
from tauten.spec.tensors import Array, TensorSpec

RUNS = 256  # most warm-up runs of one session; more combinations of buckets than that are a mistake in the contract
Load = Callable[[str, str], Any]  # (folder, name) -> plug-in module


@dataclass(frozen=True, slots=True)
class Named:
    """What a directory says it is, before anything in it was verified: good for a label only."""

    name: str
    version: str


def label(path: Path) -> Named:
    """Name and version for the index. A directory that does not say has its own name and no version."""
    try:
        found = msgspec.json.decode((path / MANIFEST).read_bytes(), type=_Label)
    except (OSError, msgspec.DecodeError):
        return Named(path.resolve().name, "")
    return Named(found.name, found.version)


class _Label(msgspec.Struct):
    name: str
    version: str


def in_repository(root: Path) -> list[Path]:
    """The bundle of the highest version of every name in DIR/<name>/<version>/. Raises BadBundle when there is none."""
    if not root.is_dir():
        raise BadBundle(f"model repository {str(root)!r} is not a directory", fix="give DIR with <name>/<version>/ bundles")
    found: list[Path] = []
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")):
        versions = [p for p in folder.iterdir() if p.is_dir() and p.name.isascii() and p.name.isdecimal()]
        if versions:
            found.append(max(versions, key=lambda p: int(p.name)))
    if not found:
        raise BadBundle(
            f"model repository {str(root)!r} has no <name>/<version>/ in it", fix="put bundles there, or give them singly"
        )
    return found


def place_trouble(path: Path, bundle: Bundle) -> str:
    """Why a bundle does not belong where it lies in a repository; empty when it does."""
    manifest = bundle.manifest
    if (path.parent.name, path.name) == (manifest.name, manifest.version):
        return ""
    return f"{path.parent.name}/{path.name} holds the bundle of {manifest.name}/{manifest.version}"


def prepare(bundle: Bundle, load: Load = plugins.load, cpus: int | None = None) -> Prepared:
    """Opens a verified bundle's default variant and warms every instance. Blocks, for seconds with a large model.

    Threads and instances are capped at the processors there are. Raises BadBundle, BadModel, EngineFailed, MissingExtra.
    """
    variant = bundle.variant()
    settings = _capped(_checked(bundle.settings()), allowed_cpus() if cpus is None else cpus)
    contract = bundle.contract()
    signature = contract.signature  # the manifest's is the same, in another order
    engine: Engine = load("engines", settings.engine)
    golden = _golden(bundle)

    def open_warm() -> Session:
        session = engine.open(bundle.model_path(), settings.session)
        try:
            check_ports(session, signature)
            warm(session, signature, settings, whole=not variant.batch_independent)
            for probe, want in golden:
                _hold(probe, session.run(probe.inputs), want, contract)
        except BaseException:
            session.close()
            raise
        return session

    sessions: list[Session] = []
    try:
        sessions.extend(open_warm() for _ in range(settings.instances))
        processor = None
        if kind := bundle.manifest.processor:
            processor = load("processors", kind).open(bundle.root / "processors", signature)
    except BaseException:
        for session in sessions:
            session.close()
        raise
    return Prepared(
        bundle=bundle,
        contract=contract,
        settings=settings,
        batch_independent=variant.batch_independent,
        sessions=tuple(sessions),
        open=open_warm,
        processor=processor,
    )


def _checked(settings: ServingSettings) -> ServingSettings:
    for key, value in (
        ("batch", settings.batch),
        ("instances", settings.instances),
        ("session.threads", settings.session.threads),
    ):
        if value < 1:
            raise BadBundle(f"settings.json has {key} {value}, it must be 1 or more", fix="build the bundle again")
    return settings


def _capped(settings: ServingSettings, cpus: int) -> ServingSettings:
    session = msgspec.structs.replace(settings.session, threads=min(settings.session.threads, cpus))
    return msgspec.structs.replace(settings, session=session, instances=min(settings.instances, cpus))


def check_ports(session: Session, signature: Signature) -> None:
    """The opened model has the inputs and outputs that the signature promises. Shapes are seen in the warm-up."""
    for what, ports, specs in (("input", session.inputs, signature.inputs), ("output", session.outputs, signature.outputs)):
        there = {p.name: p.dtype for p in ports}
        for name, spec in specs.items():
            if there.get(name) != spec.dtype:
                raise BadBundle(f"{what} {name!r} is {there.get(name, 'missing')} in the model, {spec.dtype} in the contract",
                                fix="build the bundle again")  # fmt: skip
        if what == "input" and (more := sorted(set(there) - set(specs))):
            raise BadBundle(
                f"the model wants an input {more[0]!r} that the contract does not have", fix="build the bundle again"
            )


def warm(session: Session, signature: Signature, settings: ServingSettings, *, whole: bool) -> None:
    """Runs every batch size that matters in every bucket, the largest first, so that memory is taken once and at the start.

    `whole` says that requests are never split, so the largest batch is what a request may bring.
    """
    shapes = Shapes(signature, settings)
    for sizes in warm_sizes(signature, settings, whole=whole):
        inputs = warm_inputs(signature, sizes)
        shape = shapes.of(sizes)
        shapes.cut(session.run(shapes.gather([inputs], [shape])), [shape])


def warm_sizes(signature: Signature, settings: ServingSettings, *, whole: bool = False) -> Iterator[dict[str, int]]:
    """Axis sizes to warm, the largest first: batch at least, optimum, most; other axes in every bucket, or at their bounds."""
    choices: dict[str, list[int]] = {}
    for name in dict.fromkeys(a for s in signature.inputs.values() for a in s.axes):
        axis = signature.axes.get(name, Axis(min=1, max=settings.batch if name == BATCH else 1))
        if name == BATCH and signature.batchable:
            most = axis.max if whole else max(axis.min, min(axis.max, settings.batch))
            found = {axis.min, min(axis.optimum, most), most}
        else:
            found = set(settings.buckets.get(name, ())) or {axis.min, axis.optimum, axis.max}
        step = axis.multiple_of
        choices[name] = sorted({max(n // step * step, step) for n in found if n > 0} or {step}, reverse=True)
    combined = itertools.product(*choices.values())
    return (dict(zip(choices, sizes, strict=True)) for sizes in itertools.islice(combined, RUNS))


def warm_inputs(signature: Signature, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Values drawn from the declared ranges, the same ones each time."""
    rng = np.random.default_rng(0)
    return {name: _drawn(spec, spec.sized(dict(sizes)), rng) for name, spec in signature.inputs.items()}


def _drawn(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    low, high = spec.range if spec.range is not None else (0.0, 1.0)
    match spec.element:
        case element if element.name == "string":
            return np.full(shape, "a", dtype=object)
        case element if element.integer:
            return rng.integers(math.ceil(low), math.floor(high), shape, dtype=element.numpy.type, endpoint=True)
        case element if element.name == "bool":
            return rng.integers(0, 1, shape, endpoint=True).astype(np.bool_)
        case element:
            return rng.uniform(low, high, shape).astype(element.numpy)


def _golden(bundle: Bundle) -> list[tuple[Probe, Tensors]]:
    """The golden probes with the answers that this variant gave when it was sealed, else the reference's."""
    answers = bundle.model_path().with_name("answers.npz")
    inputs = read_probes(bundle.root / "golden" / "inputs.npz")
    outputs = read_probes(answers if answers.exists() else bundle.root / "golden" / "outputs.npz")
    if inputs.keys() != outputs.keys():
        raise BadBundle("the golden probes have other names than their answers", fix="build the bundle again")
    return [(Probe(name, name.partition(" ")[0], {}, tensors), outputs[name]) for name, tensors in inputs.items()]


def _hold(probe: Probe, got: Tensors, want: Tensors, contract: Contract) -> None:
    apart = worst_of(got, want, contract.tolerances.parity, contract.outputs, scale=scale_of(probe))
    found = most_excessive(apart.values())
    if not found.held:
        raise EngineFailed(f"golden probe {probe.name!r} is answered otherwise than when the bundle was sealed: "
                           f"{found.told()}, allowed is {found.limit:.3g}",
                           fix="build the bundle on a host like this one")  # fmt: skip
