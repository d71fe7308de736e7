"""Each promised percentile against its limit. Held or broken only when the whole confidence interval is on one side."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from tauten.govern._finding import Finding
from tauten.measure.digests import CONFIDENCE, Digest, Quantile, samples_needed
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict

PROMISES = ((0.5, "p50_ms"), (0.99, "p99_ms"), (0.999, "p999_ms"))
LATE_MS, LATE_SHARE = 1.0, 0.1  # a generator whose lag, at the same percentile, is beyond both is too tired to accuse anybody
FASTER = "lower slo.rate, deliver a faster variant or give it more processors; or promise a higher"


def judge(observed: Observed, contract: Contract) -> tuple[Verdict, ...]:
    """One verdict per percentile, in milliseconds, counted from when each request was due."""
    load = observed.load
    digest, lag = Digest(load.latencies), load.lag
    rate = load.due.size / load.seconds if load.seconds else 0.0
    return tuple(
        _judge_one(digest.quantile(q), Finding(
            name="latency", unit=f"ms p{q * 100:g}", key=f"slo.{key}", limit=getattr(contract.slo, key, None),
            samples=digest.count, evidence={"quantile": q, "requests_per_s": rate, "generator_lag_ms": _ms(lag.quantile(q))},
        ))
        for q, key in PROMISES
    )  # fmt: skip


def _judge_one(found: Quantile | None, finding: Finding) -> Verdict:
    if found is None:
        if finding.limit is None:
            return finding.reported()
        return finding.says(Status.UNDECIDED, "no request was answered", "see the errors clause")
    low, high = (None if x is None else x * 1000 for x in (found.low, found.high))
    evidence = {**finding.evidence, "interval_ms": [low, high], "confidence": CONFIDENCE}
    finding = replace(finding, measured=found.value * 1000, evidence=evidence)
    if finding.limit is None:
        return finding.reported()
    return finding.says(*_weigh(found, finding, low, high))


def _weigh(found: Quantile, finding: Finding, low: float | None, high: float | None) -> tuple[Status, str, str]:
    """Status, message and fix. `low` and `high` are the bounds in ms, None where the sample is too small for one."""
    limit, rate, late_ms = finding.limit, finding.evidence["requests_per_s"], finding.evidence["generator_lag_ms"]
    assert limit is not None, "bug: weighed against no limit"
    between = f"{f'{low:.3g}' if low is not None else 'below'} to {f'{high:.3g}' if high is not None else 'above'} ms (95 %)"
    if low is not None and low > limit:
        if late_ms > max(LATE_MS, LATE_SHARE * found.value * 1000):
            late = f"the load generator itself was {late_ms:.3g} ms late ({found.label}): {between} says little of the server"
            return Status.UNDECIDED, late, "run it where there is processor time to spare"
        return Status.BROKEN, f"{between} at {rate:.3g} requests/s", f"{FASTER} {finding.key}"
    if high is not None and high <= limit:
        return Status.HELD, f"{between} at {rate:.3g} requests/s", ""
    if high is None:
        needed = samples_needed(found.q)
        longer = f"verify for at least {ceil(needed / rate * 1.1)} s"
        return (
            Status.UNDECIDED,
            f"{found.label} has an upper bound from {needed:,} answers on, there are {found.samples:,}",
            longer,
        )
    return Status.UNDECIDED, f"{between}: the limit lies in between", "verify for longer"


def _ms(found: Quantile | None) -> float:
    return found.value * 1000 if found else 0.0
