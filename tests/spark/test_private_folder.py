"""A private folder stays private while Spark uses it: other users of the machine are refused."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import lakebed
from lakebed.client.config import ClientConfig
from lakebed.errors import InvalidArgumentError, ServerUnavailableError
from lakebed.host import OsDisk
from lakebed.serve import own_socket
from lakebed.spark.serving import url_of
from lakebed.wal.folder import Layout, living_owner
from tests.waiting import PATIENCE_SECONDS, until

_AS_ANOTHER_USER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(sys.argv[1])
except PermissionError:
    print("refused")
else:
    print("connected")
"""


@pytest.fixture(params=["sidecar", "own process"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The URL of a log without tokens in a private folder, and the process that serves it."""
    folder = tmp_path / "log"
    log = lakebed.open(folder)
    log.create_topic("orders", 1)
    log.append("orders", b"secret")
    if request.param == "own process":
        with log:
            yield url_of(log), os.getpid()
        return
    log.close()
    url = url_of(folder)
    owner = living_owner(OsDisk(), Layout(folder))
    assert owner is not None
    process = int(str(owner["pid"]))
    yield url, process
    os.kill(process, signal.SIGTERM)
    until(lambda: living_owner(OsDisk(), Layout(folder)) is None, "the sidecar ends")
    until(lambda: not Path(urlsplit(url).path).parent.exists(), "the sidecar removes its socket")


def listening_ports(process: int) -> set[str]:
    """Return the addresses on which a process listens by TCP."""
    folder = Path(f"/proc/{process}/fd")
    targets = set()
    for entry in folder.iterdir():
        try:
            targets.add(os.readlink(entry))
        except OSError:
            continue  # closed since it was listed
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in targets:
                ports.add(fields[1])
    return ports


def test_the_owner_of_the_folder_reads_and_writes(served: tuple[str, int]) -> None:
    url, _ = served
    with lakebed.open(url, ClientConfig(retry_ms=60_000)) as log:
        assert log.append("orders", b"second").offset == 1
        assert log.read("orders").column("value").to_pylist() == [b"secret", b"second"]
        assert log.access.tokens() == []


def test_a_log_is_served_to_spark_without_a_port(served: tuple[str, int]) -> None:
    url, process = served
    assert urlsplit(url).scheme == "lakebed+unix"
    folder = Path(urlsplit(url).path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if process != os.getpid():  # other tests of this process may have ports
        assert listening_ports(process) == set()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_refused(served: tuple[str, int]) -> None:
    path = urlsplit(served[0]).path
    done = subprocess.run(
        [sys.executable, "-c", _AS_ANOTHER_USER, path],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert done.stdout.strip() == "refused"
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(path)


def test_a_path_that_is_too_long_for_a_socket_is_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    made = own_socket.OwnSocket()
    try:
        assert len(bytes(made.path)) <= 107
        assert list(long.iterdir()) == []
    finally:
        made.remove()


@pytest.mark.parametrize(
    "url", ["lakebed+unix://host/path", "lakebed+unix://", "lakebed+unix:///a?b"]
)
def test_a_url_that_is_no_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="absolute path"):
        lakebed.open(url)


def test_a_socket_that_is_gone_is_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailableError):
        lakebed.open(f"lakebed+unix://{tmp_path}/gone", ClientConfig(retry_ms=0))
