"""Whole files replaced, moved, copied or missing, and damage that comes after a log was opened."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed.errors import CorruptionError, ForeignFileError, MissingFileError
from lakebed.host import SimDisk
from lakebed.wal import Wal, WalConfig
from lakebed.wal.frame import HEADER_BYTES, FrameKind
from tests.proof.damage import check, found_in, images, kept
from tests.proof.images import Contents, Image
from tests.proof.scale import Rounds, rng
from tests.proof.simulated import LAYOUT, disk_with, open_on, picture_of, simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_damaged_files.py"
SCAN_BYTES = 2048
"""Smaller than many of the entries here."""

Replacement = Callable[[Image, Path, random.Random], bytes]


def arbitrary_bytes(image: Image, path: Path, seed: random.Random) -> bytes:
    """Return random bytes of the same length."""
    return seed.randbytes(len(image.contents[path]))


def nothing(_image: Image, _path: Path, _seed: random.Random) -> bytes:
    """Return an empty file."""
    return b""


def zeros(image: Image, path: Path, _seed: random.Random) -> bytes:
    """Return zeros of the same length."""
    return bytes(len(image.contents[path]))


def other_number(image: Image, path: Path, seed: random.Random) -> bytes:
    """Return another file of the same log."""
    return image.contents[seed.choice([each for each in image.files if each != path])]


REPLACEMENTS: list[Replacement] = [arbitrary_bytes, nothing, zeros, other_number]


@pytest.mark.parametrize("replacement", REPLACEMENTS, ids=lambda each: each.__name__)
@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_replaced_wal_file_is_refused(replacement: Replacement, tmp_path: Path) -> None:
    """A WAL file with other contents is refused by its name, whichever file it is."""
    test = f"{FILE}::test_a_replaced_wal_file_is_refused[{replacement.__name__}]"
    rounds = Rounds(test, short=20, long=2_000, seconds=0.7)
    for number, (image, seed) in enumerate(images(rounds, "recycled", "replaced")):
        for path in image.files:
            damaged = image.with_file(path, replacement(image, path, seed))
            with kept(damaged, tmp_path, test, f"image {number}: {path}"):
                assert check(image, damaged, path, []), "another file was taken for this one"


@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_file_of_another_log_is_refused() -> None:
    """Another log's file under one of our names is told from ours, with or without our identity.

    Their frames behind our header are never taken for ours. In the last file they are a tear: no
    frame is left that proves that ours were synced.
    """
    test = f"{FILE}::test_a_file_of_another_log_is_refused"
    rounds = Rounds(test, short=10, long=1_000, seconds=0.7)
    for image, seed in images(rounds, "recycled", "foreign"):
        foreign = next(images([0], "recycled", "foreign", "other", seed.random()))[0]
        for path in image.files:
            theirs = foreign.contents[foreign.files[0]]
            assert isinstance(found_in(image, image.with_file(path, theirs)), CorruptionError)
            grafted = image.contents[path][:HEADER_BYTES] + theirs[HEADER_BYTES:]
            damaged = image.with_file(path, grafted)
            refused = check(image, damaged, path, image.allowed(damaged, path))
            assert refused or path == image.files[-1]
        same_name = next(path for path in foreign.files if path in image.contents)
        swapped = image.with_file(same_name, foreign.contents[same_name])
        assert isinstance(found_in(image, swapped), ForeignFileError)
        del swapped[LAYOUT.identity]
        assert isinstance(found_in(image, swapped), ForeignFileError)


@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_missing_file_is_refused_unless_it_was_the_last() -> None:
    """A file missing from the front or middle is refused.

    Nothing that is left speaks of the last one: without it the log is what it was before that file.
    """
    test = f"{FILE}::test_a_missing_file_is_refused_unless_it_was_the_last"
    rounds = Rounds(test, short=20, long=2_000, seconds=0.7)
    for image, _ in images(rounds, "plain", "missing"):
        for path in image.files[:-1]:
            damaged = {each: data for each, data in image.contents.items() if each != path}
            assert isinstance(found_in(image, damaged), MissingFileError)
        last = int(image.files[-1].stem)
        damaged = {each: data for each, data in image.contents.items() if each != image.files[-1]}
        before = [at for at, place in enumerate(image.places) if place[0] < last]
        assert found_in(image, damaged) == image.pictures[before[-1]]
        only_identity = {LAYOUT.identity: image.contents[LAYOUT.identity]}
        assert isinstance(found_in(image, only_identity), MissingFileError)


@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_copy_of_a_file_under_the_next_number_is_refused() -> None:
    """A duplicated file is not a new one, neither in place of the next nor behind the last."""
    test = f"{FILE}::test_a_copy_of_a_file_under_the_next_number_is_refused"
    rounds = Rounds(test, short=20, long=2_000, seconds=0.7)
    for image, _ in images(rounds, "plain", "copied"):
        for path in image.files:
            copy = LAYOUT.file(int(path.stem) + 1)
            found = found_in(image, image.with_file(copy, image.contents[path]))
            assert isinstance(found, CorruptionError)
            assert found.facts["file"] == copy


@pytest.mark.parametrize("replacement", REPLACEMENTS, ids=lambda each: each.__name__)
@simulation("damage", scan_bytes=SCAN_BYTES)
def test_files_that_are_derived_or_unused_do_no_harm(
    replacement: Replacement, tmp_path: Path
) -> None:
    """Whatever stands in a spare or in the identity file, the log is as it was and goes on."""
    test = f"{FILE}::test_files_that_are_derived_or_unused_do_no_harm[{replacement.__name__}]"
    rounds = Rounds(test, short=10, long=1_000, seconds=0.7)
    for number, (image, seed) in enumerate(images(rounds, "recycled", "derived")):
        spares = [path for path in image.contents if path.suffix == ".spare"]
        assert spares
        for path in (LAYOUT.identity, *spares):
            damaged = image.with_file(path, replacement(image, path, seed))
            with kept(damaged, tmp_path, test, f"image {number}: {path}"):
                goes_on(image, damaged, seed)


def goes_on(image: Image, damaged: Contents, seed: random.Random) -> None:
    """Verify that a damaged log is as it was, takes its spares into use and can be read again."""
    disk = disk_with(damaged)
    log = open_on(disk, image.config)
    assert picture_of(log) == image.picture
    payloads = [seed.randbytes(seed.randint(500, 2_000)) for _ in range(8)]
    for payload in payloads:
        log.append(payload)
    log.close()
    items = picture_of(open_on(disk, image.config)).items
    assert items[: len(image.picture.items)] == image.picture.items
    assert [item.payload for item in items[len(image.picture.items) :]] == payloads


def flip(disk: SimDisk, path: Path, bit: int) -> None:
    """Flip a bit of a file that is open and mapped."""
    disk._seen[path].seen[bit // 8] ^= 1 << bit % 8


def entries_of(image: Image) -> list[tuple[Path, int, int, int]]:
    """List file, position, length and index of each entry that can be read."""
    live: dict[int, tuple[Path, int, int, int]] = {}
    for path in image.files:
        for position, header in image.frames(path):
            if header.kind == FrameKind.ENTRY and header.index > image.picture.mark.index:
                live[header.index] = (path, position, header.length, header.index)
    return [live[item.index] for item in image.picture.items]


@simulation("damage", scan_bytes=SCAN_BYTES)
def test_damage_after_opening_is_reported_when_it_is_read() -> None:
    """A flipped bit in a mapped file: the entry is refused with file, byte and index.

    Entries before it are readable, and those behind it too if its header is whole.
    """
    test = f"{FILE}::test_damage_after_opening_is_reported_when_it_is_read"
    rounds = Rounds(test, short=1_000, long=100_000, seconds=0.7)
    for image, seed in images(rounds, "recycled", "mapped"):
        tried = 0
        disk = disk_with(image.contents)
        log = open_on(disk, image.config)
        for path, position, length, index in entries_of(image):
            for start, stop in ((0, HEADER_BYTES), (HEADER_BYTES, HEADER_BYTES + length)):
                bit = seed.randrange((position + start) * 8, (position + stop) * 8)
                flip(disk, path, bit)
                check_reads(image, log, (path, position, index), header_is_whole=start > 0)
                flip(disk, path, bit)
                tried += 1
        assert picture_of(log) == image.picture
        rounds.count(tried)


def check_reads(
    image: Image, log: Wal, damage: tuple[Path, int, int], *, header_is_whole: bool
) -> None:
    """Verify the reads of a log in which one entry was damaged."""
    path, position, damaged = damage
    for item in image.picture.items:
        try:
            assert bytes(log.entry(item.index).payload) == item.payload
            assert item.index != damaged, "damaged bytes were served"
        except CorruptionError as error:
            assert (item.index >= damaged) if not header_is_whole else (item.index == damaged)
            facts = (error.facts["file"], error.facts["byte"], error.facts["index"])
            assert facts == (int(path.stem), position, damaged)


@simulation("damage", scan_bytes=SCAN_BYTES)
def test_damage_to_a_real_file_is_reported_when_it_is_read(tmp_path: Path) -> None:
    """The same on the operating system's disk, through a real memory map."""
    with Wal.open(tmp_path, WalConfig(file_bytes=8192, spare_files=0)) as log:
        payloads = [rng("real", number).randbytes(700) for number in range(8)]
        log.append_many(payloads)
        assert [bytes(each.payload) for each in log.entries()] == payloads
        path = tmp_path / "wal" / f"{1:020d}.wal"
        with path.open("r+b") as file:
            file.seek(path.read_bytes().index(payloads[4]))
            file.write(bytes([payloads[4][0] ^ 1]))
        with pytest.raises(CorruptionError) as caught:
            log.entry(5)
        assert caught.value.facts["index"] == 5
        assert [bytes(each.payload) for each in log.read(6)] == payloads[5:]
