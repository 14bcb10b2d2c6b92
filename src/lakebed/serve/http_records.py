"""Records as an answer over HTTP, which becomes JSON while it is sent.

The JSON text of records can be six times as large as they are. It is made piece by piece, each when
the client has taken the one before: so a client that does not read costs the records alone, and no
thread keeps the interpreter for as long as a large text takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from starlette.responses import Response

from lakebed import limits
from lakebed.topic.json_records import RecordTexts

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from lakebed.serve.http_protocol import HttpConnection

_PIECE_BYTES: Final = 256 * limits.KIB
"""How many bytes of records become text at a time."""
_JSON: Final = "application/json"

Run = Callable[..., Awaitable[Any]]
"""Makes a call in a thread."""


def records_answer(head: str, table: pa.Table | None, run: Run) -> Response:
    """Return the answer `{HEAD,"records":[...]}`; to be called in a thread.

    Of many records only the first piece is made now: the rest follows while it is sent.
    """
    if table is None or not table.num_rows:
        return Response(f'{head},"records":[]}}', media_type=_JSON)
    pieces = _pieces(table)
    first = f'{head},"records":[{_text(next(pieces))}'
    if table.nbytes <= _PIECE_BYTES:
        return Response(f"{first}]}}", media_type=_JSON)
    return RecordsAnswer(first.encode(), pieces, run)


class RecordsAnswer(Response):
    """An answer whose length is not known when it begins."""

    def __init__(self, first: bytes, pieces: Iterator[pa.Table], run: Run) -> None:
        # Without a body: no length is stated.
        self.status_code = 200
        self.media_type = _JSON
        self.background = None
        self.init_headers()
        self._first = first
        self._pieces = pieces
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send it; end early if the client is gone."""
        connection: HttpConnection = scope["state"]["connection"]
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        text, self._first = self._first, b""
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": text, "more_body": True})
            await connection.drain()
            if connection.gone:
                return
            text = await self._run(_following, piece)
        await send({"type": "http.response.body", "body": text + b"]}"})


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """Return the rows of a table by about `_PIECE_BYTES`, or one record if it is larger."""
    rows = max(1, table.num_rows * _PIECE_BYTES // max(1, table.nbytes))
    return (table.slice(start, rows) for start in range(0, table.num_rows, rows))


def _following(table: pa.Table) -> bytes:
    return f",{_text(table)}".encode()


def _text(table: pa.Table) -> str:
    return ",".join(RecordTexts(table.schema.field("value").type)(table))
