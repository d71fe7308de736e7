"""Host facts, read from made-up /proc and /sys trees of both cgroup versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tauten.measure import host


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "0::/a/b\n"
V1 = "4:memory:/m\n1:cpu,cpuacct:/a\n"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": V2, "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),  # own group mounted as the root
        ({"proc/self/cgroup": V1, "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1",
          "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}, None),
        ({"proc/self/cgroup": V1, "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "300000",
          "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        ({}, None),
    ],
)  # fmt: skip
def test_quota_is_the_least_on_the_way_up(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert host.cpu_quota(tree(tmp_path, files)) == quota


def test_allowed_cpus_is_at_least_one_and_at_most_the_affinity(tmp_path: Path) -> None:
    tight = tree(tmp_path / "tight", {"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "10000 100000"})
    wide = tree(tmp_path / "wide", {"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "99900000 100000"})
    assert host.allowed_cpus(tight) == 1
    assert host.allowed_cpus(wide) == len(os.sched_getaffinity(0))


def test_memory_limit_of_both_versions(tmp_path: Path) -> None:
    v2 = tree(tmp_path / "2", {"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/memory.max": "1073741824"})
    v1 = tree(tmp_path / "1", {"proc/self/cgroup": V1, "sys/fs/cgroup/memory/m/memory.limit_in_bytes": str(2**63 - 4096)})
    assert host.memory_limit(v2) == 2**30
    assert host.memory_limit(v1) is None


def test_throttling_is_counted_in_microseconds(tmp_path: Path) -> None:
    counters = "nr_periods 9\nnr_throttled 4\n"
    v2 = tree(tmp_path / "2", {"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.stat": f"{counters}throttled_usec 700"})
    v1 = tree(tmp_path / "1", {"proc/self/cgroup": V1, "sys/fs/cgroup/cpu/a/cpu.stat": f"{counters}throttled_time 700000"})
    assert host.throttled(v2) == host.throttled(v1) == {"periods": 9, "throttled": 4, "lost_us": 700}


def test_facts_are_plain_and_name_no_machine() -> None:
    found = host.facts()
    assert found["allowed_cpus"] >= 1
    assert "numpy" in found["versions"]
    assert "no-such-package" not in host.versions(("no-such-package",))
    assert os.uname().nodename not in {str(v) for v in found.values()}
    assert "/" not in str(found["versions"])


def test_instructions_come_from_the_first_processor(tmp_path: Path) -> None:
    text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 amx_int8\n\nprocessor\t: 1\nflags\t: avx512f\n"
    found = host.facts(tree(tmp_path, {"proc/cpuinfo": text, "proc/meminfo": "MemTotal:  2048 kB\n"}))
    assert (found["cpu"], found["isa"], found["memory_mb"]) == ("Some CPU", ["avx2", "amx_int8"], 2)
