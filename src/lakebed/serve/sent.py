"""Batches of an answer as they are sent: counted, and their end is noticed however it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed import limits
from lakebed.errors import LakebedError
from lakebed.serve.flight_errors import flight_error
from lakebed.serve.refusals import tell

if TYPE_CHECKING:
    from lakebed.serve.callers import Caller
    from lakebed.serve.guard import Principal
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas

_log = logging.getLogger("lakebed.serve")

_PIECE_BYTES: Final = 1 * limits.MIB
"""Answers are sent in pieces of about this size, so that a slow client is told from a stalled one.
"""


def pieces(table: pa.Table, nbytes: int) -> Iterator[Any]:
    """Yield the rows of a table in batches of about `_PIECE_BYTES`, or one record if larger.

    They have the same number of rows: a small rest would cost as much as another whole piece.
    """
    count = max(1, round(nbytes / _PIECE_BYTES))
    yield from table.to_batches(max_chunksize=max(1, -(-table.num_rows // count)))


class AnswerStream:
    """The batches of one answer. gRPC's thread of the call takes them one by one."""

    def __init__(
        self,
        *,
        quotas: Quotas,
        meters: Meters,
        caller: Caller,
        principal: Principal,
        name: str,
        started: float,
        batches: Iterator[Any],
        again: Callable[[], None],
    ) -> None:
        self._quotas = quotas
        self._meters = meters
        self._caller = caller
        self._principal = principal
        self._name = name
        self._started = started
        self._batches = batches
        self._again = again
        self._ended = False

    def __iter__(self) -> AnswerStream:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
            self._again()
        except StopIteration:
            self._end("ok")
            raise
        except LakebedError as error:
            self._end(error.code)
            tell(self._name, error, self._principal.peer)
            raise flight_error(error) from error
        except Exception:
            self._end("failed")
            _log.exception("a stream failed in an unforeseen way: call=%s", self._name)
            raise
        size = batch.nbytes
        self._meters.count_sent(size)
        self._quotas.charge(self._principal, size)
        self._caller.progress = time.monotonic()
        return batch

    def _end(self, outcome: str) -> None:
        if not self._ended:
            self._ended = True
            seconds = time.monotonic() - self._started
            self._meters.request(self._name, outcome, seconds, self._principal)

    def __del__(self) -> None:
        self._end("cancelled")  # the client went away, perhaps before the first batch
