"""What must work where only the core dependencies are installed: importing, every verb's help, and serving."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tauten
from tauten import testing
from tauten.cli.main import verbs
from tauten.spec import plugins

HERE = Path(__file__).parent
PLUGINS = ("sources", "passes", "quant", "gates", "engines", "processors", "stores")


def lean(*arguments: str | Path, code: int = 0) -> str:
    command = [sys.executable, HERE / "lean.py", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + (done.stderr if code else "")


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lean(HERE / "import_all.py"))
    return found


def test_extras_really_are_hidden(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy, onnxruntime, importlib.util\ntry:\n    import torch\nexcept ModuleNotFoundError:\n    print('lean')\n"
    )
    assert lean(script) == "lean\n"


def test_every_module_imports_or_names_its_extra(imported: dict[str, Any]) -> None:
    assert len(imported["names"]) > 50
    for name, (said, missing) in imported["failed"].items():
        _, folder, *rest = name.split(".")
        if folder == "formats":  # a format needs its own library, and is imported by plug-ins that say so
            assert rest[0].startswith(f"{missing}_"), f"{name}: {said}"
            continue
        assert folder in PLUGINS, f"{name} is no plug-in, so it must import without extras: {said}"
        if rest[0].startswith("_"):  # what plug-ins share is imported by those that say what they need
            continue
        extra = declared_extra(Path(tauten.__file__).parent / folder / f"{rest[0]}.py")
        assert extra, f"{name} needs {missing!r}, but has no constant EXTRA"
        assert missing in brought_by(extra), f"{name} names the extra {extra!r}, which does not bring {missing!r}: {said}"


def brought_by(extra: str) -> set[str]:
    """Names of the distributions that an extra asks for, those of the extras it includes too."""
    asked = [r for r in requires("tauten") or [] if re.search(rf"extra == ['\"]{extra}['\"]", r)]
    names = {re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in asked}
    inner = {e for r in asked for group in re.findall(r"^tauten\[(.+?)\]", r) for e in group.split(",")}
    return names.union(*(brought_by(e) for e in inner)) - {"tauten"}


def test_every_extra_that_a_plugin_names_exists() -> None:
    known = set(metadata("tauten").get_all("Provides-Extra") or [])
    root = Path(tauten.__file__).parent
    for folder in PLUGINS:
        for path in (root / folder).glob("[!_]*.py"):
            assert (declared_extra(path) or "all") in known, path.name


def declared_extra(path: Path) -> str | None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="EXTRA")], value=ast.Constant(value=str(extra))):
                return extra
            case ast.AnnAssign(target=ast.Name(id="EXTRA"), value=ast.Constant(value=str(extra))):
                return extra
    return None


def test_the_command_lists_its_verbs() -> None:
    told = lean("-m", "tauten", "--help")
    assert all(verb in told for verb in verbs())


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_explains_itself(verb: str) -> None:
    assert f"tauten {verb}" in lean("-m", "tauten", verb, "--help")


def test_a_missing_extra_is_one_message_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def factory():\n    import torch\n    return torch.nn.Linear(2, 2)\n")
    told = lean("-m", "tauten", "init", f"{tmp_path / 'model.py'}:factory", "-o", tmp_path / "contract.yaml", code=3)
    assert "pip install 'tauten[torch]'" in told
    assert not (tmp_path / "contract.yaml").exists()


def test_serving_needs_no_extra(tmp_path: Path) -> None:
    bundle = testing.tiny_bundle(tmp_path)
    answered = json.loads(lean(HERE / "serve_lean.py", bundle.root).splitlines()[-1])
    assert answered["heavy"] == []
    expected = testing.tiny_answer(testing.tiny_inputs([3, 4, 5], [6]))["embedding"]
    np.testing.assert_allclose(answered["embedding"], expected, atol=1e-5)


def test_plugins_are_listed_without_importing_them() -> None:
    assert {"pytorch", "onnx"} <= set(plugins.names("sources"))
