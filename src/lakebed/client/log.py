"""A served log as its users see it: the methods, types and errors of an embedded one."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakebed import limits
from lakebed.api.acks import Ack
from lakebed.api.arguments import checked_wait
from lakebed.api.reads import checked_bounds
from lakebed.api.together import CommittedTogether
from lakebed.client._stubs import RemoteLogStub
from lakebed.client.access import RemoteAccess
from lakebed.client.config import ClientConfig
from lakebed.client.connection import Connection
from lakebed.client.derived import RemoteDerived
from lakebed.client.groups import RemoteGroups
from lakebed.client.lake import RemoteLake
from lakebed.client.puts import check_may_wait
from lakebed.client.reading import RemoteConsumer, RemoteReading, check_named
from lakebed.client.table import RemoteTable
from lakebed.client.writing import RemoteCore, RemoteWriting
from lakebed.config import LogConfig, TopicConfig
from lakebed.engine.log import Log
from lakebed.engine.producer import Producer
from lakebed.engine.table import Table
from lakebed.engine.transaction import Transaction
from lakebed.errors import ClosedError, InvalidArgumentError
from lakebed.host.forks import watch_forks
from lakebed.reports.maintenance import (
    BackupReport,
)
from lakebed.reports.topics import TopicInfo
from lakebed.state.commands import Command, CommitTogether
from lakebed.types import Progress, TopicName


class RemoteProducer(Producer):
    """A producer of a served log."""

    _writing: RemoteWriting

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        watch_forks(self)

    def after_fork(self) -> None:
        """Refuse records from now on; those that were sent before are the parent's."""
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._error = error = self._writing._connection.forked_error()
        for batch in self._unsettled.values():
            batch.abandon(error)
        self._open, self._unsettled = {}, {}
        self._ready.clear()
        self._thread = None

    def close(self) -> None:
        """Write what was sent, and end; its streams end too."""
        if self._writing._connection.forked:
            return
        try:
            super().close()
        finally:
            self._writing.end_lanes((self.id, self.epoch))


class RemoteTransaction(Transaction):
    """A transaction of a served log."""

    _writing: RemoteWriting

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        watch_forks(self)

    def after_fork(self) -> None:
        """Replace a lock that a thread of the parent may have held."""
        self._guard = threading.RLock()

    def _check_open(self) -> None:
        super()._check_open()
        self._writing._connection.check_process()

    def close(self) -> None:
        """Abort it, unless it has ended before, is prepared, or belongs to the parent process."""
        if not self._writing._connection.forked:
            super().close()

    def append_batch(self, topic: str, rows: Any, *, partition: int | None = None) -> None:
        """Add a batch; it is visible when the transaction is committed."""
        self._writing.fresh(
            topic,
            lambda: super(RemoteTransaction, self).append_batch(topic, rows, partition=partition),
        )

    def prepare(self) -> tuple[int, int]:
        """Write everything, unseen, and leave it to `Log.commit_together`; give (id, epoch)."""
        identity = super().prepare()
        self._writing.end_lanes(identity)
        return identity


class RemoteLog(RemoteLogStub, Log):
    """A durable event log that another process serves. Any thread may call any method."""

    _producer_kind = RemoteProducer
    _transaction_kind = RemoteTransaction
    _consumer_kind = RemoteConsumer
    _core: RemoteCore  # type: ignore[assignment]  # what is used of it here
    _reading: RemoteReading  # type: ignore[assignment]
    _writing: RemoteWriting
    _groups: RemoteGroups  # type: ignore[assignment]

    def __init__(
        self,
        url: str,
        config: object = None,
        *,
        connect_seconds: float | None = None,
        woken: threading.Event | None = None,
    ) -> None:
        """Connect to a server, or raise `ServerUnavailableError` when `retry_ms` are over.

        `connect_seconds` is how long to try instead; whoever sets `woken` ends it earlier.
        """
        if config is not None and not isinstance(config, ClientConfig):
            raise InvalidArgumentError(
                "the settings of a served log are a ClientConfig", got=type(config).__name__
            )
        self.url = url
        self._connection = Connection(url, config or ClientConfig(), woken)
        self._closed = False
        try:
            hello = self._connection.hello(connect_seconds)
        except BaseException:
            self._connection.close()
            raise
        self.principal: str = hello["principal"]
        """Who the server takes this client for."""
        self.log_id: str = hello["log"]
        """The identity of the served log."""
        self.config = LogConfig()
        self.folder = Path(url)
        self._core = RemoteCore(self._connection)
        most = min(hello["entry_bytes_max"], hello.get("request_bytes_max", limits.ENTRY_BYTES_MAX))
        self._writing = RemoteWriting(self._core, self._connection, most)
        self._reading = RemoteReading(self._connection)
        self._groups = RemoteGroups(self._core, self._connection, self._reading)
        self.lake: RemoteLake = RemoteLake(self._connection)  # type: ignore[assignment]
        self.derived: RemoteDerived = RemoteDerived(self._connection)  # type: ignore[assignment]
        self.access: RemoteAccess = RemoteAccess(self._connection)  # type: ignore[assignment]

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Make a topic: raw without a schema (values are bytes), typed with one."""
        return self._topic_call("create_topic", name, partitions, schema, config)

    def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic as it is, or make it if there is none of that name."""
        return self._topic_call("get_or_create_topic", name, partitions, schema, config)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object] | TopicConfig | None = None,
        schema: pa.Schema | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings, add nullable fields to the schema, add partitions."""
        return self._topic_call("alter_topic", name, partitions, schema, config)

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Let a topic have so many partitions in all. Keys written from now on may go elsewhere."""
        check_named(name)
        info: TopicInfo = self._call("add_partitions", name=name, partitions=partitions)
        self._forget(name)
        return info

    def delete_topic(self, name: str) -> None:
        """Remove a topic with everything in it; one made later under its name begins empty."""
        check_named(name)
        self._call("delete_topic", name=name)
        self._forget(name)

    def _topic_call(
        self, call: str, name: str, partitions: Any, schema: Any, config: Any
    ) -> TopicInfo:
        self._check_open()
        if call == "alter_topic":
            check_named(name)
        else:
            TopicName(name)
        if isinstance(config, TopicConfig):
            config = config.changed() if call != "alter_topic" else vars(config)
        info: TopicInfo = self._call(
            call, name=name, partitions=partitions, schema=schema, config=config
        )
        self._forget(name)
        return info

    def _forget(self, name: str) -> None:
        """Look at a topic again before the next record goes to it."""
        self._core.state.names.pop(name, None)

    # Writing

    def append(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timestamp: Any = None,
    ) -> Ack:
        """Append a record and return where it is, when it is durable."""
        self._check_open()
        writing = self._writing
        ack: Ack = writing.fresh(
            topic,
            lambda: writing.append(
                writing.record(topic, value, key, headers, partition, timestamp)
            ),
        )
        return ack

    def _commit_together(self, command: CommitTogether) -> CommittedTogether:
        done: CommittedTogether = self._call(
            "commit_together",
            name=command.name,
            number=command.number,
            keep_ms=command.keep_us // 1000,
            transactions=list(command.transactions),
            offsets=list(command.offsets),
        )
        return done

    def _committed_number(self, name: str) -> int | None:
        number: int | None = self._call("committed_number", name=name)
        return number

    # Reading

    def read(
        self,
        topic: str,
        partition: int = 0,
        offset: int | str = "earliest",
        *,
        max_records: int = 10_000,
        max_bytes: int = 16 * limits.MIB,
        columns: Sequence[str] | None = None,
        wait_ms: int | None = 0,
    ) -> pa.Table:
        """Return records of a partition from `offset` on, as one table; empty at the end."""
        self._check_open()
        seconds = checked_wait(wait_ms)
        bounds = checked_bounds(max_records, max_bytes)
        return self._reading.read(topic, partition, offset, bounds, columns, seconds)

    def table(self, name: str) -> Table:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""
        self._check_open()
        return RemoteTable(self._connection, name)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition; the end is exclusive."""
        self._check_open()
        check_named(topic)
        return self._reading.offsets(topic)

    # Looking after it

    def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Have the server back the log up under a name, in the folder that its settings say."""
        report: BackupReport = self._call("backup", name=os.fspath(target))
        if progress is not None:
            progress("copying files", report.size_bytes, report.size_bytes)
        return report

    def close(self) -> None:
        """Finish what was appended and end the connection. A second call does nothing."""
        if self._closed:
            return
        if self._connection.forked:  # everything that there is to finish is the parent's
            self._closed = True
            return
        check_may_wait()
        self._closed = True
        self._reading.closed = True
        self._reading.waiting.wake_all()
        self._writing.close()
        self._connection.close()

    def __repr__(self) -> str:
        return f"<Log {self.url!r}: {'closed' if self._closed else self.principal}>"

    # Inside

    def _call(self, call: str, /, **request: Any) -> Any:
        self._check_open()
        return self._connection.call(call, **request)

    def _submit(self, command: Command) -> Any:
        self._check_open()
        return self._writing.submit(command)

    def _admit(self) -> None:
        """Let every write pass: the server makes those wait that have to."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed", url=self.url)
        self._connection.check_process()
