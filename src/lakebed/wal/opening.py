"""Opening a log: lock, look, repair what a power cut explains, and be ready to write.

Order, and why:

1. take the lock: no other process changes what is about to be read
2. sync the last file, and drop it from the cache: what is read next is what the disk holds, even
   after a sync that failed
3. read and verify everything (`recovery.survey`); refuse or go on
4. cut a torn tail, if that is the verdict
5. rebuild the identity file if it is missing

A new log is made in the opposite order: its first file durable, then the identity file. So an
identity file without a WAL is a loss, and a WAL without an identity file is a creation that was cut
short.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lakebed.config import WalConfig
from lakebed.errors import from_os_error
from lakebed.host import Clock, Disk, Lock, Mode, failpoints
from lakebed.reports.wal import Counters, RecoveryStats
from lakebed.types import HardState
from lakebed.wal.appender import Appender, NoRoomError, Tail
from lakebed.wal.entry_map import EntryMap
from lakebed.wal.folder import (
    Layout,
    check_is_log_or_empty,
    check_kind,
    file_numbers,
    is_log,
    make_folders,
    take_lock,
    write_identity,
)
from lakebed.wal.reclaim import Sealed
from lakebed.wal.recovery import FileReport, Mark, Progress, Survey, Verdict, survey
from lakebed.wal.repair import cut_torn_tail
from lakebed.wal.spares import Spares

_log = logging.getLogger("lakebed.wal")

_CREATED = failpoints.define("wal.create.file")
_IDENTIFIED = failpoints.define("wal.create.identity")


@dataclass(frozen=True)
class Opened:
    """A log that is ready: everything `Wal` works with, except the tail.

    The tail holds the file in use, which must be closed when the log has left it.
    """

    layout: Layout
    log_id: uuid.UUID
    lock: Lock
    counters: Counters
    spares: Spares
    appender: Appender
    entries: EntryMap
    sealed: list[Sealed]
    recovery: RecoveryStats


def open_log(
    root: Path,
    config: WalConfig,
    disk: Disk,
    clock: Clock,
    progress: Progress | None,
    *,
    threaded: bool,
    kind: str | None = None,
    log_id: uuid.UUID | None = None,
) -> tuple[Opened, Tail]:
    """Open or create the log in `root`; one of another kind is refused before it is touched.

    A log that is created gets `log_id`, or a new identity without it.
    """
    layout = Layout(root)
    try:
        check_is_log_or_empty(disk, layout)
        if kind is not None:
            check_kind(disk, layout, kind)
        make_folders(disk, layout)
        lock = take_lock(disk, layout)
    except OSError as error:
        raise from_os_error(error, "opening the log", root) from error
    try:
        return _Opening(
            layout=layout,
            config=config,
            disk=disk,
            clock=clock,
            lock=lock,
            kind=kind,
            threaded=threaded,
            log_id=log_id,
        ).run(progress)
    except OSError as error:
        lock.release()
        raise from_os_error(error, "opening the log", root) from error
    except NoRoomError as error:
        lock.release()
        raise error.cause from error
    except BaseException:
        lock.release()
        raise


class _Opening:
    def __init__(
        self,
        *,
        layout: Layout,
        config: WalConfig,
        disk: Disk,
        clock: Clock,
        lock: Lock,
        kind: str | None,
        threaded: bool,
        log_id: uuid.UUID | None,
    ) -> None:
        self.kind = kind
        self.log_id = log_id
        self.layout = layout
        self.disk = disk
        self.clock = clock
        self.lock = lock
        self.counters = Counters()
        self.spares = Spares(
            disk,
            layout,
            self.counters,
            file_bytes=config.file_bytes,
            count=config.spare_files,
            threaded=threaded,
        )

    def run(self, progress: Progress | None) -> tuple[Opened, Tail]:
        started = self.clock.monotonic()
        self.spares.adopt()
        if not is_log(self.disk, self.layout):
            return self._create(started)
        self._settle_last_file()
        survey_result = survey(self.disk, self.layout, progress)
        if survey_result.error is not None:
            raise survey_result.error
        return self._resume(survey_result, started)

    def _create(self, started: float) -> tuple[Opened, Tail]:
        log_id = self.log_id or uuid.uuid4()
        appender = self._appender(log_id)
        tail = appender.start_file(
            file_number=1,
            span_bytes=0,
            link=0,
            last_index=0,
            last_term=0,
            hard_state=HardState(),
            mark=Mark(),
        )
        _CREATED.hit()
        write_identity(self.disk, self.layout, log_id, self.kind)
        _IDENTIFIED.hit()
        recovery = RecoveryStats(self.clock.monotonic() - started, 0, 0, 0, 0, None)
        return self._result(log_id, appender, EntryMap(), [], recovery), tail

    def _settle_last_file(self) -> None:
        """Sync the last file and drop its cache, so that the disk is read next.

        An unsynced write must not be served and then lost.
        """
        numbers = file_numbers(self.disk, self.layout)
        if numbers:
            file = self.disk.open(self.layout.file(numbers[-1]), Mode.WRITE)
            try:
                file.sync()
                file.drop_cache()
            finally:
                file.close()
            self.disk.sync_folder(self.layout.wal)

    def _resume(self, survey_result: Survey, started: float) -> tuple[Opened, Tail]:
        last, state = survey_result.files[-1], survey_result.state
        file = self.disk.open(last.path, Mode.WRITE)
        kept = None
        if survey_result.verdict is Verdict.TORN_TAIL:
            kept = cut_torn_tail(self.disk, self.layout, file, last.number, last.used_bytes)
        if survey_result.identity_missing:
            _log.warning(
                "the identity file was missing or damaged and is rebuilt: path=%s",
                self.layout.identity,
            )
            write_identity(self.disk, self.layout, survey_result.log_id)
        tail = Tail(
            file,
            last.number,
            last.size_bytes,
            last.used_bytes,
            last.used_bytes,
            state.link,
            state.last_index,
            state.last_term,
            state.hard_state,
            state.mark,
            state.idle and survey_result.verdict is Verdict.OPEN,
        )
        recovery = RecoveryStats(
            seconds=self.clock.monotonic() - started,
            files=len(survey_result.files),
            frames=survey_result.frames,
            bytes=survey_result.used_bytes,
            torn_bytes=survey_result.torn_bytes,
            torn_kept_in=str(kept) if kept else None,
        )
        appender = self._appender(survey_result.log_id)
        sealed = _list_sealed(survey_result.files)
        return self._result(survey_result.log_id, appender, state.entries, sealed, recovery), tail

    def _appender(self, log_id: uuid.UUID) -> Appender:
        return Appender(
            disk=self.disk,
            layout=self.layout,
            log_id=log_id,
            spares=self.spares,
            counters=self.counters,
            clock=self.clock,
        )

    def _result(
        self,
        log_id: uuid.UUID,
        appender: Appender,
        entries: EntryMap,
        sealed: list[Sealed],
        recovery: RecoveryStats,
    ) -> Opened:
        return Opened(
            self.layout,
            log_id,
            self.lock,
            self.counters,
            self.spares,
            appender,
            entries,
            sealed,
            recovery,
        )


def _list_sealed(files: list[FileReport]) -> list[Sealed]:
    """Return every file but the last: each ended where the next one's first index says."""
    return [
        Sealed(file.number, file.size_bytes, after.header.first_index - 1)
        for file, after in pairwise(files)
    ]
