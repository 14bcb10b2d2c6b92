"""Damage to a log: flipped bits, every shorter length, lost and stale sectors.

Whatever is done to the bytes, a log opens with exactly what it held, or refuses with a typed error
that names the damaged file. It never shows other bytes, and never ends before a place that a frame
left in it says was synced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.wal import WalConfig
from lakebed.wal.frame import HEADER_BYTES, FrameKind
from tests.proof.damage import check, images, kept
from tests.proof.images import KINDS, Contents, Image, Maker
from tests.proof.scale import LONG, Rounds, rng
from tests.proof.simulated import simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_damage.py"
SCAN_BYTES = 2048
"""Smaller than many of the entries here."""
PARTS = 3
STRIDE = 1 if LONG else 67
"""Of the bits outside headers, every so many are flipped."""
SAMPLE = 120
"""How many of these a short round tries; a long one tries all."""


def flipped(data: bytes, bit: int) -> bytes:
    """Flip one bit."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def bits_to_flip(image: Image, part: int, stride: int) -> Iterator[tuple[Path, int, bool]]:
    """Return every bit of headers every `stride`th other, and whether checksums cover it."""
    for path, data in image.contents.items():
        wal = path.suffix == ".wal"
        covered = {byte for each in image.covered(path) for byte in each} if wal else set()
        headers = {0, *(position for position, _ in image.frames(path))} if wal else set()
        for byte in range(len(data)):
            of_header = byte - byte % HEADER_BYTES in headers
            for bit in range(byte * 8, byte * 8 + 8):
                if bit % PARTS == part and (of_header or bit % (PARTS * stride) == part):
                    yield path, bit, byte in covered


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_flipped_bit_is_reported_or_harmless(kind: str, part: int, tmp_path: Path) -> None:
    """Any one bit of any file: refused if a checksum covers it, else the log is as it was."""
    test = f"{FILE}::test_a_flipped_bit_is_reported_or_harmless[{kind}-{part}]"
    shares = len(KINDS) * PARTS
    rounds = Rounds(test, short=20_000, long=4_000_000, shares=shares, seconds=0.7)
    for image, seed in images(rounds, kind, "flip"):
        chosen = list(bits_to_flip(image, part, STRIDE))
        if not LONG:
            chosen = seed.sample(chosen, min(SAMPLE, len(chosen)))
        rounds.count(len(chosen))
        for path, bit, covered in chosen:
            damaged = image.with_file(path, flipped(image.contents[path], bit))
            with kept(damaged, tmp_path, test, f"bit {bit} of {path}"):
                allowed = [image.picture] if image.closed else image.allowed(damaged, path)
                refused = check(image, damaged, path, allowed)
                assert refused or not covered, "a bit under a checksum was changed unseen"
    assert rounds.trials


@simulation("damage", scan_bytes=SCAN_BYTES)
def test_damage_to_the_last_entry_is_seen_however_full_the_file(tmp_path: Path) -> None:
    """The idle mark always fits behind the last entry: rot there is never taken for a tear."""
    test = f"{FILE}::test_damage_to_the_last_entry_is_seen_however_full_the_file"
    seed = rng("damage", "full")
    for size in range(4096 - 8 * HEADER_BYTES, 4096, 8):
        make = Maker(WalConfig(file_bytes=4096, spare_files=0), seed)
        make.append(size)
        image = make.close()
        path = image.files[-1]
        entries = [at for at, header in image.frames(path) if header.kind == FrameKind.ENTRY]
        bit = (entries[-1] + HEADER_BYTES) * 8
        damaged = image.with_file(path, flipped(image.contents[path], bit))
        with kept(damaged, tmp_path, test, f"an entry of {size} bytes"):
            assert check(image, damaged, path, []), "the damage was not seen"


@pytest.mark.parametrize("part", range(PARTS))
@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_file_that_was_cut_short_is_refused(part: int, tmp_path: Path) -> None:
    """Every shorter length of every WAL file is refused; of other files, it is harmless."""
    test = f"{FILE}::test_a_file_that_was_cut_short_is_refused[{part}]"
    rounds = Rounds(test, short=8_192, long=1_048_576, shares=PARTS, seconds=0.7)
    for image, seed in images(rounds, "wide", "cut"):
        chosen = [
            (path, length)
            for path, data in image.contents.items()
            for length in range(part, len(data), PARTS)
        ]
        if not LONG:
            chosen = seed.sample(chosen, min(SAMPLE, len(chosen)))
        rounds.count(len(chosen))
        for path, length in chosen:
            damaged = image.with_file(path, image.contents[path][:length])
            with kept(damaged, tmp_path, test, f"{path} cut to {length}"):
                refused = check(image, damaged, path, [image.picture])
                assert refused == (path.suffix == ".wal")
    assert rounds.trials


def lost_sectors(image: Image, path: Path) -> Iterator[bytes]:
    """Return the file with each sector zeroed, as if the disk had lost its write."""
    data = image.contents[path]
    for sector in (512, 4096):
        for start in range(0, len(data), sector):
            yield data[:start] + bytes(sector) + data[start + sector :]


def stale_sectors(image: Image, path: Path) -> Iterator[bytes]:
    """Return the file with each sector as it was earlier, in this file or in one recycled since."""
    data = image.contents[path]
    versions: set[tuple[int, bytes]] = set()
    for contents in image.earlier:
        for older in contents.values():
            versions.update((at, older[at : at + 512]) for at in range(0, len(older), 512))
            versions.add((0, older))
    for start, piece in sorted(versions):
        if start + len(piece) <= len(data):
            yield data[:start] + piece + data[start + len(piece) :]


def check_sectors(image: Image, path: Path, changed: bytes, *, folder: Path, test: str) -> bool:
    """Verify one file with changed sectors; return whether it was refused."""
    damaged: Contents = image.with_file(path, changed)
    with kept(damaged, folder, test, f"sectors of {path}"):
        return check(image, damaged, path, image.allowed(damaged, path))


@pytest.mark.parametrize("kind", KINDS)
@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_lost_sector_is_not_taken_for_the_end(kind: str, tmp_path: Path) -> None:
    """A zeroed sector of synced data is refused wherever a frame is left that proves it synced."""
    test = f"{FILE}::test_a_lost_sector_is_not_taken_for_the_end[{kind}]"
    rounds = Rounds(test, short=250, long=25_000, seconds=1.0)
    tried, refused = 0, 0
    for image, _ in images(rounds, kind, "lost"):
        before = tried
        for path in image.files:
            for changed in lost_sectors(image, path):
                refused += check_sectors(image, path, changed, folder=tmp_path, test=test)
                tried += 1
        rounds.count(tried - before)
    assert refused > tried // 4


@simulation("damage", scan_bytes=SCAN_BYTES)
def test_a_stale_sector_is_not_taken_for_what_was_written_last(tmp_path: Path) -> None:
    """A sector as it was earlier is refused wherever a frame is left that proves a later one."""
    test = f"{FILE}::test_a_stale_sector_is_not_taken_for_what_was_written_last"
    rounds = Rounds(test, short=2_000, long=200_000, seconds=1.5)
    tried, refused = 0, 0
    for image, _ in images(rounds, "recycled", "stale"):
        before = tried
        for path in image.files:
            for changed in stale_sectors(image, path):
                refused += check_sectors(image, path, changed, folder=tmp_path, test=test)
                tried += 1
        rounds.count(tried - before)
    assert refused > tried // 4
