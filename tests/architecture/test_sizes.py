"""No file and no function is over its size, and no run of lines stands twice."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "sizes.py"


@pytest.fixture(scope="module")
def sizes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sizes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_house_is_within_its_sizes() -> None:
    found = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_long_files_and_functions_are_found(sizes: ModuleType) -> None:
    fits = "def f():\n" + "    pass\n" * 79
    assert not list(sizes.too_large(fits))
    assert list(sizes.too_large(fits + "    pass\n")) == ["1: f has 81 lines, allowed are 80"]
    assert not list(sizes.too_large("x = 1\n" * 400))
    assert list(sizes.too_large("x = 1\n" * 401)) == ["1: 401 lines, allowed are 400: make it a folder of the same name"]


def test_a_reason_on_the_line_excuses(sizes: ModuleType) -> None:
    assert not list(sizes.too_large("def f():  # size: one table\n" + "    pass\n" * 99))
    assert not list(sizes.too_large("# size: generated\n" + "x = 1\n" * 500))


def test_repeats_are_found_whatever_their_indent(sizes: ModuleType) -> None:
    run = [f"x{i} = {i}" for i in range(8)]
    inside = "def f():\n" + "\n\n".join(f"    {line}  " for line in run)
    assert list(sizes.repeated([("a.py", "\n".join(run)), ("b.py", inside)])) == ["b.py:2: repeats 8 lines of a.py:1"]
    assert not list(sizes.repeated([("a.py", "\n".join(run[:7])), ("b.py", "\n".join(run[:7]))]))


def test_imports_are_no_repeats(sizes: ModuleType) -> None:
    imports = "\n".join(f"import m{i}" for i in range(20))
    assert not list(sizes.repeated([("a.py", imports), ("b.py", imports)]))
