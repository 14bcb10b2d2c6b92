"""A checkpoint: memtables become segments, the state a snapshot, and WAL files are freed.

1. freeze: state and memtables at one point of the log, index F; writers wait for microseconds
2. write a segment for each partition, and a staged file for each open transaction; all synced
3. append `Flush`, which names them: from here on readers read the segments
4. write the snapshot: the state at F with the flush applied to it; replay begins at F + 1
5. keep this snapshot and the one before, and let the WAL free what lies before *that* one

Whatever dies in between: before 3 the new files are unknown to the log and are set aside when it is
opened; before 4 recovery begins with the last snapshot and meets the flush on its way; before 5 a
file more is kept than needed. Step 5 keeps one snapshot in reserve: if the newest one is damaged,
recovery begins with the one before and the WAL still has everything since.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from lakebed.config import stored_config
from lakebed.engine.core import Core, Frozen, Key
from lakebed.engine.shipping import Shipping
from lakebed.engine.uploads import Uploads
from lakebed.errors import LakebedError, RejectedError, translate_os_errors
from lakebed.host import failpoints
from lakebed.lake.folder import LakeFolder
from lakebed.lake.segment_writer import write_segment
from lakebed.reports.maintenance import CheckpointReport
from lakebed.state.commands import Command, Flush, StagedFile
from lakebed.state.decision import Dropped
from lakebed.state.image import State, encode_state
from lakebed.state.machine import carry_out, decide
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.state.values import Segment, Topic
from lakebed.topic.memtable import Chunk, decode_chunks
from lakebed.topic.records import with_position
from lakebed.topic.schema import evolve
from lakebed.wal import Wal

_log = logging.getLogger("lakebed.engine")

_FROZEN = failpoints.define("engine.checkpoint.frozen")
_FLUSHED = failpoints.define("engine.checkpoint.flushed")
_LOGGED = failpoints.define("engine.checkpoint.logged")
_SNAPSHOT = failpoints.define("engine.checkpoint.snapshot_written")
_RELEASED = failpoints.define("engine.checkpoint.released")


class Checkpointer:
    """Takes checkpoints, one at a time, in whichever thread asks."""

    def __init__(
        self,
        *,
        core: Core,
        wal: Wal,
        lake: LakeFolder,
        snapshots: SnapshotFolder,
        submit: Callable[[Command], object],
        delete_segments: Callable[[Iterable[Dropped]], int],
        threads: int,
        shipping: Shipping | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        self._core = core
        self._wal = wal
        self._lake = lake
        self._snapshots = snapshots
        self._submit = submit
        self._delete_segments = delete_segments
        """Takes segments that the log has dropped, and removes their files when they may go."""
        self._shipping = shipping
        self._uploads = uploads
        self._threads = threads
        """How many segments are written at a time."""
        self._running = threading.Lock()
        self._kept: dict[int, set[int]] = {}
        """The snapshots that recovery may begin with, and the staged files each refers to."""
        self.frozen_wal_bytes = 0
        self._numbering = threading.Lock()
        self._next_segment = 1
        self.count = 0
        self.last: CheckpointReport | None = None
        self._ended_at: float | None = None

    def start_from(self, snapshots: dict[int, State]) -> None:
        """Return which snapshots recovery found."""
        self._kept = {index: _list_staged(state) for index, state in snapshots.items()}
        self._next_segment = self._core.state.numbers["segment"]

    def new_segment_id(self) -> int:
        """Return an id that no file has."""
        with self._numbering:
            following = max(self._next_segment, self._core.state.numbers["segment"])
            self._next_segment = following + 1
            return following

    def run(self) -> CheckpointReport:
        """Take a checkpoint and say what it did."""
        with translate_os_errors("taking a checkpoint", self._core.staging.folder.parent):
            return self._run()[0]

    def picture(self) -> State:
        """Take a checkpoint and return the state that it froze: all of it, at one point of the log.

        Nothing of it is in memory alone: records are in the segments that it names, and data of
        open transactions in staged files.
        """
        with translate_os_errors("taking a checkpoint", self._core.staging.folder.parent):
            return self._run()[1]

    def _run(self) -> tuple[CheckpointReport, State]:
        with self._running:
            started = time.monotonic()
            frozen = self._core.freeze()
            _FROZEN.hit()
            index = frozen.state.numbers["applied"]
            flush = self._flush(frozen)
            _FLUSHED.hit()
            if self.last is not None and index <= self.last.index + 1 and flush == Flush((), ()):
                self.frozen_wal_bytes = frozen.wal_bytes  # nothing of it is waiting to be flushed
                same = replace(self.last, records=0, segments=0, segment_bytes=0)
                return same, frozen.state
            if flush.added or flush.staged:
                self._log(flush)
            _LOGGED.hit()
            size = self._snapshot(frozen, flush)
            self.frozen_wal_bytes = frozen.wal_bytes
            self._clean()
            self.count += 1
            self.last = CheckpointReport(
                index=index,
                records=sum(segment.records for *_, segment in flush.added),
                segments=len(flush.added),
                segment_bytes=sum(segment.file_bytes for *_, segment in flush.added),
                snapshot_bytes=size,
                seconds=time.monotonic() - started,
            )
            self._ended_at = self._core.clock.monotonic()
            return self.last, frozen.state

    def age_ms(self) -> int | None:
        """Return how long ago the last one ended."""
        ended_at = self._ended_at
        if ended_at is None:
            return None
        return int((self._core.clock.monotonic() - ended_at) * 1000)

    def _flush(self, frozen: Frozen) -> Flush:
        """Write every file of a checkpoint, durably; if one cannot be written, none stays."""
        written: list[tuple[int, int, Segment]] = []
        try:
            self._write_all(frozen, written)
            if self._uploads is not None:
                written[:] = self._uploads.segments(written)
            return Flush(tuple(written), tuple(self._stage(frozen)))
        except BaseException:
            self._discard(written)
            raise

    def _log(self, flush: Flush) -> None:
        try:
            self._submit(flush)
        except RejectedError:
            self._discard(flush.added)
            raise

    def _discard(self, written: Sequence[tuple[int, int, Segment]]) -> None:
        """Remove segments that the log knows nothing of: the next attempt writes its own."""
        for topic, partition, segment in written:
            self._remove(topic, partition, segment.id)

    # Segments

    def _write_all(self, frozen: Frozen, written: list[tuple[int, int, Segment]]) -> None:
        topics = sorted({topic for topic, _ in frozen.chunks})
        for topic_id in topics:
            self._lake.prepare(topic_id)
        work = [
            (frozen.state.topics[key[0]], key, chunks)
            for key in sorted(frozen.chunks)
            for chunks in _cut(
                frozen.chunks[key],
                stored_config(frozen.state.topics[key[0]].config).segment_bytes,
            )
        ]
        if self._threads > 1 and len(work) > 1:
            self._write_at_once(work, written)
        else:
            for topic, key, chunks in work:
                written.append((*key, self._write(topic, key, chunks)))
        for topic_id in topics:
            self._lake.sync(topic_id)  # the names must survive before an entry speaks of them

    def _write_at_once(
        self,
        work: list[tuple[Topic, Key, list[Chunk]]],
        written: list[tuple[int, int, Segment]],
    ) -> None:
        """Write several segments at a time: encoding and compressing need no interpreter lock.

        Whatever happens, nothing is being written any more when this ends, and `written` has every
        segment that is there.
        """
        done: dict[int, Segment] = {}

        def write(index: int) -> None:
            done[index] = self._write(*work[index])

        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lakebed-flush")
        try:
            for future in _begin(pool, write, len(work)):
                future.result()
            pool.shutdown(wait=True, cancel_futures=True)
            for index in range(len(work)):
                if index not in done:  # there was no thread for it
                    write(index)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            written += [(*work[index][1], done[index]) for index in sorted(done)]

    def _write(self, topic: Topic, key: Key, chunks: list[Chunk]) -> Segment:
        segment_id = self.new_segment_id()
        value_type = self._core.schema(topic, len(topic.schemas)).field("value").type
        return write_segment(
            self._lake.disk,
            self._lake.path(*key, segment_id),
            _batches(chunks, key[1], value_type),
            segment_id=segment_id,
            base=chunks[0].base,
            end=chunks[-1].end,
            compression=stored_config(topic.config).compression,
            schema=self._core.columns(topic),
        )

    # Open transactions

    def _stage(self, frozen: Frozen) -> Iterator[StagedFile]:
        file_id = frozen.state.numbers["staged"]
        for transaction in frozen.state.transactions.values():
            waiting = [pending for pending in transaction.pending if not pending.staged]
            if not waiting:
                continue
            raw = [frozen.bodies[(pending.index, pending.number)].raw() for pending in waiting]
            views = [memoryview(body) for body in raw]
            places = self._core.staging.write(file_id, views)
            if self._uploads is not None:
                self._uploads.upload_staged(file_id, places, views)
            bodies = tuple(
                (pending.index, pending.number, *span)
                for pending, span in zip(waiting, places, strict=True)
            )
            yield StagedFile(file_id, transaction.producer, transaction.epoch, bodies)
            file_id += 1

    # Snapshot

    def _snapshot(self, frozen: Frozen, flush: Flush) -> int:
        """Write the state at the freeze, with its memtables in segments; free what came before."""
        state = frozen.state
        index = state.numbers["applied"]
        carry_out(decide(state, index, flush).changes)
        data = encode_state(state)
        if index not in self._kept:
            self._wal.flush()  # a log that syncs later must not end before its snapshot
            self._snapshots.write(index, data)
        _SNAPSHOT.hit()
        if self._shipping is not None and self._uploads is not None:
            # Before the WAL lets go of anything: what the chain lacks is nowhere else.
            self._shipping.checkpoint(index, self._uploads.state(state))
        self._kept[index] = _list_staged(state)
        newest = sorted(self._kept)[-2:]
        self._kept = {index: self._kept[index] for index in newest}
        if len(newest) == 2 and newest[0] > self._wal.mark.index:
            self._wal.release(newest[0])
        _RELEASED.hit()
        self._snapshots.remove_all_but(*newest)
        return len(data)

    def _clean(self) -> None:
        """Remove files that nothing refers to, as far as they can be removed now."""
        self.remove_dropped()
        needed = self._core.list_staged_needed().union(*self._kept.values())
        try:
            self._core.staging.keep_only(needed)
            if self._uploads is not None:
                self._uploads.keep_staged(needed)
        except LakebedError as error:
            _log.warning("staged files could not be removed yet: %s", error)

    def remove_dropped(self) -> int:
        """Remove the files of segments that the log has dropped; return how many."""
        dropped = self._core.take_dropped()
        if dropped:
            self._wal.flush()  # the entries that dropped them must survive before the files go
            if self._shipping is not None:
                self._shipping.flush()
        self._delete_segments(dropped)
        return len(dropped)

    def _remove(self, topic: int, partition: int, segment: int) -> None:
        try:
            self._lake.remove(topic, partition, segment)
        except LakebedError as error:
            _log.warning("a segment could not be removed yet: %s", error)


def _begin(pool: ThreadPoolExecutor, do: Callable[[int], None], count: int) -> list[Future[None]]:
    """Have threads do so many things; fewer if there are no threads, as the interpreter is ending.

    The one that no thread could be started for may be done nevertheless, by another.
    """
    futures: list[Future[None]] = []
    try:
        for index in range(count):
            futures.append(pool.submit(do, index))
    except RuntimeError as error:
        _log.info("segments are written one after the other: %s", error)
    return futures


def _cut(chunks: list[Chunk], segment_bytes: int) -> Iterator[list[Chunk]]:
    """Cut a partition's chunks into segments of about the wanted size."""
    run: list[Chunk] = []
    size = 0
    for chunk in chunks:
        run.append(chunk)
        size += chunk.size_bytes
        if size >= segment_bytes:
            yield run
            run, size = [], 0
    if run:
        yield run


def _batches(
    chunks: list[Chunk], partition: int, value_type: pa.DataType
) -> Iterator[pa.RecordBatch]:
    for base, batch in decode_chunks(chunks):
        yield with_position(evolve(batch, value_type), partition, base)


def _list_staged(state: State) -> set[int]:
    return {
        pending.staged
        for transaction in state.transactions.values()
        for pending in transaction.pending
        if pending.staged
    }
