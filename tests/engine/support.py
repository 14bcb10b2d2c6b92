"""What the tests of the engine share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed import Log, LogConfig, limits
from lakebed.engine.core import Key
from lakebed.engine.log import EmbeddedLog
from lakebed.host import Disk, ManualClock, SimDisk, failpoints
from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.topic_table import TopicTables
from lakebed.state.commands import Command
from lakebed.state.image import encode_state

PRICE = pa.schema([pa.field("item", pa.string()), pa.field("price", pa.int64())])
"""The schema of a typed topic."""

served: Callable[[Log], Log] | None = None
"""Serves a log and gives the client that reaches it: tests/serve runs these tests over the wire."""


def quiet(
    folder: str | Path = "/log",
    config: LogConfig | None = None,
    *,
    disk: Disk | None = None,
    clock: ManualClock | None = None,
) -> Log:
    """Open a log that does everything in the calling thread, in memory unless told otherwise."""
    log = Log.open(
        folder,
        config,
        disk=SimDisk() if disk is None else disk,
        clock=ManualClock() if clock is None else clock,
        threaded=False,
    )
    return log if served is None else served(log)


def opened(folder: str | Path, config: LogConfig | None = None, *, disk: Disk) -> Log:
    """Open a log on a disk of the test's own."""
    log = Log.open(folder, config, disk=disk)
    return log if served is None else served(log)


def inner(log: Log) -> EmbeddedLog:
    """Return the embedded log: this one, or the one that a server serves it from."""
    found = getattr(log, "served", log)
    assert isinstance(found, EmbeddedLog)
    return found


def submit(log: Log, command: Command) -> Any:
    """Write a command as producers and transactions do, also through a server."""
    return log._submit(command)


def _nothing() -> None:
    """Do nothing."""


@contextmanager
def at_next_command(
    part: Any, before: Callable[[], object] = _nothing, after: Callable[[], object] = _nothing
) -> Iterator[None]:
    """Do something before or after the next command that a part of the log writes."""
    submit = part._submit
    with pytest.MonkeyPatch.context() as patch:

        def write(command: Command) -> Any:
            patch.undo()
            before()
            result = submit(command)
            after()
            return result

        patch.setattr(part, "_submit", write)
        yield


def waiting_readers(log: Log) -> dict[Key, list[Callable[[], None]]]:
    """Return those who wait for records, by partition."""
    return inner(log).parts.core._watchers


def is_gathering(log: Log) -> bool:
    """Return whether appended records wait for the entry that will hold them."""
    return inner(log).parts.writing._open is not None


def lake_parts(log: Log) -> LakeParts:
    """Return what the lake of a log is made of: its store, its names, its identity."""
    return inner(log).lake._parts


def topic_tables(log: Log) -> TopicTables:
    """Return the tables of topics as the catalog has them, without a sync."""
    return inner(log).lake._tables


def rows(log: Log, topic: str, partition: int = 0, column: str = "value") -> list[Any]:
    """Return a column of everything that a partition holds."""
    found: list[Any] = []
    offset: int | str = "earliest"
    while True:
        table = log.read(topic, partition, offset, columns=["offset", column])
        if not table.num_rows:
            return found
        found += table.column(column).to_pylist()
        offset = table.column("offset")[-1].as_py() + 1


def everything(log: Log, topic: str, column: str = "value") -> list[Any]:
    """Return a column of every partition, one after the other."""
    return [each for number in log.offsets(topic) for each in rows(log, topic, number, column)]


def state_of(log: Log) -> bytes:
    """Return the state of a log as bytes; of a served one, without what its client itself needs."""
    state = inner(log).parts.core.state
    if inner(log) is not log:
        state = state.copy()
        own = [each.id for each in state.producers.values() if each.name == ""]
        for number in own:
            del state.producers[number]
        state.sequences = {key: each for key, each in state.sequences.items() if key[0] not in own}
        state.numbers["applied"] = 0
    return encode_state(state)


def in_threads(count: int, work: Callable[[int], object]) -> list[Any]:
    """Do the work in several threads at once; return what each returned or raised."""
    outcomes: list[Any] = [None] * count

    def run(number: int) -> None:
        try:
            outcomes[number] = work(number)
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    return outcomes


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Have failpoints act within the block."""
    failpoints.arm(text)
    try:
        yield
    finally:
        failpoints.disarm()


@contextmanager
def any_time() -> Iterator[None]:
    """Accept every time of 64 bits within the block, as version 0.6 did."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TIME_US_MIN", -(2**80))
        patch.setattr(limits, "TIME_US_MAX", 2**80)
        yield
