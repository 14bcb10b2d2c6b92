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
        """Bring tables, and the store, up to date now."""
        ...

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over."""
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
        """Return the pyiceberg table of a topic."""
        ...

    def stats(self) -> LakeStats:
        """Return counters of the lake."""
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
        """Create a table, or return the existing one if it was created the same way."""
        ...

    def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; older rows have nulls there."""
        ...

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, how far its writers have come."""
        ...

    def tables(self) -> list[str]:
        """List the names of the derived tables that the caller may read."""
        ...

    def restore(self, name: str) -> DerivedTable:
        """Register a table again that was dropped, or that a lost catalog knew."""
        ...

    def drop(self, name: str) -> bool:
        """Drop a table; return whether it existed."""
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
        """Add files to a table and remove others, in one swap, once for `writer` and `number`."""
        ...

    def iceberg(self, name: str) -> Any:
        """Return the pyiceberg table."""
        ...


class AccessApi(Protocol):
    """The tokens, rules and grants of a log. Any thread."""

    def tokens(self) -> list[TokenInfo]:
        """List the tokens, the oldest first."""
        ...

    def create_token(
        self,
        principal: str,
        *,
        expires_ms: int | None = EXPIRES_MS,
        roles: Collection[str] = (),
    ) -> Secret:
        """Create a token for a principal, which gets the roles too; return its text, this once."""
        ...

    def revoke_token(self, token_id: str, *, force: bool = False) -> None:
        """Revoke a token."""
        ...

    def rules(self) -> list[RuleInfo]:
        """List the rules, sorted."""
        ...

    def allow(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Allow a role an action on the topics or groups whose names match the pattern."""
        ...

    def forbid(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a rule that `allow` made."""
        ...

    def denials(self) -> list[DenialInfo]:
        """List the denials, sorted."""
        ...

    def deny(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Deny a role an action on the topics or groups whose names match the pattern."""
        ...

    def lift(
        self, role: str, action: str, pattern: str = EVERYTHING, *, force: bool = False
    ) -> None:
        """Remove a denial that `deny` made."""
        ...

    def grants(self) -> list[GrantInfo]:
        """List who has which role, sorted."""
        ...

    def grant(self, principal: str, role: str, *, force: bool = False) -> None:
        """Grant a principal a role."""
        ...

    def revoke(self, principal: str, role: str, *, force: bool = False) -> None:
        """Revoke a role of a principal."""
        ...
