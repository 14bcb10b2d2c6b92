"""Taking a backup of a log that is in use: consistent at one point, verified, whole or not there.

1. claim the target: its unfinished manifest is made, and must not be there yet
2. pin: from here on no file of a segment or of an open transaction is removed
3. a checkpoint: its snapshot at index F names files for every record acknowledged before
4. narrow the pin to those files; the log goes on, and what it drops meanwhile waits
5. copy them, each synced, and verify each segment's copy against the checksums in the snapshot
6. the folders synced, then the manifest: written, synced, renamed, the folder synced

Nothing of the WAL is copied: everything up to F is in the files, and what was written since is not
part of the backup. Files do not change once they have their names, so the only thing that could
happen to one is its removal (by retention, merging, compaction, a purge, a move to the object
store), which the pin puts off. A process that dies takes the pin with it, and the next opening
removes what was put off.

Whatever fails before 6 leaves a folder that is not a backup. What was copied is removed again, as
far as that is possible: the disk that was too full may be the log's own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lakebed.config import CONFIG_NAME, LakeConfig
from lakebed.engine.backup_files import (
    MANIFEST_NAME,
    PARTIAL_NAME,
    BackupFile,
    Manifest,
    check_apart,
    check_vacant,
    copy_file,
    write_manifest,
)
from lakebed.engine.staging import Staging
from lakebed.errors import InvalidArgumentError, translate_os_errors
from lakebed.host import Disk, Mode, failpoints
from lakebed.lake.folder import LakeFolder, SegmentName
from lakebed.lake.locations import Locations
from lakebed.lake.verification import verify_segment
from lakebed.reports.maintenance import BackupReport
from lakebed.state.image import State, encode_state
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.state.values import STORE, Partition, Segment
from lakebed.version import __version__
from lakebed.wal import Wal

_log = logging.getLogger("lakebed.engine")

_HELD = failpoints.define("engine.backup.held")
_COPIED = failpoints.define("engine.backup.copied")
_WHOLE = failpoints.define("engine.backup.whole")
_WRITTEN = failpoints.define("engine.backup.written")

Tell = Callable[[str, int, int], None]


class Backups:
    """Takes backups of one log, one at a time."""

    def __init__(
        self,
        *,
        disk: Disk,
        folder: Path,
        wal: Wal,
        lake: LakeFolder,
        staging: Staging,
        config: LakeConfig,
        picture: Callable[[], State],
        time_us: Callable[[], int],
        check_open: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._wal = wal
        self._lake = lake
        self._staging = staging
        self._config = config
        self._picture = picture
        self._time_us = time_us
        self._check_open = check_open
        """Raises once the log is closed: its folder may be somebody else's by then."""

    def take(self, target: str | os.PathLike[str], tell: Tell) -> BackupReport:
        """Take a backup into a folder that is new or empty."""
        if not isinstance(target, (str, os.PathLike)) or "\0" in os.fspath(target):
            raise InvalidArgumentError("the target is not a path", got=repr(target))
        folder = Path(target)
        check_apart(self._folder, folder, "a backup must be outside of the log")
        check_vacant(self._disk, folder)
        with self._claim(folder) as made:
            return self._take(folder, made, tell)

    @contextlib.contextmanager
    def _claim(self, folder: Path) -> Iterator[list[Path]]:
        """Own the target while it is written; take away what was made if that fails."""
        partial = folder / PARTIAL_NAME
        made: list[Path] = []
        with translate_os_errors("making the backup's folder", folder):
            self._disk.make_folder(folder)
            try:
                self._disk.open(partial, Mode.CREATE).close()
            except FileExistsError as error:
                raise InvalidArgumentError(
                    "another backup is being taken there", path=folder
                ) from error
        made.append(partial)
        try:
            yield made
        except BaseException:
            self._undo(made)
            raise

    def _undo(self, made: list[Path]) -> None:
        """Remove what was written; its claim last, so that it does not look like nothing."""
        for path in reversed(made):
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(path)
            except OSError as error:
                _log.warning("a file of a failed backup stays: file=%s error=%s", path, error)
                return

    def _take(self, folder: Path, made: list[Path], tell: Tell) -> BackupReport:
        started = time.monotonic()
        with self._lake.pin() as segments, self._staging.pin() as staged:
            state = self._picture()
            named = dict(_local_segments(state))
            segments.narrow(named.keys())
            staged.narrow(_list_staged(state))
            self._lake.remove_put_off()
            _hit(_HELD, folder)
            files = self._copy(folder, state, named, made, tell)
        manifest = self._manifest(state, files)
        _hit(_WHOLE, folder)
        self._check_open()
        made.append(folder / MANIFEST_NAME)  # the first to go if it cannot be made durable
        write_manifest(self._disk, folder, manifest)
        made.clear()  # it is a backup now, whatever happens
        _hit(_WRITTEN, folder)
        return BackupReport(
            folder=os.fspath(folder),
            log_id=manifest.log_id,
            index=manifest.index,
            topics=len(manifest.offsets),
            records=manifest.records,
            files=len(files),
            size_bytes=manifest.size_bytes,
            stored_segments=len(manifest.stored),
            store=manifest.store,
            seconds=time.monotonic() - started,
        )

    # Files

    def _copy(
        self,
        folder: Path,
        state: State,
        named: dict[SegmentName, Segment],
        made: list[Path],
        tell: Tell,
    ) -> list[BackupFile]:
        done, total = 0, sum(segment.file_bytes for segment in named.values())

        def tell_copied(count: int) -> None:
            nonlocal done
            self._check_open()
            done += count
            tell("copying", min(done, total), total)

        def copy_into(source: Path) -> BackupFile:
            name = source.relative_to(self._folder)
            made.append(folder / name)
            file = copy_file(self._disk, source, folder / name, tell_copied)
            _hit(_COPIED, folder)
            return file._replace(name=name.as_posix())

        files = []
        for key, segment in named.items():
            self._check_open()
            files.append(copy_into(self._lake.path(*key)))
            copy = LakeFolder(self._disk, folder).path(*key)
            verify_segment(self._disk, copy, key.partition, segment)
        files += [copy_into(self._staging.path(file_id)) for file_id in sorted(_list_staged(state))]
        with translate_os_errors("reading the settings", self._folder):
            has_settings = CONFIG_NAME in self._disk.names(self._folder)
        if has_settings:
            files.append(copy_into(self._folder / CONFIG_NAME))
        files.append(self._write_snapshot(folder, state, made))
        self._sync_folders(folder, files)
        return files

    def _write_snapshot(self, folder: Path, state: State, made: list[Path]) -> BackupFile:
        index, data = state.numbers["applied"], encode_state(state)
        snapshots = SnapshotFolder(self._disk, folder)
        path = snapshots.path(index)
        made += [path, path.with_name(path.name + ".tmp")]
        checksum = snapshots.write(index, data)
        return BackupFile(path.relative_to(folder).as_posix(), len(data), checksum)

    def _sync_folders(self, folder: Path, files: list[BackupFile]) -> None:
        """Make every name survive before a manifest speaks of it."""
        folders = {(folder / file.name).parent for file in files}
        folders |= {child.parent for child in folders if child != folder}
        with translate_os_errors("syncing the backup's folders", folder):
            for child in sorted(folders | {folder}):
                self._disk.sync_folder(child)
            self._disk.sync_folder(folder.parent)

    def _manifest(self, state: State, files: list[BackupFile]) -> Manifest:
        log_id, config = str(self._wal.log_id), self._config
        locations = Locations(self._folder, config.store or "store://", log_id)
        return Manifest(
            log_id=log_id,
            index=state.numbers["applied"],
            term=self._wal.last_term,
            taken_us=self._time_us(),
            version=__version__,
            offsets=offsets_of(state),
            records=sum(
                segment.records
                for state_of in state.partitions.values()
                for segment in state_of.segments
            ),
            store=config.store,
            catalog=bool(config.catalog),
            stored=[
                locations.object_name(topic, partition, segment)
                for (topic, partition), partition_state in sorted(state.partitions.items())
                for segment in partition_state.segments
                if segment.place == STORE
            ],
            files=files,
        )


def offsets_of(state: State) -> dict[str, list[list[int]]]:
    """Return earliest offset and end of each partition, by topic."""
    offsets: dict[str, list[list[int]]] = {}
    for topic in sorted(state.topics.values(), key=lambda topic_state: topic_state.name):
        partitions = [
            state.partitions.get((topic.id, partition), Partition())
            for partition in range(topic.partitions)
        ]
        offsets[topic.name] = [[partition.low, partition.end] for partition in partitions]
    return offsets


def _local_segments(state: State) -> Iterator[tuple[SegmentName, Segment]]:
    """Return the segments whose files are on the local disk."""
    for (topic, partition), partition_state in sorted(state.partitions.items()):
        for segment in partition_state.segments:
            if segment.place != STORE:
                yield SegmentName(topic, partition, segment.id), segment


def _list_staged(state: State) -> set[int]:
    return {
        pending.staged
        for transaction in state.transactions.values()
        for pending in transaction.pending
        if pending.staged
    }


def _hit(point: failpoints.Failpoint, folder: Path) -> None:
    """Fail as the operating system would, if a test says so."""
    with translate_os_errors("taking a backup", folder):
        point.hit()
