"""The share of requests that were not answered with a result."""

from __future__ import annotations

from tauten.govern._finding import Finding
from tauten.measure.digests import CONFIDENCE, binomial_cdf
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict

FIX = {
    Status.BROKEN: "see the server's log; a full queue answers 503: lower slo.rate or give it more processors",
    Status.UNDECIDED: "verify for longer",
}


def judge(observed: Observed, contract: Contract) -> tuple[Verdict, ...]:
    """slo.errors is a share between 0 and 1. With 0 promised a single failure breaks it; otherwise chance is allowed for."""
    load = observed.load
    total, failed = int(load.status.size), load.failed
    finding = Finding(
        name="errors", unit="share", key="slo.errors", limit=contract.slo.errors if contract.slo else None,
        measured=failed / total if total else None, samples=total, evidence={"by_kind": dict(load.errors)},
    )  # fmt: skip
    if finding.limit is None:
        return (finding.reported(),)
    kinds = ", ".join(f"{n:,} × {kind}" for kind, n in sorted(load.errors.items(), key=lambda item: -item[1]))
    status = weigh(failed, total, finding.limit)
    told = f"{failed:,} of {total:,} requests failed{f': {kinds}' if kinds else ''}"
    return (finding.says(status, told, FIX.get(status, "")),)


def weigh(failed: int, total: int, limit: float) -> Status:
    """Exact binomial: would so few (or so many) failures still be likely at exactly the promised share?"""
    if not total:
        return Status.UNDECIDED
    if not 0 < limit < 1:
        return Status.HELD if failed / total <= limit else Status.BROKEN
    first, cdf = binomial_cdf(total, limit)

    def at_most(k: int) -> float:
        return 0.0 if k < first else float(cdf[min(k - first, cdf.size - 1)])

    doubt = (1 - CONFIDENCE) / 2
    if at_most(failed) <= doubt:
        return Status.HELD
    return Status.BROKEN if 1 - at_most(failed - 1) <= doubt else Status.UNDECIDED
