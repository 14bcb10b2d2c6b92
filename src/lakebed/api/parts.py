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
        """Bring tables, and the store, up to date now; of one topic, or of all.

        A table that somebody else has changed is refused, unless you `take_over`: then it shows
        exactly the log's records again. `progress` is told how many topics are done.
        """
        ...

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        With `now`, older snapshots are expired first and no file is granted a grace period: readers
        that have begun may fail.
        """
        ...

    def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        ...

    def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        ...

    def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, the oldest first."""
        ...

    def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, showing everything that is in segments now."""
        ...

    def stats(self) -> LakeStats:
        """Return counters, and how far the tables are behind."""
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
        """Make a table, or give the one there is if it is made the same way.

        A `current` table has one row for each key, a `history` every version of a key, an `append`
        table rows without a key. Files are divided into `buckets` by the key.
        """
        ...

    def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; rows of before have nulls there."""
        ...

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, how far its writers have come."""
        ...

    def tables(self) -> list[str]:
        """List the names of the derived tables."""
        ...

    def restore(self, name: str) -> DerivedTable:
        """Bring a table back that somebody else has dropped, or that a lost catalog knew."""
        ...

    def drop(self, name: str) -> bool:
        """Drop a table; return whether there was one. Its files go after the grace period."""
        ...

    def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or with those of some buckets, all of one version."""
        ...

    def place(self, name: str) -> str:
        """Return a URL below which the files of one attempt are written; new for each call."""
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
        """Put files into a table and take others out, in one swap, once for `writer` and `number`.

        A number that the writer has reached is a duplicate: nothing is done. `expected` is the
        version that the work is based on; `positions` say what of which topics is in the table now.
        """
        ...

    def iceberg(self, name: str) -> Any:
        """Return the pyiceberg table."""
        ...


class AccessApi(Protocol):
    """The tokens, rules and grants of a log. Any thread."""

    def tokens(self) -> list[TokenInfo]:
        """List the tokens, the oldest first; those that ended are listed for 90 more days."""
        ...

    def create_token(
        self,
        principal: str,
        *,
        expires_ms: int | None = EXPIRES_MS,
        roles: Collection[str] = (),
    ) -> Secret:
        """Make a token for a principal, which gets the roles too; return its text.

        The text is given this once: the log keeps no copy. `None` lets it be valid forever.
        """
        ...

    def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token, effective at once.

        Revoking the last token of an administrator requires `force`.
        """
        ...

    def rules(self) -> list[RuleInfo]:
        """List the rules, sorted; the roles admin, reader and writer need none."""
        ...

    def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Allow a role an action on the topics or groups whose names match the pattern.

        The first rule or grant closes a log that is open to all callers. Without an administrator
        that requires `force`.
        """
        ...

    def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a rule that `allow` created.

        Removing the last rule that makes administrators, or that keeps the log closed, requires
        `force`.
        """
        ...

    def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        ...

    def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Refuse those that have a role an action on names that the pattern fits.

        A denial wins over every rule and role that allows the action, also over `admin` if its
        holder has the denied role too. One that leaves the log without administrators, or that
        closes an open log, needs `force`. The role `admin` itself cannot be denied anything.
        """
        ...

    def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` made; rules then decide alone.

        The last denial of a log that has no token, rule or grant is removed only with `force`: the
        log would be open.
        """
        ...

    def grants(self) -> list[GrantInfo]:
        """List who has which role, sorted."""
        ...

    def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a role to a principal. A role without rules allows nothing.

        The first rule or grant closes a log that is open to all callers. Without an administrator
        that requires `force`.
        """
        ...

    def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Take a role from a principal.

        Revoking the last grant that makes administrators, or that keeps the log closed, requires
        `force`.
        """
        ...
