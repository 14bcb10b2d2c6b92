"""Salvage saves what is readable, changes no entry and no index, and says what is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.errors import (
    CorruptionError,
    EntryLostError,
    ForeignFileError,
    MissingFileError,
)
from lakebed.host import OsDisk
from lakebed.wal import HardState, Wal, WalConfig
from lakebed.wal.folder import Layout, write_identity
from lakebed.wal.frame import FrameKind
from lakebed.wal.salvage import salvage
from tests.cli.logs import (
    SMALL,
    Builder,
    Built,
    contents,
    cut,
    expand,
    flip,
    overwrite,
    plain,
    salvaged,
)
from tests.proof.scale import rng

if TYPE_CHECKING:
    pass


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return plain(tmp_path_factory.mktemp("original") / "log")


@pytest.fixture
def log(original: Built, tmp_path: Path) -> Built:
    return original.copy_to(tmp_path / "log")


# An undamaged log


def test_the_copy_of_an_undamaged_log_is_equal(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "log").state(1, None).append(20).configuration(b"members")
    builder.append(15).state(2, 9).truncate(30).append(12, term=2).release(11, b"held in s3")
    log = builder.append(6, term=2, sizes=(3000, 9000)).state(4, 2).close()
    report = salvaged(log, [])
    before, after = contents(log.folder), contents(tmp_path / "new")
    assert before == after
    assert after.state == HardState(4, 2)
    assert after.mark == (11, 1, b"held in s3")
    assert report.complete
    assert (report.damages, report.missing, report.skipped, report.torn) == ([], [], [], None)


def test_entries_keep_their_times(log: Built, tmp_path: Path) -> None:
    salvage(log.folder, tmp_path / "new")
    copy = Built(tmp_path / "new")
    times = [[each[12] for _, each in one.frames(FrameKind.ENTRY)] for one in (log, copy)]
    assert times[0] == times[1]


def test_released_files_that_are_gone_are_not_lost(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "log").append(50)
    log = builder.release(30, b"snapshot 30").append(8).close()
    assert log.files()[0] != log.file(1)
    report = salvaged(log, [])
    assert report.complete
    assert (report.first_index, report.missing) == (31, [])
    assert contents(tmp_path / "new").mark == (30, 1, b"snapshot 30")


def test_a_reset_log_goes_on_where_it_was_reset_to(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "log").append(10).reset(500, b"from the leader", term=2)
    log = builder.append(5, term=3).close()
    report = salvaged(log, [])
    assert (report.first_index, report.last_index, report.saved) == (501, 505, 5)


def test_an_empty_log_is_salvaged_to_an_empty_log(tmp_path: Path) -> None:
    Wal.open(tmp_path / "log", SMALL).close()
    report = salvage(tmp_path / "log", tmp_path / "new")
    assert (report.saved, report.last_index, report.complete) == (0, 0, True)
    with Wal.open(tmp_path / "new", SMALL) as wal:
        assert wal.append(b"first") == 1


def test_the_copy_can_be_written_to(log: Built, tmp_path: Path) -> None:
    path, position = log.place(30)
    flip(path, position + 80)
    salvage(log.folder, tmp_path / "new")
    with Wal.open(tmp_path / "new", SMALL) as wal:
        assert wal.append(b"more") == 61
        assert bytes(wal.entry(61).payload) == b"more"
        with pytest.raises(EntryLostError) as caught:
            wal.read(30)
        assert wal.gaps() == [(30, 30)]
        whole = [entry.index for entry in wal.entries(28, skip_lost=True)]
        assert whole == [28, 29, *range(31, 62)]
        with pytest.raises(EntryLostError):
            list(wal.entries())
        wal.truncate(29)
        assert wal.gaps() == []
        assert wal.append(b"in its place") == 30
    assert caught.value.facts == {"index": 30, "next_index": 31}


def test_large_entries_are_copied_whole(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "log", config=WalConfig(file_bytes=1 << 22, spare_files=0))
    builder.append(3, sizes=(3_000_000, 3_500_000), groups=1).append(5)
    log = builder.append(2, sizes=(1 << 20, (1 << 20) + 1), groups=1).close()
    salvaged(log, [])
    path, position = log.place(2)
    flip(path, position + 2_500_000)
    salvaged(log, [2], to="again")


# Damage of one kind at a time


def test_a_damaged_payload_loses_its_entry_alone(log: Built) -> None:
    path, position = log.place(23)
    flip(path, position + 64)
    report = salvaged(log, [23])
    assert [(each.file, each.start) for each in report.damages] == [(path, position)]
    assert report.damages[0].reason == "bad checksum: payload"
    assert report.lost_from is None


def test_a_damaged_frame_header_loses_its_entry_alone(log: Built) -> None:
    path, position = log.place(23)
    flip(path, position + 30)
    report = salvaged(log, [23])
    assert [(each.file, each.start) for each in report.damages] == [(path, position)]
    assert not report.complete


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_damaged_file_header_loses_nothing(log: Built, which: str) -> None:
    path = {"first": log.files()[0], "middle": log.files()[2], "last": log.files()[-1]}[which]
    flip(path, 21)
    report = salvaged(log, [])
    assert report.complete
    assert [(each.file, each.start, each.end) for each in report.damages] == [(path, 0, 64)]


def test_every_file_header_may_be_damaged_if_the_identity_is_known(log: Built) -> None:
    for path in log.files():
        overwrite(path, 0, bytes(64))
    assert salvaged(log, []).complete


def test_without_identity_file_the_headers_say_which_log_it_is(log: Built) -> None:
    (log.folder / "lakebed.json").unlink()
    flip(log.files()[0], 30)
    assert salvaged(log, []).complete


def test_nothing_is_guessed_if_no_file_says_which_log_it_is(log: Built, tmp_path: Path) -> None:
    overwrite(log.folder / "lakebed.json", 3, b"xxxx")
    for path in log.files():
        flip(path, 2)
    with pytest.raises(CorruptionError, match="the log cannot be identified"):
        salvage(log.folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_missing_middle_file_loses_its_entries_and_no_other(log: Built) -> None:
    gone = log.indexes_in(3)
    log.file(3).unlink()
    report = salvaged(log, gone)
    assert report.missing == [(3, 3)]


def test_two_missing_files_are_one_range(log: Built) -> None:
    gone = log.indexes_in(2) + log.indexes_in(3)
    log.file(2).unlink()
    log.file(3).unlink()
    report = salvaged(log, gone)
    assert report.missing == [(2, 3)]
    assert report.lost == [(gone[0], gone[-1])]


def test_a_missing_first_file_loses_its_entries(log: Built) -> None:
    gone = log.indexes_in(1)
    log.file(1).unlink()
    report = salvaged(log, gone)
    assert report.missing == [(1, 1)]


def test_a_log_without_any_file_is_refused(log: Built, tmp_path: Path) -> None:
    for path in log.files():
        path.unlink()
    with pytest.raises(MissingFileError):
        salvage(log.folder, tmp_path / "new")


def test_a_middle_file_cut_short_loses_what_was_cut_off(log: Built) -> None:
    inside = log.indexes_in(3)
    path, position = log.place(inside[5])
    cut(path, position + 100)
    report = salvaged(log, inside[5:])
    assert any(each.reason == "the file was cut short" for each in report.damages)


def test_a_last_file_cut_short_says_that_the_end_is_unknown(log: Built) -> None:
    inside = log.indexes_in(len(log.files()))
    path, position = log.place(inside[2])
    cut(path, position + 70)
    report = salvage(log.folder, log.folder.parent / "new")
    assert report.lost == []
    assert report.lost_from == inside[2]
    assert not report.complete
    read = contents(log.folder.parent / "new")
    assert read.entries == {i: each for i, each in log.entries.items() if i < inside[2]}


def test_an_empty_last_file_says_that_the_end_is_unknown(log: Built) -> None:
    inside = log.indexes_in(len(log.files()))
    cut(log.files()[-1], 0)
    report = salvage(log.folder, log.folder.parent / "new")
    assert report.lost_from == inside[0]


def test_a_last_file_of_zeros_says_that_the_end_is_unknown(log: Built) -> None:
    inside = log.indexes_in(len(log.files()))
    overwrite(log.files()[-1], 0, bytes(8192))
    report = salvage(log.folder, log.folder.parent / "new")
    assert report.lost_from == inside[0]


def test_a_file_header_alone_says_what_was_before_it(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(60).close()
    files = len(log.files())
    gone, unknown = log.indexes_in(files - 1), log.indexes_in(files)
    log.file(files - 1).unlink()
    cut(log.file(files), 64)
    report = salvage(log.folder, tmp_path / "new")
    assert expand(report.lost) == gone
    assert report.lost_from == unknown[0]


def test_a_damaged_payload_is_exactly_one_entry_even_if_nothing_behind_says_so(
    tmp_path: Path,
) -> None:
    """Its header says which entry it was, and the release behind it does not."""
    log = Builder(tmp_path / "log").append(8, groups=1).release(2).close()
    overwrite(log.file(1), log.frames(FrameKind.IDLE)[-1][0], b"\xff" * 64)
    path, position = log.place(8)
    flip(path, position + 64)
    report = salvaged(log, [8])
    assert report.lost_from is None


def test_a_frame_written_astray_within_its_group_is_no_truncation(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(6, sizes=(100, 100), groups=6).close()
    path, second = log.place(2)
    frame = path.read_bytes()[second : second + 64 + 100]
    overwrite(path, log.place(4)[1], frame)
    salvaged(log, [4])


def test_the_copy_tells_damage_from_a_torn_write(log: Built, tmp_path: Path) -> None:
    """All of it was synced before its last frame was written, and that frame says so."""
    salvage(log.folder, tmp_path / "new")
    path, position = Built(tmp_path / "new").place(60)
    flip(path, position + 64)
    with pytest.raises(CorruptionError):
        Wal.open(tmp_path / "new", SMALL)


def test_zeros_inside_a_file_lose_only_what_they_replaced(log: Built) -> None:
    inside = log.indexes_in(2)
    path, start = log.place(inside[3])
    _, end = log.place(inside[6])
    overwrite(path, start, bytes(end - start))
    salvaged(log, inside[3:6])


def test_zeros_at_the_end_of_a_sealed_file_are_seen(log: Built) -> None:
    inside = log.indexes_in(2)
    path, start = log.place(inside[-2])
    overwrite(path, start, bytes(8192))
    report = salvaged(log, inside[-2:])
    assert [each.reason for each in report.damages] == ["the next file does not continue it"]


def test_garbage_over_a_whole_file_loses_what_was_in_it(log: Built) -> None:
    gone = log.indexes_in(4)
    overwrite(log.file(4), 0, rng("garbage").randbytes(8192))
    salvaged(log, gone)


def test_the_last_entry_is_known_to_be_lost_from_the_mark_behind_it(log: Built) -> None:
    path, position = log.place(60)
    flip(path, position + 20)
    report = salvaged(log, [60])
    assert report.last_index == 60
    assert report.lost_from is None


def test_a_damaged_end_that_was_synced_is_reported_as_unknown(log: Built) -> None:
    """The header of the last entry proves the one before, but nothing behind is whole."""
    path, position = log.place(59)
    flip(path, position + 30)
    _, last = log.place(60)
    flip(path, last + 65)
    idle = log.frames(FrameKind.IDLE)[-1][0]
    overwrite(path, idle, b"\xff" * 64)
    log.entries = {i: each for i, each in log.entries.items() if i < 59}
    # The last group was 57 to 60: its frames prove nothing of each other.
    report = salvage(log.folder, log.folder.parent / "new")
    assert report.torn is not None
    assert report.torn.index == 59
    assert contents(log.folder.parent / "new").entries == log.entries


def test_damage_that_a_later_group_proves_is_not_a_torn_tail(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(10, sizes=(100, 100), groups=1).close()
    path, position = log.place(9)
    flip(path, position + 30)
    _, last = log.place(10)
    flip(path, last + 65)
    overwrite(path, log.frames(FrameKind.IDLE)[-1][0], b"\xff" * 64)
    report = salvage(log.folder, tmp_path / "new")
    assert report.torn is None
    assert report.lost_from == 9
    assert contents(tmp_path / "new").entries == {i: log.entries[i] for i in range(1, 9)}


def test_a_torn_tail_is_left_out_and_nothing_is_lost(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(8).close()
    position = log.frames()[-1][0] + 64
    overwrite(log.file(1), position, b"LEAM" + b"\x07" * 200)
    report = salvaged(log, [])
    assert report.complete
    assert report.torn is not None
    assert (report.torn.file, report.torn.byte, report.torn.index) == (log.file(1), position, 9)


def test_a_foreign_file_is_skipped_and_named(log: Built, tmp_path: Path) -> None:
    other = plain(tmp_path / "other", seed=5)
    log.file(99).write_bytes(other.file(2).read_bytes())
    gone = log.indexes_in(3)
    log.file(3).write_bytes(other.file(3).read_bytes())
    report = salvaged(log, gone)
    assert [path for path, _ in report.skipped] == [log.file(3), log.file(99)]
    assert all(str(other.log_id) in reason for _, reason in report.skipped)


def test_a_folder_whose_files_are_all_foreign_is_refused(log: Built, tmp_path: Path) -> None:
    other = Builder(tmp_path / "other").close()
    write_identity(OsDisk(), Layout(log.folder), other.log_id)
    with pytest.raises(ForeignFileError):
        salvage(log.folder, tmp_path / "new")


def test_a_file_with_the_wrong_name_is_used_as_what_it_is(log: Built) -> None:
    log.file(3).rename(log.file(77))
    report = salvaged(log, [])
    assert report.complete
    assert report.damages[0].file == log.file(77)


def test_a_second_file_of_a_number_is_skipped(log: Built) -> None:
    log.file(50).write_bytes(log.file(2).read_bytes())
    report = salvaged(log, [])
    assert report.skipped == [(log.file(50), "is a second file of number 2")]


def test_a_damaged_truncation_is_made_up_for(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "log").append(20).truncate(12)
    log = builder.append(4, term=2).close()
    (position, fields), *_ = log.frames(FrameKind.TRUNCATE)
    flip(log.file(fields[7]), position + 40)
    report = salvaged(log, [])
    assert (report.last_index, len(report.damages)) == (16, 1)


def test_a_damaged_truncation_at_the_end_is_made_up_for(tmp_path: Path) -> None:
    """The idle mark behind it says which index and term the log had reached."""
    builder = Builder(tmp_path / "log").append(6).append(14, term=2)
    log = builder.truncate(5).close()
    (position, fields), *_ = log.frames(FrameKind.TRUNCATE)
    flip(log.file(fields[7]), position + 40)
    salvaged(log, [])
    with Wal.open(tmp_path / "new", SMALL) as wal:
        assert (wal.last_index, wal.last_term) == (5, 1)


def test_a_damaged_hard_state_is_found_again_in_the_next_file(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(3).state(5, 4).append(40, term=5).close()
    (position, fields), *_ = log.frames(FrameKind.HARD_STATE)
    flip(log.file(fields[7]), position + 70)
    salvaged(log, [])
    assert contents(tmp_path / "new").state == HardState(5, 4)


def test_entries_below_the_mark_are_not_lost(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(12).release(9, b"up to nine").append(4).close()
    path, position = log.place(5)
    flip(path, position + 30)
    _, position = log.place(11)
    flip(path, position + 30)
    report = salvaged(log, [11])
    assert report.lost == [(11, 11)]
    assert contents(tmp_path / "new").mark == (9, 1, b"up to nine")


def test_a_damaged_reset_is_found_again_in_the_next_file(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "log").append(5).reset(100, term=2)
    log = builder.append(30, term=2).close()
    (position, fields), *_ = log.frames(FrameKind.RELEASE)
    flip(log.file(fields[7]), position + 30)
    salvaged(log, [])
    assert contents(tmp_path / "new").mark == (100, 2, b"")


def test_what_was_lost_before_is_told_from_what_is_lost_now(log: Built, tmp_path: Path) -> None:
    path, position = log.place(23)
    flip(path, position + 64)
    salvaged(log, [23], to="first")
    del log.entries
    copy = Built(tmp_path / "first", log.log_id)
    report = salvage(copy.folder, tmp_path / "second")
    assert report.complete
    assert (report.lost, report.lost_before) == ([], [(23, 23)])
    assert contents(tmp_path / "second") == contents(tmp_path / "first")


def test_a_copy_of_a_frame_inside_a_payload_is_not_taken_for_a_frame(tmp_path: Path) -> None:
    """An entry may hold a piece of its own log; if its header is damaged, that is still payload."""
    builder = Builder(tmp_path / "log", config=WalConfig(file_bytes=1 << 16, spare_files=0))
    builder.append(6, groups=1)
    builder.wal.flush()
    stored = builder.built.file(1).read_bytes()
    position, fields = next(
        (at, each) for at, each in builder.built.frames(FrameKind.ENTRY) if each[8] == 3
    )
    builder.configuration(stored[position : position + 64 + fields[2]])
    log = builder.append(4).close()
    path, position = log.place(7)
    flip(path, position + 30)
    salvaged(log, [7])
