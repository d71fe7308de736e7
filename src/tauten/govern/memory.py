"""Peak resident memory of the server's process, as it tells itself on /metrics."""

from __future__ import annotations

from tauten.govern._finding import Finding
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict


def judge(observed: Observed, contract: Contract) -> tuple[Verdict, ...]:
    """The highest of the samples; a peak between two of them is not seen."""
    sizes = [mb for _, mb in observed.resident]
    finding = Finding(
        name="memory", unit="MB", key="memory.peak_mb", limit=contract.memory.peak_mb if contract.memory else None,
        measured=max(sizes, default=None), samples=len(sizes),
    )  # fmt: skip
    if finding.limit is None:
        return (finding.reported(),)
    if finding.measured is None:
        missing = "the server's /metrics has no process_resident_memory_bytes"
        return (finding.says(Status.UNDECIDED, missing, "allow /metrics on its HTTP port"),)
    told = f"highest of {len(sizes)} looks at the resident memory"
    if finding.measured <= finding.limit:
        return (finding.says(Status.HELD, told),)
    fix = "serve fewer instances or a smaller axes.batch.max; or promise a higher memory.peak_mb"
    return (finding.says(Status.BROKEN, told, fix),)
