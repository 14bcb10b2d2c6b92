"""A conditional store: objects that are created once, or replaced only if they have not changed.

| call | done | refused | unknown |
|---|---|---|---|
| `put_new(name, data)` | it did not exist and has these bytes | an object has that name | look |
| `put_if(name, data, version)` | it had that version and has these bytes | it has another | look |

Every call is one attempt. After *unknown* (no answer, a cut answer, an error of the server) the
write may have happened, may happen later, or not at all. The rule for callers: read the object.
The same bytes: done. Absent, or still the version that was to be replaced: repeat the same write.
Anything else: refused. A *refused* creation is to be looked at as well, because S3 answers 409
where nothing was written, and because the object may be the caller's own. Bytes therefore contain a
number that no other writer uses, so that "the same bytes" means "mine".

`get`, `put` and `delete` raise an error of the store instead: repeating them is harmless.
`lakebed.chain.settle` applies the rule.
"""

from __future__ import annotations

import contextlib
import enum
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from lakebed.errors import InvalidArgumentError, LakebedError, StoreUnfitError

FOLDER_SCHEME: Final = "file:///"


class Outcome(enum.Enum):
    """What is known about a conditional write."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Versioned(NamedTuple):
    """An object's bytes, and the version that `put_if` compares."""

    data: bytes
    version: str


class Answer(NamedTuple):
    """The outcome of a conditional write, and why it is not known."""

    outcome: Outcome
    cause: LakebedError | None = None


DONE: Final = Answer(Outcome.DONE)
REFUSED: Final = Answer(Outcome.REFUSED)


class ConditionalStore(Protocol):
    """Objects by name below a location. Any thread."""

    location: str

    def put_new(self, name: str, data: bytes) -> Answer:
        """Create an object if none has that name."""
        ...

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        """Replace an object if it still has that version."""
        ...

    def get(self, name: str) -> Versioned | None:
        """Return an object, or None if there is none. Raise an error of the store."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write an object whose name nothing else uses. Raise an error of the store."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; a missing one is removed already. Raise an error of the store."""
        ...


def open_conditional(location: str, options: Mapping[str, str]) -> ConditionalStore:
    """Return the store at a location: `file:///FOLDER`, or a bucket as in `host/store.py`.

    Raises `PackageMissingError` if a bucket's driver is not installed.
    """
    if location.startswith(FOLDER_SCHEME) and location.strip("/") != "file:":
        from lakebed.host.conditional_folder import FolderStore

        return FolderStore(Path(location.removeprefix("file://").rstrip("/")))
    if "://" not in location:
        raise InvalidArgumentError(
            "location must be SCHEME://BUCKET/PREFIX or file:///FOLDER", got=location
        )
    from lakebed.host.conditional_bucket import BucketStore

    return BucketStore(location, options)


def probe(store: ConditionalStore) -> None:
    """Raise `StoreUnfitError` if the store ignores a condition, naming the call.

    A gateway that drops the headers overwrites without an error, and two owners of one log would
    both believe to own it. Raises an error of the store if it does not answer.
    """
    name = f"probe/{uuid.uuid4().hex}"
    first, second = (uuid.uuid4().bytes for _ in range(2))
    try:
        _require(store, "put_new", store.put_new(name, first), Outcome.DONE)
        _require(store, "put_new", store.put_new(name, second), Outcome.REFUSED)
        version = _version(store, "put_new", name, first)
        _require(store, "put_if", store.put_if(name, second, version), Outcome.DONE)
        _version(store, "put_if", name, second)
        _require(store, "put_if", store.put_if(name, first, version), Outcome.REFUSED)
        _version(store, "put_if", name, second)
    except BaseException:
        with contextlib.suppress(LakebedError):  # the error above says what is wrong
            store.delete(name)
        raise
    store.delete(name)


def _require(store: ConditionalStore, call: str, answer: Answer, expected: Outcome) -> None:
    if answer.outcome is expected:
        return
    if answer.cause is not None:
        raise answer.cause
    raise StoreUnfitError(
        f"the store did not keep the condition of {call}",
        location=store.location,
        call=call,
        expected=expected.value,
        got=answer.outcome.value,
    )


def _version(store: ConditionalStore, call: str, name: str, data: bytes) -> str:
    there = store.get(name)
    if there is None or there.data != data:
        raise StoreUnfitError(
            f"an object does not have the bytes that {call} left there",
            location=store.location,
            call=call,
            expected=len(data),
            got=None if there is None else len(there.data),
        )
    return there.version
