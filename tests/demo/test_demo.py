"""`lakebed demo`, as a newcomer runs it: to its end, twice, and stopped in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tools.fresh_machine import shape, shown_demo

import lakebed
from lakebed import __version__
from lakebed.demo.asking import _quote
from lakebed.demo.children import Child, _environment
from lakebed.demo.story import stage
from lakebed.demo.writer import count_written
from lakebed.errors import DemoFailedError, InvalidArgumentError
from tests.waiting import PATIENCE_SECONDS, until

PROGRAM = [str(Path(sys.executable).with_name("lakebed")), "demo", "--records", "4000"]


@pytest.mark.prove
@pytest.mark.timeout(2400)
def test_the_demo_does_what_it_says(tmp_path: Path) -> None:
    """It starts Spark three times: two minutes, and more beside other tests."""
    done = subprocess.run(
        PROGRAM, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=2340
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"killed \(SIGKILL\) after ([\d,]+) acknowledged records", done.stdout)
    assert "killed (SIGKILL) with its JVM" in done.stdout
    assert "4,000 records expected, 4,000 found, 0 missing, 0 changed, moved" in done.stdout
    assert "2,800 after (2,800 expected)" in done.stdout
    assert done.stdout.count(": matches, ") == 3
    assert "\nReport: demo/report.html\n" in done.stdout
    assert shape(done.stdout) == shape(shown_demo(Path(__file__).parents[2]))
    for command in re.findall(r"^  lakebed (.+)$", done.stdout, re.MULTILINE):
        subprocess.run(
            [PROGRAM[0], *command.split()],
            cwd=tmp_path,
            capture_output=True,
            check=True,
            timeout=600,
        )
    assert "All checks passed" in (tmp_path / "demo/report.html").read_text()
    assert not (tmp_path / "demo/tmp").exists()
    with lakebed.open(tmp_path / "demo/log") as log:
        assert set(log.topics()) >= {"orders", "paid-orders", "orders-dead"}


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_it_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Not the folder, and not a process."""
    with subprocess.Popen(
        [*PROGRAM[:-1], "5000000", "--folder", "here/demo"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            until(lambda: (tmp_path / "here/demo/log/wal").exists() and bool(writers(tmp_path)))
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert not (tmp_path / "here/demo").exists()
    assert writers(tmp_path) == []


def writers(folder: Path) -> list[str]:
    """Return the command lines of the writers below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode()
            if "lakebed.demo.writer" in command and os.readlink(process / "cwd") == str(folder):
                found.append(command)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since
    return found


def test_a_writer_that_was_killed_continues_after_what_is_in_the_log(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("orders", partitions=2)
    arguments = [str(tmp_path / "log"), "2", "3000"]
    heard: list[str] = []

    def hear(child: Child, line: str) -> None:
        heard.append(line)
        if len(heard) == 20:
            child.kill()

    with Child("lakebed.demo.writer", arguments, tmp_path, hear) as child:
        child.wait(lambda: None)
    assert child.was_killed
    with Child("lakebed.demo.writer", arguments, tmp_path, lambda *_: None) as child:
        child.wait(lambda: None)
    assert not child.was_killed
    with lakebed.open(tmp_path / "log") as log:
        assert count_written(log) == {0: 3000, 1: 3000}


def test_a_process_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(DemoFailedError, match="ValueError"),
        Child("lakebed.demo.writer", ["x", "no number"], tmp_path, lambda *_: None) as child,
    ):
        child.wait(lambda: None)


def test_a_process_that_nobody_has_got_hold_of_is_ended_too() -> None:
    code = (
        "import contextlib, subprocess\n"
        "from lakebed.demo.children import alone\n"
        "for own in (True, False):\n"
        "    with contextlib.suppress(KeyboardInterrupt), alone():\n"
        "        child = subprocess.Popen(['sleep', '600'], start_new_session=own)\n"
        "        raise KeyboardInterrupt\n"
        "    print(child.poll() is not None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == "True\nTrue\n"


def test_whoever_cannot_listen_ends_the_process_and_says_why(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("orders")

    def hear(_: Child, line: str) -> None:
        raise ValueError(line)

    arguments = [str(tmp_path / "log"), "1", "100000000"]
    with (
        pytest.raises(ValueError, match="opened"),
        Child("lakebed.demo.writer", arguments, tmp_path, hear) as child,
    ):
        child.wait(lambda: None)


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "below a file"])
def test_what_is_no_folder_is_left_alone(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("years of work")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    place = tmp_path / "file" / "demo" if kind == "below a file" else tmp_path / kind
    with pytest.raises(lakebed.LakebedError), stage(place):
        pass
    assert (tmp_path / "file").read_text() == "years of work"


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidArgumentError, match="name another"), stage(tmp_path):
        pass
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_paths_may_have_spaces_and_quotes(tmp_path: Path) -> None:
    java = _environment(tmp_path / "a b")["JDK_JAVA_OPTIONS"]
    assert java.endswith(f'"-Djava.io.tmpdir={tmp_path}/a b"')
    assert _quote(Path("it's")) == "it''s"


def test_a_run_replaces_an_earlier_one(tmp_path: Path) -> None:
    for _ in range(2):
        with stage(tmp_path / "demo"):
            (tmp_path / "demo/tmp").mkdir()
            assert not (tmp_path / "demo/report.html").exists()
            (tmp_path / "demo/report.html").touch()
    assert [each.name for each in tmp_path.iterdir()] == ["demo"]


def test_a_run_that_does_not_end_leaves_the_earlier_one(tmp_path: Path) -> None:
    with stage(tmp_path / "demo"):
        (tmp_path / "demo/tmp").mkdir()
        (tmp_path / "demo/report.html").write_text("the first")
    with pytest.raises(KeyboardInterrupt), stage(tmp_path / "demo"):
        (tmp_path / "demo/report.html").write_text("half of it")
        raise KeyboardInterrupt
    assert (tmp_path / "demo/report.html").read_text() == "the first"
    assert [each.name for each in tmp_path.iterdir()] == ["demo"]


def test_without_its_packages_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['duckdb'] = None; from lakebed.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "demo", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    error = json.loads(done.stderr)
    assert (error["code"], done.returncode) == ("package_missing", 1)
    assert "pip install '.[demo]'" in error["message"]
    assert f"lakebed-{__version__}-py3-none-any.whl[demo]" in error["message"]
    assert not (tmp_path / "demo").exists()
