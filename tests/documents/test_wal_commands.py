"""The commands on the write-ahead log show on a log of each kind what their page shows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed.errors import EntryLostError
from lakebed.wal import Wal, WalConfig
from tests.cli.logs import Builder, flip, overwrite
from tests.documents.pages import Block, blocks_of
from tests.documents.terminal import check

WHOLE, DAMAGED, BOTH, TORN = "whole", "damaged", "both", "torn"

STATES = [WHOLE, DAMAGED, DAMAGED, TORN, BOTH, BOTH]
"""In which state the log of each block is, in the order of the page."""

SMALL = WalConfig(file_bytes=8192, spare_files=0)


def shown() -> list[Block]:
    """Return the blocks of the chapter."""
    return [block for block in blocks_of("docs/cli.md") if block.chapter == "`lakebed wal`"]


def whole(folder: Path) -> None:
    """Write the log of the page: 36 entries in three files, of which three are released."""
    log = Builder(folder, seed=4).state(1, 1).append(36, sizes=(200, 900), groups=1)
    log.release(3, b"snapshot-3").close()


def damaged(folder: Path) -> None:
    whole(folder)
    flip(folder / "wal" / f"{1:020d}.wal", 2752 + 100)


def both(folder: Path) -> None:
    damaged(folder)
    (folder / "wal" / f"{2:020d}.wal").unlink()


def torn(folder: Path) -> None:
    """Cut the sixth entry short, as a crash before its sync does."""
    with Wal.open(folder, SMALL) as log:
        for number in range(5):
            log.append(bytes([number]) * 100)
        log.flush()
    path = folder / "wal" / f"{1:020d}.wal"
    with Wal.open(folder, SMALL) as log:
        before = path.read_bytes()
        log.append(b"x" * 100)
        after = path.read_bytes()
    at = next(
        byte for byte, pair in enumerate(zip(before, after, strict=True)) if len(set(pair)) > 1
    )
    start = at - at % 64
    path.write_bytes(before)
    overwrite(path, start, after[start : start + 64])


MAKERS: dict[str, Callable[[Path], None]] = {
    WHOLE: whole,
    DAMAGED: damaged,
    BOTH: both,
    TORN: torn,
}


def test_every_block_of_the_chapter_has_its_state() -> None:
    assert len(shown()) == len(STATES)


@pytest.mark.proof  # a process for each command: too slow for the quick check
@pytest.mark.parametrize("state", sorted(set(STATES)))
def test_the_page_shows_what_happens(tmp_path: Path, state: str) -> None:
    mine = [block for block, its in zip(shown(), STATES, strict=True) if its == state]
    data = tmp_path / "data"
    commands = [block for block in mine if block.language == "console"]
    before = [f"cp -r {data} data"]
    MAKERS[state](data)
    check(commands, tmp_path, before=before)
    for block in mine:
        if block.language == "python":
            _check_reading(block.text, tmp_path / "here" / "saved")


def _check_reading(code: str, saved: Path) -> None:
    """Read as the page does, from the copy that its command has made."""
    (index,) = map(int, re.findall(r"wal\.read\((\d+)\)", code))
    (said,) = re.findall(r"^EntryLostError: (.*)$", code, re.MULTILINE)
    with Wal.open(saved, SMALL) as wal, pytest.raises(EntryLostError) as caught:
        wal.read(index)
    assert str(caught.value) == said
    shutil.rmtree(saved)
