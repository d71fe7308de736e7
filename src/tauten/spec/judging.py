"""What a gate is handed. A gate never loads a model and never repairs one: it gets runners, probes and facts, and judges."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tauten.spec.contract import Contract, Tolerance
from tauten.spec.engine import Runner, Tensors
from tauten.spec.graph import Graph
from tauten.spec.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Probe:
    """One input to try. `sizes` are its axis sizes; `kind` says what is nasty about its values."""

    name: str
    kind: str
    sizes: Mapping[str, int]
    inputs: Tensors


@dataclass(frozen=True, slots=True)
class Score:
    """A metric's value on labelled data."""

    metric: str
    value: float
    samples: int


@dataclass(frozen=True, slots=True)
class Speed:
    """Paired timings of a variant and its parent on this host: one ratio (parent time / variant time) per round.

    `label` says under which serving conditions both ran (batch, threads, instances).
    """

    ratios: tuple[float, ...]
    label: str
    samples_per_s: float
    parent_samples_per_s: float

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)


@dataclass(frozen=True, slots=True)
class Subject:
    """One candidate under judgement.

    delivered    runs the candidate as it would be served
    reference    runs the original framework, where there is one
    again        the same candidate under other conditions, by name ("threads=1", "fresh process", "second session")
    reference_again  the reference run a second time from a fresh copy, to see whether it agrees with itself
    taps         opens an instrumented copy that also returns the named inner values; the candidate itself is untouched
    graph        facts read back from the model file, where it has a graph
    parity       tolerance of this candidate against the reference: the contract's, or what its precision scheme declares
    relative_to_scale  parity.atol counts in units of each output's largest reference magnitude
    variant      name of the candidate, for messages
    engine       facts of the engine that serves it
    asked_opset  the opset an exporter was asked for; None for a model that was handed over as it is
    """

    contract: Contract
    probes: tuple[Probe, ...]
    delivered: Runner
    parity: Tolerance
    reference: Runner | None = None
    again: Mapping[str, Runner] = field(default_factory=dict)
    reference_again: Runner | None = None
    taps: Callable[[tuple[str, ...]], Runner] | None = None
    graph: Graph | None = None
    relative_to_scale: bool = False
    variant: str = "model"
    engine: Mapping[str, Any] = field(default_factory=dict)
    score: Score | None = None
    parent_score: Score | None = None
    speed: Speed | None = None
    asked_opset: int | None = None


class Gate(Protocol):
    """The shape of a module in gates/. The gate's name is the name of its file."""

    def judge(self, subject: Subject) -> Verdict: ...
