"""Plug-ins are files in a folder: listed without importing, loaded by name, explained when they cannot be."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

import tauten
from tauten.spec import plugins
from tauten.spec.errors import BadUsage, MissingExtra


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of plug-ins, `tauten.pieces`, for one test."""
    monkeypatch.setattr(tauten, "__path__", [*tauten.__path__, str(tmp_path)])
    root = tmp_path / "pieces"
    root.mkdir()
    (root / "__init__.py").touch()
    (root / "good.py").write_text("VALUE = 7\n")
    (root / "_shared.py").write_text("")
    (root / "grown").mkdir()
    (root / "grown" / "__init__.py").write_text("VALUE = 8\n")
    (root / "needy.py").write_text('EXTRA: str = "torch"\nimport package_that_nobody_has.part\n')
    (root / "silent.py").write_text("import package_that_nobody_has\n")
    (root / "broken.py").write_text("import tauten.no_such_part\n")
    yield root
    for name in [n for n in sys.modules if n.startswith("tauten.pieces")]:
        del sys.modules[name]


@pytest.mark.usefixtures("folder")
def test_files_and_folders_are_listed_without_importing_them() -> None:
    assert plugins.names("pieces") == ["broken", "good", "grown", "needy", "silent"]
    assert not [n for n in sys.modules if n.startswith("tauten.pieces.")]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "value"), [("good", 7), ("grown", 8)])
def test_a_plugin_is_loaded_by_the_name_of_its_file_or_folder(name: str, value: int) -> None:
    assert value == plugins.load("pieces", name).VALUE


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "hint"), [("goood", "did you mean 'good'?"), ("xyz", "known are broken, good"), ("_shared", "")]
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(BadUsage, match=f"there is no '{name}' in pieces") as caught:
        plugins.load("pieces", name)
    assert hint in caught.value.fix


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "extra"), [("needy", "torch"), ("silent", "all")])
def test_a_missing_package_names_the_extra(name: str, extra: str) -> None:
    with pytest.raises(MissingExtra) as caught:
        plugins.load("pieces", name)
    assert (caught.value.package, caught.value.extra) == ("package_that_nobody_has", extra)
    assert caught.value.fix == f"pip install 'tauten[{extra}]'"
    assert f"pieces/{name} needs the package" in caught.value.message


@pytest.mark.usefixtures("folder")
def test_a_missing_part_of_our_own_is_a_bug_and_stays_one() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        plugins.load("pieces", "broken")


@pytest.mark.usefixtures("folder")
def test_other_packages_bring_plugins_through_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(*, group: str) -> list[EntryPoint]:
        return [EntryPoint("theirs", "tauten.pieces.good", group)] if group == "tauten.pieces" else []

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    assert "theirs" in plugins.names("pieces")
    assert isinstance(plugins.load("pieces", "theirs"), ModuleType)
    assert plugins.load("pieces", "theirs").VALUE == 7
