"""A server that is killed, stopped, paused or out of space under its clients."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from lakebed import Log
from lakebed.errors import DiskFullError, LakebedError, ServerUnavailableError, UnknownOutcomeError
from tests.engine.support import everything
from tests.proof.mounts import needs_mounts, run_privately
from tests.proof.scale import in_turn
from tests.serve.support import ServerProcess
from tests.serve.writers import Ledger, Writers, make_topics
from tests.waiting import until

QUICK = "[lake]\niceberg = false\n"
"""Tables have their own tests; without them a server starts and stops at once."""


def _grows(ledger: Ledger, writers: Writers, by: int) -> None:
    """Wait until more records were acknowledged."""
    goal = ledger.acks + by

    def done() -> bool:
        writers.check()
        return ledger.acks >= goal

    until(done, f"only {ledger.acks} of {goal} acknowledgements; {ledger.failures[-3:]}")


def test_a_server_killed_again_and_again_has_every_acknowledged_record_once(
    tmp_path: Path,
) -> None:
    """Appends, batches and producers go on as if nothing had been; nothing is written twice."""
    ledger = Ledger()
    with ServerProcess(tmp_path / "log", toml=QUICK) as server, server.open() as log:
        make_topics(log)
        with Writers(log, ledger, 4, "kills") as writers:
            for _ in range(3):
                _grows(ledger, writers, 50)
                server.kill()
                server.start()
            _grows(ledger, writers, 50)
        ledger.check(log)
        server.kill()
    with Log.open(tmp_path / "log") as embedded:
        ledger.check(embedded)
    # Of an open transaction nobody can tell what the lost part of it was; all else is sent again.
    assert not [each for each in ledger.failures if "refused: Fenced" in each], ledger.failures


@pytest.mark.parametrize("nth", in_turn("server killed", [3, 4, 5, 7]))
def test_what_was_written_and_not_acknowledged_is_not_written_twice(
    tmp_path: Path, nth: int
) -> None:
    """The server dies right after a sync, so nobody is told; what is sent again is recognised."""
    with ServerProcess(tmp_path / "log", toml=QUICK) as server, server.open() as log:
        log.create_topic("t", 2)
        server.kill()
        server.start(f"wal.group.synced=kill@{nth}")

        def write() -> None:
            log.append("t", b"one")
            log.append_batch("t", [{"value": b"two"}, {"value": b"three"}])
            with log.producer("p") as producer:
                producer.send("t", b"four")

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        server.died()
        server.start()
        writing.join(600)
        assert not writing.is_alive()
        assert sorted(everything(log, "t")) == [b"four", b"one", b"three", b"two"]


def test_a_server_that_is_restarted_in_good_order_is_waited_for(tmp_path: Path) -> None:
    """SIGTERM and a new process: whoever writes waits a little, and goes on.

    Only a transaction that was under way when a slow machine cut its stream short is refused: it is
    aborted, and may be repeated.
    """
    ledger = Ledger()
    with ServerProcess(tmp_path / "log", toml=QUICK) as server, server.open() as log:
        make_topics(log)
        with Writers(log, ledger, 3, "restarts") as writers:
            for _ in range(2):
                _grows(ledger, writers, 50)
                assert server.stop() == 0
                server.start()
            _grows(ledger, writers, 50)
        ledger.check(log)
    assert all(each.startswith("refused: ServerUnavailable") for each in ledger.failures)
    assert "unforeseen" not in server.said


def test_a_group_goes_on_when_its_server_was_killed(tmp_path: Path) -> None:
    """What was committed is not given again, what was not is; nothing is left out."""
    seen: Counter[bytes] = Counter()
    with ServerProcess(tmp_path / "log", toml=QUICK) as server, server.open() as log:
        log.create_topic("events", 2)
        for number in range(200):
            log.append_batch("events", [{"value": b"%d" % number}], partition=number % 2)
            if number == 100:
                consumer = log.consumer("readers", ["events"], max_records=20)
                while sum(seen.values()) < 60:
                    seen.update(consumer.poll(1000).column("value").to_pylist())
                consumer.commit()
                before = set(seen)
                server.kill()
                server.start()
        while len(seen) < 200:
            table = consumer.poll(1000)
            seen.update(table.column("value").to_pylist())
            consumer.commit()
        assert set(seen) == {b"%d" % number for number in range(200)}
        assert {seen[each] for each in before} == {1}, "what was committed came again"
        consumer.close()
        with log.consumer("readers", ["events"]) as other:
            assert not other.poll(0).num_rows


def test_a_paused_server_makes_its_clients_wait_and_nothing_else(tmp_path: Path) -> None:
    """SIGSTOP, then SIGCONT: what was sent meanwhile is answered then."""
    ledger = Ledger()
    with ServerProcess(tmp_path / "log", toml=QUICK) as server, server.open() as log:
        make_topics(log)
        with Writers(log, ledger, 3, "pauses") as writers:
            for _ in range(3):
                _grows(ledger, writers, 30)
                server.send(signal.SIGSTOP)
                until(lambda: _state(server.pid) == "T")
                threading.Event().wait(0.1)  # so that something is sent meanwhile
                server.send(signal.SIGCONT)
            _grows(ledger, writers, 30)
        ledger.check(log)
    assert not ledger.failures


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_client_of_a_server_that_is_gone_is_told_so_in_time(tmp_path: Path) -> None:
    """Every call ends when `retry_ms` are over, also those that wait behind others."""
    with ServerProcess(tmp_path / "log", toml=QUICK) as server:
        log = server.open(retry_ms=500)
        log.create_topic("plain")
        log.append("plain", b"before")
        producer = log.producer("p")
        producer.send("plain", b"sent").result()
        server.kill()
        outcomes: list[BaseException | None] = [None] * 8

        def append(number: int) -> None:
            try:
                log.append("plain", b"lost")
            except LakebedError as error:
                outcomes[number] = error

        threads = [threading.Thread(target=append, args=(each,), daemon=True) for each in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive(), "an append hangs"
        kinds = (ServerUnavailableError, UnknownOutcomeError)
        assert all(isinstance(each, kinds) for each in outcomes), outcomes
        for call in (
            lambda: log.append_batch("plain", [{"value": b"lost"}]),
            lambda: log.read("plain"),
            lambda: log.create_topic("other"),
            lambda: producer.send("plain", b"lost").result(),
            lambda: log.transaction(),
        ):
            with pytest.raises(kinds):
                call()
        log.close()


def test_a_client_that_is_closed_while_its_server_is_gone_leaves_nobody_waiting(
    tmp_path: Path,
) -> None:
    """Whoever still waits for an append is told that nobody knows, or that it was not sent."""
    with ServerProcess(tmp_path / "log", toml=QUICK) as server:
        log = server.open()
        log.create_topic("plain")
        log.append("plain", b"before")
        server.kill()
        futures = [log.append_async("plain", b"%d" % number) for number in range(200)]
        log.close()
        for future in futures:
            assert isinstance(future.exception(60), LakebedError)


@needs_mounts
def test_a_full_disk_under_a_server_refuses_writes_and_serves_reads() -> None:
    """The client gets `DiskFullError`, reads go on, and so do writes when there is space again."""
    run_privately("tests.serve.full_disk")


def check_full_disk(folder: Path) -> None:
    """Fill the disk of a served log; called on a small file system of its own."""
    toml = QUICK + "[wal]\nfile_bytes = 65536\nspare_files = 1\n"
    value = bytes(5000)
    with ServerProcess(folder / "log", toml=toml) as server, server.open(retry_ms=2000) as log:
        server.errors = folder.parent / "server.stderr"
        log.create_topic("t")
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue
        written = 0
        with pytest.raises(DiskFullError):
            for _ in range(60):
                log.append("t", value)
                written += 1
        for _ in range(3):
            with pytest.raises(DiskFullError):
                log.append_batch("t", [{"value": value}] * 20)
        assert log.read("t").num_rows == written
        assert log.offsets("t") == {0: (0, written)}
        filler.unlink()
        assert log.append("t", value).offset == written
        assert log.append_batch("t", [{"value": value}] * 20)[0].offset == written + 1
        assert server.stop() == 0
        with server.start().open() as again:
            assert again.offsets("t") == {0: (0, written + 21)}
