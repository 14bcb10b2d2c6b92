"""Damage to a log's folder: flipped bits, shorter files, missing files.

Whatever is done to one file, everything that was acknowledged is read as it was written, or a typed
error says that it cannot be. A damaged newest snapshot is passed over: the one before it and the
WAL lead to the same state.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.errors import CorruptionError, LakebedError
from lakebed.host import ManualClock, SimDisk
from tests.proof.damage import kept
from tests.proof.engine_ledger import Ledger
from tests.proof.engine_life import FOLDER, Life, Worker, open_log, small_transactions, value_of
from tests.proof.engine_writer import SCRIPT, begin, compactable, end_pending, write_pending
from tests.proof.scale import LONG, rng, trials
from tests.proof.simulated import disk_with, simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_engine_damage.py"
Contents = dict[Path, bytes]
PARTS = 2


class Image:
    """A small closed log with segments, two snapshots, a staged file, a WAL and an identity."""

    def __init__(self, seed: random.Random) -> None:
        disk = SimDisk()
        life = Life(seed, SCRIPT, disk)
        worker = life.open()
        for action in (
            Worker.prepare,
            compactable,
            Worker.checkpoint,
            begin,
            write_pending,
            Worker.transaction,
            Worker.append_batch,
            Worker.checkpoint,
            compactable,
            Worker.append,
            Worker.transaction,
        ):
            worker.do(action)
        pending = worker.pending
        assert pending is not None and pending.rows
        worker.log.close()
        self.pending = pending
        self.ledger: Ledger = life.ledger
        self.clock: ManualClock = life.clock
        self.contents: Contents = disk.contents()
        kinds = Counter(path.suffix for path in self.contents)
        assert kinds[".parquet"] and kinds[".snapshot"] == 2 and kinds[".staged"], kinds

    def look(self, contents: Contents) -> LakebedError | None:
        """Open a damaged image and read everything; return the typed error, if it is one.

        The open transaction is then committed, so that its staged file is read as well.
        """
        disk = disk_with(contents)
        try:
            log = open_log(disk, SCRIPT, self.clock)
            self.ledger.check(log)
            log.verify()
            worker = Worker(log, lambda event: None, random.Random(0))
            worker.pending = self.pending
            end_pending(worker)
            if worker.failure is not None:
                return worker.failure
            values = [
                value
                for topic in log.topics()
                for partition in log.offsets(topic)
                for value in log.read(topic, partition, "earliest").column("value").to_pylist()
            ]
        except LakebedError as error:
            return error
        staged = {value_of(row) for row in self.pending.rows}
        assert staged <= set(values), "a committed transaction has other bytes"
        return None


def _images() -> Iterator[Image]:
    for number in itertools.count():
        yield Image(rng("engine-damage", number))


def _bits(image: Image, part: int, chance: random.Random, wanted: int) -> list[tuple[Path, int]]:
    """Draw bits, as many of each kind of file, so that small files are not left out; or all."""
    paths = sorted(image.contents)[part::PARTS]
    if LONG:
        return [(path, bit) for path in paths for bit in range(len(image.contents[path]) * 8)]
    full = [path for path in paths if image.contents[path]]
    each = wanted // len(full) + 1
    return [
        (path, chance.randrange(len(image.contents[path]) * 8))
        for path in full
        for _ in range(each)
    ]


def _check(image: Image, contents: Contents) -> LakebedError | None:
    error = image.look(contents)
    assert error is None or isinstance(error, CorruptionError), f"not corruption: {error!r}"
    return error


@pytest.mark.parametrize("part", range(PARTS))
@simulation("engine-damage")
@small_transactions()
def test_a_flipped_bit_of_a_log_is_reported_or_harmless(part: int, tmp_path: Path) -> None:
    """Any one bit of any file: an error of corruption, or every record as it was."""
    test = f"{FILE}::test_a_flipped_bit_of_a_log_is_reported_or_harmless[{part}]"
    chance = rng("engine-flips", part)
    image = next(_images())
    reported: Counter[str] = Counter()
    flips = 0
    for path, bit in _bits(image, part, chance, trials(250, 0)):
        changed = bytearray(image.contents[path])
        changed[bit // 8] ^= 1 << bit % 8
        damaged = {**image.contents, path: bytes(changed)}
        with kept(damaged, tmp_path, test, f"bit {bit} of {path}"):
            error = _check(image, damaged)
            reported[path.suffix] += error is not None
            assert error is not None or path.suffix != ".parquet", "unseen"
            if path.suffix == ".snapshot":
                assert error is None, f"a snapshot in reserve was not used: {error!r}"
        flips += 1
    assert flips and sum(reported.values())


@simulation("engine-damage")
@small_transactions()
def test_a_file_of_a_log_that_was_cut_short_is_reported_or_harmless(tmp_path: Path) -> None:
    """Shorter lengths of each file: an error of corruption, or every record as it was."""
    test = f"{FILE}::test_a_file_of_a_log_that_was_cut_short_is_reported_or_harmless"
    chance = rng("engine-cuts")
    image = next(_images())
    for path, data in image.contents.items():
        lengths = range(len(data))
        drawn = lengths if LONG else sorted(chance.sample(lengths, min(12, len(data))))
        for length in drawn:
            damaged = {**image.contents, path: data[:length]}
            with kept(damaged, tmp_path, test, f"{path} cut to {length}"):
                error = _check(image, damaged)
                assert error is not None or path.suffix not in (".parquet", ".wal"), "unseen"


@simulation("engine-damage")
@small_transactions()
def test_a_missing_file_of_a_log_is_reported_or_harmless(tmp_path: Path) -> None:
    """Without any one file: an error of corruption, or every record as it was.

    The last WAL file is the exception that the WAL's own documents name: nothing else says that it
    was there, unless a snapshot does.
    """
    test = f"{FILE}::test_a_missing_file_of_a_log_is_reported_or_harmless"
    for image in itertools.islice(_images(), trials(2, 100)):
        last = max(path for path in image.contents if path.suffix == ".wal")
        for path in image.contents:
            damaged = {each: data for each, data in image.contents.items() if each != path}
            if path == last:
                continue
            with kept(damaged, tmp_path, test, f"{path} removed"):
                error = _check(image, damaged)
                missed = path.suffix in (".parquet", ".wal", ".staged")
                assert error is not None or not missed, f"nobody missed {path}"


@simulation("engine-damage")
@small_transactions()
def test_without_its_newest_snapshot_a_log_is_the_same() -> None:
    """Damaged, the newest snapshot is passed over and counted; without both, the log is refused."""
    image = next(_images())
    older, newest = sorted(path for path in image.contents if path.suffix == ".snapshot")
    damaged = {**image.contents, newest: bytes(len(image.contents[newest]))}
    log = open_log(disk_with(damaged), SCRIPT, image.clock)
    image.ledger.check(log)
    assert log.stats().snapshots_passed_over == 1
    damaged[older] = bytes(len(image.contents[older]))
    with pytest.raises(CorruptionError):
        open_log(disk_with(damaged), SCRIPT, image.clock)


@simulation("engine-damage")
@small_transactions()
def test_a_file_that_is_not_the_logs_is_put_aside_and_kept() -> None:
    """Unknown files among the segments and staged files go to quarantine with their bytes."""
    image = next(_images())
    segment = next(path for path in image.contents if path.suffix == ".parquet")
    strange = {
        segment.with_name("0-00000000000000009999.parquet"): b"a segment of nobody's",
        segment.with_name("notes.txt"): b"somebody's notes",
        FOLDER / "staging" / "readme": b"somebody's too",
    }
    disk = disk_with({**image.contents, **strange})
    log = open_log(disk, SCRIPT, image.clock)
    image.ledger.check(log)
    assert log.stats().files_quarantined == 3
    aside = {data for path, data in disk.contents().items() if path.parent.name == "quarantine"}
    assert aside == set(strange.values())
