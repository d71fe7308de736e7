"""Which settings and which variant are the fastest on this host: measured in turn, then chosen by pure functions.

Configurations of one candidate are tried briefly; then each candidate's best runs against the parent's best in alternating
rounds, so that a machine whose speed drifts slows both sides of every ratio alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import msgspec

from tauten.measure.host import allowed_cpus
from tauten.spec import plugins
from tauten.spec.contract import Contract, Slo
from tauten.spec.engine import Engine, EngineSettings, Runner, ServingSettings, Tensors
from tauten.spec.judging import Speed
from tauten.spec.signature import BATCH

TRY_S, ROUND_S, ROUNDS = 0.25, 0.4, 7
WORTH_IT = 1.03  # a larger batch must bring at least this much over the next smaller one, since it costs latency
RUN_COST_MS = 0.3  # what serving a run costs besides the engine: hand-overs between threads, replies
LATENCY_SHARE = 0.5  # one row alone may use this part of the promised p50; the rest is for queueing and the network


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration that was tried: rows per second, and milliseconds of one run (medians)."""

    threads: int
    instances: int
    batch: int
    samples_per_s: float
    run_ms: float


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration chosen for one candidate, and everything that was tried for it."""

    settings: ServingSettings
    best: Trial
    trials: tuple[Trial, ...]


def tune(model: Path, contract: Contract, feed: Callable[[int], Tensors]) -> Tuned:
    """Tries threads, instances and batch sizes for one model file. `feed` makes inputs with a given number of rows."""
    engine: Engine = plugins.load("engines", contract.target.engine)
    cores = allowed_cpus()
    trials: list[Trial] = []
    for threads, instances in sorted({(cores, 1), (1, cores)}, reverse=True):
        with _opened(engine, model, EngineSettings(threads=threads), instances) as runs:
            trials.extend(_try(runs, threads, feed(n), n) for n in batches(contract))
    best = choose(trials, contract.slo)
    return Tuned(settings=settings_for(best, contract), best=best, trials=tuple(trials))


def batches(contract: Contract) -> tuple[int, ...]:
    """Batch sizes worth trying: 1, 8, the declared optimum and the declared maximum, within the bounds."""
    axis = contract.axes.get(BATCH)
    if axis is None:
        return (1,)
    return tuple(sorted({min(max(n, axis.min), axis.max) for n in (1, 8, axis.optimum, axis.max)}))


def choose(trials: Sequence[Trial], slo: Slo | None) -> Trial:
    """The trial with the most rows per second whose single row is quick enough for the promised p50.

    Rows per second are those of serving, where every run costs RUN_COST_MS more. A larger batch counts only if it brings
    WORTH_IT more. When nothing is quick enough, the quickest single row wins.
    """
    smallest = min(t.batch for t in trials)
    alone = {(t.threads, t.instances): t.run_ms for t in trials if t.batch == smallest}
    allowed = slo.p50_ms * LATENCY_SHARE if slo and slo.p50_ms else float("inf")
    quick = [t for t in trials if alone[t.threads, t.instances] <= allowed]
    if not quick:
        fastest = min(alone, key=lambda key: alone[key])
        quick = [t for t in trials if (t.threads, t.instances) == fastest]
    best = quick[0]
    for trial in sorted(quick, key=lambda t: (t.batch, -t.samples_per_s)):
        if _served(trial) > _served(best) * (WORTH_IT if trial.batch > best.batch else 1.0):
            best = trial
    return best


def _served(trial: Trial) -> float:
    return trial.samples_per_s * trial.run_ms / (trial.run_ms + RUN_COST_MS)


def settings_for(trial: Trial, contract: Contract) -> ServingSettings:
    """How a variant is served when it was fastest under `trial`."""
    return ServingSettings(
        engine=contract.target.engine,
        session=EngineSettings(threads=trial.threads),
        instances=trial.instances,
        batch=trial.batch,
        buckets={name: axis.buckets for name, axis in contract.axes.items() if axis.buckets and name != BATCH},
    )


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a race: a model file under the settings it would be served with."""

    model: Path
    settings: ServingSettings
    feed: Callable[[int], Tensors]


def race(contestant: Contestant, parent: Contestant, *, rounds: int = ROUNDS) -> Speed:
    """Paired rounds, the order swapped each time. A ratio above 1 means that the contestant is faster than its parent."""
    engine: Engine = plugins.load("engines", contestant.settings.engine)
    s, p = contestant.settings, parent.settings
    with (
        _opened(engine, contestant.model, s.session, s.instances) as mine,
        _opened(engine, parent.model, p.session, p.instances) as theirs,
    ):
        pairs = []
        for turn in range(rounds):
            order = ((contestant, mine), (parent, theirs))
            rates = {id(c): _round(c, runs) for c, runs in (order if turn % 2 else reversed(order))}
            pairs.append((rates[id(contestant)], rates[id(parent)]))
    label = f"{_label(s)} against {_label(p)}"
    return Speed(
        ratios=tuple(round(a / b, 4) for a, b in pairs),
        label=label,
        samples_per_s=median(a for a, _ in pairs),
        parent_samples_per_s=median(b for _, b in pairs),
    )


@contextmanager
def _opened(engine: Engine, model: Path, settings: EngineSettings, count: int) -> Iterator[list[Runner]]:
    """As many sessions as there would be instances: a shared one would make them fight for its allocator."""
    with ExitStack() as stack:
        sessions = [engine.open(model, settings) for _ in range(count)]
        for session in sessions:
            stack.callback(session.close)
        yield [session.run for session in sessions]


def _round(contestant: Contestant, runs: list[Runner]) -> float:
    rows = contestant.settings.batch
    return throughput(runs, contestant.feed(rows), rows, ROUND_S)[0]


def _label(settings: ServingSettings) -> str:
    return f"batch {settings.batch}, {settings.instances} × {settings.session.threads} threads"


def _try(runs: list[Runner], threads: int, inputs: Tensors, batch: int) -> Trial:
    rate, ms = throughput(runs, inputs, batch, TRY_S)
    return Trial(threads=threads, instances=len(runs), batch=batch, samples_per_s=round(rate, 1), run_ms=round(ms, 4))


def throughput(runs: Sequence[Runner], inputs: Tensors, rows: int, seconds: float) -> tuple[float, float]:
    """One caller for each of `runs`: rows per second of all, and the median ms of one run; at least three runs a caller."""
    for run in runs:
        run(inputs)

    def call(run: Runner) -> list[float]:
        times: list[float] = []
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end or len(times) < 3:
            run(inputs)
            times.append(time.perf_counter() - start)
        return times

    with ThreadPoolExecutor(len(runs)) as pool:
        all_times = list(pool.map(call, runs))
    rate = sum(rows * len(times) / sum(times) for times in all_times)
    return rate, median(t for times in all_times for t in times) * 1000
