"""Segments fetched back from a store: kept within a bound, and never other bytes than were put."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakebed.errors import (
    ClosedError,
    CorruptionError,
    DeviceError,
    DiskFullError,
    LakebedError,
    MissingFileError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from lakebed.host import Disk, Fault, FaultyDisk, Mode, OsDisk, failpoints
from lakebed.host.store import ObjectStore
from lakebed.lake.open_segment import open_segment
from lakebed.lake.remote_cache import RemoteCache
from lakebed.state.values import Segment
from tests.lake.support import PARTITION, TOPIC, lake, records, write
from tests.s3 import FOREVER, Proxy, Server, options, proxy, s3

__all__ = ["proxy", "s3"]  # fixtures


class Lake:
    """Segments of the same length in a store, and what there is to know of them."""

    def __init__(self, folder: Path, *, count: int = 5) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.objects = folder / "store"
        self.objects.mkdir()
        self.store = ObjectStore(self.objects.as_uri(), {}, attempts=2, pause_seconds=0)
        local = lake(OsDisk(), self.source)
        self.segments: dict[str, Segment] = {}
        self.data: dict[str, bytes] = {}
        for number in range(count):
            segment = write(local, records(range(200)), segment_id=number)
            name = f"lake/{TOPIC}/{PARTITION}-{number:020d}.parquet"
            self.segments[name] = segment
            self.data[name] = (self.source / name).read_bytes()
            self.store.put(name, memoryview(self.data[name]))
        self.names = list(self.segments)
        self.size = len(self.data[self.names[0]])
        assert {len(data) for data in self.data.values()} == {self.size}

    def cache(
        self, *, files: float = 10, store: ObjectStore | None = None, disk: Disk | None = None
    ) -> RemoteCache:
        bytes_max = int(files * self.size)
        return RemoteCache(
            disk=disk or OsDisk(),
            folder=self.folder / "cache",
            store=store or self.store,
            bytes_max=bytes_max,
        )

    def get(self, cache: RemoteCache, number: int) -> Path:
        """Ask for a segment, and check that its file has exactly its bytes."""
        name = self.names[number]
        path = cache.path(name, self.segments[name])
        assert path.read_bytes() == self.data[name]
        return path

    def cached(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "cache").iterdir())


@pytest.fixture
def stored(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_segment_is_fetched_once_and_found_afterwards(stored: Lake) -> None:
    cache = stored.cache()
    first = stored.get(cache, 0)
    assert stored.get(cache, 0) == first
    stats = cache.stats
    assert (stats.hits, stats.misses, stats.failures, stats.evictions) == (1, 1, 0, 0)
    assert stats.fetched_bytes == stats.cached_bytes == stored.size
    assert stored.store.stats.downloads == 1


def test_a_fetched_segment_can_be_read(stored: Lake) -> None:
    cache = stored.cache()
    segment = stored.segments[stored.names[0]]
    with cache.pin(stored.names[0], segment) as path:
        opened = open_segment(OsDisk(), path, segment)
    assert opened.columns(0, ["offset"])["offset"].to_pylist() == list(range(200))


def test_the_files_stay_within_the_bound_and_the_least_recently_used_goes_first(
    stored: Lake,
) -> None:
    cache = stored.cache(files=3.5)
    for number in (0, 1, 2, 0, 3):  # 1 is the one that was not used for longest
        stored.get(cache, number)
        assert cache.stats.cached_bytes <= 3.5 * stored.size
    assert [int(name[-12:-8]) for name in stored.cached()] == [0, 2, 3]
    assert cache.stats.evictions == 1
    assert cache.stats.cached_bytes == 3 * stored.size


def test_room_is_made_before_a_segment_is_fetched(s3: Server, proxy: Proxy, stored: Lake) -> None:
    store = _in_bucket(s3, proxy, stored)
    cache = stored.cache(files=1, store=store)
    stored.get(cache, 0)
    proxy.answer(404, "NoSuchKey", times=FOREVER)
    with pytest.raises(LakebedError):
        stored.get(cache, 1)
    assert stored.cached() == []
    assert cache.stats.cached_bytes == 0


@pytest.mark.parametrize("files", [0, 0.5])
def test_the_segment_that_is_asked_for_is_given_even_beyond_the_bound(
    stored: Lake, files: float
) -> None:
    cache = stored.cache(files=files)
    for number in range(3):
        stored.get(cache, number)
        assert len(stored.cached()) == 1


def test_a_held_segment_is_not_evicted_and_goes_when_it_is_released(stored: Lake) -> None:
    cache = stored.cache(files=1)
    name = stored.names[0]
    with cache.pin(name, stored.segments[name]) as path:
        for number in (1, 2):
            stored.get(cache, number)
        assert path.read_bytes() == stored.data[name]
    assert cache.stats.cached_bytes == stored.size
    assert len(stored.cached()) == 1


def test_a_segment_that_is_forgotten_while_held_goes_when_it_is_released(stored: Lake) -> None:
    cache = stored.cache()
    name = stored.names[0]
    with cache.pin(name, stored.segments[name]) as path:
        cache.forget(name)
        assert path.read_bytes() == stored.data[name]
    assert stored.cached() == []
    assert cache.stats.cached_bytes == 0


def test_a_segment_that_is_discarded_while_held_is_replaced_in_one_step(stored: Lake) -> None:
    cache = stored.cache()
    name = stored.names[0]
    with cache.pin(name, stored.segments[name]) as path:
        _flip(path, 10)
        cache.discard(name)
        assert path.exists()
        stored.get(cache, 0)
    assert path.read_bytes() == stored.data[name]
    assert (cache.stats.misses, cache.stats.cached_bytes) == (2, stored.size)


def test_who_has_mapped_a_segment_reads_on_after_its_eviction(stored: Lake) -> None:
    cache = stored.cache(files=1)
    segment = stored.segments[stored.names[0]]
    opened = open_segment(OsDisk(), stored.get(cache, 0), segment)
    path = opened.path
    stored.get(cache, 1)
    assert not path.exists()
    assert opened.columns(0, ["offset"])["offset"].to_pylist() == list(range(200))


def test_threads_that_want_the_same_segment_cause_one_download(
    s3: Server, proxy: Proxy, stored: Lake
) -> None:
    store = _in_bucket(s3, proxy, stored)
    cache = stored.cache(store=store)
    together = threading.Barrier(8)

    def ask(_: int) -> Path:
        together.wait()
        return stored.get(cache, 0)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert store.stats.downloads == proxy.count("GET", stored.names[0]) == 1
    assert (cache.stats.misses, cache.stats.hits) == (1, 7)


def test_another_segment_is_fetched_while_one_hangs(s3: Server, proxy: Proxy, stored: Lake) -> None:
    store = _in_bucket(s3, proxy, stored)
    cache = stored.cache(store=store)
    proxy.hang(method="GET", containing=stored.names[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stored.get, cache, 0)
        assert proxy.waiting.wait(600)
        stored.get(cache, 1)
        assert not waiting.done()
        proxy.released.set()  # the connection is reset, the next attempt is answered
        waiting.result(600)
    assert cache.stats.failures == 0


def test_threads_over_a_small_cache_always_get_the_right_bytes(stored: Lake) -> None:
    cache = stored.cache(files=2)

    def ask(seed: int) -> None:
        for step in range(40):
            name = stored.names[(seed * 7 + step * (seed + 1)) % len(stored.names)]
            if step % 13 == seed:
                cache.forget(name)
            with cache.pin(name, stored.segments[name]) as path:
                if path.read_bytes() != stored.data[name]:
                    wrong.append(name)

    wrong: list[str] = []
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(6)))
    assert not wrong
    stats = cache.stats
    assert stats.failures == 0
    assert stats.evictions > 0
    assert stats.cached_bytes == len(stored.cached()) * stored.size <= 2 * stored.size


@pytest.mark.parametrize("bad", ["short", "long", "empty", "gone"])
def test_a_cached_file_of_the_wrong_length_is_replaced(stored: Lake, bad: str) -> None:
    cache = stored.cache()
    path = stored.get(cache, 0)
    data = stored.data[stored.names[0]]
    if bad == "gone":
        path.unlink()
    else:
        path.write_bytes({"short": data[:-1], "long": data + b"x", "empty": b""}[bad])
    stored.get(cache, 0)
    assert (cache.stats.misses, cache.stats.failures) == (2, 1)
    assert cache.stats.cached_bytes == stored.size


def test_a_reader_that_finds_damage_discards_the_file_and_gets_another(stored: Lake) -> None:
    cache = stored.cache()
    path = stored.get(cache, 0)
    name, segment = stored.names[0], stored.segments[stored.names[0]]
    _flip(path, 10)
    assert cache.path(name, segment) == path, "the length is right: only a reader can tell"
    with pytest.raises(CorruptionError):
        open_segment(OsDisk(), path, segment).columns(0, ["partition", "offset", "timestamp"])
    cache.discard(name)
    assert stored.cached() == []
    stored.get(cache, 0)
    assert cache.stats.failures == 1


def test_what_is_left_from_before_is_adopted_without_a_download(stored: Lake) -> None:
    first = stored.cache()
    stored.get(first, 0)
    stored.get(first, 1)
    second = stored.cache()
    assert second.stats.cached_bytes == 2 * stored.size
    stored.get(second, 0)
    stored.get(second, 1)
    assert (second.stats.hits, second.stats.misses) == (2, 0)
    assert stored.store.stats.downloads == 2


def test_adopted_files_count_towards_the_bound(stored: Lake) -> None:
    first = stored.cache()
    for number in range(4):
        stored.get(first, number)
    second = stored.cache(files=2)
    assert second.stats.cached_bytes == 2 * stored.size
    assert len(stored.cached()) == 2


def test_an_adopted_file_with_a_damaged_tail_is_replaced(stored: Lake) -> None:
    _flip(stored.get(stored.cache(), 0), -20)
    again = stored.cache()
    stored.get(again, 0)
    assert (again.stats.misses, again.stats.failures) == (1, 1)


def test_unfinished_files_are_cleared_and_strange_ones_left_alone(stored: Lake) -> None:
    folder = stored.folder / "cache"
    folder.mkdir()
    (folder / "lake+3+1-00000000000000000000.parquet.tmp").write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"a user's")
    cache = stored.cache()
    assert stored.cached() == ["notes.txt"]
    assert cache.stats.cached_bytes == 0


def test_a_forgotten_segment_is_gone_and_an_unknown_one_is_no_error(stored: Lake) -> None:
    cache = stored.cache()
    stored.get(cache, 0)
    cache.forget(stored.names[0])
    cache.forget(stored.names[0])
    assert stored.cached() == []
    assert (cache.stats.cached_bytes, cache.stats.failures) == (0, 0)
    stored.get(cache, 0)


@pytest.mark.parametrize("position", [0, 10, 500, -500, -1])
def test_a_damaged_object_is_a_typed_error_with_its_address(stored: Lake, position: int) -> None:
    cache = stored.cache()
    name = stored.names[0]
    _flip(stored.objects / name, position)
    with pytest.raises(CorruptionError) as caught:
        cache.path(name, stored.segments[name])
    assert caught.value.facts["uri"] == stored.store.uri(name)
    assert "cache" not in str(caught.value)
    assert stored.cached() == []
    assert (cache.stats.failures, cache.stats.cached_bytes) == (1, 0)
    _flip(stored.objects / name, position)
    stored.get(cache, 0)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data * 2, lambda _: b""])
def test_an_object_of_the_wrong_length_is_a_typed_error(
    stored: Lake, change: Callable[[bytes], bytes]
) -> None:
    cache = stored.cache()
    name = stored.names[0]
    (stored.objects / name).write_bytes(change(stored.data[name]))
    with pytest.raises(CorruptionError, match="length"):
        cache.path(name, stored.segments[name])
    assert stored.cached() == []


def test_a_missing_object_and_a_missing_store_are_told_apart(stored: Lake) -> None:
    cache = stored.cache()
    name = stored.names[0]
    (stored.objects / name).unlink()
    with pytest.raises(MissingFileError) as missing:
        cache.path(name, stored.segments[name])
    assert missing.value.facts["uri"] == stored.store.uri(name)
    stored.objects.rename(stored.folder / "elsewhere")
    with pytest.raises(StoreNotFoundError):
        cache.path(name, stored.segments[name])


def test_a_store_that_fails_is_reported_and_asked_again_next_time(
    s3: Server, proxy: Proxy, stored: Lake
) -> None:
    store = _in_bucket(s3, proxy, stored)
    cache = stored.cache(store=store)
    proxy.answer(500, "InternalError", times=FOREVER)
    with pytest.raises(StoreUnavailableError):
        stored.get(cache, 0)
    assert stored.cached() == []
    proxy.behave()
    stored.get(cache, 0)
    assert (cache.stats.failures, cache.stats.misses) == (1, 2)


def test_a_download_that_is_cut_begins_anew(s3: Server, proxy: Proxy, stored: Lake) -> None:
    store = _in_bucket(s3, proxy, stored)
    cache = stored.cache(store=store)
    proxy.cut(method="GET", containing=stored.names[0], times=2)
    stored.get(cache, 0)
    assert store.stats.retries == 2


def test_a_closed_store_fetches_no_more_but_what_is_cached_is_given(stored: Lake) -> None:
    cache = stored.cache()
    stored.get(cache, 0)
    stored.store.close()
    stored.get(cache, 0)
    with pytest.raises(ClosedError):
        stored.get(cache, 1)


@pytest.mark.parametrize("kind", ["open", "write", "rename", "map"])
def test_a_full_or_failing_disk_is_a_typed_error_and_leaves_nothing(
    stored: Lake, kind: str
) -> None:
    disk = FaultyDisk(OsDisk())
    cache = stored.cache(disk=disk)
    disk.fault = Fault(kind, nth=disk.calls[kind] + 1, errno=errno.ENOSPC)
    with pytest.raises(DiskFullError):
        stored.get(cache, 0)
    assert stored.cached() == []
    assert (cache.stats.failures, cache.stats.cached_bytes) == (1, 0)
    stored.get(cache, 0)


def test_short_writes_are_continued(stored: Lake) -> None:
    disk = FaultyDisk(OsDisk())
    cache = stored.cache(disk=disk)
    disk.fault = Fault("write", nth=disk.calls["write"] + 1, short_bytes=7)
    stored.get(cache, 0)
    assert disk.hit == 1


def test_a_failure_behind_the_rename_leaves_a_whole_file_or_none(stored: Lake) -> None:
    cache = stored.cache()
    failpoints.arm("lake.fetched.renamed=error")
    try:
        with pytest.raises(DeviceError, match=r"lake\.fetched\.renamed"):
            stored.get(cache, 0)
    finally:
        failpoints.disarm()
    stored.get(stored.cache(), 0)
    stored.get(cache, 0)


def _flip(path: Path, position: int) -> None:
    """Change a byte behind everybody's back, also in maps of the file."""
    disk = OsDisk()
    file = disk.open(path, Mode.WRITE)
    start = position % file.size()
    byte = bytearray(1)
    file.read_into(byte, start)
    file.write(bytes([byte[0] ^ 0xFF]), start)
    file.close()


def _in_bucket(s3: Server, proxy: Proxy, stored: Lake) -> ObjectStore:
    """Put the segments into a bucket behind the proxy."""
    bucket = s3.bucket()
    for name, data in stored.data.items():
        s3.put(bucket, f"log/{name}", data)
    chosen = options(proxy.url, s3_request_timeout="60")
    return ObjectStore(f"s3://{bucket}/log", chosen, pause_seconds=0.001)
