"""Methods that run one method of a log in a thread each.

Written by `python -m tools.generate`: edit `operations/table.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from lakebed.aio.delegate import Delegate
from lakebed.api.log import Log
from lakebed.api.offsets import Offsets
from lakebed.api.parts import AccessApi, DerivedApi, LakeApi
from lakebed.api.table import Points, Table, Where
from lakebed.config import TopicConfig
from lakebed.reports.access import EXPIRES_MS, DenialInfo, GrantInfo, RuleInfo, TokenInfo
from lakebed.reports.derived import Committed, DerivedFile, DerivedFiles, DerivedTable, Positions
from lakebed.reports.groups import GroupInfo
from lakebed.reports.lake import LakeStats, RemovalReport, SnapshotInfo, TableInfo
from lakebed.reports.maintenance import (
    CheckpointReport,
    CleanupReport,
    CompactionPlan,
    RewriteReport,
)
from lakebed.reports.stats import LogStats
from lakebed.reports.topics import ScanPlan, SegmentInfo, TopicInfo
from lakebed.state.permissions import EVERYTHING
from lakebed.types import Secret, TopicPartition


class AsyncAccessStub(Delegate):
    """The methods of `AsyncAccess` that run one of `AccessApi` each."""

    _access: AccessApi

    async def tokens(self) -> list[TokenInfo]:
        """List the tokens, oldest first; ended ones are listed for 90 more days."""
        return await self._run(self._access.tokens)

    async def create_token(
        self, principal: str, *, expires_ms: int | None = EXPIRES_MS, roles: Collection[str] = ()
    ) -> Secret:
        """Create a token for a principal; return its text, which the log does not keep.

        Args:
            principal: name of the caller.
            expires_ms: lifetime; None for no end.
            roles: roles to grant to the principal.
        """
        return await self._run(
            self._access.create_token, principal, expires_ms=expires_ms, roles=roles
        )

    async def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token, effective at once.

        Args:
            token_id: the id that `tokens` lists.
            force: also revoke the last token of an administrator.
        """
        await self._run(self._access.revoke_token, token_id, force=force)

    async def rules(self) -> list[RuleInfo]:
        """List the rules, sorted; the roles admin, reader and writer need none."""
        return await self._run(self._access.rules)

    async def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Allow a role an action on the topics or groups whose names match a pattern.

        The first rule or grant closes a log that is open to all callers.

        Args:
            role: name of the role.
            action: `read`, `write`, `group`, `manage` or `admin`.
            pattern: `*` matches any characters, `?` one.
            force: also if that closes the log without an administrator.
        """
        await self._run(self._access.allow, role, action, pattern, force=force)

    async def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a rule that `allow` created.

        Args:
            role: name of the role.
            action: action of the rule.
            pattern: pattern of the rule.
            force: also if that leaves no administrator, or opens the log.
        """
        await self._run(self._access.forbid, role, action, pattern, force=force)

    async def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        return await self._run(self._access.denials)

    async def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Deny a role an action on names that match a pattern.

        A denial overrides every rule, also for holders of `admin`; the role `admin` itself cannot
        be denied anything.

        Args:
            role: name of the role.
            action: as in `allow`.
            pattern: as in `allow`.
            force: also if that closes an open log, or leaves no administrator.
        """
        await self._run(self._access.deny, role, action, pattern, force=force)

    async def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` created; rules then apply again.

        Args:
            role: name of the role.
            action: action of the denial.
            pattern: pattern of the denial.
            force: also if that opens the log.
        """
        await self._run(self._access.lift, role, action, pattern, force=force)

    async def grants(self) -> list[GrantInfo]:
        """List the roles of principals, sorted."""
        return await self._run(self._access.grants)

    async def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a role to a principal. A role without rules allows nothing.

        The first rule or grant closes a log that is open to all callers.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that closes the log without an administrator.
        """
        await self._run(self._access.grant, principal, role, force=force)

    async def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Revoke a role of a principal.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that leaves no administrator, or opens the log.
        """
        await self._run(self._access.revoke, principal, role, force=force)


class AsyncLakeStub(Delegate):
    """The methods of `AsyncLake` that run one of `LakeApi` each."""

    _lake: LakeApi

    async def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        Args:
            now: expire older snapshots first, and ignore the grace period; active readers may fail.
        """
        return await self._run_slowly(self._lake.gc, now=now)

    async def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        return await self._run_slowly(self._lake.tables)

    async def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        return await self._run_slowly(self._lake.describe, topic)

    async def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, oldest first."""
        return await self._run_slowly(self._lake.history, topic)

    async def stats(self) -> LakeStats:
        """Return counters, and the lag of the tables."""
        return await self._run(self._lake.stats)


class AsyncDerivedStub(Delegate):
    """The methods of `AsyncDerived` that run one of `DerivedApi` each."""

    _derived: DerivedApi

    async def tables(self) -> list[str]:
        """List the names of the derived tables."""
        return await self._run_slowly(self._derived.tables)

    async def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, positions of its writers.

        Raises:
            TableNotFoundError: the table does not exist.
        """
        return await self._run_slowly(self._derived.describe, name)

    async def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or those of some buckets, all of one version."""
        return await self._run_slowly(self._derived.files, name, buckets)

    async def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        kind: str = "current",
        key: Sequence[str] = (),
        buckets: int = 16,
    ) -> DerivedTable:
        """Create a table, or return the existing one if it has the same definition.

        Args:
            name: name of the table.
            schema: Arrow schema of its rows.
            kind: `current` (one row per key), `history` (every version of a key) or `append`.
            key: names of the key columns.
            buckets: number of parts into which the key divides the files.

        Raises:
            TableExistsError: the table exists with another definition.
        """
        return await self._run_slowly(
            self._derived.create, name, schema, kind=kind, key=key, buckets=buckets
        )

    async def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; existing rows have nulls there."""
        return await self._run_slowly(self._derived.evolve, name, schema)

    async def restore(self, name: str) -> DerivedTable:
        """Restore a table that another program has dropped, or that a lost catalog knew."""
        return await self._run_slowly(self._derived.restore, name)

    async def drop(self, name: str) -> bool:
        """Drop a table; return False if there was none. Its files go after the grace period."""
        return await self._run_slowly(self._derived.drop, name)

    async def commit(
        self,
        name: str,
        *,
        writer: str,
        number: int,
        added: Sequence[DerivedFile] = (),
        removed: Sequence[str] = (),
        positions: Positions | None = None,
        expected: int,
    ) -> Committed:
        """Add and remove files of a table atomically, once for `writer` and `number`.

        Args:
            name: name of the table.
            writer: name of the writer.
            number: sequence number; one that the writer has reached is a duplicate, and ignored.
            added: new files, written below `place`.
            removed: locations of files to remove.
            positions: what of which topics is in the table now.
            expected: version of the table that the work is based on.

        Raises:
            TableChangedError: the table has another version.
        """
        return await self._run_slowly(
            self._derived.commit,
            name,
            writer=writer,
            number=number,
            added=added,
            removed=removed,
            positions=positions,
            expected=expected,
        )


class AsyncTableStub(Delegate):
    """The methods of `AsyncTable` that run one of `Table` each."""

    _table: Table

    async def plan(
        self,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> ScanPlan:
        """Return the files that hold the records of a range, and the offsets in no file yet.

        For readers of the files; the arguments are those of `scan`.
        """
        return await self._run(self._table.plan, partitions=partitions, start=start, until=until)

    async def record(self, key: bytes | str) -> dict[str, Any] | None:
        """Return the latest record of a key with all columns, tombstones included, or None."""
        return await self._run(self._table.record, key)

    async def latest(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the current record of each key, in the order of partitions and offsets.

        Deleted keys and records without a key are not included. If several partitions hold a key,
        the latest timestamp wins. If records are removed while it reads, it starts again; after
        several attempts it returns what is left, with a warning in the log file.

        Args:
            columns: names of columns; default: all.
        """
        return await self._run_slowly(self._table.latest, columns)

    async def as_of(
        self,
        offset: Points | None = None,
        time: datetime | int | None = None,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pa.Table:
        """Return the records that the table had at an earlier point.

        In a compacted topic, a record that was current then and replaced since may be gone.

        Args:
            offset: end of the records, for every partition or by partition; others are whole.
            time: last timestamp, instead of `offset`.
            columns: names of columns; default: all.
            where: a filter, as in `scan`.

        Raises:
            OffsetOutOfRangeError: the offset is above the end, or the point before all records.
        """
        return await self._run_slowly(self._table.as_of, offset, time, columns, where)


class AsyncLogStub(Delegate):
    """The methods of `AsyncLog` that run one of `Log` each."""

    _log: Log

    async def topics(self) -> list[str]:
        """List the names of the topics, without internal ones."""
        return await self._run(self._log.topics)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Create a topic.

        Args:
            name: 1 to 128 letters, digits, `.`, `_` or `-`.
            partitions: default: the log's setting `default_partitions`.
            schema: Arrow schema of the values; None makes a raw topic, whose values are bytes.
            config: topic settings that differ from their defaults.

        Raises:
            TopicExistsError: a topic has this name.
            InvalidNameError: the name is not allowed.
        """
        return await self._run(self._log.create_topic, name, partitions, schema, config)

    async def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic, created as by `create_topic` if it does not exist.

        Partitions, schema and settings of an existing topic do not change.
        """
        return await self._run(self._log.get_or_create_topic, name, partitions, schema, config)

    async def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return await self._run(self._log.describe_topic, name)

    async def alter_topic(
        self,
        name: str,
        config: Mapping[str, object] | TopicConfig | None = None,
        schema: pa.Schema | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings, add nullable fields to the schema, add partitions.

        Args:
            name: the topic.
            config: settings to change; None changes none.
            schema: the schema with the new fields at its end; None keeps it.
            partitions: as in `add_partitions`.

        Raises:
            SchemaChangeError: the schema differs in more than added nullable fields.
        """
        return await self._run(self._log.alter_topic, name, config, schema, partitions)

    async def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Raise the number of partitions of a topic.

        From then on a key may go to another partition than before.

        Args:
            name: the topic.
            partitions: the new total, not less than the current one.
        """
        return await self._run(self._log.add_partitions, name, partitions)

    async def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets continue where they were."""
        await self._run(self._log.purge_topic, name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; one created later under the name is empty."""
        await self._run(self._log.delete_topic, name)

    async def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end (exclusive) of each partition."""
        return await self._run(self._log.offsets, topic)

    async def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset with this timestamp or a later one, or the end.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            timestamp: a datetime (naive means UTC) or microseconds since 1970.
        """
        return await self._run(self._log.offset_for_time, topic, partition, timestamp=timestamp)

    async def committed_number(self, name: str) -> int | None:
        """Return the last number committed under a name, or None."""
        return await self._run(self._log.committed_number, name)

    async def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group, whether or not it has members.

        Args:
            group: name of the group.
            offsets: the next offset to read, by topic and partition.
        """
        await self._run(self._log.commit_offsets, group, offsets)

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        return await self._run(self._log.committed, group)

    async def groups(self) -> list[str]:
        """List the names of the consumer groups."""
        return await self._run(self._log.groups)

    async def describe_group(self, name: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group.

        Raises:
            GroupNotFoundError: the group does not exist.
        """
        return await self._run(self._log.describe_group, name)

    async def reset_group(self, name: str, offsets: Offsets) -> None:
        """Set the offsets of a group without members; a new group is created.

        Raises:
            GroupNotEmptyError: the group has members.
        """
        await self._run(self._log.reset_group, name, offsets)

    async def delete_group(self, name: str) -> None:
        """Delete a group without members, with its offsets.

        Raises:
            GroupNotEmptyError: the group has members.
            GroupNotFoundError: the group does not exist.
        """
        await self._run(self._log.delete_group, name)

    async def checkpoint(self) -> CheckpointReport:
        """Write records in memory to segments, write a snapshot, free WAL files."""
        return await self._run_slowly(self._log.checkpoint)

    async def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all.

        Failures of topics are in `errors` of the result.
        """
        return await self._run_slowly(self._log.retain, topic)

    async def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key.

        For a job that selects the surviving records, and has them rewritten by `rewrite_segments`.
        Changes nothing. Segments that are too young or held by a group are never part of it.
        Locations are as the process that owns the log sees them.

        Args:
            topic: name of the topic.
            force: ignore `compact_dirty_percent`.
        """
        return await self._run(self._log.plan_compaction, topic, force=force)

    async def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Replace consecutive segments by the survivors of a compaction.

        What is written is verified before it counts; writers do not wait. Of a partition, all
        records without a key must survive, and the last of each key, unless it is a tombstone
        that is due.
        A large partition is rewritten in several calls, from its beginning on.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            segments: ids, as `plan_compaction` returns them.
            survivors: a compressed bitmap with a bit for each offset (`topic/survivors.py`).

        Raises:
            StalePlanError: the segments have changed; nothing was changed.
            SurvivorsError: the survivors cannot be right; nothing was changed.
        """
        return await self._run_slowly(
            self._log.rewrite_segments, topic, partition, segments, survivors
        )

    async def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return their number.

        Raises:
            CorruptionError: the first damage found.
        """
        return await self._run_slowly(self._log.verify, topic)

    async def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Describe the segments of a partition, with the locations that the log's process sees."""
        return await self._run(self._log.segments, topic, partition)

    async def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of a segment; return False if there is none of that id.

        Raises:
            CorruptionError: the segment is damaged.
        """
        return await self._run_slowly(self._log.verify_segment, topic, partition, segment)

    async def stats(self) -> LogStats:
        """Return counters and the current state of the log."""
        return await self._run(self._log.stats)

    async def tick(self) -> None:
        """Run maintenance now: timeouts, due checkpoints, retention."""
        await self._run_slowly(self._log.tick)
