"""determinism: the same input twice gives the same answer: again, in a second session, in a fresh process, with other threads.

`exact` means to the last bit under the same settings. A run under another number of threads may add the same numbers in
another order, which float32 does not forgive to the last bit, so it is held to tolerances.batch instead. With a tolerance
in tolerances.determinism, everything is held to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tauten.measure.compare import EXACT, Difference, most_excessive, scale_of, worst_of
from tauten.spec.contract import Contract, Tolerance
from tauten.spec.engine import Runner
from tauten.spec.errors import EngineFailed
from tauten.spec.graph import Graph, Node
from tauten.spec.judging import Probe, Subject
from tauten.spec.verdict import Status, Verdict

NAME = "determinism"
PROBES = 12
OTHER_THREADS = "threads="  # names of runners that are held to tolerances.batch begin with it
ORIGINAL = "the original"
RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
_FIX = "call eval() on every layer; F.dropout needs training=self.training, since its default is True"


def judge(subject: Subject) -> Verdict:
    """Names the operator that draws random numbers, or says that it is the original that answers differently twice."""
    probes = _some(subject.probes)
    found: list[tuple[str, Difference, Probe]] = []
    for name, first, second, tolerance in _pairs(subject):
        for probe in probes:
            try:
                one, other = first(probe.inputs), second(probe.inputs)
            except EngineFailed:
                if name == ORIGINAL:  # the gate `parity` says so
                    continue
                raise
            differences = worst_of(other, one, tolerance, subject.contract.outputs, scale=scale_of(probe), nan_agrees=True)
            found.append((name, most_excessive(differences.values()), probe))
    worst = {n: most_excessive(d for name, d, _ in found if name == n) for n in dict.fromkeys(n for n, *_ in found)}
    evidence: dict[str, Any] = {"conditions": {name: d.as_evidence() for name, d in worst.items()}}
    random = _random_nodes(subject.graph)
    evidence.update({"random_nodes": [n.label for n in random]} if random else {})
    broken = next((n for n, d in worst.items() if not d.held), "")
    telling = worst[broken] if broken else most_excessive(worst.values())
    culprits = random or ([live] if broken and (live := _live_dropout(subject.graph)) else [])
    message, fix = _told(broken, telling, culprits, len(worst))
    return Verdict(name=NAME, status=Status.BROKEN if fix else Status.HELD, measured=telling.measured, limit=telling.limit,
                   unit="max_abs", samples=len(found), message=message, fix=fix, evidence=evidence)  # fmt: skip


def _pairs(subject: Subject) -> Iterator[tuple[str, Runner, Runner, Tolerance]]:
    """What is compared with what, under which tolerance."""
    asked = subject.contract.tolerances.determinism
    for name, run in (subject.again or {"again": subject.delivered}).items():
        yield name, subject.delivered, run, _tolerance(subject.contract, name)
    if subject.reference is not None and subject.reference_again is not None:
        loose = asked if isinstance(asked, Tolerance) else subject.contract.tolerances.batch
        yield ORIGINAL, subject.reference, subject.reference_again, loose


def _tolerance(contract: Contract, name: str) -> Tolerance:
    asked = contract.tolerances.determinism
    if isinstance(asked, Tolerance):
        return asked
    return contract.tolerances.batch if name.startswith(OTHER_THREADS) else EXACT


def _some(probes: tuple[Probe, ...]) -> list[Probe]:
    """The first of each kind, then others up to a bound and no larger than the first: a random answer shows on any of them."""
    first = {p.kind: p for p in reversed(probes)}
    others = [p for p in probes if first[p.kind] is not p and _elements(p) <= _elements(probes[0])]
    return [*first.values(), *others][:PROBES]


def _elements(probe: Probe) -> int:
    return sum(v.size for v in probe.inputs.values())


def _random_nodes(graph: Graph | None) -> list[Node]:
    return [n for n in graph.nodes if n.op in RANDOM] if graph else []


def _live_dropout(graph: Graph | None) -> Node | None:
    """A Dropout that is told whether it trains: from opset 12 on, by its third input."""
    return next((n for n in graph.nodes if n.op == "Dropout" and len(n.inputs) > 2 and n.inputs[2]), None) if graph else None


def _told(broken: str, found: Difference, random: list[Node], conditions: int) -> tuple[str, str]:
    if random:
        return f"{random[0].label} draws random numbers at every run", _FIX
    if not broken:
        return f"the same answers under {conditions} conditions", ""
    if broken == ORIGINAL:
        return f"the original answers differently twice ({found.told()}): something random is live in it", _FIX
    return f"{found.told()} between two runs on one input ({broken})", _FIX
