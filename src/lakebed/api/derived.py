"""What the derived tables of a log in this process and of a served one have in common."""

from __future__ import annotations

import abc
import uuid
from collections.abc import Sequence

from lakebed.api.derived_change import Change, check_change
from lakebed.reports.derived import Committed, DerivedFile, DerivedTable, Positions
from lakebed.types import TableName


class DerivedCalls(abc.ABC):
    """The calls by which files become part of a table, embedded or served. Any thread."""

    @abc.abstractmethod
    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, how far its writers have come."""

    def place(self, name: str) -> str:
        """Return a URL below which the files of one attempt are written; new for each call."""
        return f"{self.describe(name).location}/data/{uuid.uuid4().hex}"

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
        checked = str(TableName(name))
        change = check_change(writer, number, added, removed, positions, expected)
        return self._commit(checked, change)

    @abc.abstractmethod
    def _commit(self, name: str, change: Change) -> Committed: ...
