"""Transactions of several writers that are committed together, once for each number."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lakebed import Log, LogConfig
from lakebed.api import transaction
from lakebed.api.offsets import Offsets
from lakebed.api.together import CommittedTogether
from lakebed.engine.restore import restore
from lakebed.errors import (
    FencedError,
    InvalidArgumentError,
    InvalidNameError,
    OffsetOutOfRangeError,
    TransactionClosedError,
    TransactionTimedOutError,
)
from lakebed.host import ManualClock, SimDisk
from lakebed.state.image import State, decode_state
from tests import forked
from tests.engine.support import everything, quiet, rows, state_of

LARGE = [b"%04d" % number + b"x" * 1000 for number in range(200)]


@pytest.fixture
def _small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a transaction write, unseen, whenever it has collected a little."""
    monkeypatch.setattr(transaction, "_WRITE_BYTES", 20_000)


def prepared(log: Log, values: Sequence[Any], **given: Any) -> tuple[int, int]:
    """Write values to topic `a` as a task does, and leave them to the one who commits."""
    with log.transaction(**given) as tx:
        tx.append_batch("a", values)
        return tx.prepare()


def test_prepared_transactions_are_unseen_until_they_are_committed_together() -> None:
    with quiet() as log:
        log.create_topic("a")
        log.create_topic("b")
        first = prepared(log, [b"1", b"2"])
        with log.transaction() as tx:
            tx.append("a", b"3")
            tx.append("b", b"4")
            second = tx.prepare()
        assert tx.outcome == "prepared"
        assert everything(log, "a") == everything(log, "b") == []
        assert log.committed_number("job") is None
        done = log.commit_together([second, first], name="job", number=0)
        assert done == CommittedTogether(duplicate=False, records=4)
        assert (rows(log, "a"), rows(log, "b")) == ([b"3", b"1", b"2"], [b"4"])
        assert (log.committed_number("job"), log.stats().open_transactions) == (0, 0)


def test_nothing_can_be_done_with_a_prepared_transaction_by_the_one_who_wrote_it() -> None:
    with quiet() as log:
        log.create_topic("a")
        with pytest.raises(ZeroDivisionError), log.transaction() as tx:
            tx.append("a", b"1")
            identity = tx.prepare()
            for call in (
                tx.commit,
                tx.abort,
                tx.prepare,
                lambda: tx.append("a", b"1"),
                lambda: tx.append_batch("a", [b"1"]),
                lambda: tx.commit_offsets("g", {("a", 0): 0}),
            ):
                with pytest.raises(TransactionClosedError, match="is prepared"):
                    call()
            raise ZeroDivisionError
        tx.close()
        assert (identity, tx.outcome) == ((tx.id, tx.epoch), "prepared")
        assert log.commit_together([identity], name="job", number=1).records == 1


def test_a_transaction_with_offsets_is_not_prepared() -> None:
    with quiet() as log:
        log.create_topic("a")
        with log.transaction() as tx:
            tx.append("a", b"1")
            tx.commit_offsets("g", {("a", 0): 0})
            with pytest.raises(InvalidArgumentError, match="commit_together"):
                tx.prepare()
        assert (tx.outcome, rows(log, "a")) == ("committed", [b"1"])


def test_an_attempt_that_is_not_named_never_counts() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("a")
        prepared(log, [b"speculative"], timeout_ms=1000)
        log.commit_together([prepared(log, [b"good"])], name="job", number=1)
        clock.advance(2)
        log.tick()
        assert (rows(log, "a"), log.stats().open_transactions) == ([b"good"], 0)
        assert log.stats().transactions_timed_out == 1


def test_a_number_counts_once_however_often_and_late_it_is_committed() -> None:
    with quiet() as log:
        log.create_topic("a")
        named = [prepared(log, [b"1"]), prepared(log, [b"2"])]
        assert not log.commit_together(named, name="job", number=5).duplicate
        for number in (5, 4, 0):
            again = [*named, prepared(log, LARGE)]
            done = log.commit_together(again, name="job", number=number)
            assert done == CommittedTogether(duplicate=True, records=0)
        assert (rows(log, "a"), log.stats().open_transactions) == ([b"1", b"2"], 0)
        assert log.committed_number("job") == 5
        assert not log.commit_together([prepared(log, [b"3"])], name="job", number=6).duplicate
        assert not log.commit_together([prepared(log, [b"4"])], name="other", number=0).duplicate
        assert rows(log, "a") == [b"1", b"2", b"3", b"4"]


def test_what_a_repeat_drops_takes_no_memory_any_more() -> None:
    with quiet() as log:
        log.create_topic("a")
        log.commit_together([], name="job", number=5)
        identity = prepared(log, LARGE)
        assert log.stats().memtable_bytes > 0
        log.commit_together([identity], name="job", number=5)
        assert log.stats().memtable_bytes == 0


def test_a_batch_without_rows_counts_too() -> None:
    with quiet() as log:
        empty = log.transaction().prepare()
        assert log.commit_together([], name="job", number=0).records == 0
        assert log.commit_together([empty], name="job", number=1).records == 0
        assert log.committed_number("job") == 1


def test_one_that_is_not_open_refuses_all_and_changes_nothing() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("a")
        late = prepared(log, [b"0"], timeout_ms=1000)
        ended = prepared(log, [b"0"], name="x")
        log.commit_together([ended], name="other", number=0)
        clock.advance(2)
        good = prepared(log, [b"1"])
        before = state_of(log)
        for kind, named in (
            (FencedError, [good, (10**6, 1)]),
            (FencedError, [(good[0], good[1] + 1)]),
            (TransactionClosedError, [good, ended]),
            (TransactionTimedOutError, [good, late]),
            (InvalidArgumentError, [good, good]),
        ):
            with pytest.raises(kind):
                log.commit_together(named, name="job", number=1)
            assert without_index(state_of(log)) == without_index(before)
        assert log.commit_together([good], name="job", number=1).records == 1
        assert rows(log, "a") == [b"0", b"1"]


def without_index(data: bytes) -> State:
    """Leave out of a state which entry it was that was refused."""
    state = decode_state(data, "it")
    state.numbers["applied"] = 0
    return state


def test_offsets_of_groups_are_committed_with_them_or_not_at_all() -> None:
    with quiet() as log:
        log.create_topic("a", 2)
        identity = prepared(log, [{"value": b"1", "key": b"k"}])
        with pytest.raises(OffsetOutOfRangeError):
            log.commit_together(
                [identity], name="job", number=1, offsets={"g": {("a", 0): 2, ("a", 1): 2}}
            )
        assert log.committed("g") == {}
        offsets: dict[str, Offsets] = {"g": {("a", 0): 0}, "h": {"a": {0: 0, 1: 0}}}
        log.commit_together([identity], name="job", number=1, offsets=offsets)
        assert log.committed("g") == {("a", 0): 0}
        assert log.committed("h") == {("a", 0): 0, ("a", 1): 0}


@pytest.mark.parametrize(
    "given",
    [
        {"transactions": [(1,)]},
        {"transactions": [(1, -1)]},
        {"transactions": [("1", 1)]},
        {"transactions": [(True, 1)]},
        {"transactions": [None]},
        {"transactions": "ab"},
        {"transactions": None},
        {"number": -1},
        {"number": 2**63},
        {"number": 1.0},
        {"number": True},
        {"keep_ms": -1},
        {"keep_ms": 1e3},
        {"keep_ms": 10**18},
        {"offsets": [("g", "a", 0, 0)]},
        {"offsets": {1: {}}},
        {"offsets": {"g": 5}},
    ],
)
def test_bad_input_is_refused(given: dict[str, Any]) -> None:
    with quiet() as log:
        values = {"transactions": [], "number": 1, **given}
        with pytest.raises(InvalidArgumentError):
            log.commit_together(values.pop("transactions"), name="job", **values)
        assert log.committed_number("job") is None


@pytest.mark.parametrize("name", ["", "a/b", None, 7])
def test_a_name_is_one_of_a_producer(name: Any) -> None:
    with quiet() as log:
        with pytest.raises(InvalidNameError):
            log.commit_together([], name=name, number=1)
        with pytest.raises(InvalidNameError):
            log.committed_number(name)


def test_a_number_is_remembered_for_as_long_as_was_said() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.commit_together([], name="short", number=5, keep_ms=1000)
        log.commit_together([], name="long", number=5)
        clock.advance(3600)
        log.commit_together([], name="other", number=1)
        assert (log.committed_number("short"), log.committed_number("long")) == (None, 5)


@pytest.mark.usefixtures("_small_writes")
@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_what_is_larger_than_memory_is_staged_and_committed_after_reopening(
    checkpoints: int,
) -> None:
    disk, clock = SimDisk(), ManualClock()
    config = LogConfig(memtable_bytes=128 << 10)
    with quiet(config=config, disk=disk, clock=clock) as log:
        log.create_topic("a")
        named = [prepared(log, LARGE[:100]), prepared(log, LARGE[100:])]
        assert rows(log, "a") == []
        for _ in range(checkpoints):
            log.append("a", b"before")
            log.checkpoint()
        assert disk.names(Path("/log/staging")) != []
    with quiet(config=config, disk=disk, clock=clock) as log:
        assert log.stats().open_transactions == 2
        done = log.commit_together(named, name="job", number=1)
        assert done == CommittedTogether(duplicate=False, records=200)
        expected = [*[b"before"] * checkpoints, *LARGE]
        assert rows(log, "a") == expected
    with quiet(config=config, disk=disk, clock=clock) as log:  # from the WAL
        assert rows(log, "a") == expected
        assert log.commit_together(named, name="job", number=1).duplicate
        for _ in range(3):
            log.append("a", b"after")
            log.checkpoint()
        assert disk.names(Path("/log/staging")) == []
    with quiet(config=config, disk=disk, clock=clock) as log:  # from snapshot and segments
        assert rows(log, "a") == [*expected, *[b"after"] * 3]
        assert log.committed_number("job") == 1


_TASK = """
import os, signal, sys, lakebed
log = lakebed.Log.open(sys.argv[1])
log.create_topic("a")
log.append("a", b"0")
for number in range(2):
    tx = log.transaction()
    tx.append_batch("a", [b"%d" % number] * 1000)
    print(*tx.prepare(), flush=True)
left = log.transaction()
left.append_batch("a", [b"left"] * 1000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_prepared_outlives_a_kill(tmp_path: Path) -> None:
    done = forked.run(
        [sys.executable, "-c", _TASK, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    named = [
        (int(number), int(epoch)) for number, epoch in map(str.split, done.stdout.split("\n")[:2])
    ]
    with Log.open(tmp_path / "log") as log:
        assert rows(log, "a") == [b"0"]
        assert log.commit_together(named, name="job", number=1).records == 2000
        assert rows(log, "a") == [b"0", *[b"0"] * 1000, *[b"1"] * 1000]
        assert log.commit_together(named, name="job", number=1).duplicate


def test_a_restored_log_remembers_numbers_and_fences_what_was_prepared(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.create_topic("a")
        log.commit_together([prepared(log, [b"1"])], name="job", number=4)
        left = prepared(log, [b"2"])
        log.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    with Log.open(tmp_path / "restored") as log:
        assert log.committed_number("job") == 4
        assert log.commit_together([], name="job", number=4).duplicate
        with pytest.raises(FencedError):
            log.commit_together([left], name="job", number=5)
        assert rows(log, "a") == [b"1"]
