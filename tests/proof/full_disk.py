"""A log on file systems that are really full or really read-only; run in a private mount namespace.

python -m tests.proof.full_disk
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
from pathlib import Path

from lakebed.errors import DiskFullError, ReadOnlyError
from lakebed.wal import Wal, WalConfig
from tests.proof.ledger import Name, name_of, payload_of
from tests.proof.mounts import make_image, mounted, run

_CONFIG = WalConfig(file_bytes=64 << 10, spare_files=1)
_ENTRY_BYTES = 5_000
_ENTRIES_BEYOND = 30
"""More than fit the files that exist when the disk gets full."""


def _fill(path: Path) -> None:
    """Write until there is no space left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def _append(log: Wal, number: int) -> int:
    return log.append(payload_of(Name(0, 0, number), _ENTRY_BYTES))


def _append_until_full(log: Wal) -> int:
    """Append until it is rejected for lack of space; return how many were accepted."""
    for number in range(1, _ENTRIES_BEYOND):
        try:
            assert _append(log, number) == number
        except DiskFullError as error:
            assert error.facts["errno"] == errno.errorcode[errno.ENOSPC], error
            return number - 1
    raise AssertionError("the disk is full and everything was accepted")


def check_full(disk: Path) -> None:
    """Fill a disk under a log: rejected, not poisoned; with space back, it goes on."""
    with Wal.open(disk / "log", _CONFIG) as log:
        _append(log, 1)
        log.truncate(0)
        _fill(disk / "filler")
        count = _append_until_full(log)
        assert count, "nothing was accepted, though the file in use has room"
        for _ in range(3):
            with contextlib.suppress(DiskFullError):
                _append(log, count + 1)
                raise AssertionError("a full disk accepted an entry")
        assert log.stats().poisoned is None
        assert [name_of(entry.payload)[0].number for entry in log.entries()] == [
            *range(1, count + 1)
        ]
        (disk / "filler").unlink()
        assert _append(log, count + 1) == count + 1
    with Wal.open(disk / "log", _CONFIG) as log:
        names = [name_of(entry.payload)[0].number for entry in log.entries()]
        assert names == [*range(1, count + 2)], names


def check_full_from_the_start(disk: Path) -> None:
    """A log cannot be made on a full disk; with space back it can, in the same folder."""
    _fill(disk / "filler")
    try:
        Wal.open(disk / "new", _CONFIG).close()
    except DiskFullError:
        pass
    else:
        raise AssertionError("a log was made on a full disk")
    (disk / "filler").unlink()
    with Wal.open(disk / "new", _CONFIG) as log:
        assert log.append(b"first") == 1


def check_read_only(disk: Path) -> None:
    """A log on a read-only file system is refused as such, and nothing is changed."""
    before = sorted(path.name for path in disk.rglob("*"))
    run("mount", "-o", "remount,ro", disk)
    for name in ("log", "absent"):
        try:
            Wal.open(disk / name, _CONFIG).close()
        except ReadOnlyError:
            continue
        raise AssertionError("a log was opened for writing on a read-only file system")
    assert sorted(path.name for path in disk.rglob("*")) == before


def _check(disk: Path) -> None:
    check_full(disk)
    check_full_from_the_start(disk)
    check_read_only(disk)


def main() -> None:
    """Check a file system in memory, then ext4."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with mounted(Path("none"), work / "tmpfs", "-t", "tmpfs", "-o", "size=2m") as disk:
            _check(disk)
        image = make_image(work / "image", 16 << 20)
        with mounted(image, work / "ext4") as disk:
            _check(disk)


if __name__ == "__main__":
    main()
