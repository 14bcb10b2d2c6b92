"""Each bug that the proofs have found, as the shortest sequence of calls that shows it."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path

import pytest

from lakebed.errors import EntryNotFoundError, InvalidArgumentError
from lakebed.host import ManualClock, SimDisk, Survival
from lakebed.wal import HardState, Mark, Wal, WalConfig, folder
from tests.proof.scale import rng
from tests.proof.simulated import FOLDER, LAYOUT, open_on

CONFIG = WalConfig(file_bytes=4096, spare_files=1)


def test_a_read_does_not_run_on_into_truncated_entries() -> None:
    """A read across a truncation in one file gives the new entry, not the voided one before it."""
    log = open_on(SimDisk(), CONFIG)
    log.append_many([b"one", b"two", b"void"])
    log.truncate(2)
    log.append(b"three")
    assert [bytes(entry.payload) for entry in log.read(1)] == [b"one", b"two", b"three"]


def test_a_note_released_at_index_0_outlives_its_file() -> None:
    """The note of a release that released nothing is carried into the next file like any other."""
    disk = SimDisk()
    log = open_on(disk, CONFIG)
    log.release(0, b"the note")
    for term in range(1, 40):
        log.set_hard_state(HardState(term))
    for _ in range(2):
        log.close()
        log = open_on(disk, CONFIG)
    assert LAYOUT.file(1) not in disk.contents()
    assert log.mark == Mark(0, 0, b"the note")


@pytest.mark.parametrize("beyond", [1, 2, 100])
def test_an_entry_beyond_the_end_is_not_found(beyond: int) -> None:
    """Asking for an entry beyond the end is a typed error, also for the very next index."""
    log = open_on(SimDisk(), CONFIG)
    last = log.append(b"one")
    with pytest.raises(EntryNotFoundError):
        log.entry(last + beyond)
    with pytest.raises(InvalidArgumentError):
        log.release(last + beyond, reset=True)  # of which term, it would have to look up there


@pytest.mark.parametrize(
    ("index", "term"), [(2**64, 1), (2**64 - 1, 1), (2**63, 1), (5, -1), (5, 2**64)]
)
def test_a_reset_to_an_impossible_place_is_refused_and_does_no_harm(index: int, term: int) -> None:
    """Numbers that do not fit the format are refused before the committer gets to see them."""
    log = open_on(SimDisk(), CONFIG)
    log.append(b"one")
    with pytest.raises(InvalidArgumentError):
        log.release(index, term=term, reset=True)
    assert log.append(b"two") == 2


def test_an_identity_file_with_an_infinite_version_is_rebuilt() -> None:
    """A number that JSON knows and integers do not is damage like any other."""
    record: dict[str, object] = {"format": float("inf"), "log": "x"}
    text = json.dumps({**record, "crc32c": folder._identity_checksum(record)})
    assert folder._parse_identity(text.encode(), LAYOUT.identity) is None


def test_a_lock_with_deeply_nested_contents_names_an_unknown_owner() -> None:
    """Garbage in a lock file does not hide that the log is locked."""
    assert folder._owner_facts("[" * 4000) == {"owner": "unknown"}


@pytest.mark.parametrize("name", ["²" * 20, "٣" * 20])
@pytest.mark.parametrize("suffix", [".wal", ".spare"])
def test_file_names_with_digits_of_other_scripts_are_not_ours(name: str, suffix: str) -> None:
    """A stranger's file with digits that are not ours in its name does not stop a log."""
    disk = SimDisk()
    open_on(disk, CONFIG).append(b"one")
    after = disk.crash(Survival.KEPT, rng("regression"))
    after.put(LAYOUT.wal / (name + suffix), bytes(4096))
    log = open_on(after, CONFIG)
    assert bytes(log.entry(1).payload) == b"one"


def test_a_power_cut_while_an_interrupted_commit_is_written_again_is_a_tear() -> None:
    """A commit that Ctrl-C cut short is written again with the same bytes.

    A power cut may then keep some sectors of the first writing and some of the second.
    """
    disk, clock = SimDisk(), ManualClock()
    log = Wal.open(FOLDER, CONFIG, disk=disk, clock=clock)
    left: list[SimDisk] = []

    def interrupt_then_cut(_call: str) -> None:
        clock.advance(1)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        for number in range(40):
            left.append(disk.crash(Survival.TORN_512, rng("regression", number)))

    payloads = [bytes([number]) * 300 for number in range(8)]
    disk.on_call = interrupt_then_cut
    with pytest.raises(KeyboardInterrupt):
        log.append_many(payloads)
    assert log.wait(len(payloads), timeout=600)
    disk.on_call = None
    log.close()
    assert left
    for each in left:
        entries = list(open_on(each, CONFIG).entries())
        assert [bytes(entry.payload) for entry in entries] == payloads[: len(entries)]


def test_a_view_keeps_its_bytes_while_its_file_is_released(tmp_path: Path) -> None:
    """A payload that a caller still holds is not overwritten when its file could be recycled."""
    with Wal.open(tmp_path, CONFIG) as log:
        log.append_many([bytes([number]) * 500 for number in range(6)])
        held = log.entry(2).payload
        gc.collect()
        for _ in range(6):
            log.release(log.last_index)
            log.append_many([b"\xff" * 500] * 6)
        assert bytes(held) == bytes([1]) * 500
