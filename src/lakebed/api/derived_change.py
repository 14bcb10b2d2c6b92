"""A commit to a derived table, as it was asked for: checked before anything is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lakebed.config.checks import is_whole
from lakebed.errors import InvalidArgumentError
from lakebed.reports.derived import DATA, DELETES, DerivedFile, DerivedTable, Positions

_NUMBER_MAX: Final = 2**63 - 1
_WRITER_CHARACTERS_MAX: Final = 256


class Change(NamedTuple):
    """What a commit is to do."""

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
    """Return a commit whose parts are of the right kind, or refuse it."""
    if not isinstance(writer, str) or not 0 < len(writer) <= _WRITER_CHARACTERS_MAX:
        raise InvalidArgumentError(
            f"writer must be text of 1 to {_WRITER_CHARACTERS_MAX} characters",
            got=repr(writer)[:99],
        )
    for name, value in (("number", number), ("expected", expected)):
        if not is_whole(value, 0, _NUMBER_MAX):
            raise InvalidArgumentError(f"{name} must be an integer from 0", got=repr(value))
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
    if not all(type(partition) is int and type(end) is int for partition, end in pairs):
        raise InvalidArgumentError(
            "positions must be {topic: {partition: offset}}", got=repr(positions)
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
            raise InvalidArgumentError(
                "content must be 'data' or 'deletes'", got=repr(file.content)
            )
        if not 0 <= file.bucket < max(1, table.buckets):
            raise InvalidArgumentError(
                "a file is of a bucket that the table does not have", bucket=file.bucket
            )
    if len({file.location for file in added}) != len(added):
        raise InvalidArgumentError("a commit names a file twice", table=table.name)
