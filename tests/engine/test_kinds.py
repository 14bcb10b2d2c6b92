"""A folder says which kind of log it holds; one of another kind is refused and left as it is."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from crc32c import crc32c

import lakebed
from lakebed.engine.restore import restore
from lakebed.errors import NotALogError
from lakebed.host import OsDisk
from lakebed.wal import HardState, Wal, WalConfig
from lakebed.wal.folder import RAFT, TOPICS, Layout, read_identity, read_kind, write_identity
from lakebed.wal.salvage import salvage
from tests.engine.shipped import Machines, values

SMALL = WalConfig(file_bytes=4096, spare_files=0)


def kind_of(folder: Path) -> str | None:
    return read_kind(OsDisk(), Layout(folder))


def forget_kind(folder: Path) -> None:
    """Leave the folder as version 0.6 did, which did not say what it held."""
    log_id = read_identity(OsDisk(), Layout(folder))
    assert log_id is not None
    write_identity(OsDisk(), Layout(folder), log_id)
    assert kind_of(folder) is None


def with_topics(folder: Path) -> Path:
    """Create a log with a topic and a snapshot."""
    with lakebed.open(folder) as log:
        log.create_topic("t")
        log.append("t", b"x")
        log.checkpoint()
    return folder


def of_a_node(folder: Path, *, snapshot: bool = True) -> Path:
    """Create what `lakebed.raft` of version 0.6 wrote: terms, and a note of its snapshot."""
    with Wal.open(folder, SMALL, kind=RAFT) as wal:
        wal.append_many([b"entry"] * 5, term=1)
        if snapshot:
            (folder / "snapshots").mkdir()
            (folder / "snapshots" / f"{5:020d}.snapshot").write_bytes(b"state")
            wal.release(5, msgpack.packb([1, 5, crc32c(b"state"), [1, 2, 3], []]), term=1)
    return folder


@pytest.mark.parametrize("declared", [True, False], ids=["0.7", "0.6"])
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_raft_log_does_not_open_as_a_folder_of_topics(
    tmp_path: Path, *, declared: bool, snapshot: bool
) -> None:
    folder = of_a_node(tmp_path / "log", snapshot=snapshot)
    assert kind_of(folder) == RAFT
    if not declared:
        forget_kind(folder)
    with pytest.raises(NotALogError, match="holds the log of a Raft node") as caught:
        lakebed.open(folder)
    assert (caught.value.facts["kind"], caught.value.facts["expected"]) == (RAFT, TOPICS)
    assert kind_of(folder) == (RAFT if declared else None)
    assert (folder / "snapshots" / f"{5:020d}.snapshot").exists() == snapshot
    with Wal.open(folder, SMALL) as wal:
        assert (wal.last_index, wal.mark.index) == (5, 5 if snapshot else 0)


def test_a_vote_alone_makes_a_raft_log(tmp_path: Path) -> None:
    with Wal.open(tmp_path, SMALL) as wal:
        wal.set_hard_state(HardState(1, 2))
    with pytest.raises(NotALogError, match="holds the log of a Raft node"):
        lakebed.open(tmp_path)


def test_a_kind_of_a_later_version_is_named(tmp_path: Path) -> None:
    Wal.open(tmp_path, SMALL, kind="queues").close()
    with pytest.raises(NotALogError, match="kind 'queues'"):
        lakebed.open(tmp_path)


def test_a_folder_of_version_0_6_opens_and_says_what_it_is_from_then_on(tmp_path: Path) -> None:
    forget_kind(with_topics(tmp_path))
    with lakebed.open(tmp_path) as log:
        log_id = log.stats().wal.log_id
    assert kind_of(tmp_path) == TOPICS
    assert str(read_identity(OsDisk(), Layout(tmp_path))) == log_id


def test_a_folder_whose_identity_is_lost_says_its_kind_again(tmp_path: Path) -> None:
    with_topics(tmp_path)
    (tmp_path / "lakebed.json").unlink()
    lakebed.open(tmp_path).close()
    assert kind_of(tmp_path) == TOPICS


def test_a_shipped_log_whose_identity_is_lost_opens(tmp_path: Path) -> None:
    """Its entries have terms, as those of a Raft node had."""
    machines = Machines(tmp_path)
    with machines.open("a") as log:
        log.create_topic("orders")
        log.append("orders", b"1")
    (tmp_path / "a" / "lakebed.json").unlink()
    with machines.open("a") as log:
        assert values(log) == [b"1"]
    assert kind_of(tmp_path / "a") == TOPICS


def test_a_raft_log_is_not_shipped(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    forget_kind(of_a_node(tmp_path / "a"))
    with pytest.raises(NotALogError, match="holds the log of a Raft node"):
        machines.open("a")
    assert [path for path in machines.store.rglob("*") if path.is_file()] == []


def test_a_bare_wal_opens_either_and_is_none(tmp_path: Path) -> None:
    Wal.open(tmp_path / "bare").close()
    assert kind_of(tmp_path / "bare") is None
    for folder in (with_topics(tmp_path / "topics"), of_a_node(tmp_path / "raft")):
        before = kind_of(folder)
        Wal.open(folder).close()
        assert kind_of(folder) == before


def test_a_salvaged_copy_is_of_the_same_kind(tmp_path: Path) -> None:
    of_a_node(tmp_path / "log")
    salvage(tmp_path / "log", tmp_path / "copy")
    assert kind_of(tmp_path / "copy") == RAFT


def test_a_restored_log_is_of_topics(tmp_path: Path) -> None:
    with lakebed.open(with_topics(tmp_path / "log")) as log:
        log.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "copy")
    assert kind_of(tmp_path / "copy") == TOPICS
