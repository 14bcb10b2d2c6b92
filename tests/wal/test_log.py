"""What a user of the WAL can rely on, one behaviour at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.errors import EntryNotFoundError, EntryReleasedError, InvalidArgumentError
from lakebed.wal import EntryKind, HardState, Wal, WalConfig

SMALL = WalConfig(file_bytes=4096, spare_files=1)


def payloads(log: Wal) -> list[bytes]:
    return [bytes(entry.payload) for entry in log.entries()]


def test_a_new_log_is_empty_and_the_first_index_is_one(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        assert (log.first_index, log.last_index) == (1, 0)
        assert log.read(1) == []
        assert log.append(b"first") == 1


def test_entries_come_back_after_reopening(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        log.append(b"one", term=3)
        log.append(b"", term=4)
        log.append(b"three", term=4, kind=EntryKind.CONFIGURATION)
        written = [entry._replace(payload=memoryview(b"")) for entry in log.entries()]
    with Wal.open(tmp_path / "log") as log:
        assert payloads(log) == [b"one", b"", b"three"]
        again = [entry._replace(payload=memoryview(b"")) for entry in log.entries()]
        assert again == written
        assert (log.last_index, log.last_term) == (3, 4)
        assert log.append(b"four") == 4


def test_parts_are_written_one_after_another(tmp_path: Path) -> None:
    parts = [b"a", bytearray(b"b" * 5000), memoryview(b"c"), b"", pa.py_buffer(b"d" * 9000), b"e"]
    with Wal.open(tmp_path / "log") as log:
        log.append(parts)
        assert bytes(log.entry(1).payload) == b"".join(bytes(memoryview(part)) for part in parts)


def test_an_arrow_batch_is_written_from_its_buffers_and_read_without_copying(
    tmp_path: Path,
) -> None:
    batch = pa.record_batch({"x": pa.array(range(10_000), pa.int64())})
    with Wal.open(tmp_path / "log") as log:
        log.append(batch.column(0).buffers()[1])
        payload = log.entry(1).payload
        values = pa.Array.from_buffers(pa.int64(), 10_000, [None, pa.py_buffer(payload)])
        assert values.equals(batch.column(0))
        assert payload.readonly
        address = pa.py_buffer(payload).address
        assert address % 64 == 0


def test_append_many_takes_one_sync_and_gives_the_indexes(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        before = log.stats().counters.syncs
        assert log.append_many([b"a", b"b", [b"c", b"d"]]) == range(1, 4)
        assert log.stats().counters.syncs == before + 1
        assert log.append_many([]) == range(4, 4)
        assert payloads(log) == [b"a", b"b", b"cd"]


def test_append_async_gives_indexes_in_the_order_of_the_calls(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        futures = [log.append_async(b"%d" % number) for number in range(100)]
        assert [future.result(timeout=600) for future in futures] == list(range(1, 101))
        assert payloads(log) == [b"%d" % number for number in range(100)]


def test_a_flush_settles_what_was_appended_before(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        futures = [log.append_async(b"%d" % number) for number in range(50)]
        log.flush()
        assert (log.last_index, log.stats().durable_index) == (50, 50)
        assert all(future.done() for future in futures)


def test_reads_are_bounded_by_entries_and_bytes(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        for number in range(50):
            log.append(bytes([number]) * 400)
        assert len(log.read(1, max_entries=7)) == 7
        assert len(log.read(1, max_bytes=1000)) == 3
        assert len(log.read(1, max_bytes=1)) == 1
        assert [entry.index for entry in log.read(48)] == [48, 49, 50]
        assert [entry.index for entry in log.entries(10, 12)] == [10, 11, 12]
        with pytest.raises(InvalidArgumentError):
            log.read(1, max_entries=0)


def test_reading_outside_the_log_says_on_which_side(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        log.append_many([b"x"] * 5)
        log.release(3)
        with pytest.raises(EntryReleasedError, match="first_index=4"):
            log.entry(3)
        with pytest.raises(EntryNotFoundError, match="last_index=5"):
            log.entry(7)
        assert log.first_index == 4


def test_every_index_is_found_in_a_log_of_many_files(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        for number in range(1, 301):
            log.append(b"%d." % number * (number % 40))
        assert log.stats().files > 5
    with Wal.open(tmp_path / "log", SMALL) as log:
        for number in (300, 1, 150, 151, 299, 2, 77):
            assert bytes(log.entry(number).payload) == b"%d." % number * (number % 40)


def test_an_entry_larger_than_a_file_gets_a_larger_file(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        log.append(b"small")
        log.append(b"L" * 100_000)
        log.append(b"small again")
    with Wal.open(tmp_path / "log", SMALL) as log:
        assert payloads(log) == [b"small", b"L" * 100_000, b"small again"]


def test_truncation_voids_what_is_above_and_survives(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        for number in range(30):
            log.append(b"old %d" % number * 20, term=1)
        log.truncate(10)
        assert (log.last_index, log.last_term) == (10, 1)
        log.append(b"new", term=2)
        assert bytes(log.entry(11).payload) == b"new"
        with pytest.raises(InvalidArgumentError):
            log.truncate(12)
    with Wal.open(tmp_path / "log", SMALL) as log:
        assert log.last_index == 11
        assert bytes(log.entry(11).payload) == b"new"
        assert bytes(log.entry(10).payload) == b"old 9" * 20


def test_the_latest_hard_state_wins_and_outlives_its_file(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        log.set_hard_state(HardState(1, 7))
        log.set_hard_state(HardState(2, None))
        for _ in range(50):
            log.append(b"x" * 500)
        log.release(50)
        assert log.stats().counters.reclaimed_files > 3
    with Wal.open(tmp_path / "log", SMALL) as log:
        assert log.hard_state == HardState(2, None)
        log.append(b"takes the term of the hard state")
        assert log.last_term == 2


def test_release_frees_whole_files_and_keeps_its_note(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with Wal.open(folder, SMALL) as log:
        for _ in range(60):
            log.append(b"x" * 500)
        before = log.stats()
        log.release(40, b"held elsewhere")
        after = log.stats()
        assert after.files < before.files
        assert after.size_bytes < before.size_bytes
        assert len(list(folder.glob("wal/*.wal"))) == after.files
        assert [entry.index for entry in log.entries()] == list(range(41, 61))
        with pytest.raises(InvalidArgumentError):
            log.release(39)
        with pytest.raises(InvalidArgumentError):
            log.release(61)
    with Wal.open(folder, SMALL) as log:
        assert (log.mark.index, log.mark.note) == (40, b"held elsewhere")
        assert [entry.index for entry in log.entries()] == list(range(41, 61))


def test_a_reset_goes_on_beyond_the_end(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        log.append_many([b"x" * 500] * 20)
        log.release(1000, b"snapshot", term=9, reset=True)
        assert (log.first_index, log.last_index, log.last_term) == (1001, 1000, 9)
        assert log.read(1001) == []
        assert log.append(b"y", term=9) == 1001
    with Wal.open(tmp_path / "log", SMALL) as log:
        assert payloads(log) == [b"y"]


def test_a_follower_gets_what_is_there_and_what_comes(tmp_path: Path) -> None:
    got: list[bytes] = []
    with Wal.open(tmp_path / "log", SMALL) as log:
        log.append(b"before")
        enough = threading.Event()

        def follow() -> None:
            for entry in log.follow():
                got.append(bytes(entry.payload))
                if len(got) == 40:
                    enough.set()

        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(39):
            log.append(b"%d" % number * 100)
        assert enough.wait(600)
    thread.join(600)
    assert got == [b"before", *(b"%d" % number * 100 for number in range(39))]


def test_a_follower_stops_after_its_timeout(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        log.append(b"x")
        assert len(list(log.follow(timeout=0.01))) == 1
        assert log.wait(1) is True
        assert log.wait(2, timeout=0.01) is False


def test_views_stay_valid_when_their_file_is_freed_and_the_log_closed(tmp_path: Path) -> None:
    roomy = WalConfig(file_bytes=4096, spare_files=20)
    with Wal.open(tmp_path / "log", roomy, threaded=False) as log:
        for number in range(40):
            log.append(bytes([number]) * 500)
        held = log.read(1, max_entries=20)
        for _ in range(2):
            log.release(log.last_index)
            for number in range(100):
                log.append(b"#" * 500 + bytes([number]))
        counters = log.stats().counters
        assert counters.reclaimed_files > counters.recycled_files > 3
    assert [bytes(entry.payload) for entry in held] == [bytes([n]) * 500 for n in range(20)]


def test_released_files_are_recycled_when_nobody_reads_them(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        for number in range(200):
            log.append(b"x" * 500)
            log.release(number + 1)
        counters = log.stats().counters
        assert counters.recycled_files > 0
        assert counters.reclaimed_files >= counters.recycled_files
        assert log.stats().files <= 2


def test_closing_marks_the_end_and_opening_again_adds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with Wal.open(folder) as log:
        log.append(b"x")
    file = next(folder.glob("wal/*.wal"))
    content = file.read_bytes()
    with Wal.open(folder) as log:
        assert log.stats().recovery.torn_bytes == 0
    assert file.read_bytes() == content


def test_statistics_say_what_happened(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as log:
        log.append(b"x")
        log.append_many([b"y" * 1000] * 3)
        log.append_many([b"z" * 1000] * 3)
        stats = log.stats()
        assert stats.counters.appends == 7
        assert stats.counters.groups == 3
        assert stats.counters.syncs == 3 + 1 - 1
        assert stats.counters.rotations == 1
        assert stats.counters.bytes == 128 + 6 * (64 + 1024)
        assert stats.counters.entries_per_sync[0] == 1
        assert stats.counters.entries_per_sync[2] == 2
        assert (stats.first_index, stats.last_index, stats.durable_index) == (1, 7, 7)
        assert stats.as_dict()["sync"] == "always"
    with Wal.open(tmp_path / "log", SMALL) as log:
        recovery = log.stats().recovery
        assert (recovery.files, recovery.frames) == (2, 8)
        assert recovery.seconds > 0


def test_files_are_private_and_stay_in_the_folder(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        log.append(b"x")
    for root, folders, files in os.walk(tmp_path / "log"):
        assert all(os.stat(Path(root) / each).st_mode & 0o077 == 0 for each in folders + files)
    assert sorted(os.listdir(tmp_path)) == ["log"]
