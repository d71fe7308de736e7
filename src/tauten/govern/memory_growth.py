"""The slope of resident memory, with its confidence: a leak shows long before the machine is full.

The slope is Sen's: the median over all pairs of samples, with Kendall's interval (Sen, Estimates of the regression coefficient
based on Kendall's tau, JASA 63, 1968). One step of an allocator moves it little, where a least-squares line would tilt.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from tauten.govern._finding import Finding
from tauten.measure.observed import Observed
from tauten.spec.contract import Contract
from tauten.spec.verdict import Status, Verdict

DAY_S = 86_400.0
SETTLE = 1 / 3  # this share of the run is not counted: pools and caches fill
SHORTEST_S = 600.0  # a slope per day from less than this is a guess
FEWEST, MOST = 20, 400  # samples
PAGE_MB = 4096 / 2**20
NORMAL_95 = 1.96


def judge(observed: Observed, contract: Contract) -> tuple[Verdict, ...]:
    """Held or broken only when the whole interval is on one side of the limit, in MB per day."""
    series, lasted = _settled(observed), observed.load.seconds
    limit = contract.memory.growth_mb_per_day if contract.memory else None
    finding = Finding(name="memory_growth", unit="MB/day", key="memory.growth_mb_per_day", limit=limit, samples=len(series))
    if len(series) < FEWEST or lasted < SHORTEST_S:
        if limit is None:
            return (finding.reported(),)
        few = f"{lasted:.0f} s with {len(series)} settled samples say nothing about a day"
        return (
            finding.says(Status.UNDECIDED, few, f"verify for at least {SHORTEST_S:.0f} s; the server must tell its memory"),
        )
    slope, low, high = slope_per_day(series)
    finding = replace(finding, measured=slope, evidence={"interval_mb_per_day": [low, high]})
    if limit is None:
        return (finding.reported(),)
    told = f"{low:.3g} to {high:.3g} MB/day (95 %) over the last {series[-1][0] - series[0][0]:.0f} s"
    if high <= limit:
        return (finding.says(Status.HELD, told),)
    if low > limit:
        fix = "look for what the server keeps per request; restart it on a schedule until that is mended"
        return (finding.says(Status.BROKEN, told, fix),)
    return (finding.says(Status.UNDECIDED, f"{told}: the limit lies in between", "verify for longer"),)


def slope_per_day(series: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Sen's slope and its 95 % interval, MB per day. One page over the whole time is the finest that can be told."""
    at, size = np.array(series).T
    n = at.size
    i, j = np.triu_indices(n, 1)
    slopes = np.sort((size[j] - size[i]) / (at[j] - at[i])) * DAY_S
    spread = NORMAL_95 * sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = slopes[max(0, int((slopes.size - spread) / 2))]
    high = slopes[min(slopes.size - 1, int((slopes.size + spread) / 2) + 1)]
    page = PAGE_MB / (at[-1] - at[0]) * DAY_S
    return float(np.median(slopes)), float(low - page), float(high + page)


def _settled(observed: Observed) -> list[tuple[float, float]]:
    """Samples after the first third, thinned so that all pairs can be looked at."""
    late = [(at, mb) for at, mb in observed.resident if at >= SETTLE * observed.load.seconds]
    return late[:: max(1, -(-len(late) // MOST))]
