"""The page for beginners: every step of it, as printed, in one folder from top to bottom."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.documents.pages import blocks_of
from tests.documents.terminal import check
from tests.spark.support import PROCESS_SECONDS

PAGE = "docs/getting-started.md"


_SPARK = ("A pipeline", "The demo", "First mistakes")
"""Chapters from where Spark is needed."""


def test_the_page_works_as_printed_without_java(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(PAGE) if block.chapter not in _SPARK]
    assert {block.chapter for block in blocks_of(PAGE)} >= {"A pipeline"}
    check(blocks, tmp_path, timeout_seconds=PROCESS_SECONDS)


@pytest.mark.prove  # it starts Java several times
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, which is missing")
def test_the_page_works_as_printed(tmp_path: Path) -> None:
    check(blocks_of(PAGE), tmp_path, timeout_seconds=PROCESS_SECONDS)
