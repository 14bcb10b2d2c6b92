"""A folder says which kind of log it holds, and the other kind refuses it without touching it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from lakebed.engine.restore import restore
from lakebed.errors import NotALogError
from lakebed.host import OsDisk
from lakebed.raft import HardState, WalLog
from lakebed.wal import Wal
from lakebed.wal.folder import RAFT, TOPICS, Layout, read_identity, read_kind, write_identity
from lakebed.wal.salvage import salvage
from tests.cli.logs import fingerprint
from tests.raft.support import SMALL, fill, snapshot


def kind_of(folder: Path) -> str | None:
    return read_kind(OsDisk(), Layout(folder))


def forget_kind(folder: Path) -> None:
    """Leave the folder as version 0.6 did, which did not say what it held."""
    log_id = read_identity(OsDisk(), Layout(folder))
    assert log_id is not None
    write_identity(OsDisk(), Layout(folder), log_id)
    assert kind_of(folder) is None


def with_topics(folder: Path, *, records: bool = True) -> Path:
    """Make a log with topics and a snapshot."""
    with lakebed.open(folder) as log:
        log.create_topic("t")
        if records:
            log.append("t", b"x")
        log.checkpoint()
    return folder


def of_a_node(folder: Path, *, index: int = 5) -> Path:
    """Make the log of a Raft node."""
    with WalLog.open(folder, SMALL) as log:
        fill(log, 5)
        if index:
            log.apply_snapshot(snapshot(index))
    return folder


@pytest.mark.parametrize("declared", [True, False], ids=["0.7", "0.6"])
@pytest.mark.parametrize("records", [True, False])
def test_a_folder_of_topics_does_not_open_as_a_raft_log(
    tmp_path: Path, *, declared: bool, records: bool
) -> None:
    folder = with_topics(tmp_path / "log", records=records)
    assert kind_of(folder) == TOPICS
    if not declared:
        forget_kind(folder)
    snapshots = sorted((folder / "snapshots").iterdir())
    assert snapshots
    before = fingerprint(folder)
    with pytest.raises(NotALogError, match="topics") as caught:
        WalLog.open(folder, SMALL)
    assert caught.value.facts["kind"] == TOPICS
    assert sorted((folder / "snapshots").iterdir()) == snapshots
    assert not declared or fingerprint(folder) == before
    with lakebed.open(folder) as log:
        assert log.topics() == ["t"]
        assert log.read("t").num_rows == int(records)
    assert kind_of(folder) == TOPICS


@pytest.mark.parametrize("declared", [True, False], ids=["0.7", "0.6"])
@pytest.mark.parametrize("index", [0, 5])
def test_a_raft_log_does_not_open_as_a_folder_of_topics(
    tmp_path: Path, *, declared: bool, index: int
) -> None:
    folder = of_a_node(tmp_path / "log", index=index)
    assert kind_of(folder) == RAFT
    if not declared:
        forget_kind(folder)
    with pytest.raises(NotALogError, match="raft"):
        lakebed.open(folder)
    with WalLog.open(folder, SMALL) as log:
        assert (log.last_index, log.snapshot_index) == (5, index)
    assert kind_of(folder) == RAFT


def test_a_vote_alone_makes_a_raft_log(tmp_path: Path) -> None:
    with WalLog.open(tmp_path, SMALL) as log:
        log.set_hard_state(HardState(1, 2))
    forget_kind(tmp_path)
    with pytest.raises(NotALogError, match="raft"):
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
    with pytest.raises(NotALogError):
        WalLog.open(tmp_path, SMALL)
    lakebed.open(tmp_path).close()
    assert kind_of(tmp_path) == TOPICS


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
