"""Which tasks read a range: sealed files and the hot tail, cut into pieces and dealt to tasks.

A piece is a range of one partition's offsets, with the files that hold its beginning. A task reads
the files if it can reach them, and the rest from the log's owner. Every offset of the range is in
exactly one piece. A task reads one large piece or several small ones: starting a task takes Spark
as long as reading a hundred thousand records.
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
"""The most records of a piece, about."""
PIECE_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of files of a piece, about."""
TASK_RECORDS: Final = 2_000_000
TASK_BYTES: Final = 128 * 1024 * 1024
"""What a task reads, about."""
WORTH_RECORDS: Final = 100_000
"""This many records are worth a separate task, as long as there are cores."""


@dataclass(frozen=True, kw_only=True)
class ScanPiece:
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
        size = sum(_share_bytes(file) for file in self.files)
        return max(self.records / TASK_RECORDS, size / TASK_BYTES)


def pieces(plan: ScanPlan, topic_id: int, ranges: Mapping[int, tuple[int, int]]) -> list[ScanPiece]:
    """Cut a topic's ranges of offsets into pieces."""
    result: list[ScanPiece] = []
    for partition, (start, until) in sorted(ranges.items()):
        files = [file for file in plan.files if file.partition == partition]
        hot = [hot_range for hot_range in plan.hot if hot_range.partition == partition]
        whole = ScanPiece(
            topic=plan.topic,
            topic_id=topic_id,
            partition=partition,
            start=start,
            until=until,
            files=(),
        )
        result += _of_partition(whole, files, hot)
    return result


def shares(
    pieces: Sequence[ScanPiece], *, at_least: int, cores: int
) -> list[tuple[ScanPiece, ...]]:
    """Return the pieces of each task: at least `at_least` tasks, and enough to use the cores."""
    records = sum(piece.records for piece in pieces)
    if not records:
        return []
    if len(pieces) < at_least:
        pieces = [
            part
            for piece in pieces
            for part in _split(piece, math.ceil(at_least * piece.records / records))
        ]
    useful = min(cores, math.ceil(records / WORTH_RECORDS))
    count = max(at_least, useful, math.ceil(sum(piece.weight for piece in pieces)))
    return _evenly(pieces, min(count, len(pieces)))


def _evenly(pieces: Sequence[ScanPiece], count: int) -> list[tuple[ScanPiece, ...]]:
    """Deal pieces to tasks, the heaviest first, each to the task with the least work."""
    tasks: list[list[ScanPiece]] = [[] for _ in range(count)]
    least = [(0.0, 0, task) for task in range(count)]
    for piece in sorted(pieces, key=lambda candidate: -candidate.weight):
        weight, pieces_taken, task = heapq.heappop(least)
        tasks[task].append(piece)
        heapq.heappush(least, (weight + piece.weight, pieces_taken + 1, task))
    order = {id(piece): position for position, piece in enumerate(pieces)}
    return [tuple(sorted(taken, key=lambda piece: order[id(piece)])) for taken in tasks]


def _share_bytes(file: SealedFile) -> int:
    """Return about how many bytes of a file are read if only some of its offsets are wanted."""
    return max(1, file.bytes * (file.until - file.start) // max(1, file.records))


def _of_partition(
    whole: ScanPiece, files: Iterable[SealedFile], hot: Iterable[HotRange]
) -> list[ScanPiece]:
    """Group consecutive files, and the offsets that no file holds, into pieces of `whole`."""
    until = whole.until
    pieces: list[ScanPiece] = []
    taken: list[SealedFile] = []
    size = records = 0
    begin = whole.start
    for file in sorted(files, key=lambda sealed: sealed.start):
        share = _share_bytes(file)
        count = file.until - file.start
        if taken and (size + share > PIECE_BYTES or records + count > PIECE_RECORDS):
            pieces.append(replace(whole, start=begin, until=file.start, files=tuple(taken)))
            begin, taken, size, records = file.start, [], 0, 0
        taken.append(file)
        size, records = size + share, records + count
    end = max([begin, *(file.until for file in taken)])
    rest = max(0, until - min([until, *(hot_range.start for hot_range in hot)]))
    if taken and rest > PIECE_RECORDS // 4:
        pieces.append(replace(whole, start=begin, until=end, files=tuple(taken)))
        begin, taken = end, []
    if begin < until:
        last = replace(whole, start=begin, files=tuple(taken))
        pieces += _split(last, math.ceil(last.records / PIECE_RECORDS)) if not taken else [last]
    return pieces


def _split(piece: ScanPiece, count: int) -> list[ScanPiece]:
    """Cut a piece into `count` pieces with about the same number of offsets."""
    count = max(1, min(count, piece.records))
    edges = [piece.start + piece.records * part // count for part in range(count + 1)]
    return [
        replace(piece, start=start, until=until, files=_within(piece.files, start, until))
        for start, until in itertools.pairwise(edges)
        if start < until
    ]


def _within(files: Iterable[SealedFile], start: int, until: int) -> tuple[SealedFile, ...]:
    return tuple(
        file
        if start <= file.start and file.until <= until
        else replace(file, start=max(file.start, start), until=min(file.until, until), whole=False)
        for file in files
        if file.start < until and file.until > start
    )
