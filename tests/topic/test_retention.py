"""What retention, merging and compaction decide, setting by setting and at every edge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed import limits
from lakebed.config import TopicConfig
from lakebed.state.values import CommittedOffset, Segment
from lakebed.topic.retention import (
    MERGE_GROWTH_MIN,
    compaction_hold,
    plan_compaction,
    plan_merge,
    plan_retention,
)

NOW_US = 1_000_000_000


def segment(base: int, end: int, *, size: int = 100, newest_us: int = NOW_US) -> Segment:
    return Segment(
        id=base + 1,
        base=base,
        end=end,
        records=end - base,
        file_bytes=size,
        tail_bytes=10,
        tail_checksum=0,
        time_min_us=newest_us - 1,
        time_max_us=newest_us,
    )


def aged(*ages_ms: int) -> list[Segment]:
    """Segments of ten offsets and 100 bytes each, whose newest records have these ages."""
    return [
        segment(place * 10, place * 10 + 10, newest_us=NOW_US - age * 1000)
        for place, age in enumerate(ages_ms)
    ]


def sized(*sizes: int) -> list[Segment]:
    """Segments of ten offsets each, with these sizes."""
    return [segment(place * 10, place * 10 + 10, size=size) for place, size in enumerate(sizes)]


def retained(segments: Sequence[Segment], config: TopicConfig, low: int = 0) -> int:
    return plan_retention(segments, config, low=low, now_us=NOW_US)


def test_by_default_everything_is_kept_for_ever() -> None:
    assert retained(aged(10**9, 10**8), TopicConfig()) == 0


def test_segments_whose_newest_record_is_too_old_go() -> None:
    assert retained(aged(900, 501, 100), TopicConfig(retention_ms=500)) == 20


def test_a_record_exactly_as_old_as_the_retention_stays() -> None:
    segments = aged(500)
    assert retained(segments, TopicConfig(retention_ms=500)) == 0
    younger = [segments[0]._replace(time_max_us=segments[0].time_max_us - 1)]
    assert retained(younger, TopicConfig(retention_ms=500)) == 10


def test_a_retention_of_nothing_removes_all_but_the_present() -> None:
    assert retained(aged(2, 1), TopicConfig(retention_ms=0)) == 20
    assert retained(aged(2, 0), TopicConfig(retention_ms=0)) == 10


def test_the_first_segment_that_stays_keeps_those_behind_it() -> None:
    """Timestamps are the producers': an old one may come after a new one."""
    assert retained(aged(900, 100, 900), TopicConfig(retention_ms=500)) == 10


def test_the_oldest_go_while_the_others_have_the_promised_size() -> None:
    assert retained(sized(100, 100, 100, 100), TopicConfig(retention_bytes=250)) == 10
    assert retained(sized(100, 100, 100, 100), TopicConfig(retention_bytes=200)) == 20
    assert retained(sized(100, 100, 100, 100), TopicConfig(retention_bytes=201)) == 10


def test_a_partition_no_larger_than_the_promised_size_loses_nothing() -> None:
    assert retained(sized(100, 100), TopicConfig(retention_bytes=200)) == 0
    assert retained(sized(100), TopicConfig(retention_bytes=1)) == 0


def test_a_size_of_zero_removes_everything_sealed() -> None:
    assert retained(sized(100, 100), TopicConfig(retention_bytes=0)) == 20


def test_age_and_size_each_are_enough() -> None:
    config = TopicConfig(retention_ms=500, retention_bytes=200)
    assert retained(aged(900, 100, 100, 100), config) == 20
    assert retained(aged(900, 900, 900, 100), config) == 30


@pytest.mark.parametrize(
    ("cleanup", "low"), [("delete", 20), ("compact,delete", 20), ("compact", 0)]
)
def test_only_a_topic_that_deletes_loses_what_is_old(cleanup: str, low: int) -> None:
    config = TopicConfig(retention_ms=500, retention_bytes=0, cleanup=cleanup)
    assert retained(aged(900, 900), config) == low


def test_without_segments_the_low_watermark_stays() -> None:
    config = TopicConfig(retention_ms=0, retention_bytes=0)
    assert retained([], config, low=7) == 7


def test_the_low_watermark_never_goes_back_nor_beyond_the_last_segment() -> None:
    config = TopicConfig(retention_ms=0)
    assert retained(aged(9, 9), config, low=15) == 20
    assert retained(aged(9, 9), config, low=25) == 25
    assert retained(aged(9, 0), config, low=15) == 15


def test_segments_below_the_low_watermark_count_for_nothing() -> None:
    config = TopicConfig(retention_bytes=100)
    assert retained(sized(1000, 100, 50), config, low=10) == 10
    assert retained(sized(1000, 100, 50), config, low=9) == 10


CONFIG = TopicConfig(segment_bytes=8192)
"""Below 1024 bytes a segment is small."""


def merged(sizes: Iterable[int], config: TopicConfig = CONFIG) -> list[list[int]]:
    return [[each.file_bytes for each in run] for run in plan_merge(sized(*sizes), config)]


def test_nothing_and_one_segment_are_left_alone() -> None:
    assert plan_merge([], CONFIG) == []
    assert merged([1]) == []


def test_eight_small_neighbours_merge_and_seven_do_not() -> None:
    assert merged([100] * 7) == []
    assert merged([100] * 8) == [[100] * 8]
    assert merged([100] * 20) == [[100] * 20]


def test_a_merge_is_no_larger_than_a_segment_may_be() -> None:
    assert merged([1023] * 8) == [[1023] * 8]
    assert merged([1000] * 17) == [[1000] * 8, [1000] * 8]


def test_a_segment_of_an_eighth_is_no_longer_small() -> None:
    assert merged([1024] * 8) == []
    assert merged([100] * 7 + [1024] + [100] * 7) == []
    assert merged([100] * 8 + [1024] + [100] * 9) == [[100] * 8, [100] * 9]


def test_segment_bytes_decides_what_is_small() -> None:
    assert merged([1024] * 8, TopicConfig(segment_bytes=16_384)) == [[1024] * 8]


def test_segments_with_a_gap_between_their_offsets_do_not_merge() -> None:
    segments = sized(*[100] * 12)
    del segments[4]
    assert plan_merge(segments, CONFIG) == []
    assert plan_merge(segments[4:] + sized(100), CONFIG) == []
    assert plan_merge([*segments, segment(120, 121)], CONFIG) == [
        [*segments[4:], segment(120, 121)]
    ]


def test_a_large_one_waits_until_the_others_together_are_as_large() -> None:
    assert merged([800] + [100] * 7) == []
    assert merged([801] + [100] * 8) == [[100] * 8]
    assert merged([800] + [100] * 8) == [[800] + [100] * 8]


sizes = st.lists(st.one_of(st.integers(1, 1500), st.integers(1, 50)), max_size=60)


@given(sizes, st.sets(st.integers(0, 60), max_size=3))
def test_every_planned_merge_keeps_its_promises(sizes: list[int], gaps: set[int]) -> None:
    segments = [each for place, each in enumerate(sized(*sizes)) if place not in gaps]
    plan = plan_merge(segments, CONFIG)
    for run in plan:
        total = sum(each.file_bytes for each in run)
        assert len(run) >= limits.MERGE_SEGMENTS_MIN
        assert all(before.end == after.base for before, after in itertools.pairwise(run))
        assert total <= CONFIG.segment_bytes
        assert total >= MERGE_GROWTH_MIN * max(each.file_bytes for each in run)
    taken = [each for run in plan for each in run]
    assert taken == [each for each in segments if each in taken], "in order, none twice"


class Merged:
    """A partition that is flushed and merged: its segments, and how often each was rewritten."""

    def __init__(self, segment_bytes: int) -> None:
        self.config = TopicConfig(segment_bytes=segment_bytes)
        self.segments: list[Segment] = []
        self.rewrites: dict[int, list[int]] = {}
        """For each segment, by its base: how often each flush in it was written again."""
        self.small_max = 0

    def flush(self, size: int) -> None:
        base = self.segments[-1].end if self.segments else 0
        self.segments.append(segment(base, base + 1, size=size))
        self.rewrites[base] = [0]
        while plan := plan_merge(self.segments, self.config):
            for run in plan:
                self.merge(run)
        small = self.config.segment_bytes / limits.MERGE_SEGMENTS_MIN
        self.small_max = max(self.small_max, sum(s.file_bytes < small for s in self.segments))

    def merge(self, run: list[Segment]) -> None:
        place = self.segments.index(run[0])
        size = sum(each.file_bytes for each in run)
        self.segments[place : place + len(run)] = [segment(run[0].base, run[-1].end, size=size)]
        together = [count + 1 for each in run for count in self.rewrites.pop(each.base)]
        self.rewrites[run[0].base] = together

    def counts(self) -> list[int]:
        return [count for counts in self.rewrites.values() for count in counts]


@pytest.mark.parametrize("flushes", [8, 64, 512, 4096])
def test_merging_equal_flushes_rewrites_and_leaves_logarithmically_many(flushes: int) -> None:
    partition = Merged(limits.GIB)
    for _ in range(flushes):
        partition.flush(1000)
    assert len(partition.counts()) == flushes
    assert max(partition.counts()) <= math.log2(flushes)
    assert sum(partition.counts()) / flushes <= 0.5 + math.log2(flushes) / 2
    assert partition.small_max <= limits.MERGE_SEGMENTS_MIN + math.log2(flushes)


def test_merging_stops_at_the_size_of_a_segment() -> None:
    partition = Merged(limits.MIB)
    for _ in range(4096):
        partition.flush(1000)
    assert all(each.file_bytes <= limits.MIB for each in partition.segments)
    assert len(partition.segments) <= 8 * 4096 * 1000 / limits.MIB + partition.small_max
    assert max(partition.counts()) <= math.log2(limits.MIB / 1000)


@given(st.lists(st.integers(10, 4000), min_size=50, max_size=300))
def test_unequal_flushes_are_rewritten_no_more_often_than_sizes_can_double(
    sizes: list[int],
) -> None:
    partition = Merged(limits.MIB)
    for size in sizes:
        partition.flush(size)
    assert max(partition.counts()) <= math.log2(limits.MIB / min(sizes))
    assert partition.small_max <= 5 * limits.MERGE_SEGMENTS_MIN


def test_segments_of_which_one_always_outweighs_its_neighbours_are_left_alone() -> None:
    """Sizes like the marks of a ruler: any merge would rewrite a large one for a little more."""
    segments = sized(*(4 ** ((n & -n).bit_length()) for n in range(1, 1024)))
    assert plan_merge(segments, TopicConfig(segment_bytes=16 * limits.GIB)) == []


COMPACT = TopicConfig(cleanup="compact")


def compacted(
    segments: Sequence[Segment], config: TopicConfig, compacted_to: int = 0
) -> list[Segment]:
    return plan_compaction(segments, config, compacted_to=compacted_to, now_us=NOW_US)


def test_a_partition_never_compacted_is_compacted_whole() -> None:
    assert compacted(sized(100), COMPACT) == sized(100)
    assert compacted(sized(100, 100), COMPACT) == sized(100, 100)


def test_a_partition_without_segments_or_without_new_ones_is_left_alone() -> None:
    assert compacted([], COMPACT) == []
    at_once = TopicConfig(cleanup="compact", compact_dirty_percent=0)
    assert compacted([], at_once) == []
    assert compacted(sized(100, 100), at_once, compacted_to=20) == []
    assert compacted(sized(100, 100), at_once, compacted_to=19) == sized(100, 100)


@pytest.mark.parametrize(("new_bytes", "begins"), [(99, False), (100, True), (101, True)])
def test_compaction_begins_when_half_of_the_bytes_are_new(new_bytes: int, begins: bool) -> None:
    segments = sized(60, 40, new_bytes)
    assert compacted(segments, COMPACT, compacted_to=20) == (segments if begins else [])


@pytest.mark.parametrize(("percent", "begins"), [(0, True), (25, True), (26, False), (100, False)])
def test_the_share_that_must_be_new_is_a_setting(percent: int, begins: bool) -> None:
    config = TopicConfig(cleanup="compact", compact_dirty_percent=percent)
    assert bool(compacted(sized(75, 25), config, compacted_to=10)) is begins


def test_all_must_be_new_at_a_hundred_percent() -> None:
    config = TopicConfig(cleanup="compact", compact_dirty_percent=100)
    assert compacted(sized(75, 25), config) == sized(75, 25)


def test_a_segment_that_reaches_beyond_the_last_compaction_is_new() -> None:
    """Old and new records may have been merged into one segment."""
    assert compacted(sized(100), COMPACT, compacted_to=5) == sized(100)


@pytest.mark.parametrize(
    ("cleanup", "begins"), [("compact", True), ("compact,delete", True), ("delete", False)]
)
def test_only_a_topic_that_compacts_is_compacted(cleanup: str, begins: bool) -> None:
    assert bool(compacted(sized(100), TopicConfig(cleanup=cleanup))) is begins


def test_without_force_or_new_segments_the_share_decides_and_with_force_it_does_not() -> None:
    config = TopicConfig(cleanup="compact", compact_dirty_percent=100)
    segments = sized(75, 25)

    def forced(compacted_to: int, cleanup: str = "compact") -> list[Segment]:
        chosen = TopicConfig(cleanup=cleanup, compact_dirty_percent=100)
        return plan_compaction(
            segments, chosen, compacted_to=compacted_to, now_us=NOW_US, force=True
        )

    assert compacted(segments, config, compacted_to=10) == []
    assert forced(10) == segments
    assert forced(20) == []
    assert forced(0, cleanup="delete") == []


def test_segments_with_records_younger_than_the_lag_wait() -> None:
    config = TopicConfig(cleanup="compact", compact_lag_ms=500)
    segments = aged(900, 500, 499, 900)
    assert compacted(segments, config) == segments[:2], "and those behind them wait too"
    assert compacted(aged(499), config) == []


def test_without_a_lag_a_record_of_the_future_is_compacted_too() -> None:
    assert compacted(aged(-500), COMPACT) == aged(-500)


def test_the_share_that_is_new_is_of_what_may_be_compacted() -> None:
    config = TopicConfig(cleanup="compact", compact_lag_ms=500)
    segments = [*aged(900, 900), segment(20, 30, size=10_000)]
    assert compacted(segments, config, compacted_to=20) == []
    assert compacted(segments, config, compacted_to=10) == segments[:2]


@pytest.mark.parametrize(("hold", "count"), [(None, 3), (30, 3), (29, 2), (20, 2), (9, 0), (0, 0)])
def test_segments_that_a_group_has_not_passed_wait(hold: int | None, count: int) -> None:
    segments = sized(100, 100, 100)
    planned = plan_compaction(segments, COMPACT, compacted_to=0, now_us=NOW_US, hold=hold)
    assert planned == segments[:count]


def test_the_slowest_of_the_groups_that_committed_lately_holds() -> None:
    config = TopicConfig(compact_hold_ms=500)
    long_ago, lately = NOW_US - 500_001, NOW_US - 500_000
    assert compaction_hold([], config, now_us=NOW_US) is None
    assert compaction_hold([CommittedOffset(5, long_ago)], config, now_us=NOW_US) is None
    committed = [
        CommittedOffset(5, long_ago),
        CommittedOffset(20, NOW_US),
        CommittedOffset(10, lately),
    ]
    assert compaction_hold(committed, config, now_us=NOW_US) == 10


def test_without_holds_no_group_is_waited_for() -> None:
    config = TopicConfig(compact_hold_ms=0)
    assert compaction_hold([CommittedOffset(0, NOW_US)], config, now_us=NOW_US) is None
