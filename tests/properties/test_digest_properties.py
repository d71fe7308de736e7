"""Percentiles: against numpy, monotone, mergeable in any order, with intervals that cover as often as they say."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tauten.measure.digests import Digest, binomial_cdf, ranks, samples_needed
from tauten.spec.errors import BadInput

durations = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=300)
probabilities = st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99, 0.999])


@given(durations, probabilities)
def test_exact_values_are_numpys_nearest_rank(values: list[float], q: float) -> None:
    found = Digest(values).quantile(q)
    assert found is not None
    assert found.value == np.percentile(values, q * 100, method="inverted_cdf")


@given(durations)
def test_quantiles_rise_and_lie_in_their_intervals(values: list[float]) -> None:
    digest = Digest(values)
    found = [digest.quantile(q) for q in (0.1, 0.5, 0.9, 0.99, 0.999)]
    told = [f.value for f in found if f is not None]
    assert told == sorted(told)
    for f in found:
        assert f is not None
        assert f.low is None or f.low <= f.value
        assert f.high is None or f.high >= f.value
    assert digest.least == min(values)
    assert digest.largest == max(values)


@given(st.lists(st.lists(st.floats(0, 1e3), max_size=40), min_size=2, max_size=6), st.randoms())
def test_merging_is_independent_of_order(parts: list[list[float]], random: object) -> None:
    def merged(order: list[list[float]]) -> dict[str, object]:
        whole = Digest()
        for part in order:
            whole = whole.merge(Digest(part))
        return whole.summary()

    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merged(parts) == merged(shuffled) == Digest([v for part in parts for v in part]).summary()


@pytest.mark.parametrize("bounded", [False, True])
def test_eight_workers_merge_within_two_percent_of_rank(bounded: bool) -> None:
    random = np.random.default_rng(0)
    parts = [random.lognormal(-5, 0.8, 10_000) for _ in range(8)]
    everything = np.sort(np.concatenate(parts))
    whole = Digest(capacity=8192 if bounded else 1 << 18)
    for part in parts:
        whole = whole.merge(Digest(part, capacity=whole.capacity))
    assert whole.count == 80_000
    assert whole.exact is not bounded
    assert whole.largest == everything[-1]
    for q in (0.01, 0.5, 0.9, 0.99, 0.999):
        found = whole.quantile(q)
        assert found is not None
        assert abs(np.searchsorted(everything, found.value) / everything.size - q) < 0.02


def test_a_stream_keeps_bounded_memory_and_late_values_count_as_much_as_early_ones() -> None:
    digest = Digest(capacity=2000)
    for start in range(0, 40_000, 100):
        digest.add(np.arange(start, start + 100))
    middle = digest.quantile(0.5)
    assert middle is not None
    assert middle.samples == 2000
    assert abs(middle.value - 20_000) < 2000
    assert (digest.count, digest.least, digest.largest) == (40_000, 0, 39_999)


def test_empty_is_null_with_count_zero() -> None:
    empty = Digest().merge(Digest())
    assert empty.quantile(0.99) is None
    assert empty.summary((0.99,)) == {"count": 0, "min": None, "max": None, "p99": None}
    assert empty.curve() == []
    assert empty.merge(Digest([2.0])).summary((0.99,)) == Digest([2.0]).summary((0.99,))


@pytest.mark.parametrize("odd", [float("nan"), -1e-9, float("inf")])
def test_what_is_no_duration_is_refused_and_nothing_is_taken(odd: float) -> None:
    digest = Digest([1.0])
    with pytest.raises(BadInput, match="not a duration"):
        digest.add([2.0, odd])
    assert digest.count == 1


@given(st.integers(1, 60), probabilities)
def test_the_binomial_is_exact(n: int, p: float) -> None:
    first, cdf = binomial_cdf(n, p)
    exact = np.cumsum([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
    assert np.allclose(cdf, exact[first : first + cdf.size], atol=1e-12)


@given(st.integers(1, 5000), probabilities)
def test_the_bracket_covers_as_often_as_it_says(n: int, q: float) -> None:
    """P(x_low <= Q <= x_high) from the binomial itself: at least 95 %, and each side misses at most 2.5 %."""
    low, high = ranks(n, q)
    first, cdf = binomial_cdf(n, q)

    def below(k: int) -> float:
        return 0.0 if k < first else float(cdf[min(k - first, cdf.size - 1)])

    assert low is None or below(low - 1) <= 0.025 + 1e-12
    assert high is None or below(high - 1) >= 0.975 - 1e-12
    if high is not None and high > 1 and (low is None or high - 1 > low):
        assert below(high - 2) < 0.975  # and no wider than needed


@pytest.mark.parametrize(("q", "n"), [(0.5, 6), (0.99, 368), (0.999, 3688)])
def test_how_many_samples_an_upper_bound_needs(q: float, n: int) -> None:
    assert samples_needed(q) == n
    assert ranks(n, q)[1] == n
    assert ranks(n - 1, q)[1] is None


def test_intervals_cover_the_truth_in_simulation() -> None:
    random = np.random.default_rng(1)
    truth = -np.log(0.05)  # p95 of the exponential distribution
    hits = 0
    for _ in range(400):
        found = Digest(random.exponential(1, 500)).quantile(0.95)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth <= found.high
    assert hits >= 0.92 * 400


def test_the_curve_keeps_the_tail() -> None:
    digest = Digest(np.arange(1, 100_001))
    curve = digest.curve(100)
    assert curve[-1] == (1.0, 100_000.0)
    assert len(curve) <= 101
    assert sum(share > 0.999 for share, _ in curve) >= 15
    assert curve == sorted(curve)
