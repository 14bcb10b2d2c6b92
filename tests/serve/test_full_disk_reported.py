"""A disk that is full when memtables are: writers learn it at once, and so do health checks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import Log, LogConfig, ServeConfig, WalConfig, aio
from lakebed.client.config import ClientConfig
from lakebed.errors import DiskFullError, RejectedError
from lakebed.host import Fault, FaultyDisk, OsDisk
from lakebed.serve.server import Server
from tests.engine.support import inner
from tests.waiting import until

_VALUE = bytes(100_000)
_CONFIG = LogConfig(memtable_bytes=1 << 20, write_timeout_ms=60_000)


class Full:
    """A log whose disk can be filled and emptied."""

    def __init__(self, folder: Path) -> None:
        self._disk = FaultyDisk(OsDisk())
        self.log = Log.open(folder, _CONFIG, disk=self._disk)
        self.log.create_topic("t")
        self.written = 0

    def fill(self) -> None:
        """Let no file be made any more; the WAL has room in its current one."""
        first = self._disk.calls["open"] + 1
        self._disk.fault = Fault("open", first, errno=errno.ENOSPC, lasting=True)

    def free(self) -> None:
        """Let files be made again."""
        self._disk.fault = None

    def write_until_refused(self) -> DiskFullError:
        """Append until the memtable is full."""
        with pytest.raises(DiskFullError, match="memtable is full") as refused:
            for _ in range(100):
                self.log.append("t", _VALUE)
                self.written += 1
        return refused.value


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    disk = Full(tmp_path / "log")
    try:
        yield disk
    finally:
        disk.free()
        disk.log.close()


def _ready(server: Server) -> tuple[int, dict[str, Any]]:
    status, body = _get(server, "/health/ready")
    return status, json.loads(body)


def _get(server: Server, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_writers_learn_at_once_that_the_disk_is_full(full: Full) -> None:
    """No write waits for `write_timeout_ms`; writing continues without a reopen."""
    full.fill()
    error = full.write_until_refused()
    assert error.retriable
    assert "no space left" in str(error.facts["cause"])
    assert full.log.stats().disk_full
    assert full.log.read("t").num_rows == full.written
    full.free()
    until(lambda: not full.log.stats().disk_full, "a checkpoint")
    full.log.append("t", _VALUE)


def test_async_writers_learn_at_once_that_the_disk_is_full(tmp_path: Path) -> None:
    """The asynchronous log refuses as the other one does."""

    async def write() -> None:
        disk = FaultyDisk(OsDisk())
        log = await aio.open(tmp_path / "log", _CONFIG)
        inner(log._log).parts.segment_folder.disk = disk
        await log.create_topic("t")
        disk.fault = Fault("open", 1, errno=errno.ENOSPC, lasting=True)
        with pytest.raises(DiskFullError):
            for _ in range(100):
                await log.append("t", _VALUE)
        disk.fault = None
        await log.close()

    asyncio.run(write())


def test_a_full_disk_is_not_ready_and_clients_get_the_reason(full: Full) -> None:
    """`/health/ready` is 503 with the reason, the metric is 1; both heal."""
    config = ServeConfig(port=0, http_port=0)
    with Server(full.log, config).start() as server:
        assert _ready(server) == (200, {"ready": True, "reason": ""})
        full.fill()
        full.write_until_refused()
        status, answer = _ready(server)
        assert status == 503
        assert "the disk is full" in answer["reason"]
        assert b"\nlakebed_disk_full 1.0\n" in _get(server, "/metrics")[1]
        with lakebed.open(server.url, ClientConfig(retry_ms=3000)) as client:
            with pytest.raises(DiskFullError):
                client.append("t", _VALUE)
            with pytest.raises(DiskFullError):
                client.append_batch("t", [{"value": _VALUE}])
            full.free()
            until(lambda: _ready(server)[0] == 200, "a checkpoint")
            client.append("t", _VALUE)


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EMFILE, "too_many_files")]
)
def test_a_wal_file_that_cannot_be_made_is_not_ready_until_it_can(
    tmp_path: Path, number: int, code: str
) -> None:
    """A rotation that fails shows in `/health/ready`; it heals without a write."""
    disk = FaultyDisk(OsDisk())
    wal = WalConfig(file_bytes=1 << 20, spare_files=0)
    with Log.open(tmp_path / "log", LogConfig(wal=wal), disk=disk) as log:
        log.create_topic("t")
        with Server(log, ServeConfig(port=0, http_port=0)).start() as server:
            disk.fault = Fault("open", disk.calls["open"] + 1, errno=number, lasting=True)
            with pytest.raises(RejectedError) as refused:
                for _ in range(100):
                    log.append("t", _VALUE)
            assert refused.value.code == code
            for _ in range(2):  # looking does not heal it
                status, answer = _ready(server)
                assert status == 503
                assert answer["reason"] == f"no WAL file can be made, so writes are refused: {code}"
            disk.fault = None
            assert _ready(server) == (200, {"ready": True, "reason": ""})
            log.append("t", _VALUE)


def test_a_spare_wal_file_that_cannot_be_made_is_not_ready_until_it_can(tmp_path: Path) -> None:
    """It is made ahead of the rotation that needs it, so there is time to act."""
    disk = FaultyDisk(OsDisk())
    wal = WalConfig(file_bytes=1 << 20, spare_files=1)
    with Log.open(tmp_path / "log", LogConfig(wal=wal), disk=disk) as log:
        log.create_topic("t")
        with Server(log, ServeConfig(port=0, http_port=0)).start() as server:
            disk.fault = Fault(
                "preallocate", disk.calls["preallocate"] + 1, errno=errno.ENOSPC, lasting=True
            )
            for _ in range(5):
                log.append("t", _VALUE)
            until(lambda: _ready(server)[0] == 503, "the spare file")
            disk.fault = None
            assert _ready(server)[0] == 200
