"""compatibility: the target engine, at the oldest version that the contract allows, reads this opset, IR and operators."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tauten.spec.graph import Graph
from tauten.spec.judging import Subject
from tauten.spec.verdict import Status, Verdict

NAME = "compatibility"
ENGINE = "onnxruntime"
STANDARD = {"", "ai.onnx", "ai.onnx.ml"}
OURS = {"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}  # operators that ONNX Runtime brings along
OLDEST_OPSET = 7  # "ONNX Runtime supports all opsets from ONNX v1.2.1+ (opset version 7 and higher)", the page below

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Reads:
    """What a version of ONNX Runtime reads at most."""

    version: Version
    opset: int
    ml_opset: int
    ir: int


# From the table of ONNX Runtime's compatibility page (onnxruntime.ai/docs/reference/compatibility.html), which ends at 1.20.
# The last row was measured here: onnxruntime 1.32.0 loads opset 28 and refuses 29, and loads IR 14, the newest that onnx 1.23.2
# writes. A version between two rows is held to the lower one.
TABLE = (
    _Reads((1, 8), 14, 2, 7), _Reads((1, 9), 15, 2, 8), _Reads((1, 11), 16, 2, 8), _Reads((1, 12), 17, 3, 8),
    _Reads((1, 14), 18, 3, 8), _Reads((1, 15), 19, 3, 8), _Reads((1, 16), 19, 3, 9), _Reads((1, 17), 20, 4, 9),
    _Reads((1, 18), 21, 4, 10), _Reads((1, 32), 28, 5, 14),
)  # fmt: skip


def judge(subject: Subject) -> Verdict:
    """Held to the oldest version that the contract allows, since that may run the model; and to the one that ran it here."""
    graph, target = subject.graph, subject.contract.target
    if graph is None:
        return Verdict(name=NAME, status=Status.SKIPPED, message="the model has no graph to read")
    if target.engine != ENGINE:
        return Verdict(name=NAME, status=Status.SKIPPED, message=f"no table of versions for engine {target.engine!r}")
    installed = str(subject.engine.get("version", ""))
    try:
        reads = _oldest(target.engine_version, installed)
        allowed = not installed or admits(target.engine_version, installed)
    except ValueError as error:
        return _broken(f"target.engine_version {error}", 'write it as ">=1.20,<2"')
    if reads is None:
        oldest = _dotted(TABLE[0].version)
        return _broken(f"target.engine_version {target.engine_version} allows versions older than {oldest}, unknown here",
                       f"target.engine_version: '>={oldest}'")  # fmt: skip
    evidence: dict[str, Any] = {
        "opset": graph.opset, "ir_version": graph.ir_version, "opsets": dict(graph.opsets), "oldest": _dotted(reads.version),
        "reads_opset": reads.opset, "reads_ir": reads.ir, "installed": installed,
        "operators": dict(sorted(Counter(f"{n.domain}::{n.op}" if n.domain else n.op for n in graph.nodes).items())),
    }  # fmt: skip
    trouble = _trouble(graph, reads, target.engine_version)
    if not trouble and not allowed:
        trouble = (f"this host has {ENGINE} {installed}, the contract allows {target.engine_version}",
                   "install an allowed version, or widen target.engine_version")  # fmt: skip
    first = next((r for r in TABLE if not _trouble(graph, r, "")), reads)
    what, fix = trouble or (
        f"opset {graph.opset}, IR {graph.ir_version}: {ENGINE} {_dotted(first.version)} and newer read it",
        "",
    )
    return Verdict(
        name=NAME,
        status=Status.BROKEN if trouble else Status.HELD,
        measured=float(graph.opset),
        limit=float(reads.opset),
        unit="opset",
        samples=len(graph.nodes),
        message=what,
        fix=fix,
        evidence=evidence,
    )


def _broken(message: str, fix: str) -> Verdict:
    return Verdict(name=NAME, status=Status.BROKEN, message=message, fix=fix)


def _trouble(graph: Graph, reads: _Reads, specifier: str) -> tuple[str, str] | None:
    """What the oldest allowed version would refuse, and the fix."""
    oldest = _dotted(reads.version)
    for domain, most in (("", reads.opset), ("ai.onnx.ml", reads.ml_opset)):
        have = graph.opsets.get(domain, 0)
        if have > most:
            needs = next((r for r in TABLE if (r.opset if not domain else r.ml_opset) >= have), None)
            newer = f"target.engine_version: '>={_dotted(needs.version)}'" if needs else "a newer engine than is known here"
            what = f"opset {have}{' of ' + domain if domain else ''}, but {ENGINE} {oldest} reads {most} at most"
            return f"{what} (the contract allows {specifier or 'any version'})", f"export with target.opset: {most}, or {newer}"
    if 0 < graph.opset < OLDEST_OPSET:
        return f"opset {graph.opset}: {ENGINE} reads {OLDEST_OPSET} and newer", f"export with target.opset: {reads.opset}"
    if graph.ir_version > reads.ir:
        return (f"IR version {graph.ir_version}, but {ENGINE} {oldest} reads {reads.ir} at most",
                f"write the file with IR version {reads.ir}, or allow newer engines only in target.engine_version")  # fmt: skip
    foreign = next((n for n in graph.nodes if n.domain not in STANDARD | OURS and n.domain not in _functions(graph)), None)
    if foreign is not None:
        return (f"{foreign.label} is of domain {foreign.domain!r}, which {ENGINE} does not bring along",
                "express it with standard operators: a library of custom operators would have to be served too")  # fmt: skip
    return None


def _functions(graph: Graph) -> set[str]:
    """Domains whose operators the file itself defines. The reader lists the nodes of such functions with a depth."""
    return {n.domain for n in graph.nodes if n.depth > 0}


def _oldest(specifier: str, installed: str) -> _Reads | None:
    """The row of the oldest version that may run the model; None when it is older than every row.

    That is the contract's lower bound, or the version on this host where it names none.
    """
    lower = [_parse(version) for op, version in _clauses(specifier) if op in {">=", ">", "==", "~="}]
    base = max(lower) if lower else _parse(installed) if installed else TABLE[-1].version
    return next((row for row in reversed(TABLE) if row.version <= base), None)


def admits(specifier: str, version: str) -> bool:
    """Whether a version satisfies every clause: >=, >, <=, <, ==, !=, ~= of dotted numbers. Raises ValueError."""
    have = _parse(version)
    return all(_compare(op, have, _parse(wanted)) for op, wanted in _clauses(specifier))


def _compare(op: str, have: Version, wanted: Version) -> bool:
    width = max(len(have), len(wanted))
    a, b = (v + (0,) * (width - len(v)) for v in (have, wanted))
    if op == "~=":
        return a >= b and have[: len(wanted) - 1] == wanted[:-1]
    return _OPERATORS[op](a, b)


_OPERATORS: dict[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def _clauses(specifier: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in filter(None, (p.strip() for p in specifier.split(","))):
        match = re.fullmatch(r"(>=|<=|==|!=|~=|>|<)\s*(\d+(?:\.\d+)*)", part)
        if match is None:
            raise ValueError(f"{specifier!r} is not a list of versions: {part!r}")
        found.append((match[1], match[2]))
    return found


def _parse(version: str) -> Version:
    """The leading dotted numbers: 1.32.0rc1 is taken as 1.32.0."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        raise ValueError(f"{version!r} is not a version")
    return tuple(int(n) for n in match[0].split("."))


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
