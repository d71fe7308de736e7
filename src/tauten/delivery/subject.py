"""Makes what the gates are handed: runners of one candidate, of the original, and of the candidate under other conditions.

Nothing is opened before it is asked for, and everything is closed at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from tauten.delivery.original import original
from tauten.delivery.runners import Close, engine_runner, fresh_process_runner, open_session, tapped
from tauten.spec.contract import Contract, Tolerance
from tauten.spec.engine import EngineSettings, Runner, Tensors
from tauten.spec.errors import EngineFailed, TautenError
from tauten.spec.graph import Graph
from tauten.spec.judging import Probe, Score, Speed, Subject
from tauten.spec.source import Opened
from tauten.spec.tensors import Array


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which candidate is to be judged, and how.

    settings     how it would be served
    parity       tolerance against the original; `relative_to_scale` counts its atol in units of each output's largest value
    asked_opset  what an exporter was asked for; None for a model that was handed over as a file
    """

    model: Path
    parity: Tolerance
    variant: str = "model"
    settings: EngineSettings = field(default_factory=EngineSettings)
    relative_to_scale: bool = False
    asked_opset: int | None = None
    score: Score | None = None
    speed: Speed | None = None


@dataclass(frozen=True)
class Memo:
    """What all candidates of one delivery share: the original's answers by probe, and the score of the parent."""

    answers: dict[str, dict[str, Array]] = field(default_factory=dict)
    parent_score: Score | None = None

    def parent(self, score: Score | None) -> Memo:
        """The same answers, for a candidate whose parent scored this."""
        return replace(self, parent_score=score)


@contextmanager
def open_subject(
    contract: Contract, opened: Opened, wish: Wish, probes: Sequence[Probe], memo: Memo | None = None
) -> Iterator[Subject]:
    """A subject for the gates. Raises BadModel when the engine refuses the file, with the engine's own words."""
    memo = memo or Memo()
    engine = contract.target.engine
    with ExitStack() as stack:
        session = open_session(engine, wish.model, wish.settings)
        stack.callback(session.close)
        reference, again = _references(contract, opened, stack)
        yield Subject(
            contract=contract,
            probes=tuple(probes),
            delivered=_remembering(session.run, probes, {}),
            parity=wish.parity,
            reference=_remembering(reference, probes, memo.answers) if reference else None,
            again=_conditions(engine, wish, session.run, stack),
            reference_again=again,
            taps=_taps(engine, wish.model, stack),
            graph=_graph(wish.model),
            relative_to_scale=wish.relative_to_scale,
            variant=wish.variant,
            engine=session.facts(),
            score=wish.score,
            parent_score=memo.parent_score,
            speed=wish.speed,
            asked_opset=wish.asked_opset,
        )


def _references(contract: Contract, opened: Opened, stack: ExitStack) -> tuple[Runner | None, Runner | None]:
    """The original, and a second fresh copy of it. A model file that is its own original has no second copy."""
    make = original(opened, contract)
    if make is None:
        return None, None
    return _foreign(_lazy(make, stack)), _foreign(_lazy(make, stack)) if opened.reference is not None else None


def _foreign(run: Runner) -> Runner:
    """Whatever the original's own code raises is told as a failed run: it may be anybody's code."""

    def guarded(inputs: Tensors) -> dict[str, Array]:
        try:
            return run(inputs)
        except TautenError:
            raise
        except Exception as error:
            raise EngineFailed(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error

    return guarded


def _conditions(engine: str, wish: Wish, run: Runner, stack: ExitStack) -> Mapping[str, Runner]:
    """The candidate again, under other conditions. Names that begin with 'threads=' differ in their settings."""
    settings = wish.settings
    other = msgspec.structs.replace(settings, threads=1 if settings.threads != 1 else 2)
    return {
        "second run": run,
        "two threads at once": _twice_at_once(run),
        "second session": _lazy(lambda: engine_runner(engine, wish.model, settings), stack),
        "fresh process": _lazy(lambda: fresh_process_runner(engine, wish.model, settings), stack),
        f"threads={other.threads}": _lazy(lambda: engine_runner(engine, wish.model, other), stack),
    }


def _twice_at_once(run: Runner) -> Runner:
    def both(inputs: Tensors) -> dict[str, Array]:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(run, inputs), pool.submit(run, inputs)
            first.result()
            return second.result()

    return both


def _taps(engine: str, model: Path, stack: ExitStack) -> Callable[[tuple[str, ...]], Runner] | None:
    if model.suffix != ".onnx":
        return None
    last = stack.enter_context(ExitStack())

    def taps(names: tuple[str, ...]) -> Runner:
        last.close()  # only one instrumented copy at a time
        return last.enter_context(tapped(engine, model, names))

    return taps


def _graph(model: Path) -> Graph | None:
    if model.suffix != ".onnx":
        return None
    from tauten.formats.onnx_file import read_graph  # noqa: PLC0415  extra `onnx`

    return read_graph(model)


def _lazy(make: Callable[[], tuple[Runner, Close]], stack: ExitStack) -> Runner:
    """A runner that is opened at its first call, and closed with the stack."""
    made: list[Runner] = []

    def run(inputs: Tensors) -> dict[str, Array]:
        if not made:
            runner, close = make()
            stack.callback(close)
            made.append(runner)
        return made[0](inputs)

    return run


def _remembering(run: Runner, probes: Sequence[Probe], answers: dict[str, dict[str, Array]]) -> Runner:
    """Answers each probe once: several gates look at the same answers. Other inputs are run every time."""
    names = {id(p.inputs): p.name for p in probes}
    assert len(set(names.values())) == len(probes), "bug: two probes have one name"

    def remembered(inputs: Tensors) -> dict[str, Array]:
        name = names.get(id(inputs))
        if name is None:
            return run(inputs)
        if name not in answers:
            answers[name] = run(inputs)
        return dict(answers[name])

    return remembered
