"""Runs Python as if only the core dependencies were installed: `python lean.py FILE|-m MODULE [ARGUMENTS]`.

Every top-level module of an installed distribution that tauten does not require without extras is hidden.
"""

import re
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from types import ModuleType


def closure(distribution: str) -> set[str]:
    """Names of a distribution and of all that it requires without extras, directly or not."""
    found: set[str] = set()
    ahead = [distribution]
    while ahead:
        name = normal(ahead.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # for another platform
            continue
        ahead += [re.split(r"[^A-Za-z0-9._-]", r, maxsplit=1)[0] for r in needed if "extra ==" not in r]
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Hide(MetaPathFinder):
    """Finds nothing, and says so before anybody else is asked, for what is hidden."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self.hidden = hidden

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
        return None


def hidden() -> frozenset[str]:
    """Top-level modules that a lean installation does not have."""
    core = closure("tauten")
    return frozenset(m for m, owners in packages_distributions().items() if not core & {normal(o) for o in owners})


if __name__ == "__main__":
    sys.meta_path.insert(0, Hide(hidden()))
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
