"""The public Python surface: complete, sorted, and cheap to import."""

import ast
import subprocess
import sys
from pathlib import Path

import tauten


def test_public_names_are_sorted_and_all_resolve() -> None:
    assert tauten.__all__ == sorted(tauten.__all__)
    assert set(tauten._HOME) == set(tauten.__all__)
    for name in tauten.__all__:
        assert getattr(tauten, name).__module__ == tauten._HOME[name], name


def test_type_checkers_see_the_same_names_from_the_same_places() -> None:
    tree = ast.parse(Path(tauten.__file__).read_text(encoding="utf-8"))
    imports = [n for block in tree.body if isinstance(block, ast.If) for n in block.body if isinstance(n, ast.ImportFrom)]
    assert {a.name: n.module for n in imports for a in n.names} == tauten._HOME


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(tauten, "delivre")


def test_importing_tauten_brings_nothing_along() -> None:
    ask = (
        "import sys; before = set(sys.modules); import tauten; print(*{m.partition('.')[0] for m in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"tauten", *sys.stdlib_module_names}
