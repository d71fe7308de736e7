"""Memory of processes as Linux counts it. PSS shares out what several processes map, so that it may be added up."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def pss(pid: int, root: Path = PROC) -> int | None:
    """Bytes of one process, shared pages divided by who shares them; None when it is gone or closed to us."""
    return _field(root / str(pid) / "smaps_rollup", "Pss")


def peak_resident(pid: int, root: Path = PROC) -> int | None:
    """The most bytes that were resident since the process began, shared pages in full."""
    return _field(root / str(pid) / "status", "VmHWM")


def pss_of_tree(pid: int, root: Path = PROC) -> int | None:
    """PSS of a process and all its descendants; None when the process itself cannot be read."""
    own = pss(pid, root)
    if own is None:
        return None
    return own + sum(pss_of_tree(child, root) or 0 for child in children(pid, root))


def children(pid: int, root: Path = PROC) -> list[int]:
    """Processes that any thread of `pid` has started."""
    found: list[int] = []
    for listing in (root / str(pid) / "task").glob("*/children"):
        found += map(int, _text(listing).split())
    return found


def mb(size: int | None) -> float | None:
    """2^20 bytes, to one decimal."""
    return None if size is None else round(size / 2**20, 1)


def _field(path: Path, name: str) -> int | None:
    """A field of a /proc file that is given in kB."""
    line = next((x for x in _text(path).splitlines() if x.startswith(f"{name}:")), "")
    return int(line.split()[1]) * 1024 if line else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return ""
