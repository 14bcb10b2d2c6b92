"""Which tasks read a range: sealed files and the hot tail, in pieces, and pieces shared out.

A piece is a range of one partition's offsets, with the files that hold the beginning of it. Whoever
reads it takes the files if it can get at them, and the rest from the log's owner. Every offset of
the range is in exactly one piece. A task reads one large piece or several small ones: Spark takes
as long for a task's beginning as for a hundred thousand records.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lakebed.reports.topics import HotRange, ScanPlan, SealedFile

PIECE_RECORDS: Final = 2_000_000
"""A piece has about as many records, at most."""
PIECE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of files that a piece has, at most about."""
TASK_RECORDS: Final = 2_000_000
TASK_BYTES: Final = 128 * 1024 * 1024
"""What a task reads, about."""
WORTH_RECORDS: Final = 100_000
"""So many records are worth a task of their own, as long as there are cores."""


@dataclass(frozen=True)
class Piece:
    """A range of a partition that one task reads."""

    topic: str
    topic_id: int
    partition: int
    start: int
    until: int
    files: tuple[SealedFile, ...]

    @property
    def records(self) -> int:
        """How many offsets it has; after a compaction there are fewer records."""
        return self.until - self.start

    @property
    def weight(self) -> float:
        """How much of a task's work it is."""
        size = sum(_share_bytes(each) for each in self.files)
        return max(self.records / TASK_RECORDS, size / TASK_BYTES)


def pieces(plan: ScanPlan, topic_id: int, ranges: Mapping[int, tuple[int, int]]) -> list[Piece]:
    """Cut a topic's ranges of offsets into pieces."""
    found: list[Piece] = []
    for number, (start, until) in sorted(ranges.items()):
        files = [each for each in plan.files if each.partition == number]
        hot = [each for each in plan.hot if each.partition == number]
        found += _of_partition(plan.topic, topic_id, number, (start, until), files, hot)
    return found


def shares(found: Sequence[Piece], *, at_least: int, cores: int) -> list[tuple[Piece, ...]]:
    """Return each task its pieces: as few tasks as keep the cores busy, and no less than wanted."""
    records = sum(piece.records for piece in found)
    if not records:
        return []
    if len(found) < at_least:
        found = [
            part
            for piece in found
            for part in _split(piece, math.ceil(at_least * piece.records / records))
        ]
    useful = min(cores, math.ceil(records / WORTH_RECORDS))
    count = max(at_least, useful, math.ceil(sum(piece.weight for piece in found)))
    return _evenly(found, min(count, len(found)))


def _evenly(found: Sequence[Piece], count: int) -> list[tuple[Piece, ...]]:
    """Deal pieces out, the heaviest first, each to the task that has least."""
    tasks: list[list[Piece]] = [[] for _ in range(count)]
    least = [(0.0, 0, number) for number in range(count)]
    for piece in sorted(found, key=lambda each: -each.weight):
        weight, pieces_taken, number = heapq.heappop(least)
        tasks[number].append(piece)
        heapq.heappush(least, (weight + piece.weight, pieces_taken + 1, number))
    order = {id(piece): place for place, piece in enumerate(found)}
    return [tuple(sorted(taken, key=lambda each: order[id(each)])) for taken in tasks]


def _share_bytes(file: SealedFile) -> int:
    """Return about how much of a file is read, if only some of its offsets are wanted."""
    return max(1, file.bytes * (file.until - file.start) // max(1, file.records))


def _of_partition(
    topic: str,
    topic_id: int,
    partition: int,
    span: tuple[int, int],
    files: Iterable[SealedFile],
    hot: Iterable[HotRange],
) -> list[Piece]:
    """Put consecutive files, and what is in none, together until they are enough for a piece."""
    start, until = span
    found: list[Piece] = []
    taken: list[SealedFile] = []
    size = records = 0
    at = start
    for file in sorted(files, key=lambda each: each.start):
        share = _share_bytes(file)
        count = file.until - file.start
        if taken and (size + share > PIECE_BYTES or records + count > PIECE_RECORDS):
            found.append(Piece(topic, topic_id, partition, at, file.start, tuple(taken)))
            at, taken, size, records = file.start, [], 0, 0
        taken.append(file)
        size, records = size + share, records + count
    end = max([at, *(each.until for each in taken)])
    rest = max(0, until - min([until, *(each.start for each in hot)]))
    if taken and rest > PIECE_RECORDS // 4:
        found.append(Piece(topic, topic_id, partition, at, end, tuple(taken)))
        at, taken = end, []
    if at < until:
        last = Piece(topic, topic_id, partition, at, until, tuple(taken))
        found += _split(last, math.ceil(last.records / PIECE_RECORDS)) if not taken else [last]
    return found


def _split(piece: Piece, count: int) -> list[Piece]:
    """Cut a piece into so many of about the same number of offsets."""
    count = max(1, min(count, piece.records))
    edges = [piece.start + piece.records * part // count for part in range(count + 1)]
    return [
        replace(piece, start=start, until=until, files=_within(piece.files, start, until))
        for start, until in itertools.pairwise(edges)
        if start < until
    ]


def _within(files: Iterable[SealedFile], start: int, until: int) -> tuple[SealedFile, ...]:
    return tuple(
        each
        if start <= each.start and each.until <= until
        else replace(each, start=max(each.start, start), until=min(each.until, until), whole=False)
        for each in files
        if each.start < until and each.until > start
    )
