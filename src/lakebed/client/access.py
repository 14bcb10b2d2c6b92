"""Tokens, roles and rules of a served log."""

from __future__ import annotations

from lakebed.client._stubs import RemoteAccessStub
from lakebed.client.connection import Connection


class RemoteAccess(RemoteAccessStub):
    """The tokens, rules and grants of a served log. Any thread; see `Access`."""

    def __init__(self, connection: Connection) -> None:
        self._call = connection.call
