"""Durations, sizes and numbers as people write them."""

from __future__ import annotations

import argparse

import pytest

from tauten.cli._arguments import above_zero, axis_size, duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("2", 2), ("1.5m", 90), ("1d", 86_400)]
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "10x", "-5s", "0", "0s", "1m30", "1 m", "inf", "nan"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


def test_axis_size() -> None:
    assert axis_size("seq=32") == ("seq", 32)
    for wrong in ("seq", "seq=", "=3", "seq=0", "seq=-1", "seq=x"):
        with pytest.raises(argparse.ArgumentTypeError):
            axis_size(wrong)


def test_above_zero() -> None:
    assert above_zero(float)("0.5") == 0.5
    assert above_zero(int)("3") == 3
    for wrong in ("0", "-1", "nan", "inf", "x"):
        with pytest.raises(argparse.ArgumentTypeError):
            above_zero(float)(wrong)
