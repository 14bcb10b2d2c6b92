"""Every fenced block of every page is run or compared: by a rule, or by the test that claims it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lakebed.config import parse_config
from lakebed.spark.pipeline.toml_file import read_pipeline
from tests.documents.claims import CLAIMS, PREPARED, SHOWN, WALKED, Claim, Shown
from tests.documents.pages import ROOT, Block, blocks, blocks_of
from tests.documents.terminal import check

RULED = ("python", "console", "toml", "json")


def claims_of(block: Block) -> list[Claim]:
    return [
        each
        for each in CLAIMS
        if (each.page, each.language) == (block.page, block.language)
        and each.section in ("*", block.section, block.chapter)
        and each.containing in block.text
    ]


def reasons_for(block: Block) -> list[Shown]:
    return [
        each
        for each in SHOWN
        if each.page == block.page
        and each.section in (block.section, block.chapter)
        and block.language == "text"
    ]


def by_rule(language: str) -> list[Block]:
    """Return the blocks of a language that no other test has claimed."""
    return [
        each
        for each in blocks()
        if each.language == language and not claims_of(each) and each.page not in WALKED
    ]


def is_checked(block: Block) -> bool:
    """Return whether a rule or a test runs or compares a block, or a reason says why none does."""
    if block.is_output or claims_of(block) or reasons_for(block):
        return True
    return block.language in RULED


def test_every_block_is_checked_by_a_test() -> None:
    """A test runs or compares each block; those in `tests/documents/claims.py` name it."""
    assert [block.id for block in blocks() if not is_checked(block)] == []


@pytest.mark.parametrize("language", ["", "sh", "sql", "text", "yaml"])
@pytest.mark.parametrize("page", ["README.md", "docs/server.md", "docs/getting-started.md"])
def test_a_block_that_nobody_has_thought_of_is_noticed(page: str, language: str) -> None:
    block = replace(blocks_of(page)[0], section="New", chapter="New", language=language)
    assert not is_checked(replace(block, is_output=False))


def test_the_test_that_claims_a_block_exists() -> None:
    for by in {claim.by for claim in CLAIMS} | set(WALKED.values()):
        file, _, function = by.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in names, by


def test_no_claim_is_about_a_block_that_is_gone() -> None:
    used = [claim for block in blocks() for claim in claims_of(block)]
    assert [each for each in CLAIMS if each not in used] == []
    shown = [reason for block in blocks() for reason in reasons_for(block)]
    assert [each for each in SHOWN if each not in shown] == []
    assert all(each.reason for each in SHOWN)


@pytest.mark.parametrize("block", by_rule("python"), ids=lambda block: block.id)
def test_programs_print_what_the_pages_say(tmp_path: Path, block: Block) -> None:
    """Without output on the page a program may print what it likes, and must end well."""
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    said = done.stdout if block.output is not None else None
    assert (said, done.stderr, done.returncode) == (block.output, "", 0)


@pytest.mark.proof  # a process for each command: too slow for the quick check
@pytest.mark.parametrize(
    "chapter",
    sorted({(block.page, block.chapter) for block in by_rule("console")}),
    ids=" ".join,
)
def test_commands_show_what_the_pages_say(tmp_path: Path, chapter: tuple[str, str]) -> None:
    """The commands of a chapter are typed in one after another, in one folder."""
    found = [
        block
        for block in blocks()
        if (block.page, block.chapter) == chapter
        and (block in by_rule("console") or block.saved_as)
    ]
    check(found, tmp_path, before=PREPARED.get(chapter, ()))


def test_files_of_settings_and_pipelines_can_be_read(tmp_path: Path) -> None:
    for block in by_rule("toml"):
        if "[source." in block.text:
            path = tmp_path / (block.saved_as or "pipeline.toml")
            path.write_text(block.text)
            read_pipeline(path).check()
        else:
            parse_config(block.text, block.id)


def test_json_can_be_parsed() -> None:
    for block in by_rule("json"):
        for line in block.text.splitlines() if block.text.count("\n{") else [block.text]:
            assert json.loads(line) is not None, block.id
