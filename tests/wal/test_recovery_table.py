"""The decision table of recovery: every combination of its inputs, and a real log for every row."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lakebed import limits
from lakebed.errors import CorruptionError, DeviceError
from lakebed.host import Fault, FaultyDisk, ManualClock, SimDisk
from lakebed.wal import Wal, WalConfig
from lakebed.wal.frame import FrameKind, salt_of
from lakebed.wal.recovery import Verdict, decide, survey
from lakebed.wal.scan import Ending
from tests.proof.forge import forged, forged_file_header
from tests.proof.simulated import FOLDER, LAYOUT, disk_with, open_on

END, SHORT, BAD, RESIDUE = Ending.END, Ending.SHORT, Ending.BAD_CHECKSUM, Ending.RESIDUE
OUT_OF_PLACE, UNREADABLE = Ending.OUT_OF_PLACE, Ending.UNREADABLE
HARD_STATE, TRUNCATE, RELEASE, IDLE, GAP = list(FrameKind)[1:]
EITHER = (True, False)
YES, NO = (True,), (False,)


class Row(NamedTuple):
    """What a row of the table is about, which inputs it takes, and what follows."""

    label: str
    endings: tuple[Ending, ...]
    clean: tuple[bool, ...]
    proven: tuple[bool, ...]
    last_file: tuple[bool, ...]
    verdict: Verdict

    def takes(self, ending: Ending, clean: bool, proven: bool, last_file: bool) -> bool:
        """Return whether the row is about these inputs."""
        return (
            ending in self.endings
            and clean in self.clean
            and proven in self.proven
            and last_file in self.last_file
        )


TABLE = [
    Row("nothing is bad", (END,), YES, NO, EITHER, Verdict.OPEN),
    Row("frames behind the end", (END,), NO, NO, YES, Verdict.TORN_TAIL),
    Row("a bad end of the log", (SHORT, BAD, RESIDUE), EITHER, NO, YES, Verdict.TORN_TAIL),
    Row("synced once", (END, SHORT, BAD, RESIDUE), EITHER, YES, EITHER, Verdict.CORRUPTION),
    Row("the next file does not continue", (END,), NO, NO, NO, Verdict.CORRUPTION),
    Row("bad, and files follow", (SHORT, BAD, RESIDUE), EITHER, NO, NO, Verdict.CORRUPTION),
    Row("out of place", (OUT_OF_PLACE,), EITHER, EITHER, EITHER, Verdict.CORRUPTION),
    Row("unreadable", (UNREADABLE,), EITHER, EITHER, EITHER, Verdict.DEVICE_ERROR),
]


@pytest.mark.parametrize(
    ("ending", "clean", "proven", "last_file"),
    list(itertools.product(Ending, EITHER, EITHER, EITHER)),
    ids=lambda each: each.name.lower() if isinstance(each, Ending) else str(each),
)
def test_every_combination_has_one_row_and_its_verdict(
    ending: Ending, clean: bool, proven: bool, last_file: bool
) -> None:
    """The table is complete, has no two answers to one question, and is what `decide` says."""
    rows = [row for row in TABLE if row.takes(ending, clean, proven, last_file)]
    assert len(rows) == 1
    assert decide(ending, clean=clean, proven=proven, last_file=last_file) is rows[0].verdict


# A log of two files, not closed. Each frame has 192 bytes: entries 1 to 20 fill the first file, 21
# to 24 are in the second. 23 and 24 were written at once: nothing says that they were synced.
FIRST, SECOND = LAYOUT.file(1), LAYOUT.file(2)
AT_19, AT_20, BEHIND_20 = (64 + 192 * number for number in (18, 19, 20))
AT_21, AT_22, AT_23, AT_24, BEHIND_24 = (64 + 192 * number for number in range(5))

Edit = Callable[[bytes, int], bytes]
"""Changes a file's bytes; it is also given the salt of the log's checksums."""


def two_files() -> tuple[dict[Path, bytes], int]:
    """Make the log described above; return its files and the salt of its checksums."""
    disk = SimDisk()
    log = open_on(disk, WalConfig(file_bytes=4096, spare_files=0))
    for number in range(1, 23):
        log.append(bytes([number]) * 128)
    log.append_many([bytes([number]) * 128 for number in (23, 24)])
    return disk.contents(), salt_of(log.log_id)


def zeroed(start: int, stop: int) -> Edit:
    """Zero a range."""
    return lambda data, _: data[:start] + bytes(stop - start) + data[stop:]


def flipped(at: int) -> Edit:
    """Flip a bit of the byte at a position."""
    return lambda data, _: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def changed(at: int, **fields: int) -> Edit:
    """Change fields of the frame at a position, and make its header checksum right."""
    return lambda data, salt: forged(data, at, salt, **fields)


def moved(source: int, target: int, **fields: int) -> Edit:
    """Copy the frame at `source` to `target`, with fields changed."""

    def edit(data: bytes, salt: int) -> bytes:
        copy = data[:target] + data[source : source + 192] + data[target + 192 :]
        return forged(copy, target, salt, **fields)

    return edit


class Case(NamedTuple):
    """A log that produces a row of the table: what is done to which file, and what is found."""

    row: str
    name: str
    path: Path
    edit: Edit
    ending: Ending
    byte: int
    last_index: int
    """The log's end if it opens, else 0."""


TOO_LONG = 1 << 31
MARK_TOO_LONG = limits.MARK_BYTES_MAX + 1
LOGS: dict[str, list[tuple[str, Path, Edit, Ending, int, int]]] = {
    "nothing is bad": [
        ("untouched", SECOND, zeroed(0, 0), END, BEHIND_24, 24),
        ("never written", SECOND, zeroed(AT_23, 4096), END, AT_23, 22),
    ],
    "frames behind the end": [
        ("header lost", SECOND, zeroed(AT_23, AT_23 + 64), END, AT_23, 22),
        ("payload lost too", SECOND, zeroed(AT_23, AT_24), END, AT_23, 22),
    ],
    "a bad end of the log": [
        ("header", SECOND, flipped(AT_24 + 40), BAD, AT_24, 23),
        ("payload", SECOND, flipped(AT_23 + 64), BAD, AT_23, 22),
        ("length", SECOND, changed(AT_24, length=TOO_LONG), SHORT, AT_24, 23),
        ("old frame", SECOND, moved(AT_24, BEHIND_24, file_number=1), RESIDUE, BEHIND_24, 24),
    ],
    "synced once": [
        ("header lost", SECOND, zeroed(AT_21, AT_21 + 64), END, AT_21, 0),
        ("header", SECOND, flipped(AT_22 + 20), BAD, AT_22, 0),
        ("payload", SECOND, flipped(AT_22 + 191), BAD, AT_22, 0),
        ("length", SECOND, changed(AT_22, length=TOO_LONG), SHORT, AT_22, 0),
        ("old frame", SECOND, changed(AT_22, file_number=1), RESIDUE, AT_22, 0),
    ],
    "the next file does not continue": [
        ("last frame lost", FIRST, zeroed(AT_20, BEHIND_20), END, AT_20, 0),
        ("last frames lost", FIRST, zeroed(AT_19, BEHIND_20), END, AT_19, 0),
    ],
    "bad, and files follow": [
        ("header", FIRST, flipped(AT_20 + 8), BAD, AT_20, 0),
        ("payload", FIRST, flipped(AT_19 + 100), BAD, AT_19, 0),
        ("end block", FIRST, flipped(BEHIND_20), BAD, BEHIND_20, 0),
        ("length", FIRST, changed(AT_20, length=TOO_LONG), SHORT, AT_20, 0),
        ("old frame", FIRST, changed(AT_20, file_number=0), RESIDUE, AT_20, 0),
    ],
    "out of place": [
        ("later file", SECOND, changed(AT_24, file_number=3), OUT_OF_PLACE, AT_24, 0),
        ("parent", SECOND, changed(AT_24, parent=1), OUT_OF_PLACE, AT_24, 0),
        ("index", SECOND, changed(AT_24, index=25), OUT_OF_PLACE, AT_24, 0),
        ("kind", SECOND, changed(AT_24, kind=99), OUT_OF_PLACE, AT_24, 0),
        ("truncation", SECOND, changed(AT_24, kind=TRUNCATE, index=30), OUT_OF_PLACE, AT_24, 0),
        ("release", SECOND, changed(AT_24, kind=RELEASE, index=30), OUT_OF_PLACE, AT_24, 0),
        ("hard state", SECOND, changed(AT_24, kind=HARD_STATE), OUT_OF_PLACE, AT_24, 0),
        ("gap", SECOND, changed(AT_24, kind=GAP), OUT_OF_PLACE, AT_24, 0),
        ("mark", SECOND, changed(AT_24, kind=IDLE, length=MARK_TOO_LONG), OUT_OF_PLACE, AT_24, 0),
        ("full file", FIRST, changed(AT_20, index=19), OUT_OF_PLACE, AT_20, 0),
    ],
}
CASES = [Case(row, *log) for row, logs in LOGS.items() for log in logs]


def test_every_row_has_a_log_that_produces_it() -> None:
    """No row is only theory; `unreadable` needs a failing disk and has a test of its own."""
    assert {case.row for case in CASES} | {"unreadable"} == {row.label for row in TABLE}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}: {case.name}")
def test_a_log_in_this_state_is_judged_by_its_row(case: Case) -> None:
    """The survey of a real log stops where, and for the reason, that the row is about."""
    contents, salt = two_files()
    contents[case.path] = case.edit(contents[case.path], salt)
    found = survey(disk_with(contents), LAYOUT)
    verdict = next(row.verdict for row in TABLE if row.label == case.row)
    assert found.verdict is verdict
    if verdict is Verdict.OPEN:
        assert found.stop is None
        assert found.files[-1].used_bytes == case.byte
        return
    assert found.stop is not None
    assert (found.stop.ending, found.stop.position) == (case.ending, case.byte)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}: {case.name}")
def test_a_log_in_this_state_opens_or_is_refused_as_its_row_says(case: Case) -> None:
    """It opens up to the bad place, which is kept aside; or it is refused, naming the place."""
    contents, salt = two_files()
    contents[case.path] = case.edit(contents[case.path], salt)
    disk = disk_with(contents)
    if case.last_index:
        log = open_on(disk, WalConfig(file_bytes=4096))
        assert log.last_index == case.last_index
        assert [bytes(each.payload) for each in log.entries()] == [
            bytes([number]) * 128 for number in range(1, case.last_index + 1)
        ]
        kept = log.stats().recovery.torn_kept_in
        assert (kept is None) == (case.row == "nothing is bad")
        return
    with pytest.raises(CorruptionError) as caught:
        open_on(disk, WalConfig(file_bytes=4096))
    assert (caught.value.facts["file"], caught.value.facts["byte"]) == (case.path, case.byte)
    assert disk.contents() == contents


@pytest.mark.parametrize("field", ["first_index", "parent"])
def test_a_file_whose_header_does_not_continue_the_one_before_is_refused(field: str) -> None:
    """The next file must name both the index and the frame that the one before ends with."""
    contents, _ = two_files()
    fields: dict[str, object] = {field: 20}
    contents[SECOND] = forged_file_header(contents[SECOND], **fields)
    with pytest.raises(CorruptionError) as caught:
        open_on(disk_with(contents), WalConfig(file_bytes=4096))
    assert (caught.value.facts["file"], caught.value.facts["byte"]) == (FIRST, BEHIND_20)


def test_the_bytes_of_a_torn_tail_are_kept_and_then_zero() -> None:
    """What is cut off can be looked at later, and can never be taken for frames again."""
    contents, _ = two_files()
    torn = contents[SECOND][:AT_24] + bytes(64) + contents[SECOND][AT_24 + 64 :]
    disk = disk_with({**contents, SECOND: torn[:AT_23] + b"?" + torn[AT_23 + 1 :]})
    before = disk.contents()[SECOND]
    log = open_on(disk, WalConfig(file_bytes=4096))
    kept = log.stats().recovery.torn_kept_in
    assert kept is not None
    assert disk.contents()[Path(kept)] == before[AT_23:].rstrip(b"\0")
    idle_mark_bytes = 64
    assert not any(disk.contents()[SECOND][AT_23 + idle_mark_bytes :])


@pytest.mark.parametrize("path", [FIRST, SECOND])
def test_an_unreadable_place_is_never_taken_for_the_end(path: Path) -> None:
    """A read that fails is a device error with file and byte; the log is left as it is."""
    contents, _ = two_files()
    disk = disk_with(contents)
    for nth in itertools.count(1):
        faulty = FaultyDisk(disk, Fault("read", nth, errno.EIO))
        try:
            found = survey(faulty, LAYOUT)
        except DeviceError:
            continue  # the identity or a file header: nothing can be surveyed without them
        if found.verdict is not Verdict.DEVICE_ERROR:
            break
        if found.stop is not None and found.error is not None and found.error.facts["file"] == path:
            assert found.stop.ending is UNREADABLE
            with pytest.raises(DeviceError) as caught:
                Wal.open(
                    FOLDER,
                    disk=FaultyDisk(disk, Fault("read", nth, errno.EIO)),
                    clock=ManualClock(),
                    threaded=False,
                )
            assert caught.value.facts["byte"] == found.stop.position
            assert disk.contents() == contents
            return
    raise AssertionError("no read of this file failed")
