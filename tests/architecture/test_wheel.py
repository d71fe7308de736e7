"""What is installed is the wheel, and the wheel has what it must and nothing else."""

import os
from importlib.metadata import files, metadata, version
from pathlib import Path

import pytest

import tauten

from_wheel = pytest.mark.skipif("TAUTEN_TESTED_WHEEL" not in os.environ, reason="scripts/test installs the wheel")


def test_one_version_everywhere() -> None:
    assert version("tauten") == tauten.__version__
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{tauten.__version__}]" in changelog


@from_wheel
def test_the_source_tree_is_not_importable() -> None:
    assert Path(tauten.__file__).parent.parent.name == "site-packages"


@from_wheel
def test_the_wheel_has_the_package_its_types_and_its_licence() -> None:
    names = {str(f) for f in files("tauten") or []}
    assert {"tauten/__init__.py", "tauten/py.typed", "tauten/cli/main.py"} <= names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    tops = {n.partition("/")[0] for n in names}
    assert tops == {"tauten", f"tauten-{tauten.__version__}.dist-info", ".."}  # the last is bin/tauten


def test_the_licence_is_named() -> None:
    assert metadata("tauten")["License-Expression"] == "Apache-2.0"
