"""What `lakebed wal` shows, checks and saves, and the exit codes that go with it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lakebed.cli import cli
from lakebed.version import __version__
from lakebed.wal import Wal
from lakebed.wal.frame import FrameKind
from tests.cli.logs import (
    SMALL,
    Builder,
    Built,
    contents,
    cut,
    fingerprint,
    flip,
    overwrite,
    plain,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return plain(tmp_path_factory.mktemp("original") / "log")


@pytest.fixture
def log(original: Built, tmp_path: Path) -> Built:
    return original.copy_to(tmp_path / "log")


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def of_type(kind: str, result: Result) -> list[dict[str, Any]]:
    return [line for line in lines(result) if line["type"] == kind]


def add_foreign_file(log: Built, tmp_path: Path) -> Path:
    """Put the file of another log behind the last one, under its own number."""
    other = Builder(tmp_path / "other").append(90).close()
    path = log.file(len(log.files()) + 1)
    path.write_bytes(other.file(len(log.files()) + 1).read_bytes())
    return path


# The program


def test_it_says_its_version() -> None:
    assert run("--version").stdout == f"lakebed {__version__}\n"


@pytest.mark.parametrize("command", [[], ["wal"], ["wal", "inspect"], ["wal", "salvage"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_a_wrong_call_is_exit_code_2(log: Built) -> None:
    assert run("wal", "salvage", log.folder).exit_code == 2
    assert run("wal", "inspect").exit_code == 2


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_folder_that_is_no_log_is_an_error_with_advice(tmp_path: Path, command: str) -> None:
    result = run("wal", command, tmp_path)
    assert result.exit_code == 1
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first == f"error: there is no log in this folder path={tmp_path}"
    assert second.startswith("advice: ")
    assert second.endswith("(code: not_a_log)")


def test_with_json_an_error_is_json_too(tmp_path: Path) -> None:
    result = run("wal", "verify", tmp_path / "nowhere", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)
    assert error["type"] == "error"
    assert error["code"] == "not_a_log"
    assert error["facts"] == {"path": str(tmp_path / "nowhere")}
    assert error["retriable"] is False


def test_a_file_in_place_of_a_folder_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("wal", "inspect", tmp_path / "file")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("command", [["inspect"], ["verify"], ["inspect", "--frames"]])
def test_looking_changes_nothing(log: Built, command: list[str]) -> None:
    before = fingerprint(log.folder)
    assert run("wal", *command, log.folder).exit_code == 0
    assert fingerprint(log.folder) == before


@pytest.mark.parametrize("way", ["wal", "wal/.", "."])
def test_the_wal_folder_names_the_log_too(
    log: Built, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log.folder / "wal" if way == "." else log.folder)
    result = run("wal", "verify", way, "--json")
    assert result.exit_code == 0
    assert lines(result)[0]["log"] == str(log.log_id)


# inspect


def test_inspect_shows_each_file_and_the_log(log: Built) -> None:
    result = run("wal", "inspect", log.folder, "--json")
    assert result.exit_code == 0
    files, (whole,) = of_type("file", result), of_type("log", result)
    assert lines(result) == [*files, whole]
    assert [each["file"] for each in files] == list(range(1, len(log.files()) + 1))
    assert [each["state"] for each in files[:-1]] == ["sealed"] * (len(files) - 1)
    assert files[-1]["state"] == "active"
    for each in files:
        indexes = log.indexes_in(each["file"])
        times = [f[12] for _, f in log.frames(FrameKind.ENTRY) if f[7] == each["file"]]
        assert (each["first_index"], each["last_index"]) == (indexes[0], indexes[-1])
        assert (each["first_time_us"], each["last_time_us"]) == (times[0], times[-1])
        assert each["entries"] == len(indexes)
        assert each["size_bytes"] == 8192 >= each["used_bytes"] > 64
    assert sum(each["frames"] for each in files) == len(log.frames())
    assert (whole["log"], whole["verdict"]) == (str(log.log_id), "open")
    assert (whole["first_index"], whole["last_index"]) == (1, 60)
    assert whole["hard_state"] == {"term": 1, "vote": 7}
    assert (whole["owner"], whole["error"]) == (None, None)


def test_inspect_shows_a_table_to_people(log: Built) -> None:
    result = run("wal", "inspect", log.folder)
    shown = result.stdout.splitlines()
    assert shown[0].split() == ["log", str(log.log_id), "in", str(log.folder)]
    assert "verdict     open" in shown
    header = shown.index("") + 1
    assert shown[header].split()[:3] == ["file", "size", "used"]
    assert len(shown[header + 1 :]) == len(log.files())
    assert shown[-1].endswith("active")
    assert "\x1b" not in result.stdout


def test_inspect_shows_the_release(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(50).release(30, b"s3://here").append(3).close()
    (whole,) = of_type("log", run("wal", "inspect", log.folder, "--json"))
    assert whole["mark"] == {"index": 30, "term": 1, "note": b"s3://here".hex()}
    assert whole["first_index"] == 31
    assert "released    through 30" in run("wal", "inspect", log.folder).stdout


def test_inspect_lists_every_frame(log: Built) -> None:
    result = run("wal", "inspect", log.folder, "--frames", "--json")
    frames = of_type("frame", result)
    assert [(each["file"], each["byte"], each["index"]) for each in frames] == [
        (fields[7], position, fields[8]) for position, fields in log.frames()
    ]
    assert {each["kind"] for each in frames} == {"hard_state", "entry", "idle"}
    assert [line["type"] for line in lines(result)][-1] == "log"


def test_frames_are_aligned_lines(log: Built) -> None:
    shown = run("wal", "inspect", log.folder, "--frames").stdout.splitlines()
    header, rows = shown[0], shown[1 : len(log.frames()) + 1]
    assert header.split() == ["file", "byte", "kind", "index", "term", "bytes", "durable", "time"]
    column = header.index("time")
    assert all(row[column - 1] == " " and row[column : column + 2] == "20" for row in rows)


def test_frames_begin_at_an_index_and_stop_after_a_number(log: Built) -> None:
    result = run("wal", "inspect", log.folder, "--from", 41, "--limit", 5, "--json")
    frames = lines(result)
    assert [each["type"] for each in frames] == ["frame"] * 5
    entries = [each["index"] for each in frames if each["kind"] == "entry"]
    assert entries[0] == 41
    assert entries == list(range(41, 41 + len(entries)))


def test_frames_from_beyond_the_end_are_none(log: Built) -> None:
    result = run("wal", "inspect", log.folder, "--from", 61, "--json")
    assert of_type("frame", result) == []
    assert result.exit_code == 0


def test_inspect_goes_on_behind_damage_and_says_where_it_is(log: Built) -> None:
    path, position = log.place(23)
    flip(path, position + 64)
    result = run("wal", "inspect", log.folder, "--frames", "--json")
    assert result.exit_code == 0
    (bad,) = of_type("damaged", result)
    assert (bad["byte"], bad["reason"]) == (position, "bad checksum: payload")
    indexes = [each["index"] for each in of_type("frame", result) if each["kind"] == "entry"]
    assert indexes == [index for index in range(1, 61) if index != 23]
    states = {each["file"]: each["state"] for each in of_type("file", result)}
    assert states[bad["file"]] == "damaged"
    (whole,) = of_type("log", result)
    assert whole["verdict"] == "corruption"
    assert whole["error"]["facts"]["index"] == 23
    assert f"damaged at byte {position}" in run("wal", "inspect", log.folder).stdout


def test_inspect_shows_a_log_with_a_damaged_file_header(log: Built) -> None:
    flip(log.file(2), 20)
    result = run("wal", "inspect", log.folder, "--json")
    assert result.exit_code == 0
    files = of_type("file", result)
    assert (files[1]["state"], files[1]["bad_byte"]) == ("damaged", 0)
    assert sum(each["entries"] for each in files) == 60
    assert run("wal", "inspect", log.folder).exit_code == 0


def test_inspect_shows_a_foreign_file(log: Built, tmp_path: Path) -> None:
    path = add_foreign_file(log, tmp_path)
    result = run("wal", "inspect", log.folder, "--json")
    shown = of_type("file", result)[-1]
    assert (shown["path"], shown["state"]) == (str(path), "foreign")
    assert of_type("log", result)[0]["error"]["code"] == "foreign_file"


def test_inspect_shows_files_even_if_nothing_says_which_log_it_is(log: Built) -> None:
    (log.folder / "lakebed.json").unlink()
    for path in log.files():
        overwrite(path, 0, b"x" * 64)
    result = run("wal", "inspect", log.folder, "--frames", "--json")
    assert result.exit_code == 0
    assert {each["state"] for each in of_type("file", result)} == {"damaged"}
    assert of_type("log", result)[0]["log"] is None


def test_inspect_says_that_a_living_process_owns_the_log(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", SMALL) as wal:
        wal.append(b"one")
        result = run("wal", "inspect", tmp_path / "log")
        (whole,) = of_type("log", run("wal", "inspect", tmp_path / "log", "--json"))
        assert wal.append(b"two") == 2
    assert result.exit_code == 0
    assert f"by a running process (pid={os.getpid()}" in result.stdout
    assert "may change" in result.stdout
    assert whole["owner"]["pid"] == os.getpid()
    assert whole["last_index"] == 1
    assert "in use" not in run("wal", "inspect", tmp_path / "log").stdout


# verify


def test_verify_of_a_whole_log_is_exit_code_0(log: Built) -> None:
    result = run("wal", "verify", log.folder)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "verdict     open" in result.stdout
    assert "60 entries" in result.stdout


def check_verify(log: Built, *, file: Path, byte: int | None, index: int, code: str) -> None:
    """Check that both forms of verify name exactly this place."""
    result = run("wal", "verify", log.folder, "--json")
    assert result.exit_code == 1
    (found,) = lines(result)
    assert (found["file"], found["byte"], found["index"]) == (str(file), byte, index)
    assert found["verdict"] == "corruption"
    error = json.loads(result.stderr)
    assert (error["code"], error["facts"]["file"]) == (code, str(file))
    shown = run("wal", "verify", log.folder)
    assert shown.exit_code == 1
    assert f"file={file}" in shown.stderr
    assert byte is None or f"byte={byte} " in shown.stderr
    assert f"={index}" in shown.stderr
    assert f"(code: {code})" in shown.stderr


def test_verify_names_a_damaged_payload(log: Built) -> None:
    path, position = log.place(60)
    flip(path, position + 64)
    check_verify(log, file=path, byte=position, index=60, code="corruption")


def test_verify_names_a_damaged_frame_header(log: Built) -> None:
    path, position = log.place(7)
    flip(path, position + 25)
    check_verify(log, file=path, byte=position, index=7, code="corruption")


def test_verify_names_damage_in_a_middle_file(log: Built) -> None:
    inside = log.indexes_in(3)
    path, position = log.place(inside[-1])
    flip(path, position + 5)
    check_verify(log, file=path, byte=position, index=inside[-1], code="corruption")


@pytest.mark.parametrize("number", [1, 3, 5])
def test_verify_names_a_damaged_file_header(log: Built, number: int) -> None:
    flip(log.file(number), 41)
    index = log.indexes_in(number)[0]
    check_verify(log, file=log.file(number), byte=0, index=index, code="corruption")


def test_verify_names_a_missing_middle_file(log: Built) -> None:
    gone = log.indexes_in(3)
    log.file(3).unlink()
    check_verify(log, file=log.file(4), byte=None, index=gone[0], code="missing_file")
    error = json.loads(run("wal", "verify", log.folder, "--json").stderr)
    assert error["facts"]["missing_files"] == "3"
    assert error["facts"]["first_index_lost"] == gone[0]
    assert error["facts"]["last_index_lost"] == gone[-1]
    assert "before the log was salvaged" not in run("wal", "verify", log.folder).stdout


def test_verify_names_a_missing_first_file(log: Built) -> None:
    gone = log.indexes_in(1)
    log.file(1).unlink()
    check_verify(log, file=log.file(2), byte=None, index=gone[0], code="missing_file")


def test_verify_names_a_file_that_was_cut_short(log: Built) -> None:
    inside = log.indexes_in(2)
    path, position = log.place(inside[4])
    cut(path, position + 64)
    check_verify(log, file=path, byte=position + 64, index=inside[4], code="corruption")


def test_verify_names_a_foreign_file(log: Built, tmp_path: Path) -> None:
    path = add_foreign_file(log, tmp_path)
    result = run("wal", "verify", log.folder)
    assert result.exit_code == 1
    assert f"file={path}" in result.stderr
    assert "(code: foreign_file)" in result.stderr


def test_verify_of_a_torn_tail_is_exit_code_3_and_opening_cuts_it(tmp_path: Path) -> None:
    log = Builder(tmp_path / "log").append(8).close()
    position = log.frames()[-1][0] + 64
    overwrite(log.file(1), position, b"half a frame")
    result = run("wal", "verify", log.folder)
    assert result.exit_code == 3
    assert "verdict     torn tail" in result.stdout
    assert f"torn at     file={log.file(1)} byte={position} index=9" in result.stdout
    assert "nothing proves that it was synced" in result.stdout
    (found,) = lines(run("wal", "verify", log.folder, "--json"))
    assert (found["verdict"], found["byte"], found["index"]) == ("torn tail", position, 9)
    assert contents(log.folder).entries == log.entries
    assert run("wal", "verify", log.folder).exit_code == 0


def test_verify_says_that_the_identity_file_will_be_rebuilt(log: Built) -> None:
    (log.folder / "lakebed.json").unlink()
    result = run("wal", "verify", log.folder)
    assert result.exit_code == 0
    assert "opening the log rebuilds it" in result.stdout


# salvage


def test_salvage_of_a_whole_log_is_exit_code_0(log: Built, tmp_path: Path) -> None:
    result = run("wal", "salvage", log.folder, "--to", tmp_path / "new")
    assert result.exit_code == 0
    assert "saved  60 entries, 1 to 60" in result.stdout
    assert "lost   nothing" in result.stdout
    assert contents(tmp_path / "new") == contents(log.folder)
    assert run("wal", "verify", tmp_path / "new").exit_code == 0


def test_salvage_says_what_is_lost_with_exit_code_3(log: Built, tmp_path: Path) -> None:
    path, position = log.place(23)
    flip(path, position + 64)
    gone = log.indexes_in(4)
    log.file(4).unlink()
    result = run("wal", "salvage", log.folder / "wal", "--to", tmp_path / "new")
    assert result.exit_code == 3
    lost = f"{1 + len(gone)} entries: 23, {gone[0]} to {gone[-1]}"
    assert f"lost     {lost}" in result.stdout
    assert "missing  files 4" in result.stdout
    assert any(
        str(path) in line and f"{position} to " in line for line in result.stdout.splitlines()
    )
    again = run("wal", "verify", tmp_path / "new")
    assert again.exit_code == 0
    holes = f"23, {gone[0]} to {gone[-1]}, before the log was salvaged"
    assert holes in again.stdout
    assert holes in run("wal", "inspect", tmp_path / "new").stdout


def test_salvage_reports_in_json(log: Built, tmp_path: Path) -> None:
    path, position = log.place(23)
    flip(path, position + 64)
    result = run("wal", "salvage", log.folder, "--to", tmp_path / "new", "--json")
    assert result.exit_code == 3
    (report,) = lines(result)
    assert report["type"] == "salvage"
    assert (report["saved"], report["lost"], report["lost_count"]) == (59, [[23, 23]], 1)
    assert (report["lost_from"], report["complete"], report["torn"]) == (None, False, None)
    assert report["damages"] == [
        {
            "file": str(path),
            "start": position,
            "end": report["damages"][0]["end"],
            "reason": "bad checksum: payload",
        }
    ]
    assert report["log_id"] == str(log.log_id)
    assert report["hard_state"] == {"term": 1, "vote": 7}


def test_salvage_says_that_the_end_is_unknown(log: Built, tmp_path: Path) -> None:
    path, position = log.place(59)
    cut(path, position + 64)
    result = run("wal", "salvage", log.folder, "--to", tmp_path / "new")
    assert result.exit_code == 3
    assert "from index 59 on, unknown how many" in result.stdout


def test_salvage_into_a_folder_with_something_in_it_is_refused(log: Built, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("mine")
    result = run("wal", "salvage", log.folder, "--to", tmp_path / "new", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stderr)["code"] == "invalid_argument"


def test_ctrl_c_is_not_taken_for_damage(log: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["lakebed.cli.wal"], "verify", interrupted)
    result = run("wal", "verify", log.folder)
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
