"""Segments that stand for others: writing them, and the entry that puts them in their place.

The order is that of a checkpoint: new files are written and synced, then an entry says that they
stand for the old ones, then the old files go. A reader that has an old file open goes on reading
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from lakebed.config import stored_config
from lakebed.engine.checkpoint import Checkpointer
from lakebed.engine.core import Core, Key
from lakebed.engine.uploads import Uploads
from lakebed.errors import LakebedError
from lakebed.host import failpoints
from lakebed.lake.folder import LakeFolder
from lakebed.lake.segment_reader import SegmentReader
from lakebed.lake.segment_writer import write_segment
from lakebed.state.commands import Command, ReplaceSegments
from lakebed.state.values import Segment, Topic
from lakebed.topic.schema import evolve

_log = logging.getLogger("lakebed.engine")

_REWRITTEN = failpoints.define("engine.cleanup.rewritten")
_REPLACED = failpoints.define("engine.cleanup.logged")


class Rewriting:
    """Reads old segments, writes new ones, swaps them. Any thread; one for each partition."""

    def __init__(
        self,
        *,
        core: Core,
        lake: LakeFolder,
        reader: SegmentReader,
        checkpointer: Checkpointer,
        submit: Callable[[Command], Any],
        uploads: Uploads | None = None,
    ) -> None:
        self._core = core
        self._lake = lake
        self._reader = reader
        self._checkpointer = checkpointer
        self._submit = submit
        self._uploads = uploads

    def scan(self, topic: Topic, key: Key, segments: Sequence[Segment]) -> Iterator[pa.RecordBatch]:
        """Return every record of segments, with the fields that the topic has now."""
        value_type = self._core.schema(topic, len(topic.schemas)).field("value").type
        for segment in segments:
            for batch in self._reader.scan(*key, segment):
                yield evolve(batch, value_type)

    def write(
        self, topic: Topic, key: Key, batches: Iterable[pa.RecordBatch], *, base: int, end: int
    ) -> Segment:
        """Write a segment; durable when this returns, and known to nobody yet."""
        segment_id = self._checkpointer.new_segment_id()
        segment = write_segment(
            self._lake.disk,
            self._lake.path(*key, segment_id),
            batches,
            segment_id=segment_id,
            base=base,
            end=end,
            compression=stored_config(topic.config).compression,
            schema=self._core.columns(topic),
        )
        try:
            self._lake.sync(topic.id)  # the name must survive before an entry speaks of it
            _REWRITTEN.hit()
            if self._uploads is not None:
                segment = self._uploads.segment(*key, segment)
        except BaseException:
            self.discard(key, [segment])
            raise
        return segment

    def replace(self, command: ReplaceSegments, old: Sequence[Segment]) -> bool:
        """Swap; False if the old ones went meanwhile, and what was made of them is dropped."""
        replaced: bool = self._submit(command)
        _REPLACED.hit()
        for segment in old:
            self._reader.forget(segment.id)
        return replaced

    def discard(self, key: Key, segments: Iterable[Segment]) -> None:
        """Remove the files of segments that were written and that no entry speaks of."""
        for segment in segments:
            self._reader.forget(segment.id)
            try:
                self._lake.remove(*key, segment.id)
            except LakebedError as error:
                _log.warning("a segment is put aside when the log is opened next: %s", error)
