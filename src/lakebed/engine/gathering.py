"""Gathering: batches of many producers share one entry, and its outcome is reported once.

The first batch opens an entry, and those that come before its turn join it. The committing thread
makes one part of the batches of each topic, whose rows stand partition by partition, and one
command with the claim of each batch. A batch that is large has an entry alone, behind the open one,
so that batches of one caller keep their order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from lakebed import limits
from lakebed.api.encoding import RECORD_BYTES, WriteTarget
from lakebed.engine.commands import outcome
from lakebed.engine.core import Prepared
from lakebed.errors import LakebedError, RejectedError
from lakebed.state.command_codec import encode
from lakebed.state.commands import WriteMany
from lakebed.state.decision import Written
from lakebed.state.values import Part, Run
from lakebed.topic.memtable import Body
from lakebed.topic.records import from_columns, serialize
from lakebed.wal.request import Request

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lakebed.engine.parts import Parts

_PIECES_MAX: Final = 4_096
"""The most batches gathered into one entry."""

Notify = Callable[[int | BaseException], None]
Settle = Callable[[Written | None, BaseException | None], None]


class Piece(NamedTuple):
    """The checked batch of one producer for one partition."""

    target: WriteTarget
    partition: int
    times_us: Sequence[int]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Any] | None
    values: Sequence[bytes | None]
    batch: pa.RecordBatch | None
    """The rows, if they are many; the columns above are not looked at then."""
    claim: tuple[int, ...]
    """(producer, epoch, first sequence), or empty."""
    size_bytes: int
    notify: Notify
    """Told the offset of the first row, or why there is none."""

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.batch.num_rows if self.batch is not None else len(self.values)


class Gathering:
    """Gathers the batches of the callers of one thread."""

    def __init__(self, parts: Parts, make_reply: Callable[[Settle], Future[Any]]) -> None:
        """Write to the log of these parts; `make_reply` makes what the outcome is delivered to."""
        self._core = parts.core
        self._wal = parts.wal
        self._writing = parts.writing
        self._make_reply = make_reply
        self._guard = threading.Lock()
        self._open: _Gathered | None = None

    def put(self, piece: Piece) -> None:
        """Add a batch for which there is room in the log; its `notify` receives the outcome."""
        with self._guard:
            gathered = self._open
            if gathered is not None and piece.batch is None and gathered.takes(piece):
                gathered.add(piece)
                return
            gathered = _Gathered(self)
            gathered.add(piece)
            gathered.request = self._wal.request(gathered.encode, Prepared(WriteMany(0, (), ())))
            gathered.request.future = self._make_reply(gathered.settle)
            gathered.request.answer = gathered.outcome
            self._open = gathered if piece.batch is None else None
        try:
            self._wal.commits.post(gathered.request)
        except BaseException:
            self.close(gathered)
            raise

    def close(self, gathered: _Gathered) -> None:
        """Take no further batches into an entry."""
        with self._guard:
            if self._open is gathered:
                self._open = None

    @property
    def bytes_max(self) -> int:
        """The most bytes that are gathered into one entry."""
        return self._writing.gathered_bytes_max

    def build(self, pieces: list[Piece]) -> tuple[list[Buffer], Prepared]:
        """Return the payload of an entry, and its command with the bodies."""
        parts: list[Part] = []
        bodies: list[Body] = []
        claims: list[tuple[tuple[int, ...], ...]] = []
        for group in _by_topic(pieces):
            target = group[0].target
            raw = serialize(_batch_of(group))
            runs = tuple(Run(piece.partition, piece.rows) for piece in group)
            parts.append(Part(target.topic.id, len(target.topic.schemas), runs, raw.size))
            bodies.append(_body(raw, target, len(runs)))
            claims.append(tuple(piece.claim for piece in group))
        command = WriteMany(self._core.clock.time_us(), tuple(parts), tuple(claims))
        payload = encode(command, [body.raw() for body in bodies])
        self._writing.check_fits(payload)
        return payload, Prepared(command, bodies)


class _Gathered:
    """An entry that takes batches until its turn comes."""

    request: Request

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._pieces: list[Piece] = []
        self._refused: list[tuple[Piece, RejectedError]] = []
        self._bytes = 0

    def takes(self, piece: Piece) -> bool:
        """Return whether there is room for a batch."""
        fits = self._bytes + piece.size_bytes + RECORD_BYTES <= self._gathering.bytes_max
        return fits and len(self._pieces) < _PIECES_MAX

    def add(self, piece: Piece) -> None:
        """Take a batch."""
        self._pieces.append(piece)
        self._bytes += piece.size_bytes + RECORD_BYTES * piece.rows

    def encode(self) -> list[Buffer]:
        """Close the entry and return its payload; called by the committing thread."""
        self._gathering.close(self)
        # Partition by partition, so that rows of a partition become one chunk of its memtable.
        self._pieces.sort(key=lambda piece: (piece.target.topic.id, piece.partition))
        try:
            payload, prepared = self._gathering.build(self._pieces)
        except RejectedError:
            self._drop_bad_pieces()
            payload, prepared = self._gathering.build(self._pieces)
        self.request.command = prepared
        return payload

    def _drop_bad_pieces(self) -> None:
        """Take out what spoils the entry, so that it fails alone."""
        good = []
        for piece in self._pieces:
            try:
                _batch_of([piece])
                good.append(piece)
            except RejectedError as error:
                self._refused.append((piece, error))
        self._pieces = good

    def outcome(self) -> Written:
        """Return what the entry came to."""
        written: Written = outcome(self.request)
        return written

    def settle(self, written: Written | None, error: BaseException | None) -> None:
        """Report the outcome of each batch."""
        for piece, refused in self._refused:
            piece.notify(refused)
        if written is None:
            for piece in self._pieces:
                piece.notify(error or LakebedError("the entry was not written"))
            return
        results = [result for part in written.runs for result in part]
        ordered = [piece for group in _by_topic(self._pieces) for piece in group]
        for piece, result in zip(ordered, results, strict=True):
            piece.notify(result if isinstance(result, RejectedError) else result.base)


def _by_topic(pieces: list[Piece]) -> list[list[Piece]]:
    """Return the batches of each topic (and version of its schema), in their order."""
    groups: dict[tuple[int, int], list[Piece]] = {}
    for piece in pieces:
        topic = piece.target.topic
        groups.setdefault((topic.id, len(topic.schemas)), []).append(piece)
    return list(groups.values())


def _batch_of(pieces: list[Piece]) -> pa.RecordBatch:
    """Return the rows of batches of one topic, one after another."""
    if pieces[0].batch is not None:
        return pieces[0].batch
    has_keys = any(piece.keys is not None for piece in pieces)
    has_headers = any(piece.headers is not None for piece in pieces)
    return from_columns(
        [value for piece in pieces for value in piece.values],
        [key for piece in pieces for key in piece.keys or [None] * piece.rows]
        if has_keys
        else None,
        [headers for piece in pieces for headers in piece.headers or [None] * piece.rows]
        if has_headers
        else None,
        [time_us for piece in pieces for time_us in piece.times_us],
        pieces[0].target.value_type,
        limits.RECORD_BYTES_MAX,  # each was checked, perhaps while another limit held
        allow_empty=True,
    )


def _body(raw: Any, target: WriteTarget, holders: int) -> Body:
    return Body(lambda: raw, target.schema, raw.size, holders=holders)
