"""The object store: a real S3 API, a proxy that breaks it, and a folder."""

from __future__ import annotations

import os
import random
import stat
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crc32c import crc32c
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakebed.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    InvalidArgumentError,
    LakebedError,
    RejectedError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from lakebed.host import failpoints, store_bucket
from lakebed.host.store import ObjectStore
from tests.s3 import (
    FOREVER,
    KEY,
    SECRET,
    Proxy,
    Server,
    free_port,
    options,
    proxy,
    s3,
    server,
)

__all__ = ["proxy", "s3"]  # fixtures

NAME = "lake/3/1-00000000000000000007.parquet"
LARGE = random.Random(0).randbytes(20_000_000)
"""Large enough for an upload in several parts."""


class Opened:
    """A store, its bucket, and the two ways to it."""

    def __init__(self, s3: Server, proxy: Proxy, *, attempts: int = 5, **more: str) -> None:
        self.s3, self.proxy = s3, proxy
        self.bucket = s3.bucket()
        self.location = f"s3://{self.bucket}/log/one"
        self.store = self.another(attempts=attempts, **more)

    def another(self, *, attempts: int = 5, **more: str) -> ObjectStore:
        return ObjectStore(
            self.location,
            options(self.proxy.url, **more),
            attempts=attempts,
            pause_seconds=0.001,
        )

    def keys(self) -> list[str]:
        return self.s3.keys(self.bucket)


@pytest.fixture
def opened(s3: Server, proxy: Proxy) -> Opened:
    return Opened(s3, proxy)


@pytest.fixture(params=["bucket", "folder"])
def store(request: pytest.FixtureRequest, s3: Server, tmp_path: Path) -> ObjectStore:
    if request.param == "bucket":
        return ObjectStore(f"s3://{s3.bucket()}/log", options(s3.url))
    return ObjectStore(tmp_path.as_uri(), {})


def fetched(store: ObjectStore, name: str) -> bytes:
    """Download an object with a writer that is begun again for each attempt."""
    data = bytearray()

    def begin() -> Callable[[memoryview], object]:
        data.clear()
        return data.extend

    assert store.fetch(name, begin) == len(data)
    return bytes(data)


@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["empty", "small", "large"])
def test_what_was_put_is_fetched(store: ObjectStore, data: bytes) -> None:
    store.put(NAME, memoryview(data), checksum=crc32c(data))
    assert fetched(store, NAME) == data
    assert store.size(NAME) == len(data)
    stats = store.stats
    assert (stats.uploads, stats.uploaded_bytes) == (1, len(data))
    assert (stats.downloads, stats.downloaded_bytes) == (1, len(data))
    assert (stats.retries, stats.failures) == (0, 0)


def test_an_object_of_several_pieces_comes_back_whole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_bucket, "PART_BYTES", 7_000_001)
    store.put(NAME, memoryview(LARGE))
    assert fetched(store, NAME) == LARGE


def test_bytes_that_are_damaged_before_the_upload_are_refused(store: ObjectStore) -> None:
    with pytest.raises(CorruptionError, match="damaged"):
        store.put(NAME, memoryview(b"abc"), checksum=crc32c(b"abd"))
    assert store.size(NAME) is None


def test_a_repeated_put_is_harmless_and_other_bytes_replace(store: ObjectStore) -> None:
    store.put(NAME, memoryview(b"first"))
    store.put(NAME, memoryview(b"first"))
    assert fetched(store, NAME) == b"first"
    store.put(NAME, memoryview(b"2nd"))
    assert fetched(store, NAME) == b"2nd"
    assert len(list(store.listing())) == 1


def test_what_is_not_there_is_told_from_what_is(store: ObjectStore) -> None:
    assert store.size("lake/none.parquet") is None
    assert list(store.listing("lake")) == []
    store.remove("lake/none.parquet")
    with pytest.raises(StoreNotFoundError, match=r"lake/none\.parquet"):
        fetched(store, "lake/none.parquet")
    assert (store.stats.removals, store.stats.failures) == (0, 1)


def test_a_removed_object_is_gone_and_leaves_no_folder_in_the_listing(store: ObjectStore) -> None:
    store.put("lake/1/a", memoryview(b"a"))
    store.put("lake/2/b", memoryview(b"b"))
    store.remove("lake/1/a")
    store.remove("lake/1/a")
    assert store.stats.removals == 1
    assert [each.name for each in store.listing()] == ["lake/2/b"]


def test_a_listing_has_every_object_below_a_folder_and_no_other(store: ObjectStore) -> None:
    before_us = int(time.time() * 1e6) - 5_000_000
    names = [f"lake/{number % 3}/{number:05d}" for number in range(30)]
    for number, name in enumerate(names):
        store.put(name, memoryview(bytes(number)))
    store.put("lake/10/x", memoryview(b"x"))  # a folder whose name begins like another's
    store.put("other", memoryview(b"x"))
    found = list(store.listing("lake/1"))
    assert [each.name for each in found] == sorted(name for name in names if "/1/" in name)
    assert [each.size_bytes for each in found] == [int(each.name[-5:]) for each in found]
    assert all(before_us < each.modified_us < before_us + 3_600_000_000 for each in found)
    assert len(list(store.listing())) == 32
    assert list(store.listing("lake/1/")) == found


def test_a_listing_goes_over_many_pages(opened: Opened) -> None:
    names = [f"lake/{number:06d}" for number in range(1_005)]
    with ThreadPoolExecutor(4) as pool:
        for done in [
            pool.submit(opened.s3.put, opened.bucket, f"log/one/{name}", b"") for name in names
        ]:
            done.result()
    assert [each.name for each in opened.store.listing("lake")] == names
    assert opened.proxy.count("GET", "list-type=2") == 2


def test_a_marker_that_stands_for_a_folder_is_not_listed(opened: Opened) -> None:
    """Consoles and pyarrow write such objects; the library would list `lake/` as `lake`."""
    for marker in ("", "lake/", "lake/3/"):
        opened.s3.put(opened.bucket, f"log/one/{marker}", b"")
    opened.store.put(NAME, memoryview(b"x"))
    opened.store.put("lake/empty", memoryview(b""))
    assert [stored.name for stored in opened.store.listing()] == [NAME, "lake/empty"]
    assert [stored.name for stored in opened.store.listing("lake")] == [NAME, "lake/empty"]


@pytest.mark.parametrize("name", ["a b", "a%41", "day=1/a", "a+b", "ü", "{a}"])
def test_every_name_is_the_same_for_pyarrow(opened: Opened, name: str) -> None:
    """Readers of tables use pyarrow; what it sees must be what was put."""
    files = PyArrowFileIO(options(opened.proxy.url))
    opened.store.put(name, memoryview(b"abc"))
    with files.new_input(opened.store.uri(name)).open() as stream:
        assert stream.read() == b"abc"
    assert [stored.name for stored in opened.store.listing()] == [name]


def test_objects_lie_below_the_prefix_and_uri_says_where(opened: Opened) -> None:
    opened.store.put(NAME, memoryview(b"x"))
    assert opened.keys() == [f"log/one/{NAME}"]
    assert opened.store.uri(NAME) == f"s3://{opened.bucket}/log/one/{NAME}"


@pytest.mark.parametrize(
    ("status", "method", "containing"),
    [
        (503, "PUT", NAME),
        (500, "POST", "uploads"),
        (502, "PUT", "partNumber"),
        (503, "PUT", "partNumber"),
        (429, "POST", "uploadId"),
        (500, "POST", "uploadId"),
    ],
)
def test_an_upload_outlasts_errors_of_the_server(
    opened: Opened, status: int, method: str, containing: str
) -> None:
    data = b"abc" if containing == NAME else LARGE
    opened.proxy.answer(status, "SlowDown", method=method, containing=containing, times=2)
    opened.store.put(NAME, memoryview(data))
    assert fetched(opened.store, NAME) == data
    assert opened.store.stats.retries == (1 if containing == "partNumber" else 2)
    assert opened.store.stats.failures == 0


def test_every_other_call_outlasts_errors_with_the_default_options(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library repeats a request once automatically, then we do."""
    monkeypatch.setattr(store_bucket, "REPETITIONS", 1)
    store = ObjectStore(opened.location, options(opened.proxy.url), pause_seconds=0.001)
    store.put(NAME, memoryview(LARGE))
    calls: list[tuple[str, Callable[[], object], object]] = [
        ("HEAD", lambda: store.size(NAME), len(LARGE)),
        ("GET", lambda: fetched(store, NAME), LARGE),
        ("GET", lambda: [each.name for each in store.listing("lake")], [NAME]),
        ("DELETE", lambda: store.remove(NAME), None),
    ]
    for number, (method, call, result) in enumerate(calls, 1):
        opened.proxy.answer(500, "InternalError", method=method, times=2)
        assert call() == result
        assert store.stats.retries == number


def test_a_server_that_goes_on_failing_is_unavailable_after_the_last_attempt(
    opened: Opened,
) -> None:
    store = opened.another(attempts=3)
    opened.proxy.answer(503, "SlowDown", times=FOREVER)
    with pytest.raises(StoreUnavailableError) as caught:
        store.put(NAME, memoryview(b"abc"))
    assert caught.value.retriable
    assert store.uri(NAME) in str(caught.value)
    assert "uploading" in str(caught.value)
    assert (store.stats.retries, store.stats.failures) == (2, 1)


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_an_upload_that_was_confirmed_but_is_not_there_is_repeated(
    opened: Opened, method: str
) -> None:
    """S3 may answer 200 to the last request of an upload, and an error only in the body."""
    opened.proxy.answer(200, "InternalError", method=method, containing="uploadId")
    opened.store.put(NAME, memoryview(LARGE))
    assert fetched(opened.store, NAME) == LARGE
    assert opened.store.stats.retries == 1


def test_an_object_that_never_gets_its_length_is_unavailable(opened: Opened) -> None:
    opened.proxy.answer(200, "", method="HEAD", times=FOREVER)
    with pytest.raises(StoreUnavailableError, match="length") as caught:
        opened.store.put(NAME, memoryview(b"abc"))
    assert caught.value.facts["expected"] == 3


def test_an_upload_outlasts_a_connection_that_is_cut_in_the_middle(opened: Opened) -> None:
    opened.proxy.cut(method="PUT", containing="partNumber=2", times=2)
    opened.store.put(NAME, memoryview(LARGE))
    assert opened.store.stats.retries == 2
    assert fetched(opened.store, NAME) == LARGE


@pytest.mark.parametrize("part", [1, 3])
def test_an_upload_that_is_always_cut_leaves_no_object_and_no_parts(
    opened: Opened, part: int
) -> None:
    store = opened.another(attempts=1)
    opened.proxy.cut(method="PUT", containing=f"partNumber={part}", times=FOREVER)
    with pytest.raises(StoreUnavailableError):
        store.put(NAME, memoryview(LARGE))
    assert opened.keys() == []
    assert opened.proxy.count("POST", "uploadId") == 0, "an upload without a part was completed"
    assert opened.proxy.count("DELETE", "uploadId") == 1, "its parts were not removed"


def test_a_download_outlasts_a_connection_that_is_cut_and_begins_anew(opened: Opened) -> None:
    opened.store.put(NAME, memoryview(LARGE))
    opened.proxy.cut(method="GET", containing=NAME)
    begun: list[bytearray] = []

    def begin() -> Callable[[memoryview], object]:
        begun.append(bytearray())
        return begun[-1].extend

    opened.store.fetch(NAME, begin)
    assert len(begun) == 2
    assert begun[-1] == LARGE


def test_an_endpoint_that_never_answers_is_unavailable(s3: Server, proxy: Proxy) -> None:
    opened = Opened(s3, proxy, attempts=1, s3_request_timeout="1")
    proxy.hang(times=FOREVER)
    with pytest.raises(StoreUnavailableError, match="Timeout"):
        opened.store.put(NAME, memoryview(b"abc"))
    assert proxy.waiting.is_set()


def test_a_dead_endpoint_is_unavailable_for_every_call() -> None:
    dead = options(f"http://127.0.0.1:{free_port()}")
    store = ObjectStore("s3://bucket", dead, pause_seconds=0.001)
    for call in (
        lambda: store.put(NAME, memoryview(b"abc")),
        lambda: store.size(NAME),
        lambda: list(store.listing()),
    ):
        with pytest.raises(StoreUnavailableError, match="s3://bucket"):
            call()


def test_a_missing_bucket_is_not_taken_for_an_empty_one(opened: Opened) -> None:
    store = ObjectStore("s3://no-such-bucket/log", options(opened.proxy.url))
    calls: list[Callable[[], object]] = [
        lambda: store.put(NAME, memoryview(b"abc")),
        lambda: fetched(store, NAME),
        lambda: store.size(NAME),
        lambda: list(store.listing("lake")),
        lambda: store.remove(NAME),
    ]
    for call in calls:
        with pytest.raises(StoreNotFoundError, match="no-such-bucket"):
            call()
    assert (store.stats.retries, store.stats.failures) == (0, len(calls))


@pytest.fixture(scope="module")
def strict_s3() -> Iterator[Server]:
    """A server that checks signatures from the second request on."""
    with server({"INITIAL_NO_AUTH_ACTION_COUNT": "1"}) as running:
        running.request("PUT", "/strict")
        yield running


def test_wrong_credentials_are_denied_without_a_repetition(strict_s3: Server) -> None:
    store = ObjectStore("s3://strict", options(strict_s3.url))
    calls: list[Callable[[], object]] = [
        lambda: store.put(NAME, memoryview(b"abc")),
        lambda: fetched(store, NAME),
        lambda: store.size(NAME),
        lambda: list(store.listing()),
        lambda: store.remove(NAME),
    ]
    for call in calls:
        with pytest.raises(StoreDeniedError) as caught:
            call()
        told = "".join(traceback.format_exception(caught.value))
        assert KEY not in told
        assert SECRET not in told
        assert not caught.value.retriable
    assert (store.stats.retries, store.stats.failures) == (0, len(calls))


@pytest.mark.parametrize(
    "code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"]
)
def test_every_refusal_is_denied(opened: Opened, code: str) -> None:
    opened.proxy.answer(403, code, times=FOREVER)
    with pytest.raises(StoreDeniedError):
        opened.store.put(NAME, memoryview(b"abc"))
    assert len(opened.proxy.seen) == 1


def test_an_answer_that_repeats_a_key_does_not_spread_it(opened: Opened) -> None:
    opened.proxy.answer(500, f"No{KEY}With{SECRET}", times=FOREVER)
    with pytest.raises(StoreUnavailableError, match=r"\*\*\*") as caught:
        opened.store.put(NAME, memoryview(b"abc"))
    told = "".join(traceback.format_exception(caught.value))
    assert KEY not in told
    assert SECRET not in told
    assert KEY not in repr(opened.store) + repr(opened.store._objects)
    assert SECRET not in repr(opened.store) + repr(opened.store._objects)
    assert "s3.secret-access-key" in repr(opened.store)


def test_an_endpoint_that_is_no_address_is_refused_at_once(opened: Opened) -> None:
    store = ObjectStore("s3://bucket", options("http://"))
    with pytest.raises(InvalidArgumentError, match="endpoint"):
        store.size(NAME)
    assert store.stats.retries == 0


def test_options_that_cannot_be_used_are_refused_without_telling_them(opened: Opened) -> None:
    store = opened.another(s3_connect_timeout="hidden")
    with pytest.raises(InvalidArgumentError, match="connect-timeout") as caught:
        store.size(NAME)
    assert "hidden" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "location",
    [
        "",
        "bucket",
        "/folder",
        "s3:/bucket",
        "s3://",
        "s3:///prefix",
        "s3://bucket//prefix",
        "s3://bucket/../prefix",
        "s3://bucket/prefix?x=1",
        "s3://key:hidden@bucket",
        "hdfs://host/folder",
        "http://host/bucket",
        "file://host/folder",
        "file:///",
    ],
)
def test_a_location_that_is_none_is_refused(location: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ObjectStore(location, {})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\\b", "a\nb"])
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    store = ObjectStore(tmp_path.as_uri(), {})
    for call in (store.uri, store.size, store.remove, lambda name: fetched(store, name)):
        with pytest.raises(InvalidArgumentError, match="cannot have this name"):
            call(name)


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="attempts=0"):
        ObjectStore(tmp_path.as_uri(), {}, attempts=0)
    with pytest.raises(InvalidArgumentError, match="pause_seconds=-1"):
        ObjectStore(tmp_path.as_uri(), {}, pause_seconds=-1)


def test_closing_ends_a_pause_and_refuses_further_calls(opened: Opened) -> None:
    store = ObjectStore(opened.location, options(opened.proxy.url), pause_seconds=3_600)
    opened.proxy.answer(500, "InternalError", times=FOREVER)
    raised: list[LakebedError] = []

    def put() -> None:
        try:
            store.put(NAME, memoryview(b"abc"))
        except LakebedError as error:
            raised.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    store.close()
    thread.join(600)
    assert not thread.is_alive()
    assert isinstance(raised[0], StoreUnavailableError | ClosedError)
    assert store.stats.retries == 0
    with pytest.raises(ClosedError):
        store.size(NAME)


def failing(error: Exception) -> Callable[[], Callable[[memoryview], object]]:
    """Return a writer that fails at its first piece."""

    def fail(_: memoryview) -> None:
        raise error

    return lambda: fail


def test_an_error_of_the_writer_is_not_taken_for_one_of_the_store(store: ObjectStore) -> None:
    store.put(NAME, memoryview(b"abc"))
    raised: list[RejectedError | OSError] = [DiskFullError("full"), OSError(5, "a disk's own")]
    for error in raised:
        with pytest.raises(type(error)) as caught:
            store.fetch(NAME, failing(error))
        assert caught.value is error
    assert (store.stats.retries, store.stats.failures) == (0, 0)


def test_threads_share_a_store(store: ObjectStore) -> None:
    def work(number: int) -> None:
        store.put(f"lake/{number}", memoryview(bytes([number]) * 1000))
        results.append(fetched(store, f"lake/{number}") == bytes([number]) * 1000)

    results: list[bool] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
    assert (store.stats.uploads, store.stats.downloads) == (8, 8)


def test_a_failure_behind_the_upload_uploads_again(store: ObjectStore) -> None:
    failpoints.arm("host.store.uploaded=error")
    try:
        store.put(NAME, memoryview(b"abc"))
    finally:
        failpoints.disarm()
    assert fetched(store, NAME) == b"abc"
    assert store.stats.retries == 1


def test_a_folder_that_is_missing_is_not_made(tmp_path: Path) -> None:
    store = ObjectStore((tmp_path / "unmounted").as_uri(), {})
    for call in (
        lambda: store.put(NAME, memoryview(b"abc")),
        lambda: list(store.listing()),
        lambda: store.size(NAME),
        lambda: store.remove(NAME),
        lambda: fetched(store, NAME),
    ):
        with pytest.raises(StoreNotFoundError, match="the folder does not exist"):
            call()
    assert not (tmp_path / "unmounted").exists()


def test_an_unfinished_file_of_a_folder_is_never_listed_and_is_replaced(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path.as_uri(), {})
    (tmp_path / "lake").mkdir()
    unfinished = tmp_path / "lake" / "a.tmp"
    unfinished.write_bytes(b"left behind, and longer than the next one")
    assert list(store.listing()) == []
    store.put("lake/a", memoryview(b"abc"))
    assert not unfinished.exists()
    assert [each.name for each in store.listing()] == ["lake/a"]
    assert (tmp_path / "lake" / "a").read_bytes() == b"abc"
    unfinished.write_bytes(b"again")
    store.remove("lake/a")
    assert not unfinished.exists()


def test_a_file_of_a_folder_is_synced_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        original = getattr(os, name)

        def call(*arguments: object) -> None:
            original(*arguments)
            done.append(name)

        return call

    for name in ("fsync", "rename", "unlink"):
        monkeypatch.setattr(os, name, noted(name))
    store = ObjectStore(tmp_path.as_uri(), {})
    store.put("a", memoryview(b"abc"))
    assert done == ["fsync", "rename", "fsync"]
    done.clear()
    store.remove("a")
    assert done == ["unlink", "fsync"]


def test_files_of_a_folder_are_for_others_as_the_umask_allows(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path.as_uri(), {})
    store.put("lake/a", memoryview(b"abc"))
    (tmp_path / "as the umask allows").write_bytes(b"")
    plain = stat.S_IMODE((tmp_path / "as the umask allows").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "lake" / "a").stat().st_mode) == plain


def test_a_file_where_a_folder_should_be_is_reported_with_a_type(tmp_path: Path) -> None:
    store = ObjectStore(tmp_path.as_uri(), {}, attempts=2, pause_seconds=0)
    (tmp_path / "lake").write_bytes(b"a file")
    with pytest.raises((StoreUnavailableError, StoreNotFoundError), match="uploading"):
        store.put("lake/a", memoryview(b"abc"))
