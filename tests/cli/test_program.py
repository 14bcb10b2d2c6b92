"""The program as a process: pipes, terminals, a log that is being written, and memory."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakebed.wal import Wal, WalConfig
from tests import forked
from tests.cli.logs import Builder, Built, contents, flip, plain

PROGRAM = [sys.executable, "-m", "lakebed.cli"]


def start(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, *(str(each) for each in arguments)]
    return forked.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return plain(tmp_path_factory.mktemp("log") / "data")


def test_the_installed_program_is_this_one() -> None:
    program = Path(sys.executable).with_name("lakebed")
    result = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == start("--version").stdout
    assert result.stdout.startswith("lakebed ")


def test_exit_codes_and_streams(log: Built, tmp_path: Path) -> None:
    damaged = log.copy_to(tmp_path / "damaged")
    path, position = damaged.place(31)
    flip(path, position + 70)
    whole = start("wal", "verify", log.folder)
    assert (whole.returncode, whole.stderr) == (0, "")
    bad = start("wal", "verify", damaged.folder, "--json")
    assert bad.returncode == 1
    assert json.loads(bad.stdout)["index"] == json.loads(bad.stderr)["facts"]["index"] == 31
    saved = start("wal", "salvage", damaged.folder, "--to", tmp_path / "new", "--json")
    assert (saved.returncode, saved.stderr) == (3, "")
    assert json.loads(saved.stdout)["lost"] == [[31, 31]]
    assert len(contents(tmp_path / "new").entries) == 59
    assert start("wal", "verify", tmp_path / "nowhere").returncode == 1
    assert start("wal", "nonsense").returncode == 2


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_stops_reading_ends_it_quietly(tmp_path: Path, form: list[str]) -> None:
    log = Builder(tmp_path / "log", config=WalConfig(file_bytes=1 << 20, spare_files=0))
    log.append(3000, sizes=(1, 40), groups=1000).close()
    command = [*PROGRAM, "wal", "inspect", str(tmp_path / "log"), "--frames", *form]
    with forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()  # more is to come than the pipe holds
        assert process.stderr.read() == b""
        assert process.wait(timeout=600) == 141


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_reader_that_never_reads_ends_it_quietly(log: Built, command: str) -> None:
    """The exit code is that of a broken pipe: it must not say that the log is whole."""
    reader, writer = os.pipe()
    os.close(reader)
    result = forked.run(
        [*PROGRAM, "wal", command, log.folder],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=600,
        check=False,
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


def on_a_terminal(*arguments: object, **environment: str) -> str:
    """Run with stdout and stderr on a terminal of 200 columns; return what it shows."""
    controller, terminal = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    env |= {"TERM": "xterm", "COLUMNS": "200", **environment}
    command = [*PROGRAM, *(str(each) for each in arguments)]
    with forked.Popen(command, stdout=terminal, stderr=terminal, env=env) as process:
        os.close(terminal)
        shown = b"".join(iter(lambda: _read(controller), b""))
        assert process.wait(timeout=600) == 0
    os.close(controller)
    return shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # how a terminal says that the other side is closed
        return b""


def test_colours_are_for_terminals_that_want_them(log: Built) -> None:
    assert "\x1b[1m" in on_a_terminal("wal", "inspect", log.folder)
    assert "\x1b[1m" not in on_a_terminal("wal", "inspect", log.folder, NO_COLOR="1")
    assert "\x1b" not in start("wal", "inspect", log.folder).stdout


def test_progress_is_shown_on_a_terminal_and_not_with_json(log: Built) -> None:
    assert "verifying" in on_a_terminal("wal", "verify", log.folder)
    assert "verifying" not in on_a_terminal("wal", "verify", log.folder, "--json")
    assert start("wal", "verify", log.folder).stderr == ""


@contextmanager
def being_written(folder: Path) -> Iterator[Wal]:
    """Append to a log as fast as it goes, releasing old entries, until the block ends."""
    done = threading.Event()
    with Wal.open(folder, WalConfig(file_bytes=1 << 16)) as wal:

        def write() -> None:
            while not done.is_set():
                last = wal.append_many([bytes(100)] * 20)[-1]
                if last % 400 == 0:
                    wal.release(last - 300)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield wal
        finally:
            done.set()
            writer.join()


def test_a_log_that_is_being_written_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    with being_written(tmp_path / "log") as wal:
        for _ in range(3):
            before = wal.last_index
            result = start("wal", "verify", tmp_path / "log", "--json")
            assert result.returncode == 0, result.stdout + result.stderr
            found = json.loads(result.stdout)
            assert found["owner"]["pid"] == os.getpid()
            assert found["verdict"] == "open"
            # What is written but not yet acknowledged may be seen: one group of 20 at most.
            assert before <= found["last_index"] <= wal.last_index + 20
        shown = start("wal", "inspect", tmp_path / "log", "--frames", "--json").stdout
    assert '"type": "frame"' in shown
    assert '"type": "damaged"' not in shown


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_output_that_cannot_be_written_is_a_message_not_a_traceback(
    tmp_path: Path, command: str
) -> None:
    with Wal.open(tmp_path / "log") as wal:
        wal.append(b"x")
    for redirection in (">/dev/full", ">&-"):
        shell = f"{sys.executable} -m lakebed.cli wal {command} {tmp_path / 'log'} {redirection}"
        result = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
        assert result.returncode == 1
        assert result.stderr.startswith("error: the output cannot be written")
        assert "Traceback" not in result.stderr


_MEASURE = """
import resource, sys
from click.testing import CliRunner
from lakebed.cli import cli
folder, new = sys.argv[1:]
CliRunner().invoke(cli, ["wal", "inspect", folder + "-small"])
CliRunner().invoke(cli, ["wal", "salvage", folder + "-small", "--to", new + "-small"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for command in ("inspect --frames", "verify", "salvage --to " + new):
    name, *options = command.split()
    arguments = [name, folder, *options]
    result = CliRunner().invoke(cli, ["wal", *arguments])
    print(result.exit_code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_bounded_whatever_the_size_of_an_entry(tmp_path: Path) -> None:
    """Three hundred megabytes in two entries, one of them damaged."""
    plain(tmp_path / "log-small")
    config = WalConfig(file_bytes=1 << 22, entry_bytes_max=1 << 28, spare_files=0)
    part = bytes(range(256)) * 4096
    with Wal.open(tmp_path / "log", config) as wal:
        wal.append(b"before")
        wal.append([part] * 150)
        wal.append([part] * 150)
        wal.append(b"after")
    log = Built(tmp_path / "log")
    path, position = log.place(3)
    with path.open("r+b") as file:
        file.seek(position + 64 + (1 << 27))
        file.write(b"rot")
    command = [sys.executable, "-c", _MEASURE, str(tmp_path / "log"), str(tmp_path / "new")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    codes, growth = zip(
        *(map(int, line.split()) for line in result.stdout.splitlines()), strict=True
    )
    assert codes == (0, 1, 3)
    assert max(growth) < 50 * 1024  # kilobytes
    with Wal.open(tmp_path / "new", config) as wal:
        assert len(wal.entry(2).payload) == 150 << 20
        assert bytes(wal.entry(4).payload) == b"after"
