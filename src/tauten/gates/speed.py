"""speed: a variant is really faster than what it was made from, on this host, beyond the noise of the measurement.

Each ratio is one paired round, parent time / variant time. Judged is the one-sided 95 % lower confidence bound of their
median, from order statistics (the sign test turned around), which assumes nothing about how times are distributed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from tauten.spec.judging import Subject
from tauten.spec.verdict import Status, Verdict

NAME = "speed"
CONFIDENCE = 0.95
LEAST_ROUNDS = 5  # with fewer, not even all of them on one side would be enough: 1/2**4 > 5 %


def judge(subject: Subject) -> Verdict:
    """Skipped for what has no parent; undecided with too few rounds."""
    speed = subject.speed
    if speed is None:
        return Verdict(name=NAME, status=Status.SKIPPED, message="there is no parent to be faster than")
    rounds, middle = len(speed.ratios), median(speed.ratios) if speed.ratios else math.nan
    if rounds < LEAST_ROUNDS:
        return Verdict(name=NAME, status=Status.UNDECIDED, samples=rounds, unit="times",
                       message=f"{rounds} rounds are too few to tell, {LEAST_ROUNDS} are needed", fix="race on")  # fmt: skip
    bound = lower_bound(speed.ratios)
    figures = f"{speed.samples_per_s:.4g} against {speed.parent_samples_per_s:.4g} samples/s ({speed.label})"
    held = bound > 1.0
    text = (
        f"{middle:.2f} times as fast: {figures}"
        if held
        else f"not worth it: {middle:.2f} times as fast, at least {bound:.2f}; {figures}"
    )
    return Verdict(name=NAME, status=Status.HELD if held else Status.BROKEN, measured=middle, limit=1.0, unit="times",
                   samples=rounds, message=text, fix="" if held else "deliver its parent instead",
                   evidence={"lower_bound": bound, "ratios": list(speed.ratios), "label": speed.label})  # fmt: skip


def lower_bound(ratios: Sequence[float]) -> float:
    """The largest order statistic that the median exceeds with the confidence above."""
    n, tail, k = len(ratios), 0.0, 0
    while k < n and (tail := tail + math.comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        k += 1
    assert k, "bug: too few rounds for a bound"
    return sorted(ratios)[k - 1]
