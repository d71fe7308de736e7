"""Rules that no linter knows: who may catch everything, which package belongs where, what every plug-in folder must have."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tauten
from tauten.spec import plugins

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tauten.__file__).parent
SOURCES = {p.relative_to(PACKAGE).as_posix(): p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(text) for name, text in SOURCES.items()}

# Where an exception of any kind may end: the edges of a thread, of a process, of a connection.
MAY_CATCH_ALL = {"serving/worker.py", "fronts/"}

# Every third-party package that the sources import, and the places that may. The empty place is everywhere.
THIRD_PARTY = {
    "cloudpickle": ("sources/",),
    "httptools": ("fronts/", "measure/load", "client.py"),
    "jinja2": ("reports/",),
    "msgspec": ("",),
    "numpy": ("",),
    "onnx": ("formats/", "passes/", "quant/", "sources/", "testing.py"),
    "onnxruntime": ("engines/onnxruntime.py", "passes/", "quant/"),
    "prometheus_client": ("fronts/", "govern/"),
    "pyarrow": ("delivery/evaluate.py",),
    "rich": ("cli/",),
    "tokenizers": ("processors/",),
    "torch": ("sources/",),
    "transformers": ("sources/",),
    "uvloop": ("app.py", "cli/", "fronts/"),
    "yaml": ("spec/contract.py",),
}


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names that a module imports absolutely, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield (node.module or "").partition(".")[0]


def test_third_party_packages_are_imported_only_where_they_belong() -> None:
    own = {"tauten", *sys.stdlib_module_names}
    wrong = [
        f"{name} imports {package}"
        for name, tree in TREES.items()
        for package in sorted(set(imports(tree)) - own)
        if not any(name.startswith(place) for place in THIRD_PARTY.get(package, ()))
    ]
    assert not wrong


def test_the_table_of_packages_has_nothing_idle() -> None:
    used = {package for tree in TREES.values() for package in imports(tree)}
    assert set(THIRD_PARTY) <= used


def catches_all(handler: ast.ExceptHandler) -> bool:
    """Whether it catches every exception and does not raise in the end."""
    names = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type else {"Exception"}
    return bool(names & {"Exception", "BaseException"}) and not isinstance(handler.body[-1], ast.Raise)


def test_everything_is_caught_only_at_edges() -> None:
    wrong = [
        f"{name}:{node.lineno}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and catches_all(node)
        if not any(name.startswith(place) for place in MAY_CATCH_ALL)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("source", "all_of_it"),
    [
        ("except Exception:\n    pass", True),
        ("except:\n    pass", True),
        ("except (ValueError, BaseException):\n    raise_later()", True),
        ("except Exception as error:\n    raise ValueError from error", False),
        ("except BaseException:\n    clean_up()\n    raise", False),
        ("except ValueError:\n    pass", False),
    ],
)
def test_the_rule_sees_what_it_should(source: str, all_of_it: bool) -> None:
    (block,) = ast.parse(f"try:\n    pass\n{source}").body
    assert isinstance(block, ast.Try)
    assert catches_all(block.handlers[0]) is all_of_it


def test_every_exception_to_a_linter_has_its_reason_on_the_line() -> None:
    bare = re.compile(r"#\s*noqa(?!: [A-Z]+\d+(?:, ?[A-Z]+\d+)*  ?\S+ \S+)|#\s*type: ignore(?!\[[a-z-]+\]  # \S+ \S+)")
    lines = ((f"{name}:{n}", line) for name, text in SOURCES.items() for n, line in enumerate(text.splitlines(), 1))
    wrong = [place for place, line in lines if bare.search(line)]
    assert not wrong


def test_names_that_hide_a_missing_noun_are_not_used() -> None:
    """A thing that is called manager, handler or utils has no noun yet."""
    names = [(name, node.name) for name, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not [f"{where}: {name}" for where, name in names if re.search(r"Manager|Handler|Util", name)]
    assert not [name for name in SOURCES if re.search(r"manager|handler|util|helper|common|misc", name)]


@pytest.mark.parametrize("folder", ["engines", "fronts", "gates", "passes", "quant", "sources"])
def test_every_plugin_folder_has_its_conformance_suite(folder: str) -> None:
    assert plugins.names(folder), f"no plug-in in {folder}"
    suite = ROOT / "tests" / "conformance" / f"test_{folder}.py"
    assert f'"{folder}"' in suite.read_text(encoding="utf-8"), f"{suite.name} is not parametrised over the folder"


def test_no_path_of_a_machine_stands_in_the_sources() -> None:
    found = [name for name, text in SOURCES.items() if re.search(r"[\"' ]/(home|root|work|Users|opt|mnt)/", text)]
    assert not found
