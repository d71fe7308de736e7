"""Ready throughout: every readiness probe during the load said yes."""

from __future__ import annotations

from tauten.govern._finding import Finding
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict


def judge(observed: Observed, _: Contract) -> tuple[Verdict, ...]:
    """Always judged: a delivery that is not ready is none."""
    total, down = len(observed.ready), [at for at, ready in observed.ready if not ready]
    finding = Finding(
        name="availability", unit="share", key="", limit=1.0, measured=(total - len(down)) / total if total else None,
        samples=total, evidence={"not_ready_at_s": down[:100]},
    )  # fmt: skip
    if not total:
        return (finding.says(Status.UNDECIDED, "the server was never asked whether it is ready", "verify for longer"),)
    if down:
        told = f"not ready at {len(down)} of {total} looks, first after {down[0]:.1f} s"
        return (finding.says(Status.BROKEN, told, "see GET /v2/health/ready and the server's log"),)
    return (finding.says(Status.HELD, f"ready at every one of {total} looks"),)
