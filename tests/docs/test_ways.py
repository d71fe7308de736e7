"""docs/ways.md follows the files that are there, all of them, in the order in which they are used."""

import re
from pathlib import Path

import pytest

import tauten
from tauten.delivery import line

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tauten.__file__).parent
TEXT = (ROOT / "docs" / "ways.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:\w+/)*\w+\.py)`", TEXT)
FOLDERS = ("delivery", "serving", "fronts", "sources", "gates", "passes", "quant")


def test_every_file_it_names_exists() -> None:
    assert NAMED
    assert not [name for name in NAMED if not (PACKAGE / name).is_file()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_of_the_ways_is_missing(folder: str) -> None:
    there = {p.relative_to(PACKAGE).as_posix() for p in (PACKAGE / folder).rglob("[!_]*.py")}
    assert there
    assert there - set(NAMED) == set()


def test_gates_passes_and_schemes_stand_in_the_order_of_the_line() -> None:
    for folder, order in (("gates", line.GATES), ("passes", (*line.MENDS, *line.PASSES)), ("quant", line.SCHEMES)):
        named = [Path(name).stem for name in NAMED if name.startswith(f"{folder}/")]
        assert [name for name in named if name in order] == list(order)


@pytest.mark.parametrize("way", ["model", "request"])
def test_the_steps_of_a_way_are_numbered(way: str) -> None:
    section = TEXT.split(f"## The way of a {way}", 1)[1].split("\n## ", 1)[0]
    numbers = [int(n) for n in re.findall(r"^(\d+)\. \*\*", section, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 5
