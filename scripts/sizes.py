#!/usr/bin/env python3
"""Holds src, examples and bench to the house's sizes. A line that needs an exception ends with `# size: the reason`.

How many parameters a function takes is ruff's to count (PLR0913).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE, FUNCTION, REPEAT = 400, 80, 8
TREES = ("src", "examples", "bench")


def too_large(source: str) -> Iterator[str]:
    """What in one file is over its limit, as `line: what`."""
    lines = source.splitlines()
    if len(lines) > FILE and not _excused(lines[0]):
        yield f"1: {len(lines)} lines, allowed are {FILE}: make it a folder of the same name"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _excused(lines[node.lineno - 1]):
            length = len(_lines(node))
            if length > FUNCTION:
                yield f"{node.lineno}: {node.name} has {length} lines, allowed are {FUNCTION}"


def repeated(sources: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Places where a run of REPEAT lines stands that stood before; blank lines, comments and imports do not count."""
    first: dict[tuple[str, ...], str] = {}
    for name, source in sources:
        code = _code(source)
        reported = 0
        for i in range(len(code) - REPEAT + 1):
            place = f"{name}:{code[i][0]}"
            before = first.setdefault(tuple(text for _, text in code[i : i + REPEAT]), place)
            if before != place and i >= reported:
                reported = i + REPEAT
                yield f"{place}: repeats {REPEAT} lines of {before}"


def _code(source: str) -> list[tuple[int, str]]:
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))
    left_out = {n for node in imports for n in _lines(node)}
    stripped = ((n, text.strip()) for n, text in enumerate(source.splitlines(), 1))
    return [(n, text) for n, text in stripped if text and not text.startswith("#") and n not in left_out]


def _lines(node: ast.stmt) -> range:
    assert node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def _excused(line: str) -> bool:
    return "# size: " in line


def main() -> int:
    """Prints what is over a limit; 1 if anything is."""
    root = Path(__file__).resolve().parent.parent
    paths = sorted(p for tree in TREES for p in (root / tree).rglob("*.py"))
    sources = {p.relative_to(root).as_posix(): p.read_text(encoding="utf-8") for p in paths}
    bad = [f"{name}:{why}" for name, source in sources.items() for why in too_large(source)]
    bad += repeated((name, source) for name, source in sources.items() if name.startswith("src/"))
    print(*(bad or [f"{len(sources)} files are within their sizes"]), sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
