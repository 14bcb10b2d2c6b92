"""What tests look at inside a server and its client: the one place that knows their parts."""

from __future__ import annotations

from lakebed import Log
from lakebed.client.connection import Connection
from lakebed.client.log import RemoteLog
from lakebed.serve.flight import FlightServer
from lakebed.serve.quotas import Quotas
from lakebed.serve.server import Server


def connection_of(log: Log) -> Connection:
    """Return the connection of a client, for calls and tickets that no method makes."""
    assert isinstance(log, RemoteLog)
    return log._connection


def flight_of(server: Server) -> FlightServer:
    """Return the Flight server of a server that was started."""
    assert server._flight is not None
    return server._flight


def quotas_of(server: Server) -> Quotas:
    """Return what a server allows its callers, and what they use of it."""
    return flight_of(server)._quotas


def callers_waiting(quotas: Quotas) -> int:
    """Return how many callers wait for room."""
    return quotas._waiting


def connections_closed(server: Server) -> dict[str, int]:
    """Return how many connections a server has closed, by reason."""
    return flight_of(server)._meters._closed


def flush_audit(server: Server) -> None:
    """Wait until everything that was refused or done is on record."""
    assert server._guard.flush()
