"""How Spark's processes reach a log: they get a URL, whoever owns the folder, or an error."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed
from lakebed.client.config import ClientConfig
from lakebed.config import CONFIG_NAME
from lakebed.errors import InvalidArgumentError, LockedError, ServerUnavailableError
from lakebed.host import OsDisk
from lakebed.serve.server import Server
from lakebed.spark import serving, sidecar
from lakebed.spark.connection import connect, reachable
from lakebed.spark.options import Target
from lakebed.spark.serving import LOCAL, url_of
from lakebed.wal.folder import Layout, living_owner
from tests.engine.support import inner
from tests.serve.support import ServerProcess, line_of, python
from tests.waiting import PATIENCE_SECONDS, until

CLIENT = ClientConfig(retry_ms=20_000)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A log that nobody has open; a sidecar that a test leaves is ended."""
    where = tmp_path / "log"
    with lakebed.open(where) as log:
        log.create_topic("orders", 1)
        log.append("orders", b"first")
    yield where
    owner = living_owner(OsDisk(), Layout(where))
    if owner is not None and owner.get("pid") != os.getpid():
        end(where, signal.SIGTERM)


def end(folder: Path, number: signal.Signals) -> None:
    """End the owner of a folder, and wait until it has let go of it."""
    owner = living_owner(OsDisk(), Layout(folder))
    assert owner is not None
    os.kill(int(str(owner["pid"])), number)
    until(lambda: living_owner(OsDisk(), Layout(folder)) is None, "the owner ends")


def values(url: str) -> list[bytes]:
    with lakebed.open(url, CLIENT) as log:
        return [bytes(each) for each in log.read("orders").column("value").to_pylist()]


def test_a_folder_that_nobody_owns_is_kept_until_it_is_left_alone(folder: Path) -> None:
    url = url_of(folder)
    assert url_of(folder) == url
    assert url_of(str(folder)) == url
    with lakebed.open(url, CLIENT) as log:
        log.append("orders", b"second")
    owner = living_owner(OsDisk(), Layout(folder))
    assert owner is not None
    assert owner["pid"] != os.getpid()
    end(folder, signal.SIGTERM)
    with lakebed.open(folder) as log:
        assert log.read("orders").column("value").to_pylist() == [b"first", b"second"]


def test_a_sidecar_ends_when_nobody_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "from lakebed.spark import sidecar; sidecar.IDLE_SECONDS = 0.0; "
        f"sidecar.serve({str(folder)!r})"
    )
    with python(script) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
    assert sidecar.IDLE_SECONDS > 0
    assert living_owner(OsDisk(), Layout(folder)) is None
    with lakebed.open(folder) as log:
        assert log.offsets("orders") == {0: (0, 1)}


def test_a_sidecar_that_was_killed_is_replaced_by_the_next_call(folder: Path) -> None:
    target = Target(str(folder), CLIENT)
    assert connect(target).offsets("orders") == {0: (0, 1)}
    planned = reachable(target)
    end(folder, signal.SIGKILL)
    # A task that was planned before goes on with whoever serves the folder now.
    assert connect(planned, patient=True).offsets("orders") == {0: (0, 1)}
    assert connect(target).append("orders", b"second").offset == 1
    assert reachable(target).log == url_of(folder) != planned.log
    assert reachable(planned).folder == str(folder)


def test_a_folder_that_cannot_be_opened_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / CONFIG_NAME).write_text("nonsense")
    with pytest.raises(ServerUnavailableError, match="the log could not be opened") as caught:
        url_of(folder)
    assert CONFIG_NAME in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no log in this folder"):
        url_of(tmp_path / "nothing")


def test_a_folder_whose_owner_does_not_serve_it_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_OWNER_SECONDS", 0.1)
    script = "import lakebed, sys, time; log = lakebed.open(sys.argv[1]); print('open', flush=True)"
    with python(f"{script}; time.sleep(600)", folder) as process:
        assert line_of(process) == "open"
        with pytest.raises(LockedError, match=r"session\(log=log\)") as caught:
            url_of(folder)
        assert caught.value.facts["pid"] == process.pid


def test_a_folder_that_is_served_gives_its_url(folder: Path) -> None:
    with ServerProcess(folder) as server:
        assert url_of(folder) == server.url
        assert values(url_of(folder)) == [b"first"]
        with server.open() as log:
            assert url_of(log) == server.url
    assert url_of("lakebed://there:1") == "lakebed://there:1"


def test_a_server_that_is_being_restarted_is_waited_for_by_the_patient(folder: Path) -> None:
    with ServerProcess(folder) as server:
        target = Target(server.url, ClientConfig(retry_ms=60_000))
        server.kill()
        at_once = Target(server.url, ClientConfig(retry_ms=0))
        with pytest.raises(ServerUnavailableError):
            connect(at_once)
        with pytest.raises(ServerUnavailableError):
            connect(at_once, patient=True)
        server.start()
        assert connect(target, patient=True).offsets("orders") == {0: (0, 1)}


def test_an_open_log_is_served_once_and_until_it_is_closed(tmp_path: Path) -> None:
    with contextlib.closing(lakebed.open(tmp_path / "log")) as log:
        log.create_topic("orders", 1)
        url = url_of(log)
        assert url_of(log) == url_of(tmp_path / "log") == url
        log.append("orders", b"first")
        assert values(url) == [b"first"]
    with pytest.raises(ServerUnavailableError):
        lakebed.open(url, ClientConfig(retry_ms=0))
    with contextlib.closing(lakebed.open(tmp_path / "log")) as log:
        assert values(url_of(log)) == [b"first"]


def test_a_log_that_its_owner_serves_is_not_served_again(tmp_path: Path) -> None:
    log = lakebed.open(tmp_path / "log")
    with Server(inner(log), LOCAL) as server:
        assert url_of(tmp_path / "log") == server.url
