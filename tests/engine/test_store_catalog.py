"""Tables of a log in a store: any machine has them as they were, and only the owner changes them.

The catalog is a pointer of each table in the store, or one that several machines share.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakebed import LakeConfig, LogConfig, WalConfig
from lakebed.engine import ownership
from lakebed.engine.log import EmbeddedLog
from lakebed.engine.ownership import Takeover
from lakebed.errors import ForeignTableError, NotOwnerError, StoreUnavailableError
from lakebed.host.conditional import Answer, ConditionalStore, Outcome, open_conditional
from lakebed.iceberg.table_metadata import TERM
from tests.engine.support import topic_tables
from tests.engine.test_derived import USERS, written
from tests.s3 import Server, options, s3
from tests.weed import weed

__all__ = ["s3", "weed"]

PATIENT_MS = 60_000
"""A lease that does not run out in a test: an owner that was taken over learns it by accident."""


class Fleet:
    """Machines that open one log in a store, and do nothing in the background."""

    def __init__(self, root: Path, lake: LakeConfig) -> None:
        self.root = root
        self.lake = lake
        self._stack = contextlib.ExitStack()

    def open(self, machine: str, **lake: Any) -> EmbeddedLog:
        """Open the log on a machine, whatever another one believes."""
        config = LogConfig(
            wal=WalConfig(acks="store", lease_ms=PATIENT_MS),  # type: ignore[arg-type]
            lake=replace(self.lake, **lake),
        )
        log = EmbeddedLog.open(
            self.root / machine, config, threaded=False, takeover=Takeover(force=True)
        )
        self._stack.callback(log.close)
        return log

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(params=["pointers", "shared"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "store").mkdir()
    lake = LakeConfig(store=f"file://{tmp_path}/store")
    if request.param == "shared":
        uri = f"sqlite:///{tmp_path}/shared.db"
        lake = replace(lake, catalog={"type": "sql", "uri": uri})
    made = Fleet(tmp_path, lake)
    yield made
    made.close()


@pytest.fixture
def pointed(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "store").mkdir()
    made = Fleet(tmp_path, LakeConfig(store=f"file://{tmp_path}/store"))
    yield made
    made.close()


def add(log: EmbeddedLog, *values: bytes) -> None:
    """Append to the topic, and put it into a segment that no table shows yet."""
    log.get_or_create_topic("orders")
    log.append_batch("orders", list(values))
    log.checkpoint()


def shown(log: EmbeddedLog) -> list[bytes]:
    """Return what the table shows, as the catalog has it now."""
    table = topic_tables(log).table("orders")
    return sorted(table.scan().to_arrow().column("value").to_pylist())


def test_tables_continue_on_another_machine(fleet: Fleet) -> None:
    """Nothing is built again: the snapshots are the same, and so is every version of the past."""
    a = fleet.open("a")
    for number in range(3):
        add(a, b"%d" % number)
        a.lake.sync()
    a.derived.create("users", USERS, key=["id"])
    file = written(a, "users", [1, 2])
    a.derived.commit("users", writer="job", number=1, added=[file], expected=0)
    history, users = a.lake.history("orders"), a.derived.describe("users")
    a.close()
    shutil.rmtree(fleet.root / "a")
    b = fleet.open("b")
    assert b.lake.describe("orders").problem == ""
    assert b.lake.history("orders") == history
    assert b.derived.describe("users") == users
    add(b, b"3")
    assert b.lake.sync().files_added == 1
    assert b.lake.history("orders")[:3] == history
    b.lake.gc(now=False)
    table = b.lake.table("orders")
    for number, snapshot in enumerate(history, 1):
        assert table.scan(snapshot_id=snapshot.snapshot).to_arrow().num_rows == number
    assert shown(b) == [b"0", b"1", b"2", b"3"]
    assert b.derived.commit("users", writer="job", number=1, expected=1).duplicate


def test_an_owner_that_was_taken_over_changes_no_table(fleet: Fleet) -> None:
    a = fleet.open("a")
    add(a, b"first")
    a.lake.sync()
    a.derived.create("users", USERS, key=["id"])
    file = written(a, "users", [1])
    add(a, b"second")
    b = fleet.open("b")
    b.lake.sync()
    assert shown(b) == [b"first", b"second"]
    assert b.derived.commit("users", writer="job", number=1, expected=0).version == 1
    for change in (
        lambda: a.lake.sync("orders"),
        lambda: topic_tables(a)._drop_other("orders", 1 << 60),
        lambda: a.derived.commit("users", writer="job", number=2, added=[file], expected=1),
        lambda: a.derived.drop("users"),
        lambda: topic_tables(a).expire("orders", 1 << 60),
    ):
        with pytest.raises(NotOwnerError, match="taken over the log and its tables"):
            change()
    assert shown(b) == [b"first", b"second"]
    assert b.derived.describe("users").writers == {"job": 1}


def _take_over_before_the_swap(
    fleet: Fleet, log: EmbeddedLog, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], EmbeddedLog]:
    """Have another machine take the log over when `log` has read a table and not swapped it yet."""
    taken: list[EmbeddedLog] = []
    confirm = catalog.confirm

    def take_over() -> None:
        confirm()
        if not taken:
            taken.append(fleet.open("b"))
            taken[0].lake.sync()
            if taken[0].derived.tables():
                taken[0].derived.commit("users", writer="b", number=1, expected=0)

    monkeypatch.setattr(catalog, "confirm", take_over)
    return lambda: taken[0]


def test_an_owner_that_is_taken_over_before_its_swap_changes_no_table(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused between reading the table and swapping it, and its lease looks valid."""
    a = fleet.open("a")
    add(a, b"first")
    a.lake.sync()
    add(a, b"second")
    other = _take_over_before_the_swap(fleet, a, topic_tables(a)._catalog, monkeypatch)
    with pytest.raises(NotOwnerError):
        a.lake.sync("orders")
    assert shown(other()) == [b"first", b"second"]
    assert len(other().lake.history("orders")) == 2


def test_a_commit_of_an_owner_that_is_taken_over_before_its_swap_is_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new owner changes nothing but the progress of a writer: no file tells the two apart."""
    a = fleet.open("a")
    a.derived.create("users", USERS, key=["id"])
    file = written(a, "users", [1])
    other = _take_over_before_the_swap(fleet, a, a.derived._catalog, monkeypatch)
    with pytest.raises(NotOwnerError):
        a.derived.commit("users", writer="a", number=1, added=[file], expected=0)
    described = other().derived.describe("users")
    assert (described.writers, described.records) == ({"b": 1}, 0)


def test_an_owner_claims_a_table_before_it_judges_its_files(pointed: Fleet) -> None:
    """A late swap of the owner before could make a file needed that was found unneeded."""
    a = pointed.open("a")
    add(a, b"first")
    a.lake.sync()
    b = pointed.open("b")
    b.lake.gc(now=True)
    (pointer,) = pointed.root.glob("store/*/catalog/lakebed/orders.json")
    state = b.stats().shipping
    assert state is not None
    assert json.loads(pointer.read_bytes())["term"] == state.term
    assert topic_tables(b).table("orders").properties[TERM] < str(state.term)


def test_a_table_shows_nothing_that_is_not_in_the_store(tmp_path: Path) -> None:
    """With `local`, a sync ships what the table will show before it swaps."""
    (tmp_path / "store").mkdir()
    config = LogConfig(
        wal=WalConfig(ship_ms=3_600_000, lease_ms=PATIENT_MS),
        lake=LakeConfig(store=f"file://{tmp_path}/store"),
    )
    with EmbeddedLog.open(tmp_path / "a", config, threaded=False) as a:
        add(a, b"shipped")
        a.append("orders", b"not shipped by the checkpoint")
        a.lake.sync()
        position = a.lake.describe("orders").position
        state = a.stats().shipping
        assert state is not None
        assert state.shipped_index >= position > 0


def test_a_table_that_was_dropped_does_not_return(pointed: Fleet) -> None:
    a = pointed.open("a")
    add(a, b"first")
    a.lake.sync()
    a.delete_topic("orders")
    assert a.lake.sync().tables_dropped == 1
    b = pointed.open("b")
    assert b.lake.sync().tables_dropped == 0
    assert topic_tables(b).table("orders") is None
    add(b, b"again")
    b.lake.sync()
    assert shown(b) == [b"again"]
    assert len(b.lake.history("orders")) == 1


def test_a_damaged_pointer_is_made_good_from_the_log(pointed: Fleet) -> None:
    a = pointed.open("a")
    add(a, b"first")
    a.lake.sync()
    a.derived.create("users", USERS, key=["id"])
    for pointer in pointed.root.glob("store/*/catalog/*/*.json"):
        pointer.write_bytes(b"{}")
    with pytest.raises(ForeignTableError, match="changed by hand"):
        a.derived.describe("users")
    a.lake.sync()
    assert shown(a) == [b"first"]
    (pointer,) = pointed.root.glob("store/*/catalog/lakebed_tables/users.json")
    pointer.unlink()
    assert a.derived.restore("users").name == "users"


def test_tables_in_sqlite_are_registered_when_a_log_begins_to_ship(pointed: Fleet) -> None:
    config = LogConfig(lake=pointed.lake)
    with EmbeddedLog.open(pointed.root / "a", config, threaded=False) as log:
        add(log, b"first")
        log.lake.sync()
        log.derived.create("users", USERS, key=["id"])
        history, users = log.lake.history("orders"), log.derived.describe("users")
    a = pointed.open("a")
    assert a.lake.history("orders") == history
    assert a.derived.describe("users") == users
    a.lake.sync()
    a.delete_topic("orders")
    a.lake.sync()
    a.close()
    b = pointed.open("b")
    assert b.derived.describe("users") == users
    again = pointed.open("a")
    assert topic_tables(again).table("orders") is None  # SQLite does not bring it back


def test_a_log_whose_segments_are_in_the_store_alone_begins_to_ship(pointed: Fleet) -> None:
    """Its newest snapshot still says that they are on this disk."""
    config = LogConfig(lake=pointed.lake)
    with EmbeddedLog.open(pointed.root / "a", config, threaded=False) as log:
        log.create_topic("orders", config={"local_bytes": 0})
        add(log, b"first")
        assert log.lake.sync().segments_moved == 1
    pointed.open("a").close()
    b = pointed.open("b")
    assert b.read("orders").column("value").to_pylist() == [b"first"]


def test_a_log_that_could_not_begin_to_ship_begins_again(
    pointed: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a name in the store and no base yet: it is still the log of its folder."""
    with EmbeddedLog.open(pointed.root / "a", LogConfig(), threaded=False) as log:
        add(log, b"first")
    with monkeypatch.context() as patched, pytest.raises(StoreUnavailableError):
        patched.setattr(ownership, "_first_base", _fail)
        pointed.open("a")
    assert pointed.open("a").read("orders").column("value").to_pylist() == [b"first"]


def _fail(*_: object) -> None:
    raise StoreUnavailableError("the store does not answer")


class Forgetful:
    """A store that does what it is told to a pointer, and whose answer is lost each first time."""

    def __init__(self, store: ConditionalStore) -> None:
        self._store = store
        self.location = store.location
        self._failed: set[tuple[str, str]] = set()
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_new(self, name: str, data: bytes) -> Answer:
        return self._answer("new", name, self._store.put_new(name, data))

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        return self._answer(version, name, self._store.put_if(name, data, version))

    def _answer(self, call: str, name: str, answer: Answer) -> Answer:
        if "/catalog/" not in name or (call, name) in self._failed:
            return answer
        self._failed.add((call, name))
        self.lost += 1
        return Answer(Outcome.UNKNOWN)


def test_a_swap_whose_answer_is_lost_happens_once(
    pointed: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Forgetful] = []

    def forgetful(location: str, given: Any) -> Any:
        made.append(Forgetful(open_conditional(location, given)))
        return made[-1]

    monkeypatch.setattr(ownership, "open_conditional", forgetful)
    a = pointed.open("a")
    for number in range(2):
        add(a, b"%d" % number)
        a.lake.sync()
    assert made[-1].lost >= 3
    assert a.lake.stats().conflicts == 0
    assert len(a.lake.history("orders")) == 2
    assert shown(a) == [b"0", b"1"]


def test_objects_of_removed_segments_are_deleted_while_the_owner_runs(pointed: Fleet) -> None:
    a = pointed.open("a", snapshots_kept=1, snapshot_age_ms=0, grace_ms=0)
    a.create_topic("orders", config={"retention_bytes": 1})
    for number in range(4):
        add(a, b"%d" % number * 1000)
    a.retain()
    a.lake.sync()
    a.lake.gc(now=True)
    kept = {segment.name for segment in pointed.root.glob("store/*/segments/*/*")}
    assert len(kept) == sum(
        len(partition.segments) for partition in a.parts.core.state.partitions.values()
    )
    assert len(kept) < 4


def test_files_of_derived_tables_are_not_removed_by_an_earlier_owner(pointed: Fleet) -> None:
    a = pointed.open("a")
    a.derived.create("users", USERS, key=["id"])
    file = written(a, "users", [1])  # never committed
    b = pointed.open("b")
    b.create_topic("other")
    assert a.parts.shipping is not None
    a.parts.shipping.lease.lost = NotOwnerError("the test ends this owner")
    with pytest.raises(NotOwnerError):
        a.lake.gc(now=True)
    assert Path(file.location.removeprefix("file://")).exists()


@pytest.mark.parametrize("kind", ["moto", "weed"])
def test_tables_continue_in_a_bucket(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "moto":
        server: Server = request.getfixturevalue("s3")
        bucket, endpoint = server.bucket(), server.url
    else:
        bucket, endpoint = f"logs/{uuid.uuid4().hex}", request.getfixturevalue("weed")
    fleet = Fleet(
        tmp_path, LakeConfig(store=f"s3://{bucket}/shop", store_options=options(endpoint))
    )
    a = fleet.open("a")
    add(a, b"first")
    a.lake.sync()
    add(a, b"second")
    history = a.lake.history("orders")
    b = fleet.open("b")
    b.lake.sync()
    assert b.lake.history("orders")[:1] == history
    assert shown(b) == [b"first", b"second"]
    with pytest.raises(NotOwnerError):
        a.lake.sync("orders")
    fleet.close()
