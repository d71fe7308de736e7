"""tauten doctor: what this host really gives, what is installed, and what to set."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata
from typing import Any

from rich.table import Table

from tauten.cli import _live, _terminal
from tauten.measure import host
from tauten.spec import plugins
from tauten.spec.errors import MissingExtra

HELP = "this host: instructions, processors the cgroup really gives, memory, engines found, settings it recommends"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    verb.add_argument("--json", action="store_true", help="everything as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Exit code 3 when no engine is here at all."""
    facts, found, missing = host.facts(), engines(), missing_extras()
    hints = advice(facts)
    if args.json:
        told = {"host": facts, "engines": found, "missing_extras": missing, "advice": hints}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        _show(found, missing, hints)
    return 0 if any(found.values()) else 3


def engines() -> dict[str, str]:
    """Versions of the engines by name; empty for one whose package is not installed."""
    found = {}
    for name in plugins.names("engines"):
        try:
            found[name] = str(plugins.load("engines", name).version())
        except MissingExtra:
            found[name] = ""
    return found


def missing_extras() -> dict[str, list[str]]:
    """Extras that are not complete here, and which of their own packages are missing."""
    missing: dict[str, list[str]] = {}
    for line in metadata.requires("tauten") or ():
        requirement, _, marker = line.partition(";")
        extra = marker.partition("extra == ")[2].strip(" '\"")
        name = requirement.split("[")[0].split(">")[0].split("=")[0].strip()
        if extra in {"", "all", "dev"} or name == "tauten":
            continue
        if not host.versions((name,)):
            missing.setdefault(extra, []).append(name)
    return missing


def advice(facts: dict[str, Any]) -> list[str]:
    """What to set, or to expect, given host facts. Pure."""
    hints = [f"instances × threads should not exceed {facts['allowed_cpus']}, the processors this process may keep busy"]
    quota, lost = facts["cpu_quota"], facts["throttled"]
    if quota is not None and quota != int(quota):
        hints.append(f"the quota is {quota:g} processors: a whole number avoids being stopped in the middle of a request")
    if lost.get("throttled"):
        hints.append(
            f"the cgroup was stopped in {lost['throttled']:,} of {lost['periods']:,} periods: raise its quota, or p99 suffers"
        )
    if (facts["numa_nodes"] or 1) > 1:
        hints.append(f"{facts['numa_nodes']} NUMA nodes: run one server per node, bound with numactl")
    if not {"avx512_vnni", "avx_vnni", "amx_int8", "i8mm"} & set(facts["isa"]):
        hints.append("no INT8 dot-product instruction: INT8 may not be faster than FP32 here; the speed gate will tell")
    return hints


def _show(found: dict[str, str], missing: dict[str, list[str]], hints: list[str]) -> None:
    console = _terminal.out()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for key, value in _live.environment().items():
        table.add_row(key, value)
    for name, version in found.items():
        table.add_row(f"engine {name}", version or "not installed")
    for extra, packages in missing.items():
        table.add_row(f"extra {extra}", f"not installed: {', '.join(packages)} (pip install 'tauten[{extra}]')")
    console.print(table)
    for hint in hints:
        console.print(f"→ {hint}", markup=False)
