"""The values of the replicated log: entries, memberships, snapshots, and what makes each valid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lakebed import limits
from lakebed.config.checks import is_whole
from lakebed.errors import InvalidArgumentError
from lakebed.types import EntryKind

if TYPE_CHECKING:
    from typing_extensions import Buffer

MEMBERS_MAX: Final = 1024
"""The most nodes a membership may name: far more than a cluster has, and a small mark in the log.
"""


@dataclass(frozen=True)
class LogEntry:
    """One command at its place in the log.

    `payload` is bytes or any contiguous buffer; it must not change until the entry is durable. A
    configuration entry's payload is an encoded `Membership`.
    """

    index: int
    term: int
    payload: Buffer
    kind: EntryKind = EntryKind.NORMAL

    @property
    def payload_bytes(self) -> int:
        """Return the payload's length."""
        return memoryview(self.payload).nbytes


@dataclass(frozen=True)
class Membership:
    """Who belongs to the cluster: nodes that vote, and nodes that only receive the log."""

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not a set of node numbers."""
        for name, nodes in (("voters", self.voters), ("learners", self.learners)):
            if not isinstance(nodes, tuple) or not all(is_u64(node) for node in nodes):
                raise InvalidArgumentError(
                    f"{name} must be a tuple of integers of 64 bits", value=repr(nodes)[:200]
                )
        count = len(self.voters) + len(self.learners)
        if count > MEMBERS_MAX:
            raise InvalidArgumentError("too many members", members=count, members_max=MEMBERS_MAX)
        if len({*self.voters, *self.learners}) != count:
            raise InvalidArgumentError("a member is named twice", membership=self)


@dataclass(frozen=True)
class Snapshot:
    """The state machine after the entry at `index`, with the membership in force there."""

    index: int
    term: int
    membership: Membership
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be a snapshot."""
        if not is_u64(self.index) or not 1 <= self.index <= limits.INDEX_MAX:
            raise InvalidArgumentError("a snapshot's index must be from 1", index=repr(self.index))
        check_term(self.term)
        if not isinstance(self.data, bytes) or not isinstance(self.membership, Membership):
            raise InvalidArgumentError("a snapshot is bytes and a membership", index=self.index)
        if len(self.data) > limits.SNAPSHOT_BYTES_MAX:
            raise InvalidArgumentError(
                "the snapshot is too large",
                bytes=len(self.data),
                bytes_max=limits.SNAPSHOT_BYTES_MAX,
            )


def check_term(term: int) -> None:
    """Refuse what is not a term."""
    if not is_u64(term):
        raise InvalidArgumentError("term must be an integer of 64 bits", term=repr(term))


def is_u64(value: object) -> bool:
    """Return whether a value is an integer that fits 64 bits."""
    return is_whole(value, 0, 2**64 - 1)
