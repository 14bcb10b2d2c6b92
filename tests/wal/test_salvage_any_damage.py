"""Whatever happens to the files of a log: no entry is invented, altered or forgotten."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.errors import (
    LakebedError,
)
from lakebed.wal.frame import FrameKind
from lakebed.wal.salvage import salvage
from tests.cli.logs import (
    Builder,
    Built,
    QuickDisk,
    contents,
    cut,
    expand,
    fingerprint,
    flip,
    overwrite,
    plain,
)
from tests.proof.scale import Rounds, kept_on_failure, rng

if TYPE_CHECKING:
    pass


THIS = (
    "tests/wal/test_salvage_any_damage.py::"
    "test_no_damage_makes_salvage_invent_alter_or_forget_an_entry"
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return plain(tmp_path_factory.mktemp("original") / "log")


def _flip(path: Path, random: Callable[[int], int]) -> None:
    if size := path.stat().st_size:
        flip(path, random(size), 1 << random(8))


def _garbage(path: Path, random: Callable[[int], int]) -> None:
    overwrite(path, random(8192), bytes(random(256) for _ in range(1 + random(600))))


def _zeros(path: Path, random: Callable[[int], int]) -> None:
    overwrite(path, random(16) * 512, bytes(512 * (1 + random(4))))


def _cut(path: Path, random: Callable[[int], int]) -> None:
    cut(path, random(path.stat().st_size + 1))


def _remove(path: Path, random: Callable[[int], int]) -> None:
    path.unlink()


def _misplace(path: Path, random: Callable[[int], int]) -> None:
    """Write a block of the file to another place in it."""
    data = path.read_bytes()
    start = random(16) * 512
    overwrite(path, random(16) * 512, data[start : start + 1024])


DAMAGES = (_flip, _flip, _flip, _garbage, _zeros, _cut, _remove, _misplace)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Built:
    builder = Builder(tmp_path_factory.mktemp("changed") / "log", seed=3).state(1, 1).append(25)
    builder.truncate(18).state(2, 2).append(12, term=2).truncate(29).append(20, term=3)
    return builder.release(6, b"six").append(9, term=3).close()


def damage(log: Built, trial: int) -> tuple[set[Path], bool]:
    """Damage some files; return which, and whether a write went astray among it."""
    random = rng("salvage", trial)
    files = log.files()
    touched, astray = set(), False
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        path = random.choice(files)
        if path.exists():
            what = random.choice(DAMAGES)
            what(path, random.randrange)
            touched.add(path)
            astray = astray or what is _misplace
    return touched, astray


def frames_of(log: Built) -> dict[int, tuple[str, int, bytes]]:
    """Return file name, position and bytes of the frame of each entry that can be read."""
    return {
        fields[8]: (
            (path := log.file(fields[7])).name,
            position,
            path.read_bytes()[position : position + 64 + fields[2]],
        )
        for position, fields in log.frames(FrameKind.ENTRY)
        if fields[8] in log.entries
    }


@pytest.mark.proof
@pytest.mark.parametrize("which", ["original", "changed"])
def test_no_damage_makes_salvage_invent_alter_or_forget_an_entry(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Built = request.getfixturevalue(which)
    places = frames_of(source)
    for trial in Rounds(f"{THIS}[{which}]", short=60, long=5_000, seconds=3):
        log = source.copy_to(tmp_path / f"{trial}" / "log")
        with kept_on_failure(log.folder, THIS, (which, trial)):
            touched, astray = damage(log, trial)
            readable = [] if astray else untouched(log, places)
            check_salvage(log, touched, source.files()[-1].name, readable)
        shutil.rmtree(log.folder.parent)


def untouched(log: Built, places: dict[int, tuple[str, int, bytes]]) -> list[int]:
    """Return the entries whose frames are as they were written."""
    return [
        index
        for index, (name, position, data) in places.items()
        if (path := log.folder / "wal" / name).exists()
        and path.read_bytes()[position : position + len(data)] == data
    ]


def check_salvage(log: Built, touched: set[Path], last_name: str, readable: list[int]) -> None:
    before = fingerprint(log.folder)
    target = log.folder.parent / "new"
    try:
        report = salvage(log.folder, target, disk=QuickDisk())
    except LakebedError:
        assert not log.files()  # only if nothing is left
        return
    assert fingerprint(log.folder) == before
    read = contents(target, QuickDisk())
    assert read.lost == expand(report.lost)
    for index, held in read.entries.items():
        assert held in log.written[index]
    assert sorted([*read.entries, *read.lost]) == list(range(read.first, read.last + 1))
    if all(path.name != last_name for path in touched):
        assert read.last == log.last
    for index in readable:
        behind_tear = report.torn is not None and index >= report.torn.index
        assert index in read.entries or behind_tear, f"entry {index} was readable"
