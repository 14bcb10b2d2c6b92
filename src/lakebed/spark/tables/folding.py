"""Which buckets of a table are to be folded, decided from what is known of its files.

A bucket with many deleted rows or many files is slower to read. Keys that change at random fill all
buckets alike; so at most an eighth of them is folded in one run, the fullest first, and no run
takes much longer than another.
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
    found: dict[int, list[DerivedFile]] = {}
    for each in files:
        found.setdefault(each.bucket, []).append(each)
    return {bucket: tuple(each) for bucket, each in found.items()}


def folded(files: Mapping[int, tuple[DerivedFile, ...]], buckets: int) -> frozenset[int]:
    """Return the buckets to fold, if they change."""
    due = {bucket: load for bucket, each in files.items() if (load := _load(each)) >= 1}
    most = max(1, -(-buckets // _PART))
    return frozenset(sorted(due, key=lambda bucket: (-due[bucket], bucket))[:most])


def _load(files: tuple[DerivedFile, ...]) -> float:
    """Return how full of old things a bucket is; from 1 on it is to be folded."""
    rows = sum(each.rows for each in files if each.content == DATA)
    deleted = sum(each.rows for each in files if each.content == DELETES)
    count = sum(each.content == DATA for each in files)
    return max(deleted / max(1, rows) / DELETED_SHARE, count / FILES_MAX)
