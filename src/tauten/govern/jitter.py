"""How much p99 moves from window to window: half its range over consecutive windows of equal length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tauten.govern._finding import Finding
from tauten.measure.digests import Digest, Quantile, samples_needed
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict

FEWEST, MOST = 3, 10  # windows
NEEDED = samples_needed(0.99)  # answers a window needs so that its p99 has an interval


def judge(observed: Observed, contract: Contract) -> tuple[Verdict, ...]:
    """Chance only ever widens a range, so a range within the limit is held; broken is what chance does not explain."""
    answers = int(observed.load.latencies.size)
    limit = contract.slo.jitter_ms if contract.slo else None
    finding = Finding(name="jitter", unit="ms", key="slo.jitter_ms", limit=limit, samples=answers)
    windows = _windows(observed, min(MOST, answers // NEEDED))
    if len(windows) < FEWEST:
        if limit is None:
            return (finding.reported(),)
        few = f"{answers:,} answers do not make {FEWEST} windows of {NEEDED}, which a p99 needs"
        return (finding.says(Status.UNDECIDED, few, "verify for longer"),)
    values = [w.value * 1000 for w in windows]
    surely = max(0.0, (max(_low(w) for w in windows) - min(_high(w) for w in windows)) / 2)
    evidence = {"p99_ms_by_window": values, "window_s": observed.load.seconds / len(windows), "surely_ms": surely}
    finding = replace(finding, measured=(max(values) - min(values)) / 2, evidence=evidence)
    if limit is None:
        return (finding.reported(),)
    told = f"p99 from {min(values):.3g} to {max(values):.3g} ms over {len(windows)} windows"
    return (_weigh(finding, limit, surely, told),)


def _weigh(finding: Finding, limit: float, surely: float, told: str) -> Verdict:
    assert finding.measured is not None, "bug: nothing was measured"
    if finding.measured <= limit:
        return finding.says(Status.HELD, told)
    if surely > limit:
        fix = "look for what runs beside the server from time to time; or promise a higher slo.jitter_ms"
        return finding.says(Status.BROKEN, told, fix)
    return finding.says(Status.UNDECIDED, f"{told}, which chance may explain", "verify for longer: longer windows are surer")


def _windows(observed: Observed, count: int) -> list[Quantile]:
    """p99 of `count` consecutive windows of equal time, cut by when requests were due."""
    load = observed.load
    due, edges = load.due[load.timed], np.linspace(0, load.seconds, count + 1)
    window = np.clip(np.searchsorted(edges, due, side="right") - 1, 0, count - 1)
    return [q for i in range(count) if (q := Digest(load.latencies[window == i]).quantile(0.99)) is not None]


def _low(p99: Quantile) -> float:
    return (p99.low or 0.0) * 1000


def _high(p99: Quantile) -> float:
    return float("inf") if p99.high is None else p99.high * 1000
