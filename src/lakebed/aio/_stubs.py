"""Methods that run one method of a log in a thread each.

Written by `python -m tools.generate`: edit `operations/table.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.aio.delegate import Delegate
from lakebed.api.log import Log
from lakebed.api.offsets import Offsets
from lakebed.api.parts import AccessApi, DerivedApi, LakeApi
from lakebed.api.table import Points, Table
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
        """List the tokens, the oldest first; those that ended are listed for 90 more days."""
        return await self._run(self._access.tokens)

    async def create_token(
        self, principal: str, *, expires_ms: int | None = EXPIRES_MS, roles: Collection[str] = ()
    ) -> Secret:
        """Make a token for a principal, which gets the roles too; return its text.

        The text is given this once: the log keeps no copy. `None` lets it be valid forever.
        """
        return await self._run(
            self._access.create_token, principal, expires_ms=expires_ms, roles=roles
        )

    async def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token, effective at once.

        Revoking the last token of an administrator requires `force`.
        """
        await self._run(self._access.revoke_token, token_id, force=force)

    async def rules(self) -> list[RuleInfo]:
        """List the rules, sorted; the roles admin, reader and writer need none."""
        return await self._run(self._access.rules)

    async def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Allow a role an action on the topics or groups whose names match the pattern.

        The first rule or grant closes a log that is open to all callers. Without an administrator
        that requires `force`.
        """
        await self._run(self._access.allow, role, action, pattern, force=force)

    async def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a rule that `allow` created.

        Removing the last rule that makes administrators, or that keeps the log closed, requires
        `force`.
        """
        await self._run(self._access.forbid, role, action, pattern, force=force)

    async def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        return await self._run(self._access.denials)

    async def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Refuse those that have a role an action on names that the pattern fits.

        A denial wins over every rule and role that allows the action, also over `admin` if its
        holder has the denied role too. One that leaves the log without administrators, or that
        closes an open log, needs `force`. The role `admin` itself cannot be denied anything.
        """
        await self._run(self._access.deny, role, action, pattern, force=force)

    async def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` made; rules then decide alone.

        The last denial of a log that has no token, rule or grant is removed only with `force`: the
        log would be open.
        """
        await self._run(self._access.lift, role, action, pattern, force=force)

    async def grants(self) -> list[GrantInfo]:
        """List who has which role, sorted."""
        return await self._run(self._access.grants)

    async def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a role to a principal. A role without rules allows nothing.

        The first rule or grant closes a log that is open to all callers. Without an administrator
        that requires `force`.
        """
        await self._run(self._access.grant, principal, role, force=force)

    async def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Take a role from a principal.

        Revoking the last grant that makes administrators, or that keeps the log closed, requires
        `force`.
        """
        await self._run(self._access.revoke, principal, role, force=force)


class AsyncLakeStub(Delegate):
    """The methods of `AsyncLake` that run one of `LakeApi` each."""

    _lake: LakeApi

    async def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        With `now`, older snapshots are expired first and no file is granted a grace period: readers
        that have begun may fail.
        """
        return await self._run_slowly(self._lake.gc, now=now)

    async def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        return await self._run_slowly(self._lake.tables)

    async def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        return await self._run_slowly(self._lake.describe, topic)

    async def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, the oldest first."""
        return await self._run_slowly(self._lake.history, topic)

    async def stats(self) -> LakeStats:
        """Return counters, and how far the tables are behind."""
        return await self._run(self._lake.stats)


class AsyncDerivedStub(Delegate):
    """The methods of `AsyncDerived` that run one of `DerivedApi` each."""

    _derived: DerivedApi

    async def tables(self) -> list[str]:
        """List the names of the derived tables."""
        return await self._run_slowly(self._derived.tables)

    async def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, how far its writers have come."""
        return await self._run_slowly(self._derived.describe, name)

    async def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or with those of some buckets, all of one version."""
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
        """Make a table, or give the one there is if it is made the same way.

        A `current` table has one row for each key, a `history` every version of a key, an `append`
        table rows without a key. Files are divided into `buckets` by the key.
        """
        return await self._run_slowly(
            self._derived.create, name, schema, kind=kind, key=key, buckets=buckets
        )

    async def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; rows of before have nulls there."""
        return await self._run_slowly(self._derived.evolve, name, schema)

    async def restore(self, name: str) -> DerivedTable:
        """Bring a table back that somebody else has dropped, or that a lost catalog knew."""
        return await self._run_slowly(self._derived.restore, name)

    async def drop(self, name: str) -> bool:
        """Drop a table; return whether there was one. Its files go after the grace period."""
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
        """Put files into a table and take others out, in one swap, once for `writer` and `number`.

        A number that the writer has reached is a duplicate: nothing is done. `expected` is the
        version that the work is based on; `positions` say what of which topics is in the table now.
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
        """Return which files hold the records of a range, and what of it is in no file yet.

        For readers that get at the files by themselves; the bounds are those of `scan`.
        """
        return await self._run(self._table.plan, partitions=partitions, start=start, until=until)

    async def record(self, key: bytes | str) -> dict[str, Any] | None:
        """Return the latest record of a key with all its columns, also if it is a tombstone."""
        return await self._run(self._table.record, key)

    async def latest(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the current record of each key, in the order of partitions and offsets.

        Keys that were deleted and records without a key are not in it. If partitions hold a key in
        common, the record of the latest timestamp is current. Values that were replaced are read
        only where they stand in a row group with a current one.

        If records are removed while it reads, it begins again; after several times it gives those
        that are left, which the log file tells.
        """
        return await self._run_slowly(self._table.latest, columns)

    async def as_of(
        self,
        offset: Points | None = None,
        time: datetime | int | None = None,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """Return the records that the table had at an earlier point.

        The point is either an `offset`, when the next record of a partition was to be that one (a
        number for every partition, or a dictionary; partitions not named are whole), or a `time`:
        records with a timestamp up to and including it. An offset above the end, or a point before
        everything that retention has left, is an `OffsetOutOfRangeError`.

        Of a compacted topic it shows what is left: a record that was current then and replaced
        since may be gone.
        """
        return await self._run_slowly(self._table.as_of, offset, time, columns, where)


class AsyncLogStub(Delegate):
    """The methods of `AsyncLog` that run one of `Log` each."""

    _log: Log

    async def topics(self) -> list[str]:
        """List the names of the topics, without those of the log's own."""
        return await self._run(self._log.topics)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Create a topic: raw without a schema (values are bytes), typed with one.

        `partitions` defaults to the setting `default_partitions` of the log. `config` are the
        settings that differ from their defaults. Raises `TopicExistsError` if a topic has the
        name, `InvalidNameError` if it cannot be one.
        """
        return await self._run(self._log.create_topic, name, partitions, schema, config)

    async def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic as it is, or create it if it does not exist.

        Partitions, schema and settings of an existing topic stay what they are.
        """
        return await self._run(self._log.get_or_create_topic, name, partitions, schema, config)

    async def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic.

        Raises `TopicNotFoundError` if it does not exist.
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

        What is None stays as it is. Raises `SchemaChangeError` if the schema differs in more than
        added nullable fields.
        """
        return await self._run(self._log.alter_topic, name, config, schema, partitions)

    async def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Set the number of partitions of a topic, which can only grow.

        Records written from now on may go to another partition than earlier ones of the same key.
        """
        return await self._run(self._log.add_partitions, name, partitions)

    async def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets continue where they were."""
        await self._run(self._log.purge_topic, name)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it; one created later under its name is empty."""
        await self._run(self._log.delete_topic, name)

    async def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition; the end is exclusive."""
        return await self._run(self._log.offsets, topic)

    async def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset whose record is of that time or later; the end if there is none.

        `timestamp` is a datetime (naive means UTC) or microseconds since 1970.
        """
        return await self._run(self._log.offset_for_time, topic, partition, timestamp=timestamp)

    async def committed_number(self, name: str) -> int | None:
        """Return the last number that was committed under a name; None if there is none."""
        return await self._run(self._log.committed_number, name)

    async def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group, whether or not it has members."""
        await self._run(self._log.commit_offsets, group, offsets)

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        return await self._run(self._log.committed, group)

    async def groups(self) -> list[str]:
        """List the names of the consumer groups."""
        return await self._run(self._log.groups)

    async def describe_group(self, name: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group.

        Raises `GroupNotFoundError` if it does not exist.
        """
        return await self._run(self._log.describe_group, name)

    async def reset_group(self, name: str, offsets: Offsets) -> None:
        """Set the offsets of a group without members; `GroupNotEmptyError` if it has some."""
        await self._run(self._log.reset_group, name, offsets)

    async def delete_group(self, name: str) -> None:
        """Delete a group that has no members; `GroupNotEmptyError` if it has some."""
        await self._run(self._log.delete_group, name)

    async def checkpoint(self) -> CheckpointReport:
        """Write what is in memory into segments, write a snapshot, free WAL files."""
        return await self._run_slowly(self._log.checkpoint)

    async def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all."""
        return await self._run_slowly(self._log.retain, topic)

    async def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key, and their files.

        For a job that decides elsewhere which records survive, and has them rewritten by
        `rewrite_segments`. Changes nothing. `force` ignores `compact_dirty_percent`; what is too
        young or held by a group is never part of it. The locations of a served log are those that
        the server sees.
        """
        return await self._run(self._log.plan_compaction, topic, force=force)

    async def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Replace consecutive segments by the survivors of a compaction.

        `survivors` has a bit for each offset of the segments, compressed (`topic/survivors.py` says
        how, and `pack_survivors` makes it). They are to be decided over everything from the
        partition's first segment on: every record without a key survives, and the last of each key,
        unless it is a tombstone that may go. A partition too large for one call is rewritten in
        several, from its beginning on.

        What is written is read again and compared before it counts; writers do not wait. Raises
        `StalePlanError` if the segments are not there any more as they were, also when it is called
        a second time; `SurvivorsError` if they cannot be right. Then nothing is changed.
        """
        return await self._run_slowly(
            self._log.rewrite_segments, topic, partition, segments, survivors
        )

    async def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return how many. Raises at the first damage."""
        return await self._run_slowly(self._log.verify, topic)

    async def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Describe each segment of a partition, and where its file is.

        The locations of a served log are those that the server sees.
        """
        return await self._run(self._log.segments, topic, partition)

    async def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of one segment, wherever it is; False if there is none of that id.

        Raises `CorruptionError` if anything in it is not as it should be.
        """
        return await self._run_slowly(self._log.verify_segment, topic, partition, segment)

    async def stats(self) -> LogStats:
        """Return counters and the current state of the log."""
        return await self._run(self._log.stats)

    async def tick(self) -> None:
        """Run maintenance now: timeouts, due checkpoints, retention."""
        await self._run_slowly(self._log.tick)
