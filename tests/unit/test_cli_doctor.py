"""doctor: its advice on made-up hosts, and what it says of this one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tauten.cli import doctor, main


def facts(**more: Any) -> dict[str, Any]:
    return {"allowed_cpus": 4, "cpu_quota": None, "throttled": {}, "numa_nodes": 1, "isa": ["avx2", "avx512_vnni"], **more}


def test_a_plain_host_needs_one_hint() -> None:
    assert len(doctor.advice(facts())) == 1
    assert "4" in doctor.advice(facts())[0]


@pytest.mark.parametrize(
    ("found", "hint"),
    [
        ({"cpu_quota": 1.5}, "1.5 processors"),
        ({"throttled": {"periods": 100, "throttled": 7, "lost_us": 1}}, "7 of 100"),
        ({"numa_nodes": 2}, "NUMA"),
        ({"isa": ["avx2"]}, "INT8"),
    ],
)
def test_what_is_odd_is_said(found: dict[str, Any], hint: str) -> None:
    hints = doctor.advice(facts(**found))
    assert len(hints) == 2
    assert hint in hints[1]


def test_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["engines"]["onnxruntime"]
    assert told["host"]["allowed_cpus"] >= 1
    assert not {"all", "dev"} & set(told["missing_extras"])
    assert main.main(["doctor"]) == 0
    assert "allowed cpus" in capsys.readouterr().out
