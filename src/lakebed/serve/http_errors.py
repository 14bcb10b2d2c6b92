"""Errors over HTTP: a status for each class, one body for all of them."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import Response

from lakebed import errors
from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.wire.private_paths import without_paths

MEDIA_TYPE: Final = "application/problem+json"

HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'",
}
"""What every answer has."""

STATUSES: Final[dict[type[LakebedError], int]] = {
    errors.InvalidArgumentError: 400,
    errors.SchemaMismatchError: 400,
    errors.ProtocolError: 400,
    errors.UnauthenticatedError: 401,
    errors.AccessDeniedError: 403,
    errors.TopicNotFoundError: 404,
    errors.PartitionNotFoundError: 404,
    errors.GroupNotFoundError: 404,
    errors.TableNotFoundError: 404,
    errors.EntryNotFoundError: 404,
    errors.TopicExistsError: 409,
    errors.PipelineRunningError: 409,
    errors.SchemaChangeError: 409,
    errors.FencedError: 409,
    errors.SequenceGapError: 409,
    errors.TransactionTimedOutError: 409,
    errors.TransactionClosedError: 409,
    errors.GroupNotEmptyError: 409,
    errors.StalePlanError: 409,
    errors.SurvivorsError: 409,
    errors.ForeignTableError: 409,
    errors.TableExistsError: 409,
    errors.TableChangedError: 409,
    errors.EntryReleasedError: 410,
    errors.RecordTooLargeError: 413,
    errors.EntryTooLargeError: 413,
    errors.OffsetOutOfRangeError: 416,
    errors.NotOwnerError: 421,
    errors.QuotaExceededError: 429,
    errors.OverloadedError: 503,
    errors.CatalogUnavailableError: 503,
    errors.ClosedError: 503,
    errors.LockedError: 503,
    errors.DiskFullError: 503,
    errors.TooManyFilesError: 503,
    errors.ReadOnlyError: 503,
    errors.StoreUnavailableError: 503,
    errors.ServerUnavailableError: 503,
    errors.LakebedError: 500,
}
"""The status of each class; that of a class which is not here is its base's."""


class Refused(Exception):  # noqa: N818  # it carries an error, and is none itself
    """An error with a status of its own: what HTTP refuses before it comes to a call."""

    def __init__(
        self, status: int, message: str, *, headers: dict[str, str] | None = None, **facts: object
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = InvalidArgumentError(message, **facts)
        self.headers = headers or {}


def status_of(error: LakebedError) -> int:
    """Return the status of an error."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def body_of(error: LakebedError) -> dict[str, Any]:
    """Return an error as plain data."""
    return {
        "code": error.code,
        "message": without_paths(error.message),
        "retriable": error.retriable,
        "advice": error.advice,
        "facts": {name: _plain(value) for name, value in error.facts.items()},
    }


def problem(
    error: LakebedError, *, status: int | None = None, headers: dict[str, str] | None = None
) -> Response:
    """Return the answer that tells of an error."""
    chosen = status_of(error) if status is None else status
    return Response(
        json.dumps(body_of(error), separators=(",", ":")),
        chosen,
        {**_hints(error, chosen), **(headers or {})},
        MEDIA_TYPE,
    )


def refusal(refused: Refused) -> Response:
    """Return the answer that tells of an error with a status of its own."""
    return problem(refused.error, status=refused.status, headers=refused.headers)


def _hints(error: LakebedError, status: int) -> dict[str, str]:
    """Return the headers that say how to do better."""
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        wait_ms = error.facts.get("wait_ms")
        return {"Retry-After": str(-(-wait_ms // 1000) if isinstance(wait_ms, int) else 1)}
    return {}


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | None) else without_paths(str(value))
