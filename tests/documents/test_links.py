"""Every link of a page leads to a file, and its anchor to a heading; the index has every page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import ROOT, all_pages, anchors, links, name_of, slug


@pytest.mark.parametrize("page", all_pages(), ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        found = page if not path else page.parent / path
        assert found.exists(), target
        if anchor:
            assert found.suffix == ".md", target
            assert anchor in anchors(found.resolve()), target


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Backup and restore", "backup-and-restore"),
        ("`lakebed wal verify DIR`", "lakebed-wal-verify-dir"),
        ("Topics, keys & `append`", "topics-keys--append"),
        ("What [Iggy](x.md) has", "what-iggy-has"),
        ("snake_case, 100 %", "snake_case-100-"),
    ],
)
def test_a_heading_has_the_anchor_that_github_gives_it(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / each.partition("#")[0]).resolve() for each in links(index)}
    pages = {page for page in (ROOT / "docs").glob("*.md") if page != index}
    assert sorted(page.name for page in pages - linked) == []
    assert ROOT / "docs" / "decisions" in linked
