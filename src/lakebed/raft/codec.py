"""The two things the raft layer encodes itself. This text is their specification.

Both are msgpack arrays, in the shortest encoding msgpack has for each value, so that equal values
have equal bytes. Anything else is refused, before anything is allocated that the input claims.

Membership, the payload of a configuration entry:

    [version 1, voters [u64 …], learners [u64 …]]

Note, kept in the WAL's release mark, whose index and term are the snapshot's:

    [version 1, file bytes, CRC32C of the file, voters [u64 …], learners [u64 …]]

The note is what makes a snapshot valid: a file without a note is a leftover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import msgpack

from lakebed import limits
from lakebed.errors import CorruptionError, FormatTooNewError, InvalidArgumentError
from lakebed.raft.values import MEMBERS_MAX, Membership
from lakebed.state.snapshot_files import SnapshotNote

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION: Final = 1

_BYTES_MAX: Final = 64 + 9 * MEMBERS_MAX
"""The longest encoding: nine bytes a member, and the fields around them."""


@dataclass(frozen=True)
class Note(SnapshotNote):
    """What the log remembers about its snapshot: its members, and what the file must be."""

    membership: Membership


def encode_membership(membership: Membership) -> bytes:
    """Return the payload of a configuration entry."""
    return _pack([VERSION, list(membership.voters), list(membership.learners)])


def decode_membership(data: Buffer) -> Membership:
    """Return the membership in a configuration entry's payload."""
    voters, learners = _unpack(data, "a membership", 3)
    return _membership(voters, learners)


def encode_note(note: Note) -> bytes:
    """Return the bytes of a release mark's note."""
    members = note.membership
    return _pack(
        [VERSION, note.file_bytes, note.checksum, list(members.voters), list(members.learners)]
    )


def decode_note(data: Buffer) -> Note:
    """Return the note in a release mark."""
    file_bytes, checksum, voters, learners = _unpack(data, "a snapshot's note", 5)
    return Note(
        _number(file_bytes, "file_bytes", limits.SNAPSHOT_BYTES_MAX),
        _number(checksum, "checksum", 2**32 - 1),
        _membership(voters, learners),
    )


def _pack(fields: list[object]) -> bytes:
    return msgpack.encode(fields)


def _unpack(data: Buffer, what: str, count: int) -> list[object]:
    """Return the fields after the version of an array of `count`, in its one encoding."""
    view = memoryview(data)
    if view.nbytes > _BYTES_MAX:
        raise CorruptionError(f"{what} is too long", bytes=view.nbytes, bytes_max=_BYTES_MAX)
    raw = bytes(view)
    try:
        fields = msgpack.decode(raw, type=list[object])
        canonical = _pack(fields) == raw
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"{what} is not of its format", reason=repr(str(error))) from error
    if not fields or type(fields[0]) is not int:
        raise CorruptionError(f"{what} is not of its format", reason="'no version'")
    if fields[0] > VERSION:
        raise FormatTooNewError(f"{what} has a newer format", version=fields[0], supported=VERSION)
    if fields[0] != VERSION or len(fields) != count or not canonical:
        raise CorruptionError(f"{what} is not of its format", reason="'fields'")
    return fields[1:]


def _membership(voters: object, learners: object) -> Membership:
    try:
        return Membership(_nodes(voters), _nodes(learners))
    except InvalidArgumentError as error:
        raise CorruptionError("a membership is not valid", reason=repr(str(error))) from error


def _nodes(field: object) -> tuple[int, ...]:
    if not isinstance(field, list):
        raise CorruptionError("a membership is not of its format", reason="'not a list'")
    return tuple(field)


def _number(field: object, name: str, highest: int) -> int:
    if type(field) is not int or not 0 <= field <= highest:
        raise CorruptionError("a snapshot's note has a field out of bounds", field=name)
    return field
