"""The pages and what is in them: headings, links, fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shown_pages() -> list[Path]:
    """Return the pages whose blocks are run or compared."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    return sorted([*found, *ROOT.glob("deploy/*.md")])


def all_pages() -> list[Path]:
    """Return every page: these, decisions, and the designs beside the code."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
    return sorted([*found, *ROOT.glob("deploy/*.md")])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block, and where it stands."""

    page: str
    line: int
    section: str
    """The nearest heading above it, without its marks."""
    chapter: str
    """The nearest heading of the second level."""
    language: str
    text: str = field(repr=False)
    saved_as: str | None
    """The file that the sentence above tells the reader to save it as."""
    output: str | None = field(repr=False)
    """Of a program: the block of text right below it."""
    is_output: bool

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line} ({self.language})"


_FENCE = re.compile(r"^( *)```(\w*)\s*$")


@cache
def blocks_of(page: str) -> tuple[Block, ...]:
    return tuple(_read(page))


def _read(page: str) -> Iterator[Block]:
    lines = (ROOT / page).read_text(encoding="utf8").splitlines()
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    assert len(fences) % 2 == 0, f"{page}: a fence is not closed"
    pairs = list(zip(fences[::2], fences[1::2], strict=True))
    sections = _sections(lines, pairs)
    for place, (start, end) in enumerate(pairs):
        language = _language(lines[start])
        following = pairs[place + 1] if place + 1 < len(pairs) else None
        below = following is not None and _is_output(lines, (start, end), following)
        before = pairs[place - 1] if place else None
        section, chapter = sections[start]
        yield Block(
            page=page,
            line=start + 1,
            section=section,
            chapter=chapter,
            language=language,
            text=_text(lines, (start, end)),
            saved_as=_saved_as(lines, start),
            output=_text(lines, following) if following is not None and below else None,
            is_output=before is not None and _is_output(lines, before, (start, end)),
        )


def _language(fence: str) -> str:
    found = _FENCE.match(fence)
    assert found is not None
    return found[2]


def _is_output(lines: list[str], program: tuple[int, int], below: tuple[int, int]) -> bool:
    """Return whether a block of text right below a program is what the program prints."""
    between = "".join(lines[program[1] + 1 : below[0]])
    return (
        _language(lines[program[0]]) == "python"
        and _language(lines[below[0]]) == "text"
        and not between.strip()
    )


def _text(lines: list[str], fences: tuple[int, int]) -> str:
    indent = len(lines[fences[0]]) - len(lines[fences[0]].lstrip())
    return "".join(f"{line[indent:]}\n" for line in lines[fences[0] + 1 : fences[1]])


def _saved_as(lines: list[str], start: int) -> str | None:
    above = " ".join(lines[max(0, start - 4) : start])
    found = re.findall(r"[Ss]ave this as `([\w.-]+)`", above)
    return found[-1] if found else None


def _sections(lines: list[str], pairs: list[tuple[int, int]]) -> dict[int, tuple[str, str]]:
    """Return section and chapter of each block, by the line of its first fence."""
    inside = {number for start, end in pairs for number in range(start, end + 1)}
    starts = {start for start, _ in pairs}
    section = chapter = ""
    found = {}
    for number, line in enumerate(lines):
        heading = re.match(r"(#+) (.*)", line) if number not in inside else None
        if heading:
            section = heading[2].strip()
            chapter = section if len(heading[1]) <= 2 else chapter
        if number in starts:
            found[number] = (section, chapter)
    return found


def blocks() -> list[Block]:
    return [block for page in shown_pages() for block in blocks_of(name_of(page))]


def without_blocks(text: str) -> str:
    """Return a page without its fenced blocks, in which nothing is a link or a heading."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    found: dict[str, int] = {}
    given = set()
    for heading in re.findall(
        r"^#+ (.*)$", without_blocks(page.read_text(encoding="utf8")), re.MULTILINE
    ):
        plain = slug(heading)
        count = found.get(plain, 0)
        found[plain] = count + 1
        given.add(f"{plain}-{count}" if count else plain)
    return frozenset(given)


def slug(heading: str) -> str:
    """Return a heading's anchor: lower case, spaces as hyphens, other marks left out."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip())
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def links(page: Path) -> list[str]:
    """Return the targets of a page's links, but for those to other sites."""
    text = re.sub(r"`[^`\n]*`", "", without_blocks(page.read_text(encoding="utf8")))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [each for each in found if not each.startswith(("http://", "https://", "mailto:"))]
