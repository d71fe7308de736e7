"""Links inside the documents lead somewhere."""

import re
from pathlib import Path

import pytest
from documents import FENCE, documents

LINK = re.compile(r"\[[^\]\n]+\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


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
