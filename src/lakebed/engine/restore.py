"""Making a log out of a backup again, and checking a backup.

1. every file of the backup is checked against the manifest before anything is written
2. the files are copied, each synced and compared once more with the manifest; in the snapshot,
   producers get ids and epochs that none since the backup can have
3. the folders are synced; up to here the folder is not taken for a log
4. a WAL that goes on behind the backup's index, and the identity file, last
5. the log is opened once, touching neither tables nor object store: identity, index and offsets
   must be those of the manifest, and every byte of every segment is read

The log has the identity that it had. Its tables are recreated by the first sync. Where they, or its
segments, are outside of its folder, original and copy must not both be in use: the report says so.
"""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lakebed.config import LogConfig
from lakebed.engine.backup import offsets_of
from lakebed.engine.backup_files import (
    BackupFile,
    check_apart,
    check_file,
    check_same,
    check_vacant,
    copy_file,
    read_manifest,
)
from lakebed.engine.log import EmbeddedLog
from lakebed.engine.settings import effective_config
from lakebed.errors import (
    BackupDamagedError,
    InvalidArgumentError,
    MissingFileError,
    translate_os_errors,
)
from lakebed.host import Disk, OsDisk, failpoints
from lakebed.iceberg.parts import open_store
from lakebed.state.image import decode_state, encode_state
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.types import Progress
from lakebed.wal.copying import Copy
from lakebed.wal.folder import TOPICS, Layout, make_folders, write_identity
from lakebed.wal.recovery import Mark

_JUMP: Final = 1 << 40
_EPOCHS: Final = 1 << 20
"""More producers, and more takeovers of a name, than there were since the backup."""
_COPIED = failpoints.define("engine.restore.copied")
_FOUNDED = failpoints.define("engine.restore.founded")


@dataclass(frozen=True)
class RestoreReport:
    """What was restored, or only checked."""

    folder: str
    """The log's folder; empty if the backup was only checked."""
    log_id: str
    index: int
    topics: int
    records: int
    files: int
    size_bytes: int
    taken_us: int
    """When the backup was taken."""
    segments_verified: int
    stored_segments: int
    """Segments that are in the object store alone."""
    warnings: tuple[str, ...]
    """What to know before the log is used."""
    seconds: float


def restore(
    backup: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    disk: Disk | None = None,
) -> RestoreReport:
    """Make a log of a backup, in a folder that is new or empty.

    Raises `NotABackupError` or `BackupDamagedError` before anything is written if the backup is not
    whole. What a failure later on leaves behind has to be removed.
    """
    failpoints.arm_from_environment()
    source, target = _path(backup), _path(folder)
    return _Restore(disk or OsDisk(), source, progress).run(target)


def verify_backup(
    backup: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    disk: Disk | None = None,
) -> RestoreReport:
    """Read every byte of a backup and compare it with the manifest; nothing is written."""
    return _Restore(disk or OsDisk(), _path(backup), progress).check()


class _Restore:
    def __init__(self, disk: Disk, source: Path, progress: Progress | None) -> None:
        self._disk = disk
        self._source = source
        self._tell = progress
        self._started = time.monotonic()
        self._manifest = read_manifest(disk, source)

    def check(self) -> RestoreReport:
        self._check_snapshot()
        told = self._telling("checking the backup")
        for file in self._manifest.files:
            check_file(self._disk, self._source, file, told)
        return self._report("", 0, self._notes())

    def _check_snapshot(self) -> None:
        """Refuse a manifest that names no snapshot of the index that it says the backup has."""
        snapshot = SnapshotFolder(self._disk, self._source).path(self._manifest.index)
        if not any(self._source / file.name == snapshot for file in self._manifest.files):
            raise BackupDamagedError("the backup has no snapshot of its index", path=snapshot)

    def run(self, target: Path) -> RestoreReport:
        check_apart(self._source, target, "the log must be outside of the backup")
        check_vacant(self._disk, target)
        self.check()
        self._copy(target)
        self._fence(target)
        self._create_identity(target)
        segments, warnings = self._examine(target)
        return self._report(os.fspath(target), segments, [*self._notes(), *warnings])

    # Writing

    def _copy(self, target: Path) -> None:
        told = self._telling("restoring")
        with translate_os_errors("making the log's folder", target):
            self._disk.make_folder(target)
        for file in self._manifest.files:
            copied = copy_file(self._disk, self._source / file.name, target / file.name, told)
            # The backup could have changed since it was checked.
            check_same(self._source / file.name, file, copied.bytes, copied.crc32c)
            with translate_os_errors("restoring a file", target):
                _COPIED.hit()
        with translate_os_errors("syncing the log's folders", target):
            # Names must survive before a WAL makes a log of them.
            for folder in sorted(set(_folders(target, self._manifest.files))):
                self._disk.sync_folder(folder)
            self._disk.sync_folder(target.parent)

    def _fence(self, target: Path) -> None:
        """See to it that no producer since the backup passes for one of the restored log.

        Clients may have lived through the restore. Ids and epochs that they were given after the
        backup must not be given to others: their numbers would be taken for repeats.
        """
        snapshots, index = SnapshotFolder(self._disk, target), self._manifest.index
        with translate_os_errors("writing the snapshot", snapshots.path(index)):
            state = decode_state(snapshots.load(index), snapshots.path(index))
            state.numbers["producer"] += _JUMP + secrets.randbelow(_JUMP)
            for producer in state.producers.values():
                state.producers[producer.id] = producer._replace(epoch=producer.epoch + _EPOCHS)
            snapshots.write(index, encode_state(state))

    def _create_identity(self, target: Path) -> None:
        """Make the WAL: empty, and behind everything that the snapshot holds."""
        layout, manifest = Layout(target), self._manifest
        log_id = uuid.UUID(manifest.log_id)
        with translate_os_errors("making the WAL", layout.wal):
            make_folders(self._disk, layout)
            copy = Copy(
                self._disk,
                layout,
                log_id,
                file_bytes=LogConfig().wal.file_bytes,
                time_us=manifest.taken_us,
                start=Mark(manifest.index, manifest.term),
            )
            try:
                copy.finish()
            finally:
                copy.close()
            _FOUNDED.hit()
            write_identity(self._disk, layout, log_id, TOPICS)  # last, as when a log is made

    # Checking

    def _examine(self, target: Path) -> tuple[int, list[str]]:
        """Open the log and read all of it; return how many segments there are, and what to know."""
        manifest = self._manifest
        config = effective_config(self._disk, target, os.environ)
        lake = replace(config.lake, iceberg=False)
        if not manifest.stored:
            lake = replace(lake, store="")
        elif not lake.store:
            return 0, [
                "the log was not opened: its settings name no store, and some segments are there"
                " alone"
            ]
        config = replace(config, lake=lake)
        with EmbeddedLog.open(
            target, config, progress=self._tell, disk=self._disk, threaded=False
        ) as log:
            self._compare(log, target)
            if not manifest.stored:
                return log.verify(), []
            self._check_objects(config)
            return 0, ["segments that are in the store alone are there, and were not read"]

    def _compare(self, log: EmbeddedLog, target: Path) -> None:
        manifest, stats = self._manifest, log.stats()
        actual = (stats.wal.log_id, stats.applied_index, offsets_of(log.parts.core.state))
        expected = (manifest.log_id, manifest.index, manifest.offsets)
        for name, one, other in zip(("log", "index", "offsets"), actual, expected, strict=True):
            if one != other:
                raise BackupDamagedError(
                    f"the restored log has another {name} than the backup",
                    path=target,
                    found=one,
                    expected=other,
                )

    def _check_objects(self, config: LogConfig) -> None:
        """Ask the store for every segment that it alone has."""
        store = open_store(config.lake)
        if store is None:
            return
        try:
            for name in self._manifest.stored:
                if store.size(name) is None:
                    raise MissingFileError(
                        "a segment is not in the object store any more", object=store.uri(name)
                    )
        finally:
            store.close()

    # Telling

    def _notes(self) -> list[str]:
        manifest, notes = self._manifest, []
        if manifest.store:
            notes.append(
                f"the log keeps segments and tables in {manifest.store}: never use it while its"
                " original is in use there, or use a separate store"
            )
        if manifest.stored:
            notes.append(
                f"{len(manifest.stored)} segments are in the object store alone and not in the"
                " backup"
            )
        if manifest.catalog:
            notes.append(
                "the log's tables are in a catalog outside of its folder: never use it while its"
                " original is in use there, or give it another catalog or namespace"
            )
        return notes

    def _telling(self, doing: str) -> Callable[[int], None]:
        done, total = 0, self._manifest.size_bytes

        def tell_copied(count: int) -> None:
            nonlocal done
            done += count
            if self._tell is not None:
                self._tell(doing, done, total)

        return tell_copied

    def _report(self, folder: str, segments: int, warnings: list[str]) -> RestoreReport:
        manifest = self._manifest
        return RestoreReport(
            folder=folder,
            log_id=manifest.log_id,
            index=manifest.index,
            topics=len(manifest.offsets),
            records=manifest.records,
            files=len(manifest.files),
            size_bytes=manifest.size_bytes,
            taken_us=manifest.taken_us,
            segments_verified=segments,
            stored_segments=len(manifest.stored),
            warnings=tuple(warnings),
            seconds=time.monotonic() - self._started,
        )


def _folders(target: Path, files: list[BackupFile]) -> Iterator[Path]:
    for file in files:
        for parent in Path(file.name).parents:
            yield target / parent


def _path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or "\0" in os.fspath(path):
        raise InvalidArgumentError("this is not a path", got=repr(path))
    return Path(path)
