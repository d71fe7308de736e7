"""The original that a delivered model is held against, answering under the contract's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tauten.delivery.runners import Close, engine_runner
from tauten.spec.contract import Contract
from tauten.spec.engine import EngineSettings, Runner, Tensors
from tauten.spec.source import Opened
from tauten.spec.tensors import Array


def original(opened: Opened, contract: Contract | None) -> Callable[[], tuple[Runner, Close]] | None:
    """What makes a fresh runner of the original, and what closes it.

    A model that was handed over as a file is its own original: it is run as written, with the engine's optimiser off.
    """
    if opened.reference is not None:
        make = opened.reference
        return lambda: (_named(make(), contract), lambda: None)
    if opened.model is None:
        return None
    model, engine = opened.model, contract.target.engine if contract else "onnxruntime"
    return lambda: engine_runner(engine, model, EngineSettings(graph_level="disabled"))


@contextmanager
def reference_of(opened: Opened, contract: Contract | None) -> Iterator[Runner]:
    """A runner of the original, closed afterwards."""
    make = original(opened, contract)
    assert make is not None, "bug: a source gives a reference or a model file"
    run, close = make()
    try:
        yield run
    finally:
        close()


def _named(run: Runner, contract: Contract | None) -> Runner:
    """Names of outputs are free: what a framework returns has an order, so the contract's names are given in that order."""
    if contract is None:
        return run
    names = list(contract.outputs)

    def named(inputs: Tensors) -> dict[str, Array]:
        answer = run(inputs)
        if set(answer) == set(names) or len(answer) != len(names):
            return answer
        return dict(zip(names, answer.values(), strict=True))

    return named
