"""Tiering on demand: segments that are due are uploaded, and local copies removed.

A log with a store does this automatically; the job does it now. The owner does the work, without
Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakebed.errors import InvalidArgumentError
from lakebed.types import Progress

if TYPE_CHECKING:
    from lakebed.api.log import Log


@dataclass(frozen=True)
class TierReport:
    """What tiering did."""

    store: str
    segments_uploaded: int
    bytes_uploaded: int
    segments_moved: int
    """Segments that are now in the store only."""
    bytes_moved: int
    failures: tuple[str, ...]
    """What could not be done, by topic."""


def tier(log: Log, topic: str | None = None, *, progress: Progress | None = None) -> TierReport:
    """Upload what is not in the store yet, and remove local files that are beyond the limits.

    The limits are the topics' settings `local_ms` and `local_bytes`. What is in memory only is not
    touched: `checkpoint` puts it into segments.
    """
    before = log.lake.stats()
    if not before.store:
        raise InvalidArgumentError("the log has no object store: set `store` in its section [lake]")
    if topic is not None:
        log.describe_topic(topic)
    report = log.lake.sync(topic, progress=progress)
    after = log.lake.stats()
    return TierReport(
        store=before.store,
        segments_uploaded=report.segments_uploaded,
        bytes_uploaded=after.store_uploaded_bytes - before.store_uploaded_bytes,
        segments_moved=report.segments_moved,
        bytes_moved=after.bytes_moved - before.bytes_moved,
        failures=tuple(report.failures),
    )
