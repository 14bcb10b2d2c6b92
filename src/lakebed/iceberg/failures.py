"""What can go wrong between a log and its tables: the one place where it becomes ours."""

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
from lakebed.host.store_failures import store_failure


class ConflictError(Exception):
    """The table is not as it was, or nobody knows how it is."""


class RuinedError(ForeignTableError):
    """A file that the catalog or the table refers to is not there, or is damaged."""


def committed(change: Any) -> None:
    """Commit a transaction; whatever comes of it but success is a conflict, to be looked into."""
    try:
        change.commit_transaction()
    except MemoryError:
        raise
    except Exception as error:  # it failed, or it happened and the answer was lost
        raise ConflictError(reason_of(error)) from error


@contextlib.contextmanager
def reading_manifests(table: Any) -> Iterator[None]:
    """Report a damaged file from a catalog that fails: its reader raises whatever comes to it."""
    try:
        yield
    except (LakebedError, OSError, MemoryError):
        raise
    except Exception as error:
        name = ".".join(table.name())
        raise RuinedError("a manifest is damaged", table=name, reason=reason_of(error)) from error


@contextlib.contextmanager
def translated(doing: str, name: str) -> Iterator[None]:
    """Raise whatever pyiceberg, a database or a network raises as one of ours."""
    try:
        yield
    except (LakebedError, ConflictError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise RuinedError("a file of the table is gone", table=name, reason=error) from error
    except OSError as error:
        known = store_failure(error, doing, name) or from_os_error(error, doing, name)
        if not isinstance(known, DeviceError):
            raise known from error
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
    """Return what an error says, in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
