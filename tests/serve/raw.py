"""A server with small limits, and a client that says whatever it likes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from lakebed.errors import LakebedError
from lakebed.wire.protocol import unpack, unpack_error
from tests.serve.support import ServerProcess, check_serves

REQUEST_BYTES_MAX = 1 << 20
STREAMS_MAX = 40
RAW = pa.schema([pa.field("value", pa.binary())])
TOPIC = "victim"


def run_small(folder: Path) -> Iterator[ServerProcess]:
    """Run a server with small limits."""
    settings = (f"request_bytes_max={REQUEST_BYTES_MAX}", f"connections_max={STREAMS_MAX}")
    with ServerProcess(folder, *settings, toml="[lake]\niceberg = false\n") as server:
        with server.open() as log:
            log.create_topic(TOPIC)
            log.create_topic("typed", schema=pa.schema([pa.field("number", pa.int64())]))
            log.create_topic("good")
            log.create_topic("large")
            batch = pa.record_batch({"value": pa.array([bytes(64 << 10)] * 12, pa.binary())})
            for _ in range(86):
                log.append_batch("large", batch)  # 64 MiB in all
            log.checkpoint()  # so that its memory is not taken for what a client costs
        yield server


def unharmed(running: ServerProcess) -> Iterator[ServerProcess]:
    """Return the server, and see afterwards that nothing came of what was done to it."""
    before = len(running.said)
    with running.open() as log:
        ends = [log.offsets(topic) for topic in (TOPIC, "typed")]
    yield running
    assert running.alive
    check_serves(running)
    said = [line for line in running.said[before:].splitlines() if _is_defect(line)]
    assert not said
    with running.open() as log:
        assert [log.offsets(topic) for topic in (TOPIC, "typed")] == ends


def _is_defect(line: str) -> bool:
    return "unforeseen" in line or "Traceback" in line or "a defect" in line


class Raw:
    """A client that says whatever it likes."""

    def __init__(self, server: ServerProcess) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.client = fl.connect(f"grpc://127.0.0.1:{server.port}", generic_options=options)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def action(self, name: str, body: bytes) -> Any:
        """Make a call with any body; return the reply or the error."""
        try:
            (reply,) = self.client.do_action(fl.Action(name, body))
            return unpack(reply.body.to_pybytes())
        except pa.ArrowException as error:
            return error_of(error)

    def ticket(self, ticket: bytes) -> Any:
        """Show any ticket; return the table or the error."""
        try:
            return self.client.do_get(fl.Ticket(ticket)).read_all()
        except pa.ArrowException as error:
            return error_of(error)

    def put(
        self,
        metadata: bytes | None,
        batch: pa.RecordBatch | None = None,
        *,
        topic: str = TOPIC,
        path: fl.FlightDescriptor | None = None,
    ) -> Any:
        """Put one message; return its answer, or the error that ended the stream."""
        batch = some() if batch is None else batch
        descriptor = fl.FlightDescriptor.for_path(topic) if path is None else path
        try:
            writer, reader = self.client.do_put(descriptor, batch.schema)
            try:
                with contextlib.suppress(pa.ArrowException):  # the stream's end tells more
                    if metadata is None:
                        writer.write_batch(batch)
                    else:
                        writer.write_with_metadata(batch, metadata)
                    writer.done_writing()
                acks = reader.read()
            finally:
                writer.close()
        except pa.ArrowException as error:
            return error_of(error)
        assert acks is not None
        ((_, answer),) = unpack(acks.to_pybytes())
        return answer


def error_of(error: BaseException) -> LakebedError:
    """Return the error that the server meant; it has to have meant one."""
    info = getattr(error, "extra_info", None)
    assert info, f"the server failed: {error}"
    return unpack_error(info)


def some(count: int = 1) -> pa.RecordBatch:
    """Return a batch as it should be."""
    return pa.record_batch([pa.array([b"v"] * count, pa.binary())], schema=RAW)
