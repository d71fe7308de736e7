"""The modules of a folder by name: listed without importing, imported when asked for.

The name of a plug-in is the name of its file, or of its folder where it outgrew one file; what begins with an underscore is
none. A module whose third-party package is missing names the extra in a top-level constant `EXTRA = "torch"`, which is read
from its source, since it cannot be imported then. Out-of-tree plug-ins are entry points of the group `tauten.<folder>`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from tauten.spec.errors import BadUsage, MissingExtra


def names(folder: str) -> list[str]:
    """Names of the plug-ins in `tauten.<folder>` and of those that other packages bring, sorted."""
    root = _root(folder)
    own = {p.stem for p in root.glob("*.py")} | {p.parent.name for p in root.glob("*/__init__.py")}
    return sorted({n for n in own if not n.startswith("_")} | {e.name for e in entry_points(group=f"tauten.{folder}")})


def load(folder: str, name: str) -> ModuleType:
    """Imports a plug-in. Raises BadUsage for an unknown name, MissingExtra when its package is not installed."""
    known = names(folder)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        raise BadUsage(f"there is no {name!r} in {folder}", fix=hint)
    outside = {e.name: e for e in entry_points(group=f"tauten.{folder}")}
    try:
        if name in outside:
            module: ModuleType = outside[name].load()
            return module
        return importlib.import_module(f"tauten.{folder}.{name}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "tauten"}:
            raise
        raise MissingExtra(missing, _extra(folder, name), needed_for=f"{folder}/{name}") from error


def _root(folder: str) -> Path:
    spec = importlib.util.find_spec(f"tauten.{folder}")
    assert spec is not None, f"bug: no package tauten.{folder}"
    assert spec.submodule_search_locations, f"bug: tauten.{folder} is no package"
    return Path(next(iter(spec.submodule_search_locations)))


def _extra(folder: str, name: str) -> str:
    """The constant EXTRA of a module, read from its source without importing it."""
    file = _root(folder) / f"{name}.py"
    source = file if file.exists() else _root(folder) / name / "__init__.py"
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="EXTRA")], value=ast.Constant(value=str(extra))):
                return extra
            case ast.AnnAssign(target=ast.Name(id="EXTRA"), value=ast.Constant(value=str(extra))):
                return extra
    return "all"
