"""Table pointers: which metadata file of each table is the newest, as objects of the store.

    STORE/{log}/catalog/{namespace}/{table}.json
    {"format": 1, "metadata": LOCATION, "term": TERM, "nonce": NONCE}

A pointer is created if it does not exist, and replaced if it has not changed. Its nonce is used
once, so an outcome that is not known is settled by reading it (`chain/settle.py`). It has the term
of the owner that wrote it, and an owner does not touch a pointer with a higher term than its own.

An owner that takes over writes its term into a pointer when it first reads it. From then on the
owners before it fail to change the table: what they compare with has changed, and what they read
has a higher term. So a file that the owner finds unneeded cannot become needed again.

The pointer of a table that was dropped stays, with no metadata: a missing one could be created by
an owner that was taken over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from lakebed.chain.calls import Get, Procedure
from lakebed.chain.driver import Driver
from lakebed.chain.records import new_nonce
from lakebed.chain.settle import create, replace
from lakebed.errors import NotOwnerError
from lakebed.host import failpoints
from lakebed.host.conditional import Versioned
from lakebed.host.store import PATIENCE_SECONDS, ObjectStore
from lakebed.iceberg.failures import RuinedError

_SUFFIX: Final = ".json"

_Result = TypeVar("_Result")

_CLAIMED = failpoints.define("catalog.claimed")
_CREATED = failpoints.define("catalog.created")
_SWAPPED = failpoints.define("catalog.swapped")
_DROPPED = failpoints.define("catalog.dropped")


@dataclass(frozen=True)
class TableOwner:
    """The process that owns a log in a store, as the log's tables know it."""

    log_id: str
    term: int
    confirm: Callable[[], None]
    """Returns if this process owns the log and all it decided is in the store; raises if not."""
    new_driver: Callable[[], Driver]
    """Returns what runs procedures on the log's objects."""


class Pointer(NamedTuple):
    """What a pointer says, and the version of its object."""

    metadata: str
    """The location of the table's newest metadata file; empty once the table is dropped."""
    term: int
    version: str


class TablePointers:
    """The pointers of the tables in one namespace. One thread at a time."""

    def __init__(self, owner: TableOwner, objects: ObjectStore, namespace: str) -> None:
        self._owner = owner
        self._driver = owner.new_driver()
        self._objects = objects
        self.location: Final = self._driver.location
        """The location of the log's objects."""
        self._folder = f"catalog/{namespace}"
        self._dropped: set[str] = set()
        """Names of tables that are known to be dropped: no other process creates them again."""

    def find(self, name: str) -> Pointer | None:
        """Return the pointer of a table, claimed by this owner; None if there is no table."""
        while (pointer := self._read(name)) is not None and pointer.term < self._owner.term:
            if self._replace(name, pointer.version, pointer.metadata):
                _CLAIMED.hit()
        if pointer is None or pointer.metadata:
            return pointer
        self._dropped.add(name)
        return None

    def create(self, name: str, metadata: str) -> bool:
        """Create the pointer of a new table; return False if the table exists."""
        while True:
            there = self._read(name)
            if there is not None and there.metadata:
                return False
            if there is not None:
                done = self._replace(name, there.version, metadata)
            else:
                data = self._encode(metadata)
                done = self._run(create(self._object(name), data)) is None
            if done:
                self._dropped.discard(name)
                _CREATED.hit()
                return True

    def swap(self, name: str, pointer: Pointer, metadata: str) -> bool:
        """Point to newer metadata; return False if the pointer has changed."""
        done = self._replace(name, pointer.version, metadata)
        if done:
            _SWAPPED.hit()
        return done

    def drop(self, name: str) -> bool:
        """Drop a table, also one whose pointer is damaged; return False if there was none."""
        while True:
            stored = self._run(_get(self._object(name)))
            if stored is None or not self._may_be_dropped(name, stored):
                return False
            if self._replace(name, stored.version, ""):
                self._dropped.add(name)
                _DROPPED.hit()
                return True

    def names(self) -> list[str]:
        """Return the names of the tables, and of some that were dropped."""
        names = (
            file.name.rpartition("/")[2].removesuffix(_SUFFIX)
            for file in self._objects.listing(f"{self._owner.log_id}/{self._folder}")
            if file.name.endswith(_SUFFIX)
        )
        return [name for name in names if name not in self._dropped]

    def stop(self) -> None:
        """End every pause, and refuse further calls."""
        self._driver.stop()

    def _may_be_dropped(self, name: str, stored: Versioned) -> bool:
        try:
            return bool(self._decode(name, stored).metadata)
        except RuinedError:
            return True

    def _read(self, name: str) -> Pointer | None:
        stored = self._run(_get(self._object(name)))
        return None if stored is None else self._decode(name, stored)

    def _replace(self, name: str, version: str, metadata: str) -> bool:
        data = self._encode(metadata)
        return self._run(replace(self._object(name), data, version)) is None

    def _encode(self, metadata: str) -> bytes:
        nonce = new_nonce().hex()
        values = {"format": 1, "metadata": metadata, "term": self._owner.term, "nonce": nonce}
        return json.dumps(values).encode() + b"\n"

    def _decode(self, name: str, stored: Versioned) -> Pointer:
        """Return a pointer; refuse one of a later owner."""
        try:
            values = json.loads(stored.data)
            pointer = Pointer(str(values["metadata"]), int(values["term"]), stored.version)
        except (ValueError, TypeError, KeyError) as error:
            raise RuinedError(
                "the pointer of the table was changed by hand, or is damaged",
                table=name,
                object=f"{self.location}/{self._object(name)}",
            ) from error
        check_term(name, pointer.term, self._owner.term)
        return pointer

    def _object(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"

    def _run(self, procedure: Procedure[_Result]) -> _Result:
        return self._driver.run(procedure, patience_seconds=PATIENCE_SECONDS)


def check_term(name: str, term: int, own_term: int) -> None:
    """Refuse a table that a later owner of the log has changed."""
    if term > own_term:
        raise NotOwnerError(
            "another process has taken over the log and its tables",
            table=name,
            term=term,
            own_term=own_term,
        )


def _get(name: str) -> Procedure[Versioned | None]:
    stored: Versioned | None = yield Get(name)
    return stored
