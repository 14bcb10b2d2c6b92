"""Derived tables as their users see them: what a table is, its files, and what a commit gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

BUCKET: Final = "_bucket"
"""The technical column by which the files of a table with a key are told apart."""
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
IS_CURRENT: Final = "is_current"

KINDS: Final = ("current", "history", "append")
DATA: Final = "data"
DELETES: Final = "deletes"
"""What a file holds: rows, or the positions of rows in other files that are gone."""

Positions = Mapping[str, Mapping[int, int]]
"""By topic and partition: the offset of the next record that a table does not reflect."""


@dataclass(frozen=True)
class DerivedTable:
    """A table that jobs and pipelines make, at one version."""

    name: str
    kind: str
    """`current` (one row for each key), `history` (every version of a key) or `append`."""
    key: tuple[str, ...]
    buckets: int
    """Parts that the table is divided into by its key; 0 for `append`."""
    schema: pa.Schema
    """Every column of its files, with field ids."""
    version: int
    """Counts commits; one that expects another version is refused."""
    location: str
    metadata: str
    """The location of its newest metadata."""
    snapshot: int | None
    records: int
    files: int
    bytes: int
    writers: dict[str, int]
    """The number of the last commit of each writer."""
    positions: dict[str, dict[int, int]]
    """How much of which topics is in it, as its writers said."""


@dataclass(frozen=True)
class DerivedFile:
    """A file of a derived table."""

    location: str
    bucket: int
    content: str
    """`data` or `deletes`."""
    rows: int
    bytes: int


@dataclass(frozen=True)
class DerivedFiles:
    """A table and its files, both of the same version."""

    table: DerivedTable
    files: tuple[DerivedFile, ...]


@dataclass(frozen=True)
class Committed:
    """What became of a commit."""

    duplicate: bool
    """The writer had made this commit before; nothing was done."""
    version: int
