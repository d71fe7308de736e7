"""Subjects to judge: numpy functions as runners, and small graphs run by the real engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tauten.delivery.probes import make_probes
from tauten.spec import plugins
from tauten.spec.contract import Contract
from tauten.spec.judging import Subject
from tauten.spec.verdict import Verdict


def contract(**changes: Any) -> Contract:
    """x[batch, 4] -> y[batch, 4], batch 1 to 8, with changes."""
    plain: dict[str, Any] = {
        "contract": 1,
        "inputs": {"x": {"dtype": "float32", "shape": ["batch", 4]}},
        "outputs": {"y": {"dtype": "float32", "shape": ["batch", 4]}},
        "axes": {"batch": {"min": 1, "opt": 4, "max": 8}},
    }
    return Contract.of({**plain, **changes})


@pytest.fixture
def judged() -> Callable[..., Verdict]:
    """judged(gate, contract changes, **fields of Subject): the verdict."""

    def judge(gate: str, changes: dict[str, Any] | None = None, **fields: Any) -> Verdict:
        made = fields.pop("contract", None) or contract(**(changes or {}))
        given = {"parity": made.tolerances.parity, "probes": make_probes(made), **fields}
        subject = Subject(contract=made, **given)
        verdict: Verdict = plugins.load("gates", gate).judge(subject)
        return verdict

    return judge
