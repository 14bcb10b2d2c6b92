"""Which buckets of a table are folded, decided from the sizes of their files.

A bucket with many deleted rows or many files is slower to read. Keys that change at random fill all
buckets alike, so at most an eighth of them is folded in one run, the fullest first: no run takes
much longer than another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lakebed.reports.derived import DATA, DELETES, DerivedFile

DELETED_SHARE: Final = 0.2
FILES_MAX: Final = 24
_PART: Final = 8


def by_bucket(files: Iterable[DerivedFile]) -> dict[int, tuple[DerivedFile, ...]]:
    """Return the files of each bucket."""
    buckets: dict[int, list[DerivedFile]] = {}
    for file in files:
        buckets.setdefault(file.bucket, []).append(file)
    return {bucket: tuple(members) for bucket, members in buckets.items()}


def buckets_to_fold(files: Mapping[int, tuple[DerivedFile, ...]], buckets: int) -> frozenset[int]:
    """Return the buckets to fold when they change: the fullest, at most an eighth of all."""
    due = {bucket: load for bucket, members in files.items() if (load := _load(members)) >= 1}
    most = max(1, -(-buckets // _PART))
    return frozenset(sorted(due, key=lambda bucket: (-due[bucket], bucket))[:most])


def _load(files: tuple[DerivedFile, ...]) -> float:
    """Return the bucket's garbage ratio; at 1.0 or above it is due to be folded."""
    rows = sum(file.rows for file in files if file.content == DATA)
    deleted = sum(file.rows for file in files if file.content == DELETES)
    count = sum(file.content == DATA for file in files)
    return max(deleted / max(1, rows) / DELETED_SHARE, count / FILES_MAX)
