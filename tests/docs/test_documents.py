"""What README and docs tell you to type works: snippets run, contracts load, commands exist, links lead somewhere.

What a fenced block's info string means here:

    python    executed, after the document's earlier ones, in an empty folder
    yaml      a whole contract when it begins with `contract:`; valid YAML otherwise
    json      valid JSON
    console   commands, whose scripts, verbs and flags must exist
    text      nothing

Any other is an error. `<!-- not run: the reason -->` on the line before a block takes it out.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from tauten.cli.main import parser, verbs
from tauten.spec.contract import Contract

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]\n]+\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(
    r"^(?P<skip><!-- not run: (?P<reason>.+?) -->\n)?```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    info: str
    body: str
    not_run: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def documents() -> list[Path]:
    """Every page that people read."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(*infos: str) -> list[Block]:
    """The blocks of these kinds that are not taken out; of every kind when none is named."""
    found = [block for page in documents() for block in _of(page)]
    return [b for b in found if not infos or (b.info in infos and not b.not_run)]


def _of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("info")) + 1
        yield Block(page.relative_to(ROOT).as_posix(), line, match["info"].strip(), match["body"], match["reason"] or "")


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


@pytest.mark.parametrize("block", blocks("yaml", "json"), ids=str)
def test_data_is_what_it_says(block: Block) -> None:
    if block.info == "json":
        json.loads(block.body)
    elif block.body.startswith("contract:"):
        contract = Contract.parse(block.body, where=str(block))
        assert Contract.parse(contract.dumps()) == contract
    else:
        yaml.safe_load(block.body)


def test_the_readme_has_a_whole_contract_and_a_snippet() -> None:
    assert [b for b in blocks("yaml") if b.document == "README.md" and b.body.startswith("contract:")]
    assert [b for b in blocks("python") if b.document == "README.md"]


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


def headings(page: Path) -> set[str]:
    """The anchors that a page has."""
    lines = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", documents(), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in headings(there), f"{page.name} links to {target}{anchor}"


def test_every_decision_is_one_page_with_its_parts() -> None:
    pages = [p for p in documents() if p.parent.name == "decisions"]
    assert [int(p.name[:4]) for p in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(page.name[:4])}. ")
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Decision", "Rejected", "Consequences"]
        assert len(text.splitlines()) <= 80, f"{page.name} is more than a page"


def test_what_the_readme_shows_of_the_demo_is_what_it_printed() -> None:
    """Figures come from the committed run, line by line."""
    printed = (ROOT / "bench" / "results" / "demo.txt").read_text(encoding="utf-8").splitlines()
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("### What the demo prints")[2].partition("\n## ")[0]
    shown = [line for m in FENCE.finditer(section) for line in m["body"].splitlines() if line.strip()]
    assert shown
    assert [line for line in shown if line.rstrip() not in printed] == []
