"""The sink: every record of a batch exactly once, or none of them, even if a process is killed.

Each attempt at a task writes into a separate transaction: durable in the log, and invisible to
readers. The driver then commits exactly the attempts that Spark counts, all in one entry, under the
name of the query and the number of the batch. So

- a task that is retried, or runs twice at a time, leaves a transaction that is not committed and
  times out;
- a driver that dies before the commit leaves only such transactions;
- a batch that is repeated after the commit is recognised by its number and skipped;
- the batch of an earlier driver that is still alive is skipped in the same way.

`abort` drops transactions that are still open; a committed one is not affected.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.host import failpoints
from lakebed.spark.connection import connect, reachable
from lakebed.spark.options import SinkOptions
from lakebed.spark.rows import Rows, check_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lakebed.client.log import RemoteLog

_log = logging.getLogger("lakebed.spark")

_BEGUN: Final = failpoints.define("spark.sink.begun")
_WRITTEN: Final = failpoints.define("spark.sink.written")
_PREPARED: Final = failpoints.define("spark.sink.prepared")
_COMMITTING: Final = failpoints.define("spark.sink.committing")
_COMMITTED: Final = failpoints.define("spark.sink.committed")

_STREAM_KEEP_MS: Final = 400 * 86_400_000
"""How long the last batch of a query is remembered: a query may be stopped for a year."""
_WRITE_KEEP_MS: Final = 3_600_000
"""How long a single write is remembered: as long as its driver may repeat the commit."""


@dataclass
class WrittenPartition(WriterCommitMessage):
    """What a task reports to the driver: its transaction, and the query it belongs to."""

    query: str
    transaction: tuple[int, int] | None
    records: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgumentError(
                "a topic cannot be overwritten: use mode('append'), or `lakebed topic purge` first"
            )
        self._options = _for_tasks(options)
        check_rows(connect(self._options.target, patient=True), options, schema)
        self._schema = schema
        self._name = options.application or f"spark-write-{uuid.uuid4().hex}"
        self._number = options.version or 0
        self._keep_ms = _WRITE_KEEP_MS if options.application is None else _STREAM_KEEP_MS

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Write a task's rows into a transaction, durable and not visible yet."""
        return _write(self._options, self._schema, self._name, self._number, iterator)

    def commit(self, messages: list[Any]) -> None:
        """Make the rows of all tasks visible at once."""
        _commit(self._options, self._name, self._number, self._keep_ms, messages)

    def abort(self, messages: list[Any]) -> None:
        """Drop what was written, unless it is committed."""
        _abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query. Spark makes a new writer for each."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgumentError(
                "a topic takes outputMode('append'), not 'complete': it would get every row of the"
                " result again with each batch"
            )
        if options.application is not None:
            raise InvalidArgumentError(
                "a stream is known by its query id: leave out the options txnAppId and txnVersion"
            )
        self._options = _for_tasks(options)
        check_rows(connect(self._options.target, patient=True), options, schema)
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Write a task's rows into a transaction, durable and not visible yet."""
        query, batch = _query_and_batch()
        return _write(self._options, self._schema, query, batch, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  # Spark's
        """Make the rows of all tasks of a batch visible at once."""
        queries = {message.query for message in messages if message is not None}
        if not queries:
            return  # a batch without tasks
        (query,) = queries
        _commit(self._options, query, batchId, _STREAM_KEEP_MS, messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803  # Spark's
        """Drop what was written, unless it is committed."""
        _abort(self._options, messages)


def _for_tasks(options: SinkOptions) -> SinkOptions:
    """Return options that every process of the application can use."""
    import dataclasses

    return dataclasses.replace(options, target=reachable(options.target))


def _query_and_batch() -> tuple[str, int]:
    """Return the query and the batch that Spark runs this task for; both survive a restart."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise InvalidArgumentError("Spark does not say which query and batch this task is of")
    return f"spark-{query}", int(batch)


def _write(
    options: SinkOptions,
    schema: StructType,
    name: str,
    batch_number: int,
    batches: Iterator[pa.RecordBatch],
) -> WrittenPartition:
    failpoints.arm_from_environment()
    log = connect(options.target, patient=True)
    done = log.committed_number(name)
    if done is not None and batch_number <= done:
        # A repeated batch, which the driver will notice too. Its rows are computed all the same:
        # Spark keeps the state of aggregations upstream only if they are.
        for _ in batches:
            pass
        return WrittenPartition(name, None, 0)
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return WrittenPartition(name, None, 0)
    rows = Rows(log, options, schema)
    transaction = log.transaction(timeout_ms=options.timeout_ms)
    try:
        _BEGUN.hit()
        records = rows.write(transaction, first)
        for batch in batches:
            records += rows.write(transaction, batch)
        _WRITTEN.hit()
        identity = transaction.prepare()
        _PREPARED.hit()
    except BaseException as error:
        _drop(log, [(transaction.id, transaction.epoch)], error)
        raise
    return WrittenPartition(name, identity, records)


def _commit(
    options: SinkOptions, name: str, batch_number: int, keep_ms: int, messages: Sequence[Any]
) -> None:
    failpoints.arm_from_environment()
    log = connect(options.target, patient=True)
    transactions = _transactions_of(messages)
    _COMMITTING.hit()
    committed = log.commit_together(transactions, name=name, number=batch_number, keep_ms=keep_ms)
    _COMMITTED.hit()
    if committed.duplicate:
        _log.info(
            "a batch was written before, and is skipped: name=%s number=%d", name, batch_number
        )


def _abort(options: SinkOptions, messages: Sequence[Any]) -> None:
    try:
        _drop(connect(options.target), _transactions_of(messages), None)
    except LakebedError as error:
        _log.warning("transactions are left to time out: %s", error)


def _transactions_of(messages: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the transactions of the tasks that finished, in the order of the tasks."""
    return [
        message.transaction
        for message in messages
        if isinstance(message, WrittenPartition) and message.transaction is not None
    ]


def _drop(
    log: RemoteLog, transactions: Sequence[tuple[int, int]], error: BaseException | None
) -> None:
    """Abort transactions so that they need not time out; a failure to do so does no harm."""
    from lakebed.state.commands import AbortTransaction

    for producer, epoch in transactions:
        try:
            log._submit(AbortTransaction(producer, epoch, "aborted"))
        except LakebedError as failure:
            _log.warning("a transaction is left to time out: producer=%d %s", producer, failure)
            if error is not None:
                error.add_note(f"aborting its transaction failed too: {failure}")
