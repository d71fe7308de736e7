"""The documents and their fenced blocks.

What a block's info string means to the tests:

    python    executed, after the document's earlier ones, in an empty folder
    yaml      a whole contract when it begins with `contract:`; valid YAML otherwise
    json      valid JSON
    console   commands, whose scripts, verbs and flags must exist
    text      nothing

Any other is an error. `<!-- not run: the reason -->` on the line before a block takes it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
