"""Finds the source that a given model is for, and opens it."""

from __future__ import annotations

from pathlib import Path

from tauten.spec import plugins
from tauten.spec.errors import BadSource
from tauten.spec.source import Opened, Source


def open_source(given: object, example_inputs: object = None) -> Opened:
    """Asks every source in turn. Raises BadSource when none, or more than one, takes what was given."""
    modules: dict[str, Source] = {n: plugins.load("sources", n) for n in plugins.names("sources")}
    takers = [name for name, module in modules.items() if module.accepts(given)]
    if len(takers) == 1:
        return modules[takers[0]].open(given, example_inputs)
    if takers:
        raise BadSource(f"{_shown(given)} could be any of {', '.join(takers)}", fix="name the file itself, not its folder")
    if isinstance(given, str | Path) and ":" not in str(given) and not Path(given).exists():
        raise BadSource(f"there is no file or directory {_shown(given)}", fix="check the path")
    raise BadSource(
        f"{_shown(given)} is not a model that any source takes",
        fix="give model.onnx, file.py:factory, package.module:factory, or a Hugging Face directory",
    )


def _shown(given: object) -> str:
    return repr(str(given)) if isinstance(given, str | Path) else f"an object of type {type(given).__name__}"
