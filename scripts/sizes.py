#!/usr/bin/env python3
"""Holds src, examples and bench to the house's sizes. A line that needs an exception ends with `# size: the reason`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE, FUNCTION, PARAMETERS, REPEAT = 400, 80, 6, 8
TREES = ("src", "examples", "bench")
ROOT = Path(__file__).resolve().parent.parent


def too_large(path: Path) -> Iterator[str]:
    """What in one file is over its limit."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > FILE and not _excused(lines[0]):
        yield f"1: {len(lines)} lines, allowed are {FILE}: make it a folder of the same name"
    for node in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _excused(lines[node.lineno - 1]):
            continue
        assert node.end_lineno is not None
        if (length := node.end_lineno - node.lineno + 1) > FUNCTION:
            yield f"{node.lineno}: {node.name} has {length} lines, allowed are {FUNCTION}"
        given = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        if (count := len([a for a in given if a not in {"self", "cls"}])) > PARAMETERS:
            yield f"{node.lineno}: {node.name} takes {count} parameters, allowed are {PARAMETERS}"


def repeated(paths: list[Path]) -> Iterator[str]:
    """Places where a run of REPEAT lines stands that stood before; blank lines, comments and imports do not count."""
    first: dict[tuple[str, ...], str] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        imported = {n for s in ast.walk(ast.parse(text)) if isinstance(s, ast.Import | ast.ImportFrom) for n in _lines(s)}
        code = [(n, t.strip()) for n, t in enumerate(text.splitlines(), 1) if t.strip() and n not in imported]
        code = [(n, t) for n, t in code if not t.startswith("#")]
        skip_to = 0
        for i in range(len(code) - REPEAT + 1):
            run = tuple(t for _, t in code[i : i + REPEAT])
            place = f"{path.relative_to(ROOT)}:{code[i][0]}"
            before = first.setdefault(run, place)
            if before != place and i >= skip_to:
                skip_to = i + REPEAT
                yield f"{place}: repeats {REPEAT} lines of {before}"


def _lines(node: ast.stmt) -> range:
    assert node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def _excused(line: str) -> bool:
    return "# size: " in line


def main() -> int:
    """Prints what is over a limit; 1 if anything is."""
    paths = sorted(p for tree in TREES for p in (ROOT / tree).rglob("*.py"))
    bad = [f"{p.relative_to(ROOT)}:{why}" for p in paths for why in too_large(p)]
    bad += repeated([p for p in paths if p.is_relative_to(ROOT / "src")])
    print(*(bad or [f"{len(paths)} files are within their sizes"]), sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
