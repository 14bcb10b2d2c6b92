"""Serving a log in a store: kill the machine, delete its disk, and every record is there."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lakebed
from lakebed.chain.records import decode_lease
from tests import forked


@contextlib.contextmanager
def serving(tmp_path: Path, machine: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve the log of a store on a machine; return the process and its URL."""
    command = [sys.executable, "-m", "lakebed.cli", "serve", "--data", f"file://{tmp_path}/shop"]
    command += ["--folder", str(tmp_path / machine), "--port", "0", "--http-port", "-1"]
    with forked.Popen(
        command, stdout=subprocess.PIPE, text=True, env={"LAKEBED_WAL_LEASE_MS": "600"}
    ) as child:
        try:
            assert child.stdout is not None
            match = re.search(r"at (lakebed://\S+)", child.stdout.readline())
            assert match is not None
            yield child, match[1]
        finally:
            child.kill()


def test_a_server_is_killed_and_its_folder_deleted(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with serving(tmp_path, "a") as (child, url):
        with lakebed.open(url) as log:
            log.create_topic("orders")
            for number in range(20):
                log.append("orders", b"%d" % number)
            assert log.stats().shipping.acks == "store"  # type: ignore[union-attr]
        (lease,) = (tmp_path / "shop").glob("*/lease")
        assert decode_lease(lease.read_bytes()).address == url
        child.send_signal(signal.SIGKILL)
        child.wait()
    shutil.rmtree(tmp_path / "a")
    with serving(tmp_path, "b") as (_, url), lakebed.open(url) as log:
        found = log.read("orders")["value"].to_pylist()
        assert found == [b"%d" % number for number in range(20)]


def test_commands_work_on_a_log_in_a_store(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "lakebed.cli", *arguments]
        command += ["--data", f"file://{tmp_path}/shop"]
        done = forked.run(command, capture_output=True, text=True, env=cache, check=False)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    run("topic", "create", "orders")
    assert "orders" in run("topic", "list")
    assert "not shipped" in run("stats")
