"""Failures of catalogs and tables, translated to Lakebed's errors in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lakebed.errors import (
    CatalogUnavailableError,
    DeviceError,
    ForeignTableError,
    LakebedError,
    from_os_error,
)


class ConflictError(Exception):
    """The table has changed since it was read, or the outcome of a commit is unknown."""


class RuinedError(ForeignTableError):
    """A file that the catalog or the table refers to is not there, or is damaged."""


def commit_transaction(change: Any) -> None:
    """Commit a transaction; every failure is a conflict, after which the table is read again."""
    try:
        change.commit_transaction()
    except MemoryError:
        raise
    except Exception as error:  # it failed, or it happened and the answer was lost
        raise ConflictError(reason_of(error)) from error


@contextlib.contextmanager
def reading_manifests(table: Any) -> Iterator[None]:
    """Tell a damaged manifest from a failing catalog: its reader raises errors of any type."""
    try:
        yield
    except (LakebedError, OSError, MemoryError):
        raise
    except Exception as error:
        name = ".".join(table.name())
        raise RuinedError("a manifest is damaged", table=name, reason=reason_of(error)) from error


@contextlib.contextmanager
def translate_failures(doing: str, name: str) -> Iterator[None]:
    """Raise errors of pyiceberg, a database or a network as Lakebed's."""
    try:
        yield
    except (LakebedError, ConflictError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise RuinedError("a file of the table is missing", table=name, reason=error) from error
    except OSError as error:
        failure = from_os_error(error, doing, name)
        if not isinstance(failure, DeviceError):
            raise failure from error
        raise _unavailable(error, doing, name) from error
    except Exception as error:  # of any catalog there is: SQLAlchemy, HTTP, AWS, ...
        raise _failure(error, doing, name) from error


def _failure(error: Exception, doing: str, name: str) -> LakebedError:
    from pyiceberg.exceptions import ValidationError

    if isinstance(error, ValidationError):
        return RuinedError("the table's metadata is damaged", table=name, reason=reason_of(error))
    return _unavailable(error, doing, name)


def _unavailable(error: Exception, doing: str, name: str) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"the catalog failed while {doing}", table=name, reason=reason_of(error)
    )


def reason_of(error: Exception) -> str:
    """Return the text of an error, in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
