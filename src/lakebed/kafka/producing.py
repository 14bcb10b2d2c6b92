"""Produce: batches of clients become entries of the log.

A request is decoded in the loop's thread if it is small and in another one otherwise, and written
without waiting; it is answered when all its batches are on disk. Small batches of all clients share
entries. Those of idempotent producers carry a claim, so that one that was written before is
answered with its first position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from lakebed.api.encoding import WriteTarget
from lakebed.api.lookup import check_partition
from lakebed.engine.gathering import Piece
from lakebed.errors import AccessDeniedError, LakebedError
from lakebed.kafka import codes
from lakebed.kafka.batches import HEAD, BatchHead, read_head
from lakebed.kafka.codecs import decompress
from lakebed.kafka.codes import Refusal
from lakebed.kafka.decoding import LOOP_ROWS, Columns, decode
from lakebed.operations.routes import STREAMS
from lakebed.serve.calls import check_owner
from lakebed.topic.records import from_columns
from lakebed.types import is_internal

if TYPE_CHECKING:
    from lakebed.kafka.services import Call

LARGE_BYTES: Final = 64 * 1024
"""Requests from this size on are decoded in a thread."""
_ACKS: Final = (-1, 0, 1)
_WRITE: Final = STREAMS["put"].need


class Decoded(NamedTuple):
    """The batch of one partition, decoded."""

    topic_index: int
    """The index of the topic in the request, and of the partition in that."""
    partition_index: int
    target: WriteTarget
    partition: int
    """The partition in the log."""
    head: BatchHead
    columns: Columns
    batch: pa.RecordBatch | None
    """The rows, if they are many or have headers."""
    size_bytes: int


class Produced:
    """A Produce request, and the outcome of each of its batches."""

    def __init__(self, call: Call, done: Callable[[Produced], None]) -> None:
        self._call = call
        self._done = done
        self._waiting = 1
        self.results: dict[tuple[int, int], tuple[int, int, int] | BaseException] = {}
        """Base offset, start of the log and time, or an error, of each batch."""
        self.started = time.monotonic()

    # Decoding

    def decode(self) -> list[Decoded]:
        """Check and decode all batches; those that are refused have their result already."""
        body = self._call.body
        pieces: list[Decoded] = []
        for topic_index, topic in enumerate(body.topic_data):
            try:
                if body.acks not in _ACKS:
                    raise Refusal(codes.INVALID_REQUIRED_ACKS)
                target = self._target(topic.name)
            except (LakebedError, Refusal) as error:
                for partition_index in range(len(topic.partition_data)):
                    self.results[(topic_index, partition_index)] = error
                continue
            for partition_index, data in enumerate(topic.partition_data):
                try:
                    pieces.append(self._piece(target, topic_index, partition_index, data))
                except (LakebedError, Refusal) as error:
                    self.results[(topic_index, partition_index)] = error
        return pieces

    def _target(self, name: str) -> WriteTarget:
        if is_internal(name):
            raise Refusal(codes.INVALID_TOPIC, "the topic belongs to the log")
        self._call.check("put", _WRITE, [name])
        target = self._call.log.parts.writing.target(name)
        if not target.raw:
            raise Refusal(codes.INVALID_RECORD, "the topic has a schema: write to it with Lakebed")
        return target

    def _piece(
        self, target: WriteTarget, topic_index: int, partition_index: int, data: Any
    ) -> Decoded:
        check_partition(target.topic, data.index)
        if data.records is None:
            raise Refusal(codes.INVALID_RECORD, "the partition has no records")
        head = read_head(data.records)
        if head.is_transactional:
            raise Refusal(codes.INVALID_RECORD, "transactions are not served")
        bytes_max = self._call.log.parts.writing.batch_bytes_max
        columns = decode(head, decompress(head.codec, data.records[HEAD.size :], bytes_max))
        if target.config.cleanup != "delete" and _has_keyless(columns):
            raise Refusal(codes.INVALID_RECORD, "a record of a compacted topic needs a key")
        batch = None
        if columns.rows > LOOP_ROWS or columns.headers is not None:
            batch = _build(target, columns)
            size_bytes = batch.nbytes
        else:
            size_bytes = _check_sizes(target, columns)
        return Decoded(
            topic_index, partition_index, target, data.index, head, columns, batch, size_bytes
        )

    # Writing

    def write(self, pieces: list[Decoded]) -> None:
        """Submit batches; the request is answered when all of them are written or refused."""
        for piece in pieces:
            self._waiting += 1
            try:
                self._call.services.gathering.put(self._check(piece))
            except (LakebedError, Refusal) as error:
                self._settle(piece, error)
        self._finish_one()

    def refuse(self, pieces: list[Decoded], error: LakebedError) -> None:
        """Refuse every batch that was not refused before."""
        for piece in pieces:
            self.results[(piece.topic_index, piece.partition_index)] = error
        self._finish_one()

    def _check(self, piece: Decoded) -> Piece:
        """Return a batch for the log; raise here, so that a bad batch does not fail others."""
        columns, target, head = piece.columns, piece.target, piece.head
        claim: tuple[int, ...] = ()
        if head.producer >= 0:
            if head.producer not in self._call.log.parts.core.state.producers:
                raise Refusal(codes.UNKNOWN_PRODUCER_ID, "the producer is not known any more")
            check_owner(self._call.log, head.producer, self._call.principal.name)
            claim = (head.producer, head.producer_epoch, head.base_sequence)
            if min(claim) < 0:
                raise Refusal(codes.INVALID_RECORD, "the epoch or the sequence is negative")
        return Piece(
            target,
            piece.partition,
            columns.times_us.tolist() if piece.batch is None else (),
            columns.keys,
            columns.headers,
            columns.values,
            piece.batch,
            claim,
            piece.size_bytes,
            partial(self._settle, piece),
        )

    def _settle(self, piece: Decoded, outcome: int | BaseException) -> None:
        if isinstance(outcome, int):
            key = (piece.target.topic.id, piece.partition)
            partition = self._call.log.parts.core.state.partitions.get(key)
            low = 0 if partition is None else partition.low
            self.results[(piece.topic_index, piece.partition_index)] = (outcome, low, -1)
        else:
            self.results[(piece.topic_index, piece.partition_index)] = outcome
        self._finish_one()

    def _finish_one(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._done(self)

    # Answering

    def failure(self) -> BaseException | None:
        """Return an error of one of the batches, if there is one."""
        errors = [result for result in self.results.values() if isinstance(result, BaseException)]
        return errors[0] if errors else None

    def answer(self) -> Mapping[str, Any]:
        """Return the answer to the request."""
        return {
            "responses": [
                {
                    "name": topic.name,
                    "partition_responses": [
                        self._partition(data.index, self.results[(topic_index, partition_index)])
                        for partition_index, data in enumerate(topic.partition_data)
                    ],
                }
                for topic_index, topic in enumerate(self._call.body.topic_data)
            ]
        }

    def _partition(
        self, index: int, result: tuple[int, int, int] | BaseException
    ) -> dict[str, Any]:
        if isinstance(result, BaseException):
            code, message = codes.code_of(result), codes.message_of(result)
            if isinstance(result, AccessDeniedError):
                code = codes.TOPIC_AUTHORIZATION_FAILED
            return {
                "index": index,
                "error_code": code,
                "base_offset": -1,
                "log_append_time": -1,
                "error_message": message or None,
            }
        base, low, time_ms = result
        return {
            "index": index,
            "base_offset": base,
            "log_append_time": time_ms,
            "log_start_offset": low,
        }


def _build(target: WriteTarget, columns: Columns) -> pa.RecordBatch:
    """Return many rows, or rows with headers, as a batch that is checked in every respect."""
    return from_columns(
        columns.values,
        columns.keys,
        columns.headers,
        columns.times_us,
        target.value_type,
        target.config.record_bytes_max,
        allow_empty=True,
    )


def _check_sizes(target: WriteTarget, columns: Columns) -> int:
    """Return the bytes of a few records, each of which the topic accepts."""
    keys = columns.keys or [None] * columns.rows
    sizes = [
        len(value or b"") + len(key or b"") for key, value in zip(keys, columns.values, strict=True)
    ]
    if max(sizes) > target.config.record_bytes_max:
        limit = target.config.record_bytes_max
        raise Refusal(codes.MESSAGE_TOO_LARGE, f"a record is larger than {limit} bytes")
    return sum(sizes)


def _has_keyless(columns: Columns) -> bool:
    if columns.keys is None:
        return True
    if isinstance(columns.keys, list):
        return None in columns.keys
    return bool(columns.keys.null_count)
