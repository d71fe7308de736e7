"""Golden probes through the live server: have its numbers moved since they were sealed, or since it was first asked?"""

from __future__ import annotations

from math import isfinite

from tauten.govern._finding import Finding
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict

FIX = (
    "the engine, its threads or this machine's instructions are not those it was sealed with: "
    "roll back, or build the bundle on this kind of machine"
)


def judge(observed: Observed, contract: Contract) -> tuple[Verdict, ...]:
    """The worst element of every output of every probe, while load is on."""
    worst = max(observed.moved, key=lambda m: m.max_abs, default=None)
    finding = Finding(
        name="drift", unit="max_abs", key="drift.max_abs", limit=contract.drift.max_abs if contract.drift else None,
        measured=worst.max_abs if worst and isfinite(worst.max_abs) else None, samples=len(observed.moved),
        evidence={"probe": worst.probe, "at_s": worst.at, "against": observed.against} if worst else {},
    )  # fmt: skip
    if finding.limit is None:
        return (finding.reported(),)
    if worst is None:
        return (finding.says(Status.UNDECIDED, "no golden probe was answered again", "verify for longer, and give --bundle"),)
    if worst.max_abs <= finding.limit:
        return (finding.says(Status.HELD, f"golden probes against {observed.against}"),)
    by = f"by {worst.max_abs:.3g}" if isfinite(worst.max_abs) else "to something else (not finite, or another shape)"
    told = f"probe {worst.probe!r} moved {by} from {observed.against}, {max(0.0, worst.at):.0f} s into the load"
    return (finding.says(Status.BROKEN, told, FIX),)
