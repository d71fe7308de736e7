"""A first contract from a model: its signature, bounded axes, tolerances for its types, an SLO measured here with headroom."""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from tauten.delivery.probes import sample
from tauten.spec.contract import Accuracy, Contract, Drift, Memory, Slo, Target
from tauten.spec.engine import Runner
from tauten.spec.errors import BadContract
from tauten.spec.signature import BATCH, Axis, Signature
from tauten.spec.source import Opened

RUNS = 24
# What the original takes here, times these, is promised of the delivered part: room for queueing, for the network and for
# a neighbour on the machine. The rate keeps one row at a time busy for a quarter of the time.
P50_HEADROOM, P99_HEADROOM, LOAD = 3.0, 10.0, 0.25
LEAST_S = 0.002  # a model that is quicker than this is promised no more: the network and the server would be most of it
BATCH_MAX, BATCH_OPT = 32, 8


def first_contract(opened: Opened, run: Runner, *, name: str = "", options: dict[str, Any] | None = None) -> Contract:
    """A contract that the model as handed over should be able to keep. `run` is measured for the SLO.

    options  `precision` (names), `accuracy` (an Accuracy), `opset`: what the model itself cannot tell
    """
    options = options or {}
    if not opened.suggested.inputs:
        raise BadContract("the signature cannot be told from the model alone",
                          fix="let the factory return (module, example_inputs)")  # fmt: skip
    signature = _bounded(opened.suggested)
    bare = Contract(
        contract=1, inputs=signature.inputs, outputs=signature.outputs, axes=signature.axes, name=name or opened.name
    )
    seconds = max(_typical(run, bare), LEAST_S)
    slo = Slo(
        rate=_round_down(LOAD / seconds),
        p50_ms=_round_up(seconds * P50_HEADROOM * 1000),
        p99_ms=_round_up(seconds * P99_HEADROOM * 1000),
        errors=0,
    )
    return Contract(
        contract=1,
        name=bare.name,
        target=Target(opset=options.get("opset", Target().opset), precision=tuple(options.get("precision", ("float32",)))),
        inputs=signature.inputs,
        outputs=signature.outputs,
        axes=signature.axes,
        tolerances=bare.tolerances,
        accuracy=options.get("accuracy"),
        slo=slo,
        memory=Memory(peak_mb=2048),
        drift=Drift(max_abs=1e-6),
    )


def accuracy_from(data: str, metric: str, max_drop: float, contract_path: Path) -> Accuracy:
    """The accuracy section, its data relative to the contract's folder. Raises BadContract when the file is missing."""
    path = Path(data)
    if not path.is_file():
        raise BadContract(f"accuracy data {data!r} is not a file", fix="check the path")
    relative = path.resolve()
    folder = contract_path.resolve().parent
    shown = relative.relative_to(folder) if relative.is_relative_to(folder) else relative
    return Accuracy(data=str(shown), metric=metric, max_drop=max_drop)


def _bounded(signature: Signature) -> Signature:
    """Every axis that is named gets bounds; those that the source knew are kept."""
    named = {a for s in (*signature.inputs.values(), *signature.outputs.values()) for a in s.axes}
    missing = {
        a: Axis(min=1, opt=BATCH_OPT, max=BATCH_MAX) if a == BATCH else Axis(min=1, opt=64, max=256) for a in sorted(named)
    }
    return Signature(inputs=signature.inputs, outputs=signature.outputs, axes={**missing, **signature.axes})


def _typical(run: Runner, contract: Contract) -> float:
    """Seconds of one row at the declared optimum of every other axis: the lower quartile, moved least by a busy neighbour."""
    sizes = {name: axis.min if name == BATCH else axis.optimum for name, axis in contract.axes.items()}
    inputs = sample(contract, sizes)
    run(inputs)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run(inputs)
        times.append(time.perf_counter() - start)
    return quantiles(times, n=4)[0]


def _round_up(value: float) -> float:
    """To two significant digits, upwards."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(value / unit) * unit, 6)


def _round_down(value: float) -> float:
    """To two significant digits, downwards, and never below one request in ten seconds."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return max(0.1, round(math.floor(value / unit) * unit, 6))
