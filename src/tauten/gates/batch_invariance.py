"""batch_invariance: a row's answer never depends on who shares its batch, where it stands, or how many they are.

Rows of all probes of one size are mixed: each row alone, then among others at every position, in small, odd and the largest
batches, beside rows at the limits of their ranges, masked rows, very large values and NaN where clients may send it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tauten.measure.compare import Difference, most_excessive, scale_of, weight, worst_of
from tauten.measure.locate import first_change, rows_of
from tauten.spec.contract import Contract
from tauten.spec.engine import Tensors
from tauten.spec.graph import Node
from tauten.spec.judging import Probe, Subject
from tauten.spec.signature import BATCH, Axis
from tauten.spec.tensors import Array
from tauten.spec.verdict import Status, Verdict

NAME = "batch_invariance"
ROWS, GROUPS, DEFAULT_MAX = 16, 3, 5
ALONE = "serve with axes.batch.max: 1"

# What an operator does to rows when its result depends on them, and how to mend it.
_STATISTICS = ("uses batch statistics", f"track_running_stats=True (and eval()), or {ALONE}")
_ONE_SCALE = ("has one activation scale for the whole batch", f"use a row-wise scheme, or {ALONE}")
_REDUCES = ("reduces over the batch axis", f"reduce over the other axes only, or {ALONE}")
CAUSES: dict[str, tuple[str, str]] = {
    "BatchNormalization": _STATISTICS,
    "DynamicQuantizeLinear": _ONE_SCALE, "DynamicQuantizeMatMul": _ONE_SCALE, "DynamicQuantizeLSTM": _ONE_SCALE,
    "Reshape": ("mixes rows", f"reshape with the input's own batch size, x.reshape(x.shape[0], -1), or {ALONE}"),
    "Softmax": ("normalises over the batch axis", f"softmax over another dim, or {ALONE}"),
    "CumSum": ("sums along the batch axis", f"sum along another dim, or {ALONE}"),
    "TopK": ("ranks rows against each other", f"rank along another dim, or {ALONE}"),
}  # fmt: skip
_NORM = ("norm", "bn")


@dataclass(frozen=True, slots=True)
class _Row:
    """One row to follow: its inputs with a leading axis of one, and where it comes from."""

    probe: Probe
    inputs: dict[str, Array]


@dataclass(frozen=True, slots=True)
class _Change:
    """A row that changed: how much, alone and in which batch, at which position."""

    difference: Difference
    row: _Row
    alone: Tensors
    batch: Tensors
    position: int
    rows: int

    @property
    def weight(self) -> tuple[bool, bool, float, float]:
        return weight(self.difference, self.row.probe)


class _WrongRows(Exception):
    """Not an error: how the search ends early."""

    def __init__(self, message: str, inputs: Tensors, rows: int) -> None:
        super().__init__(message)
        self.inputs, self.rows = inputs, rows


def judge(subject: Subject) -> Verdict:
    """Skipped where rows never share a batch. Names the operator that mixes rows where the graph can be instrumented."""
    if reason := _why_not(subject.contract):
        return Verdict(name=NAME, status=Status.SKIPPED, message=reason)
    samples, worst = 0, None
    try:
        for rows in _pools(subject):
            for change in _changes(subject, rows):
                samples += 1
                worst = change if worst is None or change.weight > worst.weight else worst
            if worst is not None and worst.difference.held and (spoilt := _beside_nan(subject, rows[0])) is not None:
                samples += 1
                worst = max(worst, spoilt, key=lambda c: c.weight)
    except _WrongRows as found:
        return Verdict(name=NAME, status=Status.BROKEN, message=str(found), samples=samples + 1,
                       evidence={"rows_in": found.rows}, fix=_fix_rows(found.rows))  # fmt: skip
    if worst is None:
        return Verdict(
            name=NAME, status=Status.UNDECIDED, message="no probe has rows to follow", fix="give probes of batch size 2 or more"
        )
    if worst.difference.held:
        return _verdict(Status.HELD, worst, samples, message=f"{samples} rows answer alone as they do among others")
    worst = _smallest(subject, worst)
    node = first_change(
        subject.graph, subject.taps, (worst.alone, worst.batch), rows_of(worst.position, worst.rows, _least(subject))
    )
    return _verdict(Status.BROKEN, worst, samples, *_told(worst, node), node=node.label if node else "")


def _why_not(contract: Contract) -> str:
    for where, specs in (("input", contract.inputs), ("output", contract.outputs)):
        for name, spec in specs.items():
            if spec.shape[:1] != (BATCH,):
                return f"{where} {name!r} does not lead with {BATCH!r}: requests are never gathered"
    axis = contract.axes.get(BATCH)
    return "axes.batch.max is 1: rows never share a batch" if axis and axis.max == 1 else ""


def _verdict(status: Status, change: _Change, samples: int, message: str, fix: str = "", node: str = "") -> Verdict:
    found = change.difference
    evidence: dict[str, Any] = found.as_evidence(
        output=found.output, probe=change.row.probe.name, rows=change.rows, position=change.position
    )
    return Verdict(name=NAME, status=status, measured=found.measured, limit=found.limit, unit="max_abs", samples=samples,
                   message=message, fix=fix, evidence={**evidence, **({"node": node} if node else {})})  # fmt: skip


def _told(change: _Change, node: Node | None) -> tuple[str, str]:
    found = change.difference
    amount = f"by {found.max_abs:.3g}" if math.isfinite(found.max_abs) else f"({found.reason})"
    text = f"row {change.position} changes {amount} when its batch mates change"
    if node is None:
        return f"{text}: some operator mixes rows ({change.row.probe.kind} row in a batch of {change.rows})", ALONE
    cause, fix = _cause(node)
    return f"{text}: {node.label} {cause}", fix


def _cause(node: Node) -> tuple[str, str]:
    if node.op in CAUSES:
        return CAUSES[node.op]
    layer = node.origin.lower() or node.name.lower()
    if node.op.startswith("Reduce"):
        return _STATISTICS if any(word in layer for word in _NORM) else _REDUCES
    return "mixes rows", ALONE


def _fix_rows(rows: int) -> str:
    if rows == 1:
        return "squeeze(dim) only the axis that is meant: a bare squeeze() drops the batch axis when it is 1"
    return f"reshape with the input's own batch size, x.reshape(x.shape[0], -1), or {ALONE}"


def _pools(subject: Subject) -> Iterator[list[_Row]]:
    """Rows that may stand in one batch: of equal size along every other axis. Richest first, then the smallest and largest."""
    groups: dict[tuple[tuple[str, int], ...], list[Probe]] = {}
    for probe in subject.probes:
        key = tuple((a, s) for a, s in sorted(probe.sizes.items()) if a != BATCH)
        groups.setdefault(key, []).append(probe)
    richest = max(groups, key=lambda k: (len({p.kind for p in groups[k]}), len(groups[k])))
    by_size = sorted(groups, key=lambda k: math.prod(s for _, s in k))
    for key in list(dict.fromkeys([richest, by_size[0], by_size[-1]]))[:GROUPS]:
        yield _rows(groups[key])


def _rows(probes: Sequence[Probe]) -> list[_Row]:
    """The first and the last row of each kind, then further ones, up to a bound."""
    first = {p.kind: p for p in reversed(probes)}
    others = [p for p in probes if first[p.kind] is not p]
    rows = [
        _Row(probe, {name: v[i : i + 1] for name, v in probe.inputs.items()})
        for probe in (*first.values(), *others)
        for i in dict.fromkeys((0, len(next(iter(probe.inputs.values()))) - 1))
    ]
    return rows[:ROWS]


def _changes(subject: Subject, rows: list[_Row]) -> Iterator[_Change]:
    least = _least(subject)
    alone_inputs = [_joined([row] * least) for row in rows]
    alone = [_run(subject, inputs, least) for inputs in alone_inputs]
    for order in _orders(len(rows), subject.contract.axes.get(BATCH)):
        batch = _joined([rows[i] for i in order])
        got = _run(subject, batch, len(order))
        for position, i in enumerate(order):
            yield _change(subject, rows[i], (alone_inputs[i], alone[i]), (batch, got), position)


def _change(
    subject: Subject, row: _Row, alone: tuple[Tensors, Tensors], batch: tuple[Tensors, Tensors], position: int
) -> _Change:
    got = {name: v[position : position + 1] for name, v in batch[1].items()}
    want = {name: v[:1] for name, v in alone[1].items()}
    differences = worst_of(
        got, want, subject.contract.tolerances.batch, subject.contract.outputs, scale=scale_of(row.probe), nan_agrees=True
    )
    count = len(next(iter(batch[0].values())))
    return _Change(most_excessive(differences.values()), row, alone[0], batch[0], position, count)


def _orders(count: int, axis: Axis | None) -> Iterator[list[int]]:
    """Batches to try, as indices of rows: pairs, three, all in order, reversed and turned, and the largest batch."""
    step, most = (axis.multiple_of, axis.max) if axis else (1, DEFAULT_MAX)
    everybody = list(range(count))
    turned = everybody[count // 2 :] + everybody[: count // 2]
    for order in (everybody[:2], everybody[:2][::-1], everybody[-3:], everybody, everybody[::-1], turned):
        for start in range(0, len(order), most):
            part = order[start : start + most]
            yield (part * step)[: math.ceil(len(part) / step) * step]
    yield [everybody[i % count] for i in range(most // step * step)]


def _beside_nan(subject: Subject, row: _Row) -> _Change | None:
    """A row beside rows of NaN, where clients may send NaN: floats with no declared range."""
    free = [n for n, s in subject.contract.inputs.items() if s.element.floating and s.range is None and s.dtype != "bfloat16"]
    axis, least = subject.contract.axes.get(BATCH), _least(subject)
    count = least + (axis.multiple_of if axis else 1)
    if not free or (axis and count > axis.max):
        return None
    spoilt = _Row(row.probe, {n: np.full_like(v, np.nan) if n in free else v for n, v in row.inputs.items()})
    alone, batch = _joined([row] * least), _joined([row, *[spoilt] * (count - 1)])
    return _change(subject, row, (alone, _run(subject, alone, least)), (batch, _run(subject, batch, count)), 0)


def _smallest(subject: Subject, worst: _Change) -> _Change:
    """The same row with one mate, where that shows the change too: cheaper to look inside."""
    axis = subject.contract.axes.get(BATCH)
    if worst.rows <= 2 or (axis and (axis.multiple_of > 1 or axis.min > 1)):
        return worst
    alone = _run(subject, worst.alone, 1)
    for mate in range(worst.rows):
        pair = {name: v[[worst.position, mate]] for name, v in worst.batch.items()}
        found = _change(subject, worst.row, (worst.alone, alone), (pair, _run(subject, pair, 2)), 0)
        if not found.difference.held:
            return found
    return worst


def _least(subject: Subject) -> int:
    """The smallest batch that may run: what being alone means."""
    axis = subject.contract.axes.get(BATCH)
    return max(1, math.ceil(axis.min / axis.multiple_of) * axis.multiple_of) if axis else 1


def _joined(rows: Sequence[_Row]) -> dict[str, Array]:
    return {name: np.concatenate([row.inputs[name] for row in rows]) for name in rows[0].inputs}


def _run(subject: Subject, inputs: Tensors, rows: int) -> dict[str, Array]:
    outputs = subject.delivered(inputs)
    for name, spec in subject.contract.outputs.items():
        value = outputs.get(name)
        if value is None or (value.ndim == len(spec.shape) and value.shape[0] == rows):
            continue
        if value.ndim != len(spec.shape):
            raise _WrongRows(
                f"output {name!r} has shape {list(value.shape)} for a batch of {rows}, declared is {spec.describe()}",
                inputs,
                rows,
            )
        raise _WrongRows(f"output {name!r} has {value.shape[0]} rows for {rows} rows in: rows are mixed", inputs, rows)
    return outputs
