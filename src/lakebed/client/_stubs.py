"""Methods of a served log that make one call each.

Written by `python -m tools.generate`: edit `operations/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from lakebed.api.arguments import checked_segments
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
from lakebed.topic.survivors import checked_survivors
from lakebed.types import Secret, TableName


class RemoteAccessStub:
    """The methods of `RemoteAccess` that make one call each."""

    _call: Callable[..., Any]

    def tokens(self) -> list[TokenInfo]:
        """List the tokens, the oldest first; those that ended are listed for 90 more days."""
        return list(self._call("tokens"))

    def create_token(
        self, principal: str, *, expires_ms: int | None = EXPIRES_MS, roles: Collection[str] = ()
    ) -> Secret:
        """Make a token for a principal, which gets the roles too; return its text.

        The text is given this once: the log keeps no copy. `None` lets it be valid forever.
        """
        return Secret(
            self._call(
                "create_token", principal=principal, expires_ms=expires_ms, roles=as_list(roles)
            )
        )

    def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token, effective at once.

        Revoking the last token of an administrator requires `force`.
        """
        self._call("revoke_token", token_id=token_id, force=force)

    def rules(self) -> list[RuleInfo]:
        """List the rules, sorted; the roles admin, reader and writer need none."""
        return list(self._call("rules"))

    def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Allow a role an action on the topics or groups whose names match the pattern.

        The first rule or grant closes a log that is open to all callers. Without an administrator
        that requires `force`.
        """
        self._call("allow", role=role, action=action, pattern=pattern, force=force)

    def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a rule that `allow` created.

        Removing the last rule that makes administrators, or that keeps the log closed, requires
        `force`.
        """
        self._call("forbid", role=role, action=action, pattern=pattern, force=force)

    def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        return list(self._call("denials"))

    def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Refuse those that have a role an action on names that the pattern fits.

        A denial wins over every rule and role that allows the action, also over `admin` if its
        holder has the denied role too. One that leaves the log without administrators, or that
        closes an open log, needs `force`. The role `admin` itself cannot be denied anything.
        """
        self._call("deny", role=role, action=action, pattern=pattern, force=force)

    def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` made; rules then decide alone.

        The last denial of a log that has no token, rule or grant is removed only with `force`: the
        log would be open.
        """
        self._call("lift", role=role, action=action, pattern=pattern, force=force)

    def grants(self) -> list[GrantInfo]:
        """List who has which role, sorted."""
        return list(self._call("grants"))

    def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a role to a principal. A role without rules allows nothing.

        The first rule or grant closes a log that is open to all callers. Without an administrator
        that requires `force`.
        """
        self._call("grant", principal=principal, role=role, force=force)

    def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Take a role from a principal.

        Revoking the last grant that makes administrators, or that keeps the log closed, requires
        `force`.
        """
        self._call("revoke", principal=principal, role=role, force=force)


class RemoteLakeStub:
    """The methods of `RemoteLake` that make one call each."""

    _call: Callable[..., Any]

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        With `now`, older snapshots are expired first and no file is granted a grace period: readers
        that have begun may fail.
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
        """Return the snapshots of a topic's table, the oldest first."""
        return list(self._call("lake_history", topic=topic))

    def stats(self) -> LakeStats:
        """Return counters, and how far the tables are behind."""
        result: LakeStats = self._call("lake_stats")
        return result


class RemoteDerivedStub:
    """The methods of `RemoteDerived` that make one call each."""

    _call: Callable[..., Any]

    def tables(self) -> list[str]:
        """List the names of the derived tables."""
        return list(self._call("derived_tables"))

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, how far its writers have come."""
        result: DerivedTable = self._call("derived_describe", name=TableName(name))
        return result

    def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or with those of some buckets, all of one version."""
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
        """Make a table, or give the one there is if it is made the same way.

        A `current` table has one row for each key, a `history` every version of a key, an `append`
        table rows without a key. Files are divided into `buckets` by the key.
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
        """Add the columns of `schema` that a table lacks; rows of before have nulls there."""
        result: DerivedTable = self._call("derived_evolve", name=TableName(name), schema=schema)
        return result

    def restore(self, name: str) -> DerivedTable:
        """Bring a table back that somebody else has dropped, or that a lost catalog knew."""
        result: DerivedTable = self._call("derived_restore", name=TableName(name))
        return result

    def drop(self, name: str) -> bool:
        """Drop a table; return whether there was one. Its files go after the grace period."""
        result: bool = self._call("derived_drop", name=TableName(name))
        return result


class RemoteLogStub:
    """The methods of `RemoteLog` that make one call each."""

    _call: Callable[..., Any]

    def topics(self) -> list[str]:
        """List the names of the topics, without those of the log's own."""
        return list(self._call("topics"))

    def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic.

        Raises `TopicNotFoundError` if it does not exist.
        """
        result: TopicInfo = self._call("describe_topic", name=topic_name(name))
        return result

    def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets continue where they were."""
        self._call("purge_topic", name=topic_name(name))

    def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset whose record is of that time or later; the end if there is none.

        `timestamp` is a datetime (naive means UTC) or microseconds since 1970.
        """
        result: int = self._call(
            "offset_for_time",
            topic=topic_name(topic),
            partition=partition,
            timestamp=microseconds(timestamp),
        )
        return result

    def checkpoint(self) -> CheckpointReport:
        """Write what is in memory into segments, write a snapshot, free WAL files."""
        result: CheckpointReport = self._call("checkpoint")
        return result

    def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all."""
        result: CleanupReport = self._call("retain", topic=topic_name_or_none(topic))
        return result

    def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key, and their files.

        For a job that decides elsewhere which records survive, and has them rewritten by
        `rewrite_segments`. Changes nothing. `force` ignores `compact_dirty_percent`; what is too
        young or held by a group is never part of it. The locations of a served log are those that
        the server sees.
        """
        result: CompactionPlan = self._call(
            "plan_compaction", topic=topic_name(topic), force=bool(force)
        )
        return result

    def rewrite_segments(
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
        result: RewriteReport = self._call(
            "rewrite_segments",
            topic=topic_name(topic),
            partition=partition,
            segments=checked_segments(segments),
            survivors=checked_survivors(survivors),
        )
        return result

    def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return how many. Raises at the first damage."""
        result: int = self._call("verify", topic=topic_name_or_none(topic))
        return result

    def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Describe each segment of a partition, and where its file is.

        The locations of a served log are those that the server sees.
        """
        return list(self._call("segments", topic=topic_name(topic), partition=partition))

    def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of one segment, wherever it is; False if there is none of that id.

        Raises `CorruptionError` if anything in it is not as it should be.
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
