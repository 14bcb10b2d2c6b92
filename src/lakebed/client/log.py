"""A served log as its users see it: the methods, types and errors of an embedded one."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from lakebed import limits
from lakebed.api.arguments import wait_seconds
from lakebed.api.log import Log
from lakebed.api.reads import check_bounds
from lakebed.api.together import CommittedTogether
from lakebed.client._stubs import RemoteLogStub
from lakebed.client.access import RemoteAccess
from lakebed.client.backend import RemoteBackend
from lakebed.client.config import ClientConfig
from lakebed.client.connection import Connection
from lakebed.client.derived import RemoteDerived
from lakebed.client.groups import RemoteGroups
from lakebed.client.lake import RemoteLake
from lakebed.client.put_items import check_may_wait
from lakebed.client.reading import RemoteReading, check_named
from lakebed.client.table import RemoteTable
from lakebed.client.topics import RemoteTopics
from lakebed.client.writing import RemoteWriting
from lakebed.config import TopicConfig
from lakebed.errors import ClosedError, InvalidArgumentError
from lakebed.reports.maintenance import (
    BackupReport,
)
from lakebed.reports.topics import TopicInfo
from lakebed.state.commands import CommitTogether
from lakebed.types import Progress, TopicName


class RemoteLog(RemoteLogStub, Log):
    """A log that another process serves."""

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
                "config must be a ClientConfig for a URL", got=type(config).__name__
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
        most = min(hello["entry_bytes_max"], hello.get("request_bytes_max", limits.ENTRY_BYTES_MAX))
        connection = self._connection
        self._topics = RemoteTopics(connection)
        self._writing = RemoteWriting(self._topics, connection, most)
        self._reading = RemoteReading(connection)
        self._groups = RemoteGroups(connection, self._reading)
        self._backend = RemoteBackend(
            connection=connection,
            topics=self._topics,
            writing=self._writing,
            reading=self._reading,
            groups=self._groups,
        )
        self.lake = RemoteLake(connection)
        self.derived = RemoteDerived(connection)
        self.access = RemoteAccess(connection)

    @classmethod
    def open(cls, *args: object, **settings: object) -> NoReturn:
        """Refuse: a served log is opened by its URL."""
        del args, settings
        raise InvalidArgumentError(
            "RemoteLog.open does not exist: connect with lakebed.open(url) or RemoteLog(url)"
        )

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
        self._topics.forget(name)
        return info

    def delete_topic(self, name: str) -> None:
        """Remove a topic with everything in it; one made later under its name begins empty."""
        check_named(name)
        self._call("delete_topic", name=name)
        self._topics.forget(name)

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
        self._topics.forget(name)
        return info

    # Transactions

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
        committed: int | None = self._call("committed_number", name=name)
        return committed

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
        seconds = wait_seconds(wait_ms)
        bounds = check_bounds(max_records, max_bytes)
        return self._reading.read(topic, partition, offset, bounds, columns, seconds)

    def table(self, name: str) -> RemoteTable:
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

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed", url=self.url)
        self._connection.check_process()
