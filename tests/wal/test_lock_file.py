"""One owner of a folder, even if the lock file is removed or the other owner is of version 0.6."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed.errors import LockedError
from lakebed.host import OsDisk
from lakebed.wal import Wal
from lakebed.wal.folder import Layout, living_owner
from tests import forked

_OWN = (
    "import sys; from lakebed.wal import Wal; log = Wal.open(sys.argv[1]);"
    "log.append(b'x'); print('ready', flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another process own a log until it is killed, at the latest at the end of the block."""
    with forked.Popen(
        [sys.executable, "-c", _OWN, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        try:
            yield owner
        finally:
            owner.kill()


def test_a_removed_lock_file_gives_no_second_owner(tmp_path: Path) -> None:
    """The second process is refused until the first has ended."""
    folder = tmp_path / "log"
    with _owned(folder) as owner:
        (folder / "lock").unlink()
        for _ in range(2):  # a refused attempt must not leave a file that the next one can lock
            with pytest.raises(LockedError, match="lock file was removed"):
                Wal.open(folder)
            assert living_owner(OsDisk(), Layout(folder)) == {"owner": "unknown"}
        owner.kill()
        owner.wait()
        assert living_owner(OsDisk(), Layout(folder)) is None
        with Wal.open(folder) as log:
            assert log.last_index == 1


def test_a_replaced_lock_file_gives_no_second_owner(tmp_path: Path) -> None:
    """Another file of the same name is not the one that the owner has locked."""
    folder = tmp_path / "log"
    with _owned(folder) as owner:
        (folder / "lock").unlink()
        (folder / "lock").touch()
        with pytest.raises(LockedError):
            Wal.open(folder)
        assert living_owner(OsDisk(), Layout(folder)) is not None
        owner.kill()


def test_an_owner_that_locks_only_the_file_is_respected(tmp_path: Path) -> None:
    """Version 0.6 does not lock the folder."""
    folder = tmp_path / "log"
    Wal.open(folder).close()
    with (folder / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps({"pid": 77, "host": "elsewhere"}))
        file.flush()
        with pytest.raises(LockedError, match="pid=77"):
            Wal.open(folder)
    Wal.open(folder).close()


def test_the_file_is_locked_for_versions_that_look_at_it_alone(tmp_path: Path) -> None:
    """An owner of this version keeps one of version 0.6 out."""
    lock = tmp_path / "log" / "lock"
    with Wal.open(lock.parent), lock.open("r+") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
