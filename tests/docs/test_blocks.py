"""What README and docs tell you to type works: snippets run, contracts load, commands have verbs and flags that exist."""

import json
import re
import shlex
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from documents import ROOT, Block, blocks

from tauten.cli.main import parser, verbs
from tauten.spec.contract import Contract

KINDS = {"python", "yaml", "json", "console", "text"}
OTHER_PROGRAMS = {"pip", "curl"}


def commands(block: Block) -> list[str]:
    """Lines without their prompt; a line that ends with a backslash goes on."""
    joined = block.body.replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.strip() and not line.startswith("#")]


CONSOLE = [pytest.param(line, id=f"{b}: {line[:40]}") for b in blocks("console") for line in commands(b)]


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_every_block_says_what_it_is(block: Block) -> None:
    assert block.info in KINDS


@pytest.mark.slow
@pytest.mark.parametrize(
    "snippets", [list(group) for _, group in groupby(blocks("python"), lambda b: b.document)], ids=lambda g: g[0].document
)
def test_snippets_run_in_order(snippets: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in snippets:
        padding = "\n" * block.line  # so that a traceback shows the document's own line
        exec(compile(padding + block.body, block.document, "exec"), names)


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_contracts_load(block: Block) -> None:
    if block.body.startswith("contract:"):
        contract = Contract.parse(block.body, where=str(block))
        assert Contract.parse(contract.dumps()) == contract
    else:
        yaml.safe_load(block.body)


def test_the_readme_has_a_whole_contract_and_a_snippet() -> None:
    assert [b for b in blocks("yaml") if b.document == "README.md" and b.body.startswith("contract:")]
    assert [b for b in blocks("python") if b.document == "README.md"]


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.body)


@pytest.mark.parametrize("line", CONSOLE)
def test_commands_exist_with_their_flags(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    if program == "tauten":
        parser().parse_args(arguments)
    elif program.startswith("scripts/"):
        script = ROOT / program
        assert script.stat().st_mode & 0o111, f"{program} cannot be run"
        source = script.read_text(encoding="utf-8")
        assert all(a in source for a in arguments if a.startswith("--")), f"{program} does not know {arguments}"
    else:
        assert program in OTHER_PROGRAMS, f"nobody knows {program!r}"


def test_a_wrong_verb_or_flag_would_be_found() -> None:
    for wrong in ("tauten shipp x", "tauten check x --no-such-flag"):
        with pytest.raises(SystemExit):
            test_commands_exist_with_their_flags(wrong)


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_every_verb_named_in_the_text_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"`tauten ([a-z]+)", text)) <= set(verbs())


def test_the_readme_names_every_exit_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{code}`" in text for code in range(5))
