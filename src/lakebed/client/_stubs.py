"""Methods of a served log that make one call each.

Written by `python -m tools.generate`: edit `operations/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from lakebed.api.arguments import check_segments
from lakebed.api.reads import microseconds
from lakebed.operations.requests import as_list, topic_name, topic_name_or_none
from lakebed.reports.access import EXPIRES_MS, DenialInfo, GrantInfo, RuleInfo, TokenInfo
from lakebed.reports.derived import DerivedFiles, DerivedTable
from lakebed.reports.lake import LakeStats, RemovalReport, SnapshotInfo, TableInfo
from lakebed.reports.maintenance import (
    CheckpointReport,
    CleanupReport,
    CompactionPlan,
    RewriteReport,
)
from lakebed.reports.stats import LogStats
from lakebed.reports.topics import SegmentInfo, TopicInfo
from lakebed.state.permissions import EVERYTHING
from lakebed.topic.survivors import check_survivors
from lakebed.types import Secret, TableName


class RemoteAccessStub:
    """The methods of `RemoteAccess` that make one call each."""

    _call: Callable[..., Any]

    def tokens(self) -> list[TokenInfo]:
        """List the tokens, oldest first; ended ones are listed for 90 more days."""
        return list(self._call("tokens"))

    def create_token(
        self, principal: str, *, expires_ms: int | None = EXPIRES_MS, roles: Collection[str] = ()
    ) -> Secret:
        """Create a token for a principal; return its text, which the log does not keep.

        Args:
            principal: name of the caller.
            expires_ms: lifetime; None for no end.
            roles: roles to grant to the principal.
        """
        return Secret(
            self._call(
                "create_token", principal=principal, expires_ms=expires_ms, roles=as_list(roles)
            )
        )

    def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token, effective at once.

        Args:
            token_id: the id that `tokens` lists.
            force: also revoke the last token of an administrator.
        """
        self._call("revoke_token", token_id=token_id, force=force)

    def rules(self) -> list[RuleInfo]:
        """List the rules, sorted; the roles admin, reader and writer need none."""
        return list(self._call("rules"))

    def allow(
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
        self._call("allow", role=role, action=action, pattern=pattern, force=force)

    def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a rule that `allow` created.

        Args:
            role: name of the role.
            action: action of the rule.
            pattern: pattern of the rule.
            force: also if that leaves no administrator, or opens the log.
        """
        self._call("forbid", role=role, action=action, pattern=pattern, force=force)

    def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        return list(self._call("denials"))

    def deny(
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
        self._call("deny", role=role, action=action, pattern=pattern, force=force)

    def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` created; rules then apply again.

        Args:
            role: name of the role.
            action: action of the denial.
            pattern: pattern of the denial.
            force: also if that opens the log.
        """
        self._call("lift", role=role, action=action, pattern=pattern, force=force)

    def grants(self) -> list[GrantInfo]:
        """List the roles of principals, sorted."""
        return list(self._call("grants"))

    def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a role to a principal. A role without rules allows nothing.

        The first rule or grant closes a log that is open to all callers.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that closes the log without an administrator.
        """
        self._call("grant", principal=principal, role=role, force=force)

    def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Revoke a role of a principal.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that leaves no administrator, or opens the log.
        """
        self._call("revoke", principal=principal, role=role, force=force)


class RemoteLakeStub:
    """The methods of `RemoteLake` that make one call each."""

    _call: Callable[..., Any]

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        Args:
            now: expire older snapshots first, and ignore the grace period; active readers may fail.
        """
        result: RemovalReport = self._call("lake_gc", now=now)
        return result

    def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        return list(self._call("lake_tables"))

    def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        result: TableInfo = self._call("lake_describe", topic=topic)
        return result

    def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, oldest first."""
        return list(self._call("lake_history", topic=topic))

    def stats(self) -> LakeStats:
        """Return counters, and the lag of the tables."""
        result: LakeStats = self._call("lake_stats")
        return result


class RemoteDerivedStub:
    """The methods of `RemoteDerived` that make one call each."""

    _call: Callable[..., Any]

    def tables(self) -> list[str]:
        """List the names of the derived tables."""
        return list(self._call("derived_tables"))

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, positions of its writers.

        Raises:
            TableNotFoundError: the table does not exist.
        """
        result: DerivedTable = self._call("derived_describe", name=TableName(name))
        return result

    def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or those of some buckets, all of one version."""
        result: DerivedFiles = self._call(
            "derived_files", name=TableName(name), buckets=as_list(buckets)
        )
        return result

    def create(
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
        result: DerivedTable = self._call(
            "derived_create",
            name=TableName(name),
            schema=schema,
            kind=kind,
            key=as_list(key),
            buckets=buckets,
        )
        return result

    def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; existing rows have nulls there."""
        result: DerivedTable = self._call("derived_evolve", name=TableName(name), schema=schema)
        return result

    def restore(self, name: str) -> DerivedTable:
        """Restore a table that another program has dropped, or that a lost catalog knew."""
        result: DerivedTable = self._call("derived_restore", name=TableName(name))
        return result

    def drop(self, name: str) -> bool:
        """Drop a table; return False if there was none. Its files go after the grace period."""
        result: bool = self._call("derived_drop", name=TableName(name))
        return result


class RemoteLogStub:
    """The methods of `RemoteLog` that make one call each."""

    _call: Callable[..., Any]

    def topics(self) -> list[str]:
        """List the names of the topics, without internal ones."""
        return list(self._call("topics"))

    def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        result: TopicInfo = self._call("describe_topic", name=topic_name(name))
        return result

    def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets continue where they were."""
        self._call("purge_topic", name=topic_name(name))

    def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset with this timestamp or a later one, or the end.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            timestamp: a datetime (naive means UTC) or microseconds since 1970.
        """
        result: int = self._call(
            "offset_for_time",
            topic=topic_name(topic),
            partition=partition,
            timestamp=microseconds(timestamp),
        )
        return result

    def checkpoint(self) -> CheckpointReport:
        """Write records in memory to segments, write a snapshot, free WAL files."""
        result: CheckpointReport = self._call("checkpoint")
        return result

    def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all.

        Failures of topics are in `errors` of the result.
        """
        result: CleanupReport = self._call("retain", topic=topic_name_or_none(topic))
        return result

    def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key.

        For a job that selects the surviving records, and has them rewritten by `rewrite_segments`.
        Changes nothing. Segments that are too young or held by a group are never part of it.
        Locations are as the process that owns the log sees them.

        Args:
            topic: name of the topic.
            force: ignore `compact_dirty_percent`.
        """
        result: CompactionPlan = self._call(
            "plan_compaction", topic=topic_name(topic), force=bool(force)
        )
        return result

    def rewrite_segments(
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
        result: RewriteReport = self._call(
            "rewrite_segments",
            topic=topic_name(topic),
            partition=partition,
            segments=check_segments(segments),
            survivors=check_survivors(survivors),
        )
        return result

    def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return their number.

        Raises:
            CorruptionError: the first damage found.
        """
        result: int = self._call("verify", topic=topic_name_or_none(topic))
        return result

    def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Describe the segments of a partition, with the locations that the log's process sees."""
        return list(self._call("segments", topic=topic_name(topic), partition=partition))

    def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of a segment; return False if there is none of that id.

        Raises:
            CorruptionError: the segment is damaged.
        """
        result: bool = self._call(
            "verify_segment", topic=topic_name(topic), partition=partition, segment=segment
        )
        return result

    def stats(self) -> LogStats:
        """Return counters and the current state of the log."""
        result: LogStats = self._call("stats")
        return result

    def tick(self) -> None:
        """Run maintenance now: timeouts, due checkpoints, retention."""
        self._call("tick")
