"""The layers are a contract that holds, and that would notice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tauten

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tauten.__file__).parent
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT, str(ROOT / ".importlinter"), "--no-cache", "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"}
    return subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True, check=False)


def test_imports_go_down_only() -> None:
    found = lint(PACKAGE.parent)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("spec/tensors.py", "def late() -> None:\n    import tauten.delivery.line", "Imports go down only"),
        ("serving/batching.py", "import tauten.delivery.probes", "Imports go down only"),
        ("newcomer.py", "import tauten.spec.errors", "not listed as layers"),
        ("gates/parity.py", "from tauten.gates import axes", "do not know each other"),
        ("measure/host.py", "def late() -> None:\n    from tauten.measure import load", "No knots"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, module: str, line: str, contract: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "tauten", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "tauten" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{line}\n")
    if module == "measure/host.py":  # the other half of the knot
        with (tmp_path / "tauten/measure/load.py").open("a", encoding="utf-8") as file:
            file.write("\n\nfrom tauten.measure import host\n")
    found = lint(tmp_path)
    assert found.returncode == 1
    assert contract in found.stdout
