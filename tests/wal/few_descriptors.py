"""A log in a process that runs out of file descriptors.

python -m tests.wal.few_descriptors CASE FOLDER, in its own process: the limit applies to all of it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from lakebed import Log, LogConfig
from lakebed.config import LakeConfig, WalConfig
from lakebed.errors import LakebedError, TooManyFilesError
from lakebed.wal import Wal
from tests.waiting import until

_LIMIT = 256
_ENTRY = bytes(200_000)
_WAL = WalConfig(file_bytes=1 << 20, spare_files=1)


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Use all but `count` of the process's descriptors within the block."""
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for descriptor in taken[len(taken) - count :]:
            os.close(descriptor)
        del taken[len(taken) - count :]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def _rotate(folder: Path, *, spares: bool) -> None:
    """Append across a rotation with 0, 1 and 2 descriptors left: refused or done, never poison."""
    with Wal.open(folder, _WAL, threaded=spares) as log:
        refused = 0
        for left in (0, 1, 2, 0, 1):
            if spares:
                until(lambda: _has_spare(log), "a spare file")
            expected = log.last_index
            with descriptors_left(left):
                for _ in range(6):
                    try:
                        log.append(_ENTRY)
                        expected += 1
                    except TooManyFilesError as error:
                        assert error.retriable
                        assert error.facts["errno"] == "EMFILE"
                        refused += 1
            assert log.last_index == expected
            log.append(_ENTRY)
            expected += 1
        assert refused, "the limit did not matter"
        assert log.stats().poisoned is None
    with Wal.open(folder, _WAL) as log:
        assert log.last_index == expected


def _has_spare(log: Wal) -> bool:
    """Append a little, so that a spare is wanted sooner or later; return True if one is ready."""
    log.append(_ENTRY[:20_000])
    names = [path.suffix for path in (log.folder / "wal").iterdir()]
    return ".spare" in names and ".tmp" not in names


def rotation_to_a_spare(folder: Path) -> None:
    """The next file is ready: it has to be opened alone."""
    _rotate(folder, spares=True)


def rotation_to_a_new_file(folder: Path) -> None:
    """The next file has to be made."""
    _rotate(folder, spares=False)


def _count(log: Log) -> int:
    return sum(log.read("t", partition=partition).num_rows for partition in (0, 1))


def checkpoint(folder: Path) -> None:
    """Segments, staged files and snapshots: refused with any few descriptors, done with enough."""
    with Log.open(os.fspath(folder), LogConfig(wal=_WAL)) as log:
        log.create_topic("t", partitions=2)
        for left in range(8):
            log.append("t", b"x", partition=0)
            log.append("t", b"y", partition=1)
            with log.transaction() as transaction:
                transaction.append("t", b"z")
                with descriptors_left(left), contextlib.suppress(TooManyFilesError):
                    log.checkpoint()
            log.checkpoint()
        assert _count(log) == 24
    with Log.open(os.fspath(folder), LogConfig(wal=_WAL)) as log:
        assert _count(log) == 24


def read(folder: Path) -> None:
    """Reading segments that are not open yet is refused, and possible again later."""
    with Log.open(os.fspath(folder), LogConfig(wal=_WAL)) as log:
        log.create_topic("t")
        log.append("t", b"x")
        log.checkpoint()
    with Log.open(os.fspath(folder), LogConfig(wal=_WAL)) as log:
        with descriptors_left(0):
            try:
                log.read("t")
            except TooManyFilesError:
                pass
            else:
                raise AssertionError("a segment was read without a descriptor")
        assert log.read("t").num_rows == 1


def catalog(folder: Path) -> None:
    """The catalog of the Iceberg tables: a retriable refusal with few descriptors."""
    config = LogConfig(wal=_WAL, lake=LakeConfig(iceberg=True))
    with Log.open(os.fspath(folder), config) as log:
        log.create_topic("t")
        log.lake.sync()  # everything is imported
        for left in range(6):
            log.append("t", b"x")
            log.checkpoint()
            with descriptors_left(left):
                try:
                    failures = list(log.lake.sync().errors.values())
                except LakebedError as error:
                    failures = [error]
            assert all(error.retriable for error in failures), failures
            assert log.lake.sync().errors == {}
        assert log.lake.describe("t").records == 6


def main() -> None:
    """Run the case that the command line names."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    globals()[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
