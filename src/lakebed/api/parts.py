"""The parts of a log that are attributes: its lake, its derived tables, its access rules.

A log in this process and a served one have different classes for them; these protocols are what
both have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from lakebed.reports.access import EXPIRES_MS, DenialInfo, GrantInfo, RuleInfo, TokenInfo
from lakebed.reports.derived import Committed, DerivedFile, DerivedFiles, DerivedTable, Positions
from lakebed.reports.lake import LakeStats, RemovalReport, SnapshotInfo, SyncReport, TableInfo
from lakebed.state.permissions import EVERYTHING
from lakebed.types import Progress, Secret


class LakeApi(Protocol):
    """Iceberg tables and object store of a log. Any thread."""

    def sync(
        self,
        topic: str | None = None,
        *,
        take_over: bool = False,
        progress: Progress | None = None,
    ) -> SyncReport:
        """Update the tables, and the object store, now.

        Args:
            topic: one topic; default: all.
            take_over: restore the log's records in a table that another program has changed.
            progress: called with the number of topics done.
        """
        ...

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        Args:
            now: expire older snapshots first, and ignore the grace period; active readers may fail.
        """
        ...

    def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        ...

    def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        ...

    def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, oldest first."""
        ...

    def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, with everything that is in segments now."""
        ...

    def stats(self) -> LakeStats:
        """Return counters, and the lag of the tables."""
        ...


class DerivedApi(Protocol):
    """The derived tables of a log. Any thread."""

    @property
    def store_options(self) -> Mapping[str, str]:
        """How executors reach the object store, under pyiceberg's names."""
        ...

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
        ...

    def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; existing rows have nulls there."""
        ...

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, positions of its writers.

        Raises:
            TableNotFoundError: the table does not exist.
        """
        ...

    def tables(self) -> list[str]:
        """List the names of the derived tables."""
        ...

    def restore(self, name: str) -> DerivedTable:
        """Restore a table that another program has dropped, or that a lost catalog knew."""
        ...

    def drop(self, name: str) -> bool:
        """Drop a table; return False if there was none. Its files go after the grace period."""
        ...

    def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or those of some buckets, all of one version."""
        ...

    def place(self, name: str) -> str:
        """Return a new URL below which the files of one attempt are written."""
        ...

    def commit(
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
        ...

    def iceberg(self, name: str) -> Any:
        """Return the pyiceberg table."""
        ...


class AccessApi(Protocol):
    """The tokens, rules and grants of a log. Any thread."""

    def tokens(self) -> list[TokenInfo]:
        """List the tokens, oldest first; ended ones are listed for 90 more days."""
        ...

    def create_token(
        self,
        principal: str,
        *,
        expires_ms: int | None = EXPIRES_MS,
        roles: Collection[str] = (),
    ) -> Secret:
        """Create a token for a principal; return its text, which the log does not keep.

        Args:
            principal: name of the caller.
            expires_ms: lifetime; None for no end.
            roles: roles to grant to the principal.
        """
        ...

    def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token, effective at once.

        Args:
            token_id: the id that `tokens` lists.
            force: also revoke the last token of an administrator.
        """
        ...

    def rules(self) -> list[RuleInfo]:
        """List the rules, sorted; the roles admin, reader and writer need none."""
        ...

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
        ...

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
        ...

    def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        ...

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
        ...

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
        ...

    def grants(self) -> list[GrantInfo]:
        """List the roles of principals, sorted."""
        ...

    def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a role to a principal. A role without rules allows nothing.

        The first rule or grant closes a log that is open to all callers.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that closes the log without an administrator.
        """
        ...

    def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Revoke a role of a principal.

        Args:
            principal: name of the caller.
            role: name of the role.
            force: also if that leaves no administrator, or opens the log.
        """
        ...
