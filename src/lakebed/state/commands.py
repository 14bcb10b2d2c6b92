"""Commands: every change of the log's state. `command_codec.py` has their form in an entry."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from msgspec import Struct

from lakebed.state.values import (
    Digest,
    GroupOffset,
    NonNegative,
    Part,
    Segment,
    Settings,
    ZeroOrOne,
)


class Command(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A change of the state. Its fields and their types are its form in an entry, in order."""

    kind: ClassVar[int]
    """Its number in an entry, which never changes."""

    def check(self) -> None:
        """Raise `ValueError` for what the types of its fields do not exclude."""


class CreateTopic(Command, frozen=True):
    """Make a topic. Result: its id."""

    kind = 1
    name: str
    partitions: NonNegative
    schema: bytes
    config: Settings
    time_us: int


class AlterTopic(Command, frozen=True):
    """Replace a topic's settings, and add a version of its schema unless that is empty."""

    kind = 2
    topic: NonNegative
    config: Settings
    schema: bytes
    schemas: NonNegative
    """How many versions there were when this was decided."""


class AddPartitions(Command, frozen=True):
    """Let a topic have so many partitions in all."""

    kind = 3
    topic: NonNegative
    partitions: NonNegative


class DeleteTopic(Command, frozen=True):
    """Remove a topic and everything in it."""

    kind = 4
    topic: NonNegative


class PurgeTopic(Command, frozen=True):
    """Remove every record of a topic; offsets go on."""

    kind = 5
    topic: NonNegative


class Write(Command, frozen=True):
    """Append batches. Result: the base offset of each run of each part, or an error for a part."""

    kind = 6
    time_us: NonNegative
    parts: tuple[Part, ...]


class ProducerWrite(Command, frozen=True):
    """Append one batch under a producer. Result: as for `Write`."""

    kind = 7
    time_us: int
    producer: NonNegative
    epoch: NonNegative
    sequences: tuple[NonNegative, ...]
    """The sequence number of each run's first record."""
    part: Part


class WriteMany(Command, frozen=True):
    """Append batches of many writers, each run perhaps under a producer.

    Result: as for `Write`, and what became of each run (`Written.runs`).
    """

    kind = 28
    time_us: int
    parts: tuple[Part, ...]
    claims: tuple[tuple[tuple[NonNegative, ...], ...], ...]
    """For each run of each part: (producer, epoch, first sequence), or empty."""

    def check(self) -> None:
        """Raise `ValueError` for a claim that is neither empty nor complete."""
        if any(len(claim) not in (0, 3) for part in self.claims for claim in part):
            raise ValueError("a claim is not (producer, epoch, first sequence)")


class RegisterProducer(Command, frozen=True):
    """Take over a producer's name; an empty one is nobody's. Result: (id, epoch)."""

    kind = 8
    name: str
    time_us: int


class BeginTransaction(Command, frozen=True):
    """Take over a transaction's name; an open one of that name is dropped. Result: (id, epoch)."""

    kind = 9
    name: str
    timeout_us: NonNegative
    time_us: int


class TransactionWrite(Command, frozen=True):
    """Add batches to an open transaction."""

    kind = 10
    producer: NonNegative
    epoch: NonNegative
    time_us: int
    parts: tuple[Part, ...]


class CommitTransaction(Command, frozen=True):
    """Make a transaction visible, with last batches and consumer offsets. Result: as `Write`."""

    kind = 11
    producer: NonNegative
    epoch: NonNegative
    time_us: int
    parts: tuple[Part, ...]
    offsets: tuple[GroupOffset, ...]


class CommitTogether(Command, frozen=True):
    """Make several transactions visible at once, and only once under a name and a number.

    Result: as `Write`, in the order in which they are given. If the name's marker has come as far
    as the number, it is a repeat: what is still open of them is dropped.
    """

    kind = 26
    name: str
    number: NonNegative
    time_us: int
    keep_us: NonNegative
    """How long the marker is remembered after this."""
    transactions: tuple[tuple[NonNegative, NonNegative], ...]
    """(producer, epoch)."""
    offsets: tuple[GroupOffset, ...]
    """Of consumers, as of `CommitTransaction`."""


class AbortTransaction(Command, frozen=True):
    """Drop a transaction."""

    kind = 12
    producer: NonNegative
    epoch: NonNegative
    reason: str


class ExpireProducers(Command, frozen=True):
    """Forget producers that have written nothing since."""

    kind = 13
    before_us: int


class ForgetProducer(Command, frozen=True):
    """Forget a producer that will write no more."""

    kind = 20
    producer: NonNegative
    epoch: NonNegative


class CommitOffsets(Command, frozen=True):
    """Remember how far a group has come: (topic, partition, offset)."""

    kind = 14
    group: str
    member: str
    offsets: tuple[tuple[NonNegative, NonNegative, NonNegative], ...]
    time_us: int


class ChangeGroup(Command, frozen=True):
    """Assign partitions to members: (topic, partition, member). Result: generation."""

    kind = 15
    group: str
    owners: tuple[tuple[NonNegative, NonNegative, str], ...]


class DeleteGroup(Command, frozen=True):
    """Forget a group and its offsets."""

    kind = 16
    group: str


class StagedFile(NamedTuple):
    """Bodies of an open transaction that were copied out of the WAL."""

    id: NonNegative
    producer: NonNegative
    epoch: NonNegative
    bodies: tuple[tuple[NonNegative, NonNegative, NonNegative, NonNegative], ...]
    """(entry, part, position in the file, checksum)."""


class Flush(Command, frozen=True):
    """Segments that hold what was in memtables: (topic, partition, segment); staged files."""

    kind = 17
    added: tuple[tuple[NonNegative, NonNegative, Segment], ...]
    staged: tuple[StagedFile, ...]


class ReplaceSegments(Command, frozen=True):
    """Let new segments stand for old ones of the same offsets."""

    kind = 18
    topic: NonNegative
    partition: NonNegative
    removed: tuple[NonNegative, ...]
    added: tuple[Segment, ...]
    compacted_to: NonNegative


class PlaceSegments(Command, frozen=True):
    """Report that files of segments are in another place now: (topic, partition, segment, place).

    Result: how many of them are part of the log still.
    """

    kind = 21
    placed: tuple[tuple[NonNegative, NonNegative, NonNegative, NonNegative], ...]


class Trim(Command, frozen=True):
    """Raise low watermarks: (partition, offset)."""

    kind = 19
    topic: NonNegative
    lows: tuple[tuple[NonNegative, NonNegative], ...]


class PutToken(Command, frozen=True):
    """Let a token be known. Tokens that ended long ago are forgotten."""

    kind = 22
    id: str
    principal: str
    digest: Digest
    created_us: int
    expires_us: NonNegative
    """0: never."""


class RevokeToken(Command, frozen=True):
    """Let a token be valid no more."""

    kind = 23
    id: str
    time_us: int


class SetRule(Command, frozen=True):
    """Let a role do something on names of a pattern, or no more. Result: whether this is new."""

    kind = 24
    role: str
    action: str
    pattern: str
    present: ZeroOrOne
    """1: there is such a rule from now on; 0: there is none."""


class SetGrant(Command, frozen=True):
    """Let a principal have a role, or no more. Result: whether this is new."""

    kind = 25
    principal: str
    role: str
    present: ZeroOrOne
    """1: it has the role from now on; 0: it has not."""


class SetDenial(Command, frozen=True):
    """Deny a role something on names of a pattern, or no more. Result: whether this is new."""

    kind = 27
    role: str
    action: str
    pattern: str
    present: ZeroOrOne
    """1: there is such a denial from now on; 0: there is none."""


TOPIC_COMMANDS: Final = (CreateTopic, AlterTopic, AddPartitions, DeleteTopic, PurgeTopic)
"""The commands that change topics themselves."""


def parts_of(command: Command) -> tuple[Part, ...]:
    """Return the parts whose bodies an entry holds."""
    if isinstance(command, ProducerWrite):
        return (command.part,)
    if isinstance(command, Write | WriteMany | TransactionWrite | CommitTransaction):
        return command.parts
    return ()
