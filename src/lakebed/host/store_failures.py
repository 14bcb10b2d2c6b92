"""What an object store's failures mean: the one place where they become Lakebed's.

| of a folder | of a bucket | becomes |
|---|---|---|
| ENOENT, ENOTDIR | not found; a redirect: another region's bucket | `StoreNotFoundError` |
| EACCES, EPERM, EROFS | denied, unauthenticated; a token that expired | `StoreDeniedError` |
| any other | any other | `StoreUnavailableError` |

What is not recognised counts as unavailable: repeating costs time, giving up could cost an upload.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from typing import Final

from lakebed.errors import (
    InvalidArgumentError,
    LakebedError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)

_SECRETS: Final = ("key", "secret", "token", "password", "credential", "signature")

_ERRNOS: Final[dict[int | None, type[LakebedError]]] = {
    errno.ENOENT: StoreNotFoundError,
    errno.ENOTDIR: StoreNotFoundError,
    errno.EACCES: StoreDeniedError,
    errno.EPERM: StoreDeniedError,
    errno.EROFS: StoreDeniedError,
}
_TYPES: Final[dict[str, type[LakebedError]]] = {
    "FileNotFoundError": StoreNotFoundError,
    "NotFoundError": StoreNotFoundError,
    "PermissionError": StoreDeniedError,
    "PermissionDeniedError": StoreDeniedError,
    "UnauthenticatedError": StoreDeniedError,
    "InvalidPathError": InvalidArgumentError,
}
_CODES: Final[dict[str, type[LakebedError]]] = {
    "ExpiredToken": StoreDeniedError,
    "InvalidToken": StoreDeniedError,
    "TokenRefreshRequired": StoreDeniedError,
    "AuthorizationHeaderMalformed": StoreDeniedError,
    "InvalidAuthenticationInfo": StoreDeniedError,
    "InvalidBucketName": StoreNotFoundError,
}
"""Answers of S3 and Azure with status 400, which the library has no type for."""
_STATUSES: Final[dict[str, type[LakebedError]]] = {
    "401": StoreDeniedError,
    "403": StoreDeniedError,
    "404": StoreNotFoundError,
}
"""The failures of a listing have no type but their status."""
_STATUS: Final = "status code: "
_REDIRECT: Final = "Received redirect"
"""What the library says if a bucket is of another region."""

_REASON_CHARACTERS: Final = 300


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """Return the values that no message may repeat, the longest first."""
    secrets = {
        text
        for name, text in options.items()
        if len(text) > 1 and any(word in name.lower() for word in _SECRETS)
    }
    return sorted(secrets, key=len, reverse=True)


@contextlib.contextmanager
def translate_folder_errors(doing: str, uri: str) -> Iterator[None]:
    """Raise a failure of a folder within the block as Lakebed's."""
    try:
        yield
    except OSError as error:
        raise _failure(_ERRNOS.get(error.errno), doing, str(error), uri) from error


@contextlib.contextmanager
def translate_bucket_errors(doing: str, uri: str, secrets: list[str]) -> Iterator[None]:
    """Raise a failure of obstore within the block as Lakebed's, with no secret in it."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        reason = _reason(str(error))
        kind = _TYPES.get(type(error).__name__) or _kind_of_untyped(str(error), reason)
        for secret in secrets:
            reason = reason.replace(secret, "***")
        # The library's error is left out: it repeats addresses, which may contain a signature.
        raise _failure(kind, doing, reason[:_REASON_CHARACTERS], uri) from None


def is_missing_bucket(error: Exception) -> bool:
    """Return whether it is the bucket that is not found, and not the object."""
    return _answer(str(error), "Code") in ("NoSuchBucket", "ContainerNotFound")


def _kind_of_untyped(text: str, reason: str) -> type[LakebedError] | None:
    if _REDIRECT in reason:
        return StoreNotFoundError
    status = reason.partition(_STATUS)[2][:3]
    return _CODES.get(_answer(text, "Code")) or _STATUSES.get(status)


def _reason(text: str) -> str:
    """Return what the library says in one line, without the address of the request.

    Generic S3 error: Error performing PUT http://… in 1ms - Server returned non-2xx status
    code: 400 Bad Request: <Error><Code>…</Code><Message>…</Message></Error>

    Debug source: …
        kind: Timeout,
    """
    told, _, details = text.partition("\n\nDebug source:")
    told = told.partition("Error performing ")[2].partition(" - ")[2] or told
    kind = details.partition("kind: ")[2].partition(",")[0]
    code, message = _answer(told, "Code"), _answer(told, "Message")
    if code:
        return f"{told.partition('<')[0].rstrip(': ')}: {code}: {message}"
    return " ".join(f"{told} ({kind})".split()) if kind.isalpha() else " ".join(told.split())


def _answer(text: str, tag: str) -> str:
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def _failure(kind: type[LakebedError] | None, doing: str, reason: str, uri: str) -> LakebedError:
    kind = kind or StoreUnavailableError
    return kind(f"{_STORY[kind]} while {doing}: {reason}", uri=uri)


_STORY: Final[dict[type[LakebedError], str]] = {
    StoreUnavailableError: "the object store is not available",
    StoreDeniedError: "the object store refused",
    StoreNotFoundError: "the object store has no such thing",
    InvalidArgumentError: "the object store cannot have such a name",
}
