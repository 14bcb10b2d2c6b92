"""A program that uses a part of Lakebed does not load the rest of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from lakebed import ServeConfig
from lakebed.engine.log import EmbeddedLog
from lakebed.serve.server import Server

HEAVY: Final = ("lakebed.engine", "lakebed.iceberg", "lakebed.lake", "lakebed.wal", "pyiceberg")


def loaded_by(code: str) -> set[str]:
    """Run code in a new interpreter; return the modules that it has loaded at the end."""
    program = f"{code}\nimport sys; print(*sorted(sys.modules), sep=chr(10))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def heavy(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith(HEAVY)}


def test_importing_lakebed_loads_neither_the_engine_nor_arrow() -> None:
    modules = loaded_by("import lakebed")
    assert heavy(modules) == set()
    assert {"numpy", "pandas", "pyarrow"} & modules == set()


def test_every_public_name_can_be_imported_and_listed() -> None:
    code = """
import lakebed
names = set(dir(lakebed))
assert names >= set(lakebed.__all__), set(lakebed.__all__) - names
from lakebed import *
assert isinstance(Log, type)
try:
    lakebed.Logg
except AttributeError as error:
    assert "Logg" in str(error)
else:
    raise AssertionError("a name that does not exist was found")
"""
    assert "lakebed.api.log" in loaded_by(code)


def test_opening_a_url_loads_the_client_alone(tmp_path: Path) -> None:
    """It appends, reads and consumes, so that nothing of it loads the rest later."""
    with Server(EmbeddedLog.open(tmp_path), ServeConfig(port=0, http_port=-1)) as server:
        code = f"""
import lakebed
with lakebed.open({server.url!r}) as log:
    assert isinstance(log, lakebed.Log)
    log.create_topic("t")
    log.append("t", b"1")
    with log.producer() as producer:
        producer.send("t", b"2")
    with log.transaction() as transaction:
        transaction.append("t", b"3")
    assert log.read("t")["value"].to_pylist() == [b"1", b"2", b"3"]
    with log.consumer("g", ["t"]) as consumer:
        assert consumer.poll(60_000).num_rows == 3
        consumer.commit()
    assert log.table("t").latest().num_rows == 0
    assert log.stats().topics == 1
"""
        modules = loaded_by(code)
    assert heavy(modules) == set()


def test_opening_a_folder_does_not_load_the_client_or_the_server(tmp_path: Path) -> None:
    code = f"import lakebed\nwith lakebed.open({str(tmp_path)!r}) as log: log.create_topic('t')"
    modules = loaded_by(code)
    assert {name for name in modules if name.startswith("lakebed.serve")} == set()
    assert "lakebed.client.log" not in modules


def test_asyncio_does_not_load_the_engine_before_a_folder_is_opened() -> None:
    assert heavy(loaded_by("import lakebed.aio")) == set()
