"""Which tasks read a range: sealed files and the hot tail, cut into pieces of bearable size.

A piece is a range of one partition's offsets, with the files that hold the beginning of it. Whoever
reads it takes the files if it can get at them, and the rest from the log's owner. Every offset of
the range is in exactly one piece.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lakebed.engine.plan import HotRange, ScanPlan, SealedFile

PIECE_RECORDS: Final = 2_000_000
"""A task reads about as many records, at most."""
PIECE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of files that a task reads, at most about."""


@dataclass(frozen=True)
class Piece:
    """What one task reads."""

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


def pieces(
    plan: ScanPlan, topic_id: int, ranges: Mapping[int, tuple[int, int]], *, at_least: int = 1
) -> list[Piece]:
    """Cut a topic's ranges of offsets into pieces, at least so many if there are enough records."""
    found: list[Piece] = []
    for number, (start, until) in sorted(ranges.items()):
        files = [each for each in plan.files if each.partition == number]
        hot = [each for each in plan.hot if each.partition == number]
        found += _of_partition(plan.topic, topic_id, number, (start, until), files, hot)
    total = sum(piece.records for piece in found)
    if found and len(found) < at_least and total:
        found = [
            part
            for piece in found
            for part in _split(piece, math.ceil(at_least * piece.records / total))
        ]
    return found


def _of_partition(
    topic: str,
    topic_id: int,
    partition: int,
    span: tuple[int, int],
    files: Iterable[SealedFile],
    hot: Iterable[HotRange],
) -> list[Piece]:
    """Put consecutive files, and what is in none, together until they are enough for a task."""
    start, until = span
    found: list[Piece] = []
    taken: list[SealedFile] = []
    size = records = 0
    at = start
    for file in sorted(files, key=lambda each: each.start):
        share = max(1, file.bytes * (file.until - file.start) // max(1, file.records))
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
