"""A client is told of a write when it is durable, and not before."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from lakebed import Log, ServeConfig
from lakebed.serve.guard import Principal
from lakebed.serve.puts import AckPool, PutStream
from lakebed.serve.server import Server
from lakebed.wire.protocol import pack, unpack
from tests.waiting import PATIENCE_SECONDS, until
from tests.wal.test_promises import HeldDisk

_LOOK_SECONDS = 0.3
"""How long to look for an acknowledgement that must not come."""


def test_nothing_is_acknowledged_over_the_wire_while_its_sync_is_under_way(tmp_path: Path) -> None:
    """The acknowledgement of a put comes when the batch is on disk, with its place."""
    disk = HeldDisk()
    config = ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000)
    log = Log.open(tmp_path / "log", disk=disk)
    log.create_topic("t")
    with Server(log, config).start() as server:
        client = fl.connect(f"grpc://127.0.0.1:{server.port}")
        batch = pa.record_batch({"value": pa.array([b"v"], pa.binary())})
        writer, reader = client.do_put(fl.FlightDescriptor.for_path("t"), batch.schema)
        answers: list[Any] = []
        answered = threading.Event()

        def read() -> None:
            answers.extend(unpack(reader.read().to_pybytes()))
            answered.set()

        reading = threading.Thread(target=read, daemon=True)
        with disk.holding():
            writer.write_batch(batch)
            assert disk.arrived.wait(PATIENCE_SECONDS)
            reading.start()
            early = answered.wait(_LOOK_SECONDS)
            seen = log.offsets("t")
        assert answered.wait(PATIENCE_SECONDS)
        reading.join(PATIENCE_SECONDS)
        writer.close()
        client.close()
    assert not early, answers
    assert seen == {0: (0, 0)}
    ((number, runs),) = answers
    assert (number, [run[1:] for run in runs]) == (1, [(0, 0, 1, 0)])


def test_answers_that_nobody_reads_do_not_pile_up(tmp_path: Path) -> None:
    """A stream whose client does not read is not read either, beyond a bounded number."""
    reads = threading.Event()
    count = 20_000

    def write(_: Any) -> None:
        reads.wait()

    with Log.open(tmp_path / "log") as log:
        principal, pool = Principal("anonymous", "", ""), AckPool()
        stream = PutStream(
            log=log,
            principal=principal,
            topic="t",
            pool=pool,
            write=write,
            admit=lambda _: contextlib.nullcontext(),
        )
        taken: list[int] = []

        def take() -> None:
            for number in range(count):
                stream.take(None, pack([number, "unheard"]))
                taken.append(number)

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        until(lambda: stream._is_full() or not taking.is_alive())
        assert len(taken) < count
        reads.set()
        taking.join(PATIENCE_SECONDS)
        stream.finish()
        assert len(taken) == count
        pool.close()
