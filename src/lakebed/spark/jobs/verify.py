"""Every segment of topics read and checked, in parallel, going on behind what is damaged.

A task reads files itself where it has access to them, by the checks of the log: sizes, checksums of
the tail and of every column chunk, counts, offsets, timestamps. Files that it cannot get at are
checked by the log's owner. What is merged or removed before its turn is no damage. The Iceberg
table of each topic is compared with the log: its files, and how many records they have.
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
from lakebed.spark.connection import connected
from lakebed.spark.failures import told
from lakebed.spark.jobs.progress import watched
from lakebed.spark.jobs.target import AnyLog, reached
from lakebed.types import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.api.log import Log
    from lakebed.spark.options import Target

_TASK_BYTES: Final = 256 * 1024 * 1024
"""A task reads about so many bytes, at most."""
_SAID: Final = "number int, code string, message string"
_GONE: Final = "gone"


@dataclass(frozen=True)
class Damage:
    """What is wrong with a segment, or with a topic's table."""

    topic: str
    partition: int
    """-1 for a table."""
    file: str
    base: int
    end: int
    """The offsets that the file answers for."""
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
    damages: tuple[Damage, ...]

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong."""
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
    owner, target = reached(spark, log)
    names = owner.topics() if topics is None else list(topics)
    segments = [
        each
        for name in names
        for part in owner.describe_topic(name).partitions
        for each in owner.segments(name, part.partition)
    ]
    with told("verify"), watched(spark, "reading segments", progress):
        said = _checked(spark, target, segments)
    gone, damages = _judged(owner, segments, said)
    if tables:
        damages += [each for name in names for each in _table_damages(owner, name)]
    return VerifyReport(
        topics=len(names),
        segments=len(segments) - gone,
        records=sum(each.records for each in segments),
        bytes=sum(each.file_bytes for each in segments),
        gone=gone,
        damages=tuple(damages),
    )


# On the driver


def _checked(
    spark: SparkSession, target: Target, segments: list[SegmentInfo]
) -> list[tuple[int, str, str]]:
    """Let tasks check segments; give number, code and message of those that are not fine."""
    if not segments:
        return []
    cores = spark.sparkContext.defaultParallelism
    total = sum(each.file_bytes for each in segments)
    count = max(1, min(len(segments), max(cores, -(-total // _TASK_BYTES))))
    numbers = spark.createDataFrame(
        pa.table({"number": pa.array(range(len(segments)), pa.int32())})
    ).repartition(count, "number")

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            chosen = batch.column("number").to_pylist()
            found = [(each, *_verdict(target, segments[each])) for each in chosen]
            wrong = [each for each in found if each[1]]
            columns = [list(each) for each in zip(*wrong, strict=True)] or [[], [], []]
            kinds = (pa.int32(), pa.string(), pa.string())
            yield pa.RecordBatch.from_arrays(
                [pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)],
                ["number", "code", "message"],
            )

    rows = numbers.mapInArrow(check, _SAID).toArrow().to_pylist()
    return sorted((row["number"], row["code"], row["message"]) for row in rows)


def _judged(
    owner: Log, segments: list[SegmentInfo], said: list[tuple[int, str, str]]
) -> tuple[int, list[Damage]]:
    """Report damages from segments that are not part of the log any more."""
    there: dict[tuple[str, int], set[int]] = {}
    for number, _, _ in said:
        each = segments[number]
        place = (each.topic, each.partition)
        if place not in there:
            there[place] = {found.id for found in owner.segments(*place)}
    gone = 0
    damages = []
    for number, code, message in said:
        each = segments[number]
        if code == _GONE or each.id not in there[each.topic, each.partition]:
            gone += 1
        else:
            damages.append(
                Damage(
                    each.topic, each.partition, each.location, each.base, each.end, code, message
                )
            )
    return gone, damages


def _table_damages(owner: Log, topic: str) -> list[Damage]:
    """Compare a topic's Iceberg table with the log's segments, if there is a table."""
    try:
        shown, there, info = _compared(owner, topic)
        if info.exists and shown != there and _is_ours(owner, topic):
            owner.lake.sync(topic)  # segments came, or were merged, a moment ago
            shown, there, info = _compared(owner, topic)
    except InvalidArgumentError:
        return []  # a log without tables
    except LakebedError as error:
        return [Damage(topic, -1, "", 0, 0, error.code, str(error))]
    problem = info.problem
    if not problem and info.exists and shown != there:
        problem = (
            "the table is not what the log has:"
            f" files={shown[0]} records={shown[1]} expected={there[0]},{there[1]}"
        )
    return [Damage(topic, -1, info.metadata, 0, 0, "table", problem)] if problem else []


def _is_ours(owner: Log, topic: str) -> bool:
    """Return whether the log itself changed a topic's table last."""
    history = owner.lake.history(topic)
    return not history or history[-1].ours


def _compared(owner: Log, topic: str) -> tuple[tuple[int, int], tuple[int, int], TableInfo]:
    """Return files and records of a topic's table, and of its segments."""
    info = owner.lake.describe(topic)
    segments = [
        each
        for part in owner.describe_topic(topic).partitions
        for each in owner.segments(topic, part.partition)
    ]
    records = sum(each.records for each in segments)
    return (info.files, info.records), (len(segments), records), info


# In a task


def _verdict(target: Target, info: SegmentInfo) -> tuple[str, str]:
    """Return code and message of what is wrong with a segment; empty if nothing is."""
    try:
        try:
            with _local(info.location) as path:
                verify_segment(OsDisk(), path, info.partition, segment_of(info))
        except (MissingFileError, FileNotFoundError):
            # It may be on another machine, or merged by now: the owner knows.
            if not connected(target).verify_segment(info.topic, info.partition, info.id):
                return _GONE, ""
    except LakebedError as error:
        return error.code, str(error)
    except (OSError, pa.ArrowException) as error:
        return CorruptionError.code, f"a segment cannot be read: {error}"
    return "", ""


@contextlib.contextmanager
def _local(location: str) -> Iterator[Path]:
    """Return a segment's file on this machine's disk, fetched from the store if need be."""
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
