"""Streams that are open when a token is revoked or a rule changes: they end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lakebed import Log, ServeConfig
from lakebed.errors import AccessDeniedError, LakebedError, UnauthenticatedError
from lakebed.serve.server import Server
from lakebed.wire.protocol import pack
from tests.serve.raw import error_of, some
from tests.waiting import until

TICKET = pack({"call": "follow", "topic": "a", "partition": 0, "offset": 0})


def _revoke(log: Log) -> None:
    (token,) = (each.id for each in log.access.tokens() if each.principal == "clerk")
    log.access.revoke_token(token)


CHANGES: dict[str, tuple[Callable[[Log, str], None], type[LakebedError]]] = {
    "revoked token": (lambda log, _: _revoke(log), UnauthenticatedError),
    "removed rule": (lambda log, action: log.access.forbid("clerk", action), AccessDeniedError),
    "denial": (lambda log, action: log.access.deny("clerk", action, "a*"), AccessDeniedError),
}


@contextlib.contextmanager
def _serve(folder: Path) -> Iterator[tuple[Log, fl.FlightClient, fl.FlightCallOptions]]:
    """Serve a topic to a principal that may read and write it."""
    log = Log.open(folder)
    log.create_topic("a")
    log.append("a", b"v")
    log.access.create_token("root", roles=["admin"])
    log.access.allow("clerk", "read")
    log.access.allow("clerk", "write")
    token = log.access.create_token("clerk", roles=["clerk"])
    header = (b"authorization", f"Bearer {token!s}".encode())
    config = ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000)
    with Server(log, config).start() as server:
        client = fl.connect(f"grpc://127.0.0.1:{server.port}")
        yield log, client, fl.FlightCallOptions(headers=[header])
        client.close()


def _wait_for_error(step: Callable[[], object]) -> LakebedError:
    """Repeat a step of a stream until the stream ends; return the error that ended it."""
    errors: list[LakebedError] = []

    def is_ended() -> bool:
        try:
            step()
        except pa.ArrowException as error:
            errors.append(error_of(error))
        return bool(errors)

    until(is_ended)
    return errors[0]


@pytest.mark.parametrize("name", CHANGES)
def test_a_put_stream_ends_when_its_caller_may_no_longer_write(tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    with _serve(tmp_path / "log") as (log, client, options):
        descriptor = fl.FlightDescriptor.for_path("a")
        writer, reader = client.do_put(descriptor, some().schema, options)

        def step() -> None:
            with contextlib.suppress(pa.ArrowException):  # the reader has the reason
                writer.write_batch(some())
            if reader.read() is None:
                writer.close()  # raises what ended the stream

        step()
        change(log, "write")
        assert isinstance(_wait_for_error(step), expected)
        with contextlib.suppress(pa.ArrowException):
            writer.close()


@pytest.mark.parametrize("name", CHANGES)
def test_a_stream_of_batches_ends_when_its_caller_may_no_longer_read(
    tmp_path: Path, name: str
) -> None:
    change, expected = CHANGES[name]
    with _serve(tmp_path / "log") as (log, client, options):
        reader = client.do_get(fl.Ticket(TICKET), options)
        reader.read_chunk()
        change(log, "read")

        def step() -> None:
            log.append("a", b"v")
            reader.read_chunk()

        assert isinstance(_wait_for_error(step), expected)
