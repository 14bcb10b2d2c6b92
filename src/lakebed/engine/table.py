"""A topic as a table: scans, lookups by key, the current record of each key, earlier points.

What was written last is in it as soon as it is acknowledged: a table reads segments and memtables
alike. It holds nothing itself; any thread may use it, as long as its log is open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.api.lookup import no_topic
from lakebed.api.reads import COLUMNS, Bounds, out_of_range
from lakebed.api.table import (
    Points,
    Table,
    Where,
    by_position,
    check_key,
    check_time,
    check_where,
)
from lakebed.engine.core import Core
from lakebed.engine.plan import plan
from lakebed.engine.reading import Reading
from lakebed.engine.table_keys import KeyLookup
from lakebed.engine.table_latest import KEY_COLUMNS, current, last_of_keys
from lakebed.engine.table_scan import Scan, ScanExtent, Selection, fit
from lakebed.errors import ClosedError, InvalidArgumentError, OffsetOutOfRangeError
from lakebed.lake.segment_reader import SegmentReader
from lakebed.reports.topics import ScanPlan
from lakebed.state.values import Partition, Segment, Topic
from lakebed.topic.times import python_rows, python_values
from lakebed.wire.filters import filter_expression, is_filters

_log = logging.getLogger("lakebed.engine")

_TIME: Final = pa.timestamp("us", "UTC")
_LOOKS_MAX: Final = 100
_PASSES_MAX: Final = 10
"""How often the current records are read again because some of them were removed meanwhile."""


class EmbeddedTable(Table):
    """The records of a topic, as a table of the columns that readers get. Any thread."""

    def __init__(
        self,
        *,
        core: Core,
        reading: Reading,
        segments: SegmentReader,
        lookup: KeyLookup,
        iceberg: Callable[[str], Any],
        locate: Callable[[int, int, Segment], str],
        name: str,
    ) -> None:
        self._core = core
        self._reading = reading
        self._segments = segments
        self._lookup = lookup
        self._iceberg = iceberg
        self._locate = locate
        self._id = reading.topic(name).id
        self.name: Final = name

    @property
    def schema(self) -> pa.Schema:
        """Return the columns as readers see them now."""
        return self._reading.empty(self._topic(), None).schema

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> pa.RecordBatchReader:
        """Read the records there are now, partition after partition, in the order of offsets."""
        topic = self._topic()
        wanted = self._choose(topic, columns, where)
        lowest, highest = (
            _points(name, points, self._reading, topic)
            for name, points in (("start", start), ("until", until))
        )
        extents = [
            ScanExtent(
                partition,
                max(state.low, lowest.get(partition, 0)),
                min(state.end, highest.get(partition, state.end)),
            )
            for partition, state in self._now(topic, partitions).items()
        ]
        scan = self._scan(topic, extents, wanted)
        return pa.RecordBatchReader.from_batches(scan.schema, scan.batches())

    def plan(
        self,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> ScanPlan:
        """Return which files hold the records of a range, and what of it is in no file yet."""
        topic = self._topic()
        lowest, highest = (
            _points(name, points, self._reading, topic)
            for name, points in (("start", start), ("until", until))
        )
        return plan(
            self.name,
            self._now(topic, partitions),
            lowest,
            highest,
            partial(self._locate, topic.id),
            partial(self._weigh, topic.id),
        )

    def get(self, key: bytes | str, default: Any = None) -> Any:
        """Return the current value of a key: bytes of a raw topic, a dictionary of a typed one."""
        record = self._find(key, ("value",))
        value = None if record is None else python_values(record.column("value"))[0]
        return default if value is None else value

    def record(self, key: bytes | str) -> dict[str, Any] | None:
        """Return the latest record of a key with all its columns, also if it is a tombstone."""
        record = self._find(key, COLUMNS)
        return None if record is None else python_rows(record.select(list(COLUMNS)))[0]

    def latest(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the current record of each key, in the order of partitions and offsets."""
        names = _names(columns)
        for _ in range(_PASSES_MAX):
            table, missing = self._latest(self._topic(), names)
            if not missing:
                return table
        _log.warning(
            "current records were removed again and again before they were read:"
            " topic=%s records=%d",
            self.name,
            missing,
        )
        return table

    def as_of(
        self,
        offset: Points | None = None,
        time: datetime | int | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pa.Table:
        """Return the records that the table had at an earlier point."""
        if (offset is None) == (time is None):
            raise InvalidArgumentError("as_of needs either an offset or a time")
        topic = self._topic()
        wanted = self._choose(topic, columns, where)
        now = self._now(topic, None)
        until = {partition: state.end for partition, state in now.items()}
        if offset is not None:
            until = self._check_ends(topic, now, _points("offset", offset, self._reading, topic))
        else:
            time_us = check_time(time)
            wanted = _by_then(wanted, time_us)
            self._check_time(topic, now, time_us)
        extents = [
            ScanExtent(partition, state.low, until[partition]) for partition, state in now.items()
        ]
        return self._scan(topic, extents, wanted).table()

    def iceberg(self) -> Any:
        """Return the topic's table as pyiceberg knows it."""
        return self._iceberg(self._topic().name)

    def __repr__(self) -> str:
        return f"<Table {self.name!r}>"

    # Inside

    def _topic(self) -> Topic:
        """Return the topic as it is now: it may have got fields and partitions."""
        if self._reading.closed:
            raise ClosedError("the log is closed")
        topic = self._core.topic(self._id)
        if topic is None:
            raise no_topic(self.name)
        return topic

    def _now(self, topic: Topic, chosen: Collection[int] | None) -> dict[int, Partition]:
        """Return the partitions at one point of the log: all of a transaction or none of it."""
        keys = [self._reading.key(topic, partition) for partition in _partitions(topic, chosen)]
        for _ in range(_LOOKS_MAX):
            applied = self._core.state.numbers["applied"]
            states = {key[1]: self._core.partition(key) for key in keys}
            if self._core.state.numbers["applied"] == applied:
                break
        else:  # so much is written that it has to be halted for a moment
            frozen = self._core.freeze().state.partitions
            states = {key[1]: frozen.get(key) for key in keys}
        there = {partition: state for partition, state in states.items() if state is not None}
        if len(there) < len(keys):
            raise no_topic(self.name)
        return there

    def _weigh(self, topic: int, partition: int, start: int, until: int) -> int:
        """Return about how many bytes of a range are in memory."""
        memtable = self._core.memtables.get((topic, partition))
        return 0 if memtable is None else memtable.bytes_between(start, until)

    def _scan(self, topic: Topic, extents: Sequence[ScanExtent], wanted: Selection) -> Scan:
        return Scan(
            core=self._core,
            reading=self._reading,
            segments=self._segments,
            topic=topic,
            extents=extents,
            wanted=wanted,
        )

    def _choose(
        self, topic: Topic, columns: Sequence[str] | None, where: Where | None
    ) -> Selection:
        names = _names(columns)
        if where is None:
            return Selection(names)
        if is_filters(where):
            where = filter_expression(where)
        return Selection(names, where, _columns_needed(self._reading.empty(topic, None), where))

    def _find(self, key: bytes | str, columns: Sequence[str]) -> pa.RecordBatch | None:
        checked = check_key(key)
        while True:
            topic = self._topic()
            record = self._lookup.find(topic, checked, columns)
            if self._core.topic(self._id) is topic:
                break
            # It got a partition a moment ago, where the key may be, or a field.
        if record is None:
            return None
        names = [name for name in COLUMNS if name in columns]
        return fit(record, self._reading.empty(topic, names).schema)

    def _latest(self, topic: Topic, names: tuple[str, ...]) -> tuple[pa.Table, int]:
        """Return the current records, and how many of them were removed before they were read."""
        extents = [
            ScanExtent(partition, state.low, state.end)
            for partition, state in self._now(topic, None).items()
        ]
        only = current(
            {
                extent.partition: last_of_keys(
                    self._scan(topic, [extent], Selection(KEY_COLUMNS)).batches()
                )
                for extent in extents
            }
        )
        read = tuple(name for name in COLUMNS if name in {"offset", "value", *names})
        records = self._scan(topic, extents, Selection(read, only=only))
        batches, rows = [], 0
        for batch in records.batches():
            rows += batch.num_rows
            kept = batch.filter(pc.is_valid(batch.column("value")))
            batches.append(kept.select(list(names)))
        table = pa.Table.from_batches(batches, self._reading.empty(topic, names).schema)
        return table, sum(len(offsets) for offsets in only.values()) - rows

    def _check_ends(
        self, topic: Topic, now: Mapping[int, Partition], offsets: Mapping[int, int]
    ) -> dict[int, int]:
        until = {partition: state.end for partition, state in now.items()} | dict(offsets)
        for partition, state in now.items():
            if not state.low <= until[partition] <= state.end:
                raise out_of_range(topic, partition, until[partition], state.low, state.end)
        return until

    def _check_time(self, topic: Topic, now: Mapping[int, Partition], time_us: int) -> None:
        """Refuse a time before everything that retention has left of a partition."""
        for partition, state in now.items():
            if not 0 < state.low < state.end:
                continue
            first = self._first_time(topic, partition, state)
            if first is not None and first > time_us:
                raise OffsetOutOfRangeError(
                    "the time is before the first record that is left",
                    topic=self.name,
                    partition=partition,
                    time_us=time_us,
                    first_us=first,
                    low=state.low,
                )

    def _first_time(self, topic: Topic, partition: int, state: Partition) -> int | None:
        """Return the time of the first record of a partition, None if it is just being removed."""
        try:
            first, _ = self._reading.read(topic, partition, state.low, Bounds(1, 1), ["timestamp"])
        except OffsetOutOfRangeError:
            return None
        times = first.column("timestamp").cast(pa.int64()).to_pylist()
        return times[0] if times else None


def _names(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Check the columns that are asked for; they come in the order of the schema."""
    if columns is None:
        return COLUMNS
    valid = not isinstance(columns, str) and isinstance(columns, Collection)
    if not valid or not columns or not all(name in COLUMNS for name in columns):
        raise InvalidArgumentError(
            "columns must be a list of " + ", ".join(COLUMNS), got=repr(columns)
        )
    return tuple(name for name in COLUMNS if name in columns)


def _columns_needed(empty: pa.Table, where: pc.Expression) -> tuple[str, ...]:
    """Check a predicate, and return the columns it looks at: without them it has no meaning."""
    check_where(where)
    trouble = _trouble(empty, where) or by_position(where)
    if trouble is not None:
        raise InvalidArgumentError(
            "the predicate does not fit the table: use the fields of its schema",
            where=where,
            reason=str(trouble).partition("\n")[0],
        )
    return tuple(
        name for name in COLUMNS if _trouble(empty.drop_columns([name]), where) is not None
    )


def _trouble(empty: pa.Table, where: pc.Expression) -> Exception | None:
    try:
        empty.filter(where)
    except (pa.ArrowException, TypeError, ValueError) as error:
        return error
    return None


def _by_then(wanted: Selection, time_us: int) -> Selection:
    """Leave out records that are later than a time."""
    by_then = pc.field("timestamp") <= pa.scalar(time_us, _TIME)
    both = by_then if wanted.where is None else wanted.where & by_then
    return wanted._replace(where=both, needs=(*wanted.needs, "timestamp"))


def _partitions(topic: Topic, chosen: Collection[int] | None) -> list[int]:
    if chosen is None:
        return list(range(topic.partitions))
    if isinstance(chosen, str | bytes) or not isinstance(chosen, Collection):
        raise InvalidArgumentError("partitions must be a list of integers", got=repr(chosen))
    for partition in chosen:
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise InvalidArgumentError("partitions must be a list of integers", got=repr(chosen))
    return sorted(set(chosen))


def _points(name: str, points: Points | None, reading: Reading, topic: Topic) -> dict[int, int]:
    """Return the offset of each partition that has a bound."""
    if points is None:
        return {}
    if not isinstance(points, Mapping):
        points = dict.fromkeys(range(topic.partitions), points)
    for partition, offset in points.items():
        reading.key(topic, partition)
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidArgumentError(
                f"{name} must be an offset of 0 or more, or a dictionary of partitions and offsets",
                got=repr(offset),
            )
    return dict(points)
