"""What becomes of a partition's segments in time: removed, merged, compacted. Plans, no acts.

Each plan is a function of the segment list and the topic's settings, so that it can be asked as
often as one likes: what was done is seen in the next segment list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lakebed import limits
from lakebed.config import TopicConfig
from lakebed.state.values import BOTH, STORE, CommittedOffset, Segment

MERGE_GROWTH_MIN: Final = 2
"""A merge makes a segment at least this many times as large as the largest that goes into it.

More would rewrite equal flushes a little less often, and leave many more segments of unequal ones.
"""


def plan_retention(
    segments: Sequence[Segment], config: TopicConfig, *, low: int, now_us: int
) -> int:
    """Return the new low watermark: the end of the last segment that is to go, or `low` as it is.

    Segments go whole, the oldest first, up to the first that is neither too old nor beyond the
    size. A segment is too old when its newest record is; it is beyond the size when the others have
    at least `retention_bytes` without it, so that a partition keeps what it was promised.
    """
    if "delete" not in _cleanups(config):
        return low
    living = [segment for segment in segments if segment.end > low]
    bytes_left = sum(segment.file_bytes for segment in living)
    for segment in living:
        bytes_left -= segment.file_bytes
        if not (_too_old(segment, config, now_us) or _beyond_size(bytes_left, config)):
            break
        low = segment.end
    return low


def _too_old(segment: Segment, config: TopicConfig, now_us: int) -> bool:
    age_max_us = config.retention_ms * 1000
    return config.retention_ms >= 0 and segment.time_max_us < now_us - age_max_us


def _beyond_size(bytes_without: int, config: TopicConfig) -> bool:
    return 0 <= config.retention_bytes <= bytes_without


def plan_local(segments: Sequence[Segment], config: TopicConfig, *, now_us: int) -> list[Segment]:
    """Return the segments whose local files are to go, because the store has them: oldest first.

    Those older than `local_ms`, and those without which the others have `local_bytes` still.
    """
    if config.local_ms < 0 and config.local_bytes < 0:
        return []
    local = [segment for segment in segments if segment.place != STORE]
    bytes_left = sum(segment.file_bytes for segment in local)
    plan = []
    for segment in local:
        bytes_left -= segment.file_bytes
        old = config.local_ms >= 0 and segment.time_max_us < now_us - config.local_ms * 1000
        beyond = 0 <= config.local_bytes <= bytes_left
        if segment.place == BOTH and (old or beyond):
            plan.append(segment)
    return plan


def plan_merge(segments: Sequence[Segment], config: TopicConfig) -> list[list[Segment]]:
    """Return runs of neighbours, each to be merged into one segment, none in two runs.

    A run has at least MERGE_SEGMENTS_MIN segments without a gap between their offsets, each smaller
    than `segment_bytes` divided by that number, together no larger than `segment_bytes`, and at
    least MERGE_GROWTH_MIN times as large as the largest of them.

    The last condition keeps the work logarithmic. Whenever a byte is written again, the segment it
    is in grows at least by that factor, and it can grow only from the size of a flush to
    `segment_bytes`: a byte is written again at most log2(segment_bytes / flush bytes) times, and
    not once for every eight flushes that come after it. So it is segments of similar size that
    merge, as tiers. Of flushes of similar size it leaves logarithmically many small segments too:
    where no merge is left, the largest of any eight neighbours outweighs the others together, so
    that behind it there is room only for one half as large, and so on down to the last flushes.
    """
    plan: list[list[Segment]] = []
    for run in _small_neighbours(segments, config.segment_bytes // limits.MERGE_SEGMENTS_MIN):
        start = 0
        while start <= len(run) - limits.MERGE_SEGMENTS_MIN:
            end = _merge_end(run, start, config.segment_bytes)
            if end > start:
                plan.append(run[start:end])
            start = max(end, start + 1)
    return plan


def _small_neighbours(segments: Sequence[Segment], bytes_max: int) -> Iterator[list[Segment]]:
    """Return the longest runs of segments below a size, without a gap between them."""
    run: list[Segment] = []
    for segment in segments:
        # One that is in the store alone stays as it is: merging would bring it back.
        small = segment.file_bytes < bytes_max and segment.place != STORE
        if run and not (small and segment.base == run[-1].end):
            yield run
            run = []
        if small:
            run.append(segment)
    yield run


def _merge_end(run: Sequence[Segment], start: int, bytes_max: int) -> int:
    """Return where the longest merge that begins at `start` ends, or `start` if there is none."""
    end = start
    total = largest = 0
    for index in range(start, len(run)):
        total += run[index].file_bytes
        largest = max(largest, run[index].file_bytes)
        if total > bytes_max:
            break
        count = index + 1 - start
        if count >= limits.MERGE_SEGMENTS_MIN and total >= MERGE_GROWTH_MIN * largest:
            end = index + 1
    return end


def plan_compaction(
    segments: Sequence[Segment],
    config: TopicConfig,
    *,
    compacted_to: int,
    now_us: int,
    hold: int | None = None,
    force: bool = False,
) -> list[Segment]:
    """Return the segments of a compaction by key: all that may be compacted yet, or none.

    A compaction begins when, of all their bytes, the share of segments that hold offsets at or
    above `compacted_to`, where the last one ended, has reached `compact_dirty_percent`; with
    `force`, as soon as there is such a segment. `hold` is where `compaction_hold` says to stop.
    """
    if not is_compacted(config):
        return []
    settled = compactable(segments, config, now_us=now_us, hold=hold)
    dirty, total = dirty_bytes(settled, compacted_to)
    if not any(segment.end > compacted_to for segment in settled):
        return []
    if not force and dirty * 100 < total * config.compact_dirty_percent:
        return []
    return settled


def compactable(
    segments: Sequence[Segment], config: TopicConfig, *, now_us: int, hold: int | None
) -> list[Segment]:
    """Return the segments from the first on that are old enough and that no group holds.

    Those behind one that has to wait wait too: compaction sees a partition from its beginning.
    """
    newest_us = now_us - config.compact_lag_ms * 1000
    settled: list[Segment] = []
    for segment in segments:
        young = config.compact_lag_ms > 0 and segment.time_max_us > newest_us
        if young or (hold is not None and segment.end > hold):
            break
        settled.append(segment)
    return settled


def compaction_hold(
    committed: Iterable[CommittedOffset], config: TopicConfig, *, now_us: int
) -> int | None:
    """Return the offset from which on groups hold a partition, None if no group does.

    It is the lowest that a group has committed, of the groups that committed lately.
    """
    if not config.compact_hold_ms:
        return None
    since_us = now_us - config.compact_hold_ms * 1000
    return min((commit.offset for commit in committed if commit.time_us >= since_us), default=None)


def dirty_bytes(segments: Sequence[Segment], compacted_to: int) -> tuple[int, int]:
    """Return the bytes of the segments that are new since the last compaction, and of all."""
    new = (segment.file_bytes for segment in segments if segment.end > compacted_to)
    return sum(new), sum(segment.file_bytes for segment in segments)


def is_compacted(config: TopicConfig) -> bool:
    """Return whether newer records of a key replace older ones."""
    return "compact" in _cleanups(config)


def _cleanups(config: TopicConfig) -> list[str]:
    return config.cleanup.split(",")
