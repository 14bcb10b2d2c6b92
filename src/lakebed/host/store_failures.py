"""What an object store's failures mean: the one place where they become ours.

The library raises `OSError` for almost everything. A missing object has an errno; the rest is told
by text alone, such as `AWS Error ACCESS_DENIED during HeadObject operation` or `AWS Error UNKNOWN
(HTTP status 503)`. A request for headers has no body, so its status is all there is. What is not
recognised counts as unavailable: repeating costs time, giving up could cost an upload.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator, Mapping
from typing import Final

from lakebed.errors import (
    InvalidArgumentError,
    LakebedError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)

_DENIED: Final = re.compile(
    r"ACCESS_?DENIED|INVALID_?ACCESS_?KEY_?ID|INVALID_?CLIENT_?TOKEN_?ID|SIGNATURE_?DOES_?NOT_?MATCH"
    r"|MISSING_?AUTHENTICATION_?TOKEN|UNRECOGNIZED_?CLIENT|(EXPIRED|INVALID)_?TOKEN|NOT_?SIGNED_?UP"
    r"|REQUEST_?TIME_?TOO_?SKEWED|REQUEST_?EXPIRED|AUTHORIZATION_?HEADER_?MALFORMED"
    r"|ACCOUNT_?PROBLEM|ALL_?ACCESS_?DISABLED|INVALID_?SECURITY"
    r"|PERMISSION_?DENIED|UNAUTHENTICATED|AUTHENTICATION_?FAILED|AUTHORIZATION_?FAILURE"
    r"|AUTHORIZATION_?PERMISSION_?MISMATCH|INVALID_?AUTHENTICATION_?INFO|\bHTTP STATUS 40[13]\b",
    re.IGNORECASE,
)
_NOT_FOUND: Final = re.compile(
    r"NO_?SUCH_?(BUCKET|KEY)|INVALID_?BUCKET_?NAME|PERMANENT_?REDIRECT|CONTAINER_?NOT_?FOUND"
    r"|BLOB_?NOT_?FOUND|BUCKET DOES NOT EXIST|STATUS\(NOT_FOUND|HTTP STATUS (301|404)\b"
    r"|AWS ERROR RESOURCE_NOT_FOUND",
    re.IGNORECASE,
)
_MARKS: Final = ("AWS Error", "Azure Error", "google::cloud::Status")
_UNUSABLE: Final = re.compile(r"was not a valid URI|AWS Error VALIDATION\b")
_SECRET: Final = re.compile(r"key|secret|token|password|credential|signature", re.IGNORECASE)

_KINDS: Final[dict[int, type[LakebedError]]] = {
    errno.ENOENT: StoreNotFoundError,
    errno.ENOTDIR: StoreNotFoundError,
    errno.EACCES: StoreDeniedError,
    errno.EPERM: StoreDeniedError,
    errno.EROFS: StoreDeniedError,
}


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """Return the values that no message may repeat, the longest first."""
    found = {text for name, text in options.items() if _SECRET.search(name) and len(text) > 1}
    return sorted(found, key=len, reverse=True)


def kind_of(error: OSError) -> type[LakebedError]:
    """Return which of our errors a failure of the store is."""
    if error.errno in _KINDS:
        return _KINDS[error.errno]
    text = _failure(str(error))
    if _DENIED.search(text):
        return StoreDeniedError
    if _NOT_FOUND.search(text):
        return StoreNotFoundError
    return InvalidArgumentError if _UNUSABLE.search(text) else StoreUnavailableError


def _failure(text: str) -> str:
    """Leave out what stands before the failure itself: names, which may look like one."""
    return text[max(0, *(text.rfind(mark) for mark in _MARKS)) :]


@contextlib.contextmanager
def translated(doing: str, uri: str, secrets: list[str]) -> Iterator[None]:
    """Raise a failure of the store within the block as ours, with no secret in it."""
    try:
        yield
    except OSError as error:
        text = str(error)
        shown = text
        for secret in secrets:
            shown = shown.replace(secret, "***")
        kind = kind_of(error)
        # The cause is printed with the error. One that tells a secret is not kept.
        raise kind(f"{_STORY[kind]} while {doing}: {shown}", uri=uri) from (
            error if shown == text else None
        )


def store_failure(error: OSError, doing: str, table: str) -> LakebedError | None:
    """Return our error for a failure of the store while a table was used; None for any other."""
    if not any(mark in str(error) for mark in _MARKS):
        return None
    kind = kind_of(error)
    return kind(f"{_STORY[kind]} while {doing}", table=table, reason=str(error))


_STORY: Final[dict[type[LakebedError], str]] = {
    StoreUnavailableError: "the object store is not available",
    StoreDeniedError: "the object store refused",
    StoreNotFoundError: "the object store has no such thing",
    InvalidArgumentError: "the object store's endpoint is not usable",
}
