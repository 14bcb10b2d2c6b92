"""Writes a file that exists whole under its name, or not at all, even after a power cut.

1. write under a temporary name, `{name}.tmp`, and sync: the contents survive before they get the
   name that counts
2. rename: readers see the old file or the new one
3. sync the folder: the name survives before anything refers to it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lakebed.errors import translate_os_errors
from lakebed.host.disk import Disk, File, Mode
from lakebed.host.failpoints import Failpoint

TEMPORARY: Final = ".tmp"
"""The end of a temporary name."""


class AtomicSteps(NamedTuple):
    """The failpoints of one kind of file, hit after each step."""

    written: Failpoint | None = None
    synced: Failpoint | None = None
    renamed: Failpoint | None = None
    folder_synced: Failpoint | None = None


_NO_STEPS: Final = AtomicSteps()


@contextlib.contextmanager
def write_atomically(
    disk: Disk,
    path: Path,
    what: str | None = None,
    steps: AtomicSteps = _NO_STEPS,
    *,
    sync_folder: bool = True,
    claimed: Path | None = None,
) -> Iterator[File]:
    """Open a temporary file for the block; when it ends, give the file its name `path`.

    `claimed` is an empty file that exists already, by which the caller has claimed the folder, and
    is used instead of a temporary one.

    With `what`, errors of the disk are raised as Lakebed's and state which step failed for what.
    Without `sync_folder` the caller syncs the folder, once for many files. A failure leaves the
    temporary file behind; the next write of the same name replaces it.
    """
    temporary = claimed or path.with_name(path.name + TEMPORARY)
    with _step("making", what, temporary):
        file = disk.open(claimed, Mode.WRITE) if claimed else _create(disk, temporary)
    try:
        with _step("writing", what, temporary):
            yield file
            _hit(steps.written)
        with _step("syncing", what, temporary):
            file.sync()
            _hit(steps.synced)
    finally:
        file.close()
    with _step("renaming", what, path):
        disk.rename(temporary, path)
        _hit(steps.renamed)
    if sync_folder:
        with _step("syncing the folder of", what, path.parent):
            disk.sync_folder(path.parent)
            _hit(steps.folder_synced)


def _create(disk: Disk, temporary: Path) -> File:
    try:
        return disk.open(temporary, Mode.CREATE)
    except FileExistsError:  # left behind by a write that failed
        disk.remove(temporary)
        return disk.open(temporary, Mode.CREATE)


def _step(doing: str, what: str | None, path: Path) -> contextlib.AbstractContextManager[None]:
    return (
        contextlib.nullcontext() if what is None else translate_os_errors(f"{doing} {what}", path)
    )


def _hit(point: Failpoint | None) -> None:
    if point is not None:
        point.hit()
