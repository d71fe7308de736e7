"""Percentiles that say how sure they are.

A quantile is read by nearest rank (a value that was really measured), with a confidence interval from order statistics: the
number of samples below the true q-quantile is binomial(n, q), so two ranks bracket it whatever the distribution is (Hahn and
Meeker, Statistical Intervals, 1991, section 5.2; Conover, Practical Nonparametric Statistics, section 3.2). A bound whose rank
lies outside the sample does not exist: p99 has an upper bound from 368 samples on, p99.9 from 3,688. The interval takes samples
as independent; neighbours in a queue are not quite, so it is somewhat too narrow near saturation.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log, sqrt
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tauten.spec.errors import BadInput

Floats = NDArray[np.float64]
CONFIDENCE = 0.95


class Quantile(msgspec.Struct, frozen=True, kw_only=True):
    """A quantile with its interval. A bound is None where the sample is too small to have one."""

    q: float
    value: float
    low: float | None
    high: float | None
    samples: int

    @property
    def label(self) -> str:
        """p50, p99, p99.9."""
        return f"p{self.q * 100:g}"


class Digest:
    """Durations (or any finite values ≥ 0) in bounded memory: exact up to `capacity`, a uniform sample beyond it.

    Count, least and largest stay exact. Merging is independent of order, up to sampling beyond the capacity.
    """

    __slots__ = ("_kept", "_random", "_sorted", "capacity", "count", "largest", "least")

    def __init__(self, values: ArrayLike = (), *, capacity: int = 1 << 18, seed: int = 0) -> None:
        self.capacity = capacity
        self.count = 0
        self.least: float | None = None
        self.largest: float | None = None
        self._kept: Floats = np.empty(0)
        self._sorted = True
        self._random = np.random.default_rng(seed)
        self.add(values)

    def __repr__(self) -> str:
        return f"<Digest {self.count} values, {self._kept.size} kept>"

    @property
    def exact(self) -> bool:
        return self.count == self._kept.size

    def add(self, values: ArrayLike) -> None:
        """Takes one value or many. Raises BadInput for what is not finite or below zero, and then takes none of them."""
        new = np.atleast_1d(np.asarray(values, np.float64)).ravel()
        if not new.size:
            return
        if not bool(np.all(np.isfinite(new) & (new >= 0))):
            odd = new[~(np.isfinite(new) & (new >= 0))][0]
            raise BadInput(f"{odd:g} is not a duration", fix="measure with a monotonic clock; give finite values ≥ 0")
        self._take(new, new.size, float(new.min()), float(new.max()))

    def merge(self, other: Digest) -> Digest:
        """Both together, as a new digest; the two stay as they are."""
        both = Digest(capacity=self.capacity)
        for part in (self, other):
            if part.least is not None and part.largest is not None:
                both._take(part._kept, part.count, part.least, part.largest)
        return both

    def _take(self, kept: Floats, count: int, least: float, largest: float) -> None:
        """Joins `kept`, a uniform sample out of `count` values. Too many: each side gives its share by a fair draw."""
        total = self.count + count
        if self._kept.size + kept.size <= self.capacity and self.exact and kept.size == count:
            self._kept = np.concatenate([self._kept, kept])
        else:
            room = min(self.capacity, self._kept.size + kept.size)
            ours = self._share(room, count, kept.size)
            self._kept = np.concatenate([self._pick(self._kept, ours), self._pick(kept, room - ours)])
        self.count, self._sorted = total, False
        self.least = least if self.least is None else min(self.least, least)
        self.largest = largest if self.largest is None else max(self.largest, largest)

    def _share(self, room: int, count: int, available: int) -> int:
        drawn = int(self._random.hypergeometric(self.count, count, room)) if self.count else 0
        return min(max(drawn, room - available), self._kept.size)

    def _pick(self, values: Floats, n: int) -> Floats:
        return values if n >= values.size else self._random.choice(values, n, replace=False)

    def quantile(self, q: float, *, confidence: float = CONFIDENCE) -> Quantile | None:
        """The q-quantile (0 < q < 1); None when nothing was measured."""
        if self._kept.size == 0:
            return None
        if not self._sorted:
            self._kept, self._sorted = np.sort(self._kept), True
        n = self._kept.size
        low, high = ranks(n, q, confidence)
        value = self._kept[max(1, ceil(n * q - 1e-9)) - 1]
        return Quantile(q=q, value=float(value), samples=n,
                        low=float(self._kept[low - 1]) if low else None,
                        high=float(self._kept[high - 1]) if high else None)  # fmt: skip

    def summary(self, quantiles: tuple[float, ...] = (0.5, 0.9, 0.99, 0.999)) -> dict[str, Any]:
        """Plain data: count, least, largest, and every quantile by its label (null where nothing was measured)."""
        found = [(q, self.quantile(q)) for q in quantiles]
        told = {f"p{q * 100:g}": None if x is None else {"value": x.value, "low": x.low, "high": x.high} for q, x in found}
        return {"count": self.count, "min": self.least, "max": self.largest, **told}

    def curve(self, points: int = 200) -> list[tuple[float, float]]:
        """(share of values at or below, value), thinned for drawing so that the slow tail keeps its detail."""
        if self._kept.size == 0:
            return []
        kept = np.sort(self._kept)
        n = kept.size
        half = max(2, points // 2)
        shares = np.concatenate(
            [np.linspace(0, 1, half), 1 - np.geomspace(1, 1 / n, half)]
        )  # the body evenly, the tail by decades
        index = np.unique(np.clip(np.ceil(shares * n - 1e-9).astype(int), 1, n))
        return [(float(i / n), float(kept[i - 1])) for i in index]


@lru_cache(maxsize=4096)
def ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the samples that bracket the q-quantile; None for a bound that n samples cannot give."""
    assert 0 < q < 1, f"bug: quantile {q}"
    alpha = (1 - confidence) / 2
    first, cdf = binomial_cdf(n, q)
    below = int(np.searchsorted(cdf, alpha, side="right"))  # how many k have P(X <= k) <= alpha
    low = first + below
    high = first + int(np.searchsorted(cdf, 1 - alpha, side="left")) + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def samples_needed(q: float, confidence: float = CONFIDENCE) -> int:
    """Fewest samples that give the q-quantile an upper bound."""
    return ceil(log((1 - confidence) / 2) / log(q))


def binomial_cdf(n: int, p: float) -> tuple[int, Floats]:
    """(k0, [P(X <= k0), P(X <= k0 + 1), …]) of binomial(n, p), over all k whose probability is not negligible."""
    middle, spread = n * p, 12 * sqrt(n * p * (1 - p)) + 40
    first, last = max(0, int(middle - spread)), min(n, ceil(middle + spread))
    k = np.arange(first, last)
    steps = np.log((n - k) / (k + 1)) + log(p / (1 - p))  # log of P(k + 1) / P(k)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    cdf: Floats = np.cumsum(weights) / weights.sum()
    return first, cdf
