"""Bad input and a hostile environment: a typed error that names the thing and the way out."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from lakebed import errors
from lakebed.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    EntryTooLargeError,
    ForeignFileError,
    FormatTooNewError,
    InvalidArgumentError,
    LakebedError,
    LockedError,
    MissingFileError,
    NotALogError,
    RejectedError,
)
from lakebed.wal import HardState, Wal, WalConfig
from lakebed.wal.folder import _identity_checksum
from lakebed.wal.frame import FILE_VERSION, FileHeader
from tests import forked

SMALL = WalConfig(file_bytes=4096, spare_files=0)


def make(folder: Path, entries: int = 30) -> None:
    with Wal.open(folder, SMALL) as log:
        for number in range(entries):
            log.append(b"%d" % number * 200)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wal/*.wal"))


def content(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_folder_with_other_things_in_it_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"...")
    with pytest.raises(NotALogError, match=r"found=holiday\.jpg"):
        Wal.open(tmp_path)
    assert os.listdir(tmp_path) == ["holiday.jpg"]


def test_a_file_is_not_a_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"...")
    with pytest.raises(NotALogError):
        Wal.open(tmp_path / "file")


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    make(tmp_path / "log")
    record: dict[str, object] = {"format": 99, "log": str(uuid.uuid4())}
    text = json.dumps({**record, "crc32c": _identity_checksum(record)})
    (tmp_path / "log" / "lakebed.json").write_text(text)
    before = content(tmp_path / "log")
    with pytest.raises(FormatTooNewError, match="version=99 supported=1"):
        Wal.open(tmp_path / "log", SMALL)
    assert content(tmp_path / "log") == before


def test_a_newer_wal_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "log")
    file = files(tmp_path / "log")[1]
    data = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("lakebed.wal.frame.FILE_VERSION", FILE_VERSION + 1)
        newer = FileHeader(2, 4096, uuid.uuid4(), 1, 0, 0).encode()
    file.write_bytes(newer + data[64:])
    with pytest.raises(FormatTooNewError, match=file.name):
        Wal.open(tmp_path / "log", SMALL)


def test_another_logs_file_among_ours_is_named(tmp_path: Path) -> None:
    make(tmp_path / "log")
    make(tmp_path / "other")
    stranger = files(tmp_path / "log")[2]
    stranger.write_bytes(files(tmp_path / "other")[2].read_bytes())
    with pytest.raises(ForeignFileError, match=stranger.name):
        Wal.open(tmp_path / "log", SMALL)


def test_a_missing_file_in_the_middle_is_named(tmp_path: Path) -> None:
    make(tmp_path / "log")
    files(tmp_path / "log")[2].unlink()
    with pytest.raises(MissingFileError, match="first_index_lost=1 last_index_lost="):
        Wal.open(tmp_path / "log", SMALL)


def test_an_identity_without_a_wal_is_a_loss_not_a_new_log(tmp_path: Path) -> None:
    make(tmp_path / "log")
    for file in files(tmp_path / "log"):
        file.unlink()
    with pytest.raises(MissingFileError):
        Wal.open(tmp_path / "log", SMALL)


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage"])
def test_a_lost_identity_file_is_rebuilt(tmp_path: Path, damage: str) -> None:
    make(tmp_path / "log")
    identity = tmp_path / "log" / "lakebed.json"
    before = identity.read_bytes()
    identity.unlink()
    if damage != "missing":
        identity.write_bytes(b"" if damage == "empty" else b"\xff{not json")
    with Wal.open(tmp_path / "log", SMALL) as log:
        assert log.last_index == 30
    assert identity.read_bytes() == before


def test_a_folder_owned_by_a_living_process_names_it(tmp_path: Path) -> None:
    code = (
        "import sys; from lakebed.wal import Wal; log = Wal.open(sys.argv[1]);"
        "log.append(b'x'); print('ready', flush=True); sys.stdin.read()"
    )
    with forked.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "ready\n"
        with pytest.raises(LockedError, match=f"pid={owner.pid}") as refused:
            Wal.open(tmp_path / "log")
        assert refused.value.retriable
        owner.kill()
        owner.wait()
        with Wal.open(tmp_path / "log") as log:
            assert log.last_index == 1


def test_a_second_owner_in_this_process_is_refused_too(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log"), pytest.raises(LockedError, match=f"pid={os.getpid()}"):
        Wal.open(tmp_path / "log")


def test_a_refused_log_is_not_left_locked(tmp_path: Path) -> None:
    make(tmp_path / "log")
    hidden = tmp_path / "hidden"
    victim = files(tmp_path / "log")[1]
    victim.rename(hidden)
    for _ in range(2):
        with pytest.raises(MissingFileError):
            Wal.open(tmp_path / "log", SMALL)
    hidden.rename(victim)
    with Wal.open(tmp_path / "log", SMALL) as log:
        assert log.last_index == 30


def test_a_forked_child_cannot_write_its_parents_log(tmp_path: Path) -> None:
    code = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from lakebed.wal import Wal
from lakebed.errors import ClosedError
log = Wal.open({str(tmp_path / "log")!r})
log.append(b"parent")
child = os.fork()
if child == 0:
    try:
        log.append(b"child")
    except ClosedError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert log.append(b"parent again") == 2
log.close()
"""
    done = forked.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_does_not_keep_its_dead_parents_lock(tmp_path: Path) -> None:
    code = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from lakebed.wal import Wal
log = Wal.open({str(tmp_path / "log")!r})
log.append(b"parent")
if os.fork() == 0:
    print("the child lives", flush=True)
    sys.stdin.read()
os._exit(0)
"""
    with forked.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "the child lives\n"
        parent.wait()
        with Wal.open(tmp_path / "log") as log:
            assert log.last_index == 1


@pytest.mark.parametrize("value", [1, "text", None, 1.5, {"a": 1}, [b"ok", "text"], [1, 2]])
def test_what_is_not_bytes_is_refused(tmp_path: Path, value: object) -> None:
    with Wal.open(tmp_path / "log") as log:
        with pytest.raises(InvalidArgumentError, match="bytes"):
            log.append(value)  # type: ignore[arg-type]
        assert log.append(b"x") == 1


def test_a_buffer_that_is_not_contiguous_is_refused(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        with pytest.raises(InvalidArgumentError, match="contiguous"):
            log.append(memoryview(b"abcdef")[::2])
        assert log.last_index == 0


def test_too_many_parts_are_refused(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log, pytest.raises(EntryTooLargeError, match="parts=65537"):
        log.append([b""] * 65_537)


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        for call in (
            lambda: log.append(b"x", term=-1),
            lambda: log.append(b"x", term=2**64),
            lambda: log.set_hard_state(HardState(-1)),
            lambda: log.set_hard_state(HardState(1, 2**64)),
            lambda: log.release(0, b"x" * 300_000),
            lambda: log.truncate(-1),
        ):
            with pytest.raises(InvalidArgumentError):
                call()
        assert log.append(b"x", term=2**64 - 1) == 1


@pytest.mark.parametrize("bad", [1.5, "a", None])
def test_what_is_not_an_index_is_refused(tmp_path: Path, bad: Any) -> None:
    with Wal.open(tmp_path / "log") as log:
        log.append_many([b"a", b"b"])
        calls: list[Callable[[], object]] = [
            lambda: log.entry(bad),
            lambda: log.read(bad),
            lambda: log.wait(bad, 0),
        ]
        calls += [lambda: log.truncate(bad), lambda: log.read(1, max_entries=bad)]
        if bad is not None:
            calls += [lambda: list(log.entries(bad)), lambda: list(log.follow(bad, timeout=0))]
            calls += [lambda: log.append(b"x", term=bad)]
        for call in calls:
            with pytest.raises(InvalidArgumentError, match="integer"):
                call()
        assert log.last_index == 2


def test_arguments_of_another_type_are_refused(tmp_path: Path) -> None:
    wrong: Any = "wrong"
    with Wal.open(tmp_path / "log") as log:
        for call in (
            lambda: log.append(b"x", kind=wrong),
            lambda: log.append_many(wrong),
            lambda: log.append_many(cast(Any, {b"a"})),
            lambda: log.set_hard_state(wrong),
            lambda: log.release(0, wrong),
        ):
            with pytest.raises(InvalidArgumentError):
                call()
    with pytest.raises(ClosedError):
        log.append_many([])
    with pytest.raises(ClosedError):
        log.wait(1)


@pytest.mark.parametrize("folder", [None, 5, b"bytes", "nul\0byte"])
def test_what_is_not_a_path_is_refused(folder: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not a path"):
        Wal.open(folder)


def test_settings_of_another_type_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    wrong: Any = {"sync": "os"}
    with pytest.raises(InvalidArgumentError, match="WalConfig"):
        Wal.open(tmp_path / "log", wrong)
    assert os.listdir(tmp_path) == []


def test_a_log_shows_what_it_is(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        log.append(b"x")
        assert repr(log) == f"<Wal '{tmp_path / 'log'}': 1 to 1>"
    assert repr(log).endswith(": closed>")


def test_an_error_says_in_its_traceback_what_to_do() -> None:
    assert DiskFullError("full").__notes__ == [f"advice: {DiskFullError.advice}"]


def test_stray_files_do_not_disturb(tmp_path: Path) -> None:
    make(tmp_path / "log")
    (tmp_path / "log" / "wal" / "notes.txt").write_text("hello")
    (tmp_path / "log" / "wal" / "x.spare").write_text("not a spare")
    (tmp_path / "log" / "wal" / "00000000000000000009.spare.tmp").write_text("half made")
    with Wal.open(tmp_path / "log", SMALL) as log:
        assert log.last_index == 30
    assert "notes.txt" in os.listdir(tmp_path / "log" / "wal")


def test_an_empty_wal_file_is_corruption(tmp_path: Path) -> None:
    make(tmp_path / "log")
    last = files(tmp_path / "log")[-1]
    last.write_bytes(b"")
    with pytest.raises(CorruptionError, match=last.name):
        Wal.open(tmp_path / "log", SMALL)


def classes(root: type[LakebedError] = LakebedError) -> list[type[LakebedError]]:
    found = [root]
    for child in root.__subclasses__():
        found += classes(child)
    return found


def test_every_error_has_its_own_code_advice_and_place_in_the_tree() -> None:
    found = [kind for kind in classes() if kind.__module__ == "lakebed.errors"]
    assert len({kind.code for kind in found}) == len(found)
    assert all(kind.advice and kind.__name__ in (errors.__doc__ or "") for kind in found)
    assert len(found) > 30


def test_an_error_survives_pickling_and_shows_its_facts_last() -> None:
    error = EntryTooLargeError("too large", bytes=5, bytes_max=4)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "too large bytes=5 bytes_max=4"
    assert isinstance(again, RejectedError)
    assert again.facts == {"bytes": 5, "bytes_max": 4}
    assert ClosedError("closed").retriable is False
