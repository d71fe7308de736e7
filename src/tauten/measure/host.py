"""What this host really gives: processors after affinity and cgroup quota, instructions that matter, memory, throttling.

Nothing here names the machine: no host name, no path, no user. Versions come from package metadata, without an import.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata
from math import ceil
from pathlib import Path
from typing import Any

ISA = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16", "sve")
PACKAGES = ("onnxruntime", "numpy", "torch", "onnx", "openvino")
UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a number near 2^63


def allowed_cpus(root: Path = Path("/")) -> int:
    """Processors this process may keep busy: the least of its affinity and the quota of its cgroup and every parent, ≥ 1.

    A quota of 1.5 processors counts as 2: two threads can run, though not all the time.
    """
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return max(1, affine if quota is None else min(affine, ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the cgroup grants; None where there is no limit."""
    return min((q for folder in _groups(root, "cpu") if (q := _quota(folder)) is not None), default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the cgroup allows, v2 or v1; None where there is no limit."""
    files = (f / name for f in _groups(root, "memory") for name in ("memory.max", "memory.limit_in_bytes"))
    limits = (int(text) for f in files if (text := _text(f)).isdigit())
    return min((n for n in limits if n < UNLIMITED), default=None)


def throttled(root: Path = Path("/")) -> dict[str, int]:
    """Counters of the cgroup's quota since it began: periods, how many ran dry, microseconds lost. Empty where unknown."""
    for folder in _groups(root, "cpu"):
        found = dict(line.split() for line in _text(folder / "cpu.stat").splitlines() if len(line.split()) == 2)
        if "nr_throttled" in found:
            lost = int(found.get("throttled_usec", 0)) or int(found.get("throttled_time", 0)) // 1000  # v1 counts ns
            return {"periods": int(found.get("nr_periods", 0)), "throttled": int(found["nr_throttled"]), "lost_us": lost}
    return {}


def facts(root: Path = Path("/")) -> dict[str, Any]:
    """Plain data that a verdict, a manifest or a report may carry."""
    cpu = _cpuinfo(_text(root / "proc/cpuinfo"))
    total = _meminfo(_text(root / "proc/meminfo"))
    limit = memory_limit(root)
    return {
        "cpu": cpu.get("model name") or cpu.get("cpu model") or platform.machine(),
        "machine": platform.machine(),
        "isa": [f for f in ISA if f in f"{cpu.get('flags', '')} {cpu.get('features', '')}".split()],
        "cpus": os.cpu_count() or 1,
        "allowed_cpus": allowed_cpus(root),
        "cpu_quota": cpu_quota(root),
        "numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "memory_mb": round(min(n for n in (limit, total) if n) / 2**20) if limit or total else None,
        "kernel": platform.release().partition("-")[0],  # what follows is a build's own name
        "python": platform.python_version(),
        "throttled": throttled(root),
        "versions": versions(),
    }


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup of a controller and every parent, innermost first; v2 and v1 mounts alike.

    A container often sees its own group mounted as the root, under a path that does not exist inside: the way up ends there.
    """
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases = (mount, mount / "unified")
        elif controller in controllers.split(","):
            bases = (mount / controller, mount / controllers)
        else:
            continue
        inner = Path(path.lstrip("/"))
        for base in dict.fromkeys(bases):
            yield from (base / p for p in (inner, *inner.parents) if (base / p).is_dir())


def _quota(folder: Path) -> float | None:
    """cpu.max of v2 ("150000 100000", "max 100000") or cfs_quota_us / cfs_period_us of v1 (-1 is no limit)."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0 or int(quota) == 0:
        return None
    return int(quota) / int(period)


def _cpuinfo(text: str) -> dict[str, str]:
    """The first processor's entries, keys in lower case."""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _meminfo(text: str) -> int | None:
    line = next((x for x in text.splitlines() if x.startswith("MemTotal:")), "")
    return int(line.split()[1]) * 1024 if line else None


def _text(path: Path) -> str:
    """A small file's text, stripped; empty where it is missing or closed to us, as in many containers."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
