"""Memory of processes: this one, its children, a made-up /proc, and one that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tauten.measure import memory


def process(root: Path, pid: int, *, pss_kb: int, children: str = "") -> None:
    folder = root / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "smaps_rollup").write_text(
        f"55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss: 9999 kB\nPss:{pss_kb:>15} kB\nPss_Anon: 1 kB\n"
    )
    (folder / "status").write_text("Name:\tx\nVmHWM:\t    2048 kB\n")
    (folder / "task" / str(pid) / "children").write_text(children)


def test_a_tree_is_added_up(tmp_path: Path) -> None:
    process(tmp_path, 1, pss_kb=1024, children="2 3 ")
    process(tmp_path, 2, pss_kb=512, children="4")
    process(tmp_path, 3, pss_kb=512)  # 4 is gone already
    assert memory.pss(1, tmp_path) == 2**20
    assert memory.mb(memory.pss_of_tree(1, tmp_path)) == 2.0
    assert memory.peak_resident(1, tmp_path) == 2 * 2**20
    assert memory.pss_of_tree(9, tmp_path) is None
    assert memory.mb(None) is None


def test_this_process_and_its_child() -> None:
    own = memory.pss(os.getpid())
    assert own is not None
    assert own <= (memory.peak_resident(os.getpid()) or 0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in memory.children(os.getpid())
        child.communicate(b"\n")
