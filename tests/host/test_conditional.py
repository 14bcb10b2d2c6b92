"""Conditional stores: a folder, S3 by moto and by SeaweedFS, each with the same promises."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakebed.errors import (
    InvalidArgumentError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
    StoreUnfitError,
)
from lakebed.host.conditional import (
    ConditionalStore,
    Outcome,
    open_conditional,
    probe,
)
from lakebed.host.conditional_folder import FolderStore
from tests.s3 import Proxy, Server, options, proxy, s3
from tests.weed import weed

__all__ = ["proxy", "s3", "weed"]

Opened = Callable[[], ConditionalStore]


@pytest.fixture(params=["folder", "moto", "weed"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens the same store again."""
    if request.param == "folder":
        yield lambda: open_conditional(f"file://{tmp_path}", {})
        return
    if request.param == "moto":
        server: Server = request.getfixturevalue("s3")
        url, bucket = server.url, server.bucket()
    else:
        url, bucket = request.getfixturevalue("weed"), "logs"
    location = f"s3://{bucket}/{uuid.uuid4().hex}"
    yield lambda: open_conditional(location, options(url))


def test_an_object_is_created_once(opened: Opened) -> None:
    store = opened()
    assert store.put_new("wal/1", b"first").outcome is Outcome.DONE
    assert store.put_new("wal/1", b"second").outcome is Outcome.REFUSED
    there = opened().get("wal/1")
    assert there is not None
    assert there.data == b"first"


def test_an_object_is_replaced_only_if_it_has_not_changed(opened: Opened) -> None:
    store = opened()
    store.put_new("base", b"1")
    first = store.get("base")
    assert first is not None
    assert store.put_if("base", b"2", first.version).outcome is Outcome.DONE
    assert store.put_if("base", b"3", first.version).outcome is Outcome.REFUSED
    assert store.put_if("absent", b"3", first.version).outcome is Outcome.REFUSED
    second = store.get("base")
    assert second is not None
    assert second.data == b"2"
    assert store.put_if("base", b"3", second.version).outcome is Outcome.DONE


def test_an_absent_object_is_none_and_removing_is_harmless(opened: Opened) -> None:
    store = opened()
    assert store.get("wal/absent") is None
    store.delete("wal/absent")
    store.put("parts/1", b"x" * 100_000)
    there = store.get("parts/1")
    assert there is not None
    assert there.data == b"x" * 100_000
    store.delete("parts/1")
    assert store.get("parts/1") is None


def test_of_many_who_create_one_object_one_wins(opened: Opened) -> None:
    stores = [opened() for _ in range(6)]
    for number in range(8):
        outcomes: list[Outcome] = []
        barrier = threading.Barrier(len(stores))

        def race(store: ConditionalStore, who: int, number: int = number) -> None:
            barrier.wait()  # noqa: B023
            outcomes.append(store.put_new(f"wal/{number}", b"%d" % who).outcome)  # noqa: B023

        threads = [
            threading.Thread(target=race, args=(store, who)) for who, store in enumerate(stores)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count(Outcome.DONE) == 1


def test_of_many_who_replace_one_object_one_wins(opened: Opened) -> None:
    stores = [opened() for _ in range(6)]
    stores[0].put_new("base", uuid.uuid4().bytes)
    there = stores[0].get("base")
    assert there is not None
    outcomes: list[Outcome] = []
    barrier = threading.Barrier(len(stores))

    def race(store: ConditionalStore) -> None:
        barrier.wait()
        outcomes.append(store.put_if("base", uuid.uuid4().bytes, there.version).outcome)

    threads = [threading.Thread(target=race, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(Outcome.DONE) == 1


def test_the_probe_passes_and_leaves_nothing(opened: Opened) -> None:
    store = opened()
    probe(store)
    if isinstance(store, FolderStore):
        root = Path(store.location.removeprefix("file://"))
        assert [path for path in root.rglob("*") if path.is_file()] == []


class _Ignoring:
    """A gateway that drops the condition of one call."""

    def __init__(self, store: ConditionalStore, call: str) -> None:
        self.location = store.location
        self._store, self._call = store, call
        self.get, self.put, self.delete = store.get, store.put, store.delete

    def put_new(self, name: str, data: bytes) -> object:
        """Overwrite, as pyarrow does."""
        if self._call == "put_new":
            self._store.put(name, data)
            return type(self._store.put_new("probe/x", b"x"))(Outcome.DONE)
        return self._store.put_new(name, data)

    def put_if(self, name: str, data: bytes, version: str) -> object:
        """Overwrite."""
        if self._call == "put_if":
            self._store.put(name, data)
            return type(self._store.put_new("probe/x", b"x"))(Outcome.DONE)
        return self._store.put_if(name, data, version)


@pytest.mark.parametrize("call", ["put_new", "put_if"])
def test_a_store_that_ignores_a_condition_is_refused(tmp_path: Path, call: str) -> None:
    store = FolderStore(tmp_path)
    with pytest.raises(StoreUnfitError, match=call) as refused:
        probe(_Ignoring(store, call))  # type: ignore[arg-type]
    assert refused.value.facts["call"] == call


def test_a_proxy_that_drops_the_headers_is_refused(s3: Server, proxy: Proxy) -> None:
    proxy.dropped_headers = ("if-none-match", "if-match")
    store = open_conditional(f"s3://{s3.bucket()}/log", options(proxy.url))
    with pytest.raises(StoreUnfitError, match="put_new"):
        probe(store)


def test_a_cut_answer_is_unknown_though_the_object_is_there(s3: Server, proxy: Proxy) -> None:
    store = open_conditional(f"s3://{s3.bucket()}/log", options(proxy.url))
    proxy.cut_answer(method="PUT", containing="wal/1")
    answer = store.put_new("wal/1", b"mine")
    assert answer.outcome is Outcome.UNKNOWN
    assert isinstance(answer.cause, StoreUnavailableError)
    there = store.get("wal/1")
    assert there is not None
    assert there.data == b"mine"


def test_a_cut_request_is_unknown_and_nothing_is_there(s3: Server, proxy: Proxy) -> None:
    store = open_conditional(f"s3://{s3.bucket()}/log", options(proxy.url))
    proxy.cut(method="PUT", containing="wal/1")
    assert store.put_new("wal/1", b"mine").outcome is Outcome.UNKNOWN
    assert store.get("wal/1") is None
    assert proxy.count("PUT", "wal/1") == 1  # the library does not repeat it


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError")])
def test_an_error_of_the_server_is_unknown(
    s3: Server, proxy: Proxy, status: int, code: str
) -> None:
    store = open_conditional(f"s3://{s3.bucket()}/log", options(proxy.url))
    proxy.answer(status, code, method="PUT", times=2)
    assert store.put_new("wal/1", b"mine").outcome is Outcome.UNKNOWN
    with pytest.raises(StoreUnavailableError):
        store.put("wal/2", b"x")
    assert store.put_new("wal/1", b"mine").outcome is Outcome.DONE


def test_a_conflict_is_refused_though_nothing_is_there(s3: Server, proxy: Proxy) -> None:
    """Why callers look after a refusal too."""
    store = open_conditional(f"s3://{s3.bucket()}/log", options(proxy.url))
    proxy.answer(409, "ConditionalRequestConflict", method="PUT")
    assert store.put_new("wal/1", b"mine").outcome is Outcome.REFUSED
    assert store.get("wal/1") is None


def test_a_denied_call_says_so_without_the_secret(s3: Server, proxy: Proxy) -> None:
    store = open_conditional(f"s3://{s3.bucket()}/log", options(proxy.url))
    proxy.answer(403, "AccessDenied", times=3)
    answer = store.put_new("wal/1", b"mine")
    assert answer.outcome is Outcome.UNKNOWN
    assert isinstance(answer.cause, StoreDeniedError)
    with pytest.raises(StoreDeniedError) as refused:
        store.get("wal/1")
    assert "secret-of-the-test" not in str(refused.value)


def test_a_missing_bucket_is_not_an_absent_object(s3: Server) -> None:
    store = open_conditional("s3://no-such-bucket/log", options(s3.url))
    with pytest.raises(StoreNotFoundError):
        store.get("wal/1")
    with pytest.raises(StoreNotFoundError):
        probe(store)


def test_a_store_that_does_not_answer_is_unavailable() -> None:
    store = open_conditional("s3://bucket/log", options("http://127.0.0.1:9"))
    assert store.put_new("wal/1", b"x").outcome is Outcome.UNKNOWN
    with pytest.raises(StoreUnavailableError):
        store.get("wal/1")


def test_a_missing_folder_is_not_an_absent_object(tmp_path: Path) -> None:
    """The drive may not be mounted."""
    store = FolderStore(tmp_path / "absent")
    with pytest.raises(StoreNotFoundError):
        store.get("wal/1")
    answer = store.put_new("wal/1", b"x")
    assert answer.outcome is Outcome.UNKNOWN
    assert isinstance(answer.cause, StoreNotFoundError)


def test_a_folder_has_no_leftovers_of_its_writes(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put_new("wal/1", b"a")
    store.put_new("wal/1", b"b")
    store.put("wal/2", b"c")
    assert sorted(path.name for path in (tmp_path / "wal").iterdir()) == ["1", "2"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a//b", "a/./b", "", "a\0b"])
def test_a_folder_refuses_names_that_leave_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        FolderStore(tmp_path).put(name, b"x")


@pytest.mark.parametrize("location", ["shop", "ftp://bucket/x", "s3://", "s3://user:word@bucket/x"])
def test_a_location_that_is_none_is_refused(location: str) -> None:
    with pytest.raises(InvalidArgumentError):
        open_conditional(location, {})
