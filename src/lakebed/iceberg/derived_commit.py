"""A commit to a derived table as its caller asks for it, checked before anything is done."""

from __future__ import annotations

import abc
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from lakebed.errors import InvalidArgumentError
from lakebed.iceberg.derived_values import (
    DATA,
    DELETES,
    Committed,
    DerivedFile,
    DerivedTable,
    Positions,
)
from lakebed.types import TableName

_NUMBER_MAX: Final = 2**63 - 1
_WRITER_CHARACTERS_MAX: Final = 256


class Change(NamedTuple):
    """What a commit does."""

    writer: str
    number: int
    added: tuple[DerivedFile, ...]
    removed: frozenset[str]
    positions: Positions | None
    expected: int


def check_change(
    writer: object,
    number: object,
    added: Sequence[DerivedFile],
    removed: Sequence[str],
    positions: Positions | None,
    expected: object,
) -> Change:
    """Return a commit whose parts have the right types, or refuse it."""
    if not isinstance(writer, str) or not 0 < len(writer) <= _WRITER_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"a writer is a text of 1 to {_WRITER_CHARACTERS_MAX} characters", got=repr(writer)[:99]
        )
    for name, value in (("number", number), ("expected", expected)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 <= value <= _NUMBER_MAX:  # type: ignore[operator]
            raise InvalidArgumentError(f"{name} must be a whole number from 0", got=repr(value))
    _check_positions(positions)
    return Change(
        writer,
        number,  # type: ignore[arg-type]
        tuple(added),
        frozenset(removed),
        positions,
        expected,  # type: ignore[arg-type]
    )


def _check_positions(positions: object) -> None:
    if positions is None:
        return
    try:
        pairs = [pair for ends in positions.values() for pair in ends.items()]  # type: ignore[attr-defined]
    except AttributeError:
        pairs = [("", "")]
    if not all(type(number) is int and type(end) is int for number, end in pairs):
        raise InvalidArgumentError(
            "positions are {topic: {partition: offset}}", got=repr(positions)
        )


def check_files(added: Sequence[DerivedFile], table: DerivedTable) -> None:
    """Refuse files that were not written for this table."""
    folder = f"{table.location}/data/"
    for file in added:
        parts = file.location.removeprefix(folder).split("/")
        if not file.location.startswith(folder) or any(part in ("", ".", "..") for part in parts):
            raise InvalidArgumentError(
                "a file is not where the table's files are: write it below `place`",
                file=file.location,
                expected=folder,
            )
        if file.content not in (DATA, DELETES) or (file.content == DELETES and not table.key):
            raise InvalidArgumentError("a file holds data or deletes", got=repr(file.content))
        if not 0 <= file.bucket < max(1, table.buckets):
            raise InvalidArgumentError(
                "a file is of a bucket that the table has not", bucket=file.bucket
            )
    if len({file.location for file in added}) != len(added):
        raise InvalidArgumentError("a commit names a file twice", table=table.name)


class DerivedCalls(abc.ABC):
    """Commits to derived tables, of an embedded log and of a served one alike. Any thread."""

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
        """Add files to a table and remove others, in one commit, once for `writer` and `number`.

        A number that the writer has reached is a duplicate: nothing is done. `expected` is the
        version that the work is based on; `positions` say what of which topics is in the table now.
        """
        checked = str(TableName(name))
        change = check_change(writer, number, added, removed, positions, expected)
        return self._commit(checked, change)

    @abc.abstractmethod
    def _commit(self, name: str, change: Change) -> Committed: ...
