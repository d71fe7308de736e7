"""accuracy: on labelled data, a variant loses no more of the metric than the contract allows."""

from __future__ import annotations

import math

from tauten.spec.judging import Subject
from tauten.spec.verdict import Status, Verdict

NAME = "accuracy"


def judge(subject: Subject) -> Verdict:
    """Compares with the model it was made from, and with the least that the contract asks for. Higher is better."""
    promise, score, parent = subject.contract.accuracy, subject.score, subject.parent_score
    if promise is None:
        return Verdict(name=NAME, status=Status.SKIPPED, message="the contract promises no accuracy")
    if score is None:
        return Verdict(name=NAME, status=Status.UNDECIDED, message=f"{promise.metric} was not measured",
                       fix=f"give labelled data that can be read: accuracy.data is {promise.data!r}")  # fmt: skip
    drop = parent.value - score.value if parent is not None else 0.0
    evidence = {"metric": score.metric, "parent": parent.value if parent and math.isfinite(parent.value) else None}
    text = f"{score.metric} {score.value:.4f}"
    if parent is not None:
        text += f", {parent.value:.4f} before: {100 * drop:+.2f} points lost, allowed {100 * promise.max_drop:.2f}"
    held = drop <= promise.max_drop  # NaN is not
    if promise.min is not None and not score.value >= promise.min:
        held, text = False, f"{text}; at least {promise.min:g} is promised"
    return Verdict(name=NAME, status=Status.HELD if held else Status.BROKEN, measured=drop if math.isfinite(drop) else None,
                   limit=promise.max_drop, unit="lost", samples=score.samples, message=text, evidence=evidence,
                   fix="" if held else "use another precision scheme, or keep this variant's parent")  # fmt: skip
