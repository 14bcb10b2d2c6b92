"""Verifies every segment of topics in parallel, and continues after a damaged one.

A task reads the files that it can reach, with the checks of the log: sizes, checksums of the tail
and of every column chunk, counts, offsets, timestamps. Other files are verified by the log's owner.
A segment that is merged or removed before its turn is not damage. The Iceberg table of each topic
is compared with the log: its files, and how many records they have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from lakebed.engine.segments import segment_of
from lakebed.errors import CorruptionError, InvalidArgumentError, LakebedError, MissingFileError
from lakebed.host import OsDisk
from lakebed.lake.verification import verify_segment
from lakebed.reports.lake import TableInfo
from lakebed.reports.topics import SegmentInfo
from lakebed.spark.connection import connect
from lakebed.spark.failures import translate_failures
from lakebed.spark.jobs.progress import report_tasks
from lakebed.spark.jobs.target import AnyLog, resolve_log
from lakebed.types import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.api.log import Log
    from lakebed.spark.options import Target

_TASK_BYTES: Final = 256 * 1024 * 1024
"""The most bytes that a task reads, about."""
_SAID: Final = "number int, code string, message string"
_GONE: Final = "gone"


@dataclass(frozen=True)
class SegmentDamage:
    """What is wrong with a segment, or with a topic's table."""

    topic: str
    partition: int
    """-1 for a table."""
    file: str
    base: int
    end: int
    """The file's range of offsets."""
    code: str
    problem: str
    """What is wrong, and where."""


@dataclass(frozen=True)
class VerifyReport:
    """What a verification found."""

    topics: int
    segments: int
    records: int
    bytes: int
    gone: int
    """Segments that were merged or removed before they were read."""
    damages: tuple[SegmentDamage, ...]

    @property
    def fine(self) -> bool:
        """Whether no damage was found."""
        return not self.damages


def verify(
    spark: SparkSession,
    log: AnyLog,
    topics: Sequence[str] | None = None,
    *,
    tables: bool = True,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read every byte of every segment of topics, or of all; return everything that is wrong."""
    owner, target = resolve_log(spark, log)
    names = owner.topics() if topics is None else list(topics)
    segments = [
        segment
        for name in names
        for part in owner.describe_topic(name).partitions
        for segment in owner.segments(name, part.partition)
    ]
    with translate_failures("verify"), report_tasks(spark, "reading segments", progress):
        said = _check_segments(spark, target, segments)
    gone, damages = _judge(owner, segments, said)
    if tables:
        damages += [damage for name in names for damage in _table_damages(owner, name)]
    return VerifyReport(
        topics=len(names),
        segments=len(segments) - gone,
        records=sum(segment.records for segment in segments),
        bytes=sum(segment.file_bytes for segment in segments),
        gone=gone,
        damages=tuple(damages),
    )


# On the driver


def _check_segments(
    spark: SparkSession, target: Target, segments: list[SegmentInfo]
) -> list[tuple[int, str, str]]:
    """Check segments in tasks; return index, code and message of each that has a problem."""
    if not segments:
        return []
    cores = spark.sparkContext.defaultParallelism
    total = sum(segment.file_bytes for segment in segments)
    count = max(1, min(len(segments), max(cores, -(-total // _TASK_BYTES))))
    numbers = spark.createDataFrame(
        pa.table({"number": pa.array(range(len(segments)), pa.int32())})
    ).repartition(count, "number")

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = batch.column("number").to_pylist()
            verdicts = [(index, *_verdict(target, segments[index])) for index in chosen]
            wrong = [verdict for verdict in verdicts if verdict[1]]
            columns = [list(column) for column in zip(*wrong, strict=True)] or [[], [], []]
            kinds = (pa.int32(), pa.string(), pa.string())
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)],
                ["number", "code", "message"],
            )

    rows = numbers.mapInArrow(check, _SAID).toArrow().to_pylist()
    return sorted((row["number"], row["code"], row["message"]) for row in rows)


def _judge(
    owner: Log, segments: list[SegmentInfo], said: list[tuple[int, str, str]]
) -> tuple[int, list[SegmentDamage]]:
    """Return how many segments are no longer part of the log, and the damage of the others."""
    there: dict[tuple[str, int], set[int]] = {}
    for index, _, _ in said:
        segment = segments[index]
        topic_partition = (segment.topic, segment.partition)
        if topic_partition not in there:
            there[topic_partition] = {info.id for info in owner.segments(*topic_partition)}
    gone = 0
    damages = []
    for index, code, message in said:
        segment = segments[index]
        if code == _GONE or segment.id not in there[segment.topic, segment.partition]:
            gone += 1
        else:
            damages.append(
                SegmentDamage(
                    segment.topic,
                    segment.partition,
                    segment.location,
                    segment.base,
                    segment.end,
                    code,
                    message,
                )
            )
    return gone, damages


def _table_damages(owner: Log, topic: str) -> list[SegmentDamage]:
    """Compare a topic's Iceberg table with the log's segments, if there is a table."""
    try:
        shown, there, info = _compare(owner, topic)
        if info.exists and shown != there and _is_ours(owner, topic):
            owner.lake.sync(topic)  # segments came, or were merged, a moment ago
            shown, there, info = _compare(owner, topic)
    except InvalidArgumentError:
        return []  # a log without tables
    except LakebedError as error:
        return [SegmentDamage(topic, -1, "", 0, 0, error.code, str(error))]
    problem = info.problem
    if not problem and info.exists and shown != there:
        problem = (
            "the table is not what the log has:"
            f" files={shown[0]} records={shown[1]} expected={there[0]},{there[1]}"
        )
    return [SegmentDamage(topic, -1, info.metadata, 0, 0, "table", problem)] if problem else []


def _is_ours(owner: Log, topic: str) -> bool:
    """Return whether the last change of a topic's table was made by the log."""
    history = owner.lake.history(topic)
    return not history or history[-1].ours


def _compare(owner: Log, topic: str) -> tuple[tuple[int, int], tuple[int, int], TableInfo]:
    """Return files and records of a topic's table, and of its segments."""
    info = owner.lake.describe(topic)
    segments = [
        segment
        for part in owner.describe_topic(topic).partitions
        for segment in owner.segments(topic, part.partition)
    ]
    records = sum(segment.records for segment in segments)
    return (info.files, info.records), (len(segments), records), info


# In a task


def _verdict(target: Target, info: SegmentInfo) -> tuple[str, str]:
    """Return code and message of what is wrong with a segment; empty if nothing is."""
    try:
        try:
            with _local(info.location) as path:
                verify_segment(OsDisk(), path, info.partition, segment_of(info))
        except (MissingFileError, FileNotFoundError):
            # It may be on another machine, or merged by now: ask the owner.
            if not connect(target).verify_segment(info.topic, info.partition, info.id):
                return _GONE, ""
    except LakebedError as error:
        return error.code, str(error)
    except (OSError, pa.ArrowException) as error:
        return CorruptionError.code, f"a segment cannot be read: {error}"
    return "", ""


@contextlib.contextmanager
def _local(location: str) -> Iterator[Path]:
    """Yield the path of a segment's file, downloaded from the store if necessary."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        yield Path(unquote(parts.path) if "%" in parts.path else parts.path)
        return
    import tempfile

    from lakebed.spark.stores import in_store

    with tempfile.NamedTemporaryFile(prefix="lakebed-verify-", suffix=".parquet") as copy:
        with in_store(location) as source:
            _copy(source, copy)
        yield Path(copy.name)


def _copy(source: Any, target: Any) -> None:
    while data := source.read(8 * 1024 * 1024):
        target.write(data)
    target.flush()
