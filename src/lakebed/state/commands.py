"""Commands: every change of the log's state. `command_codec.py` has their form in an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakebed.state.values import Part, Segment

if TYPE_CHECKING:
    pass


class CreateTopic(NamedTuple):
    """Make a topic. Result: its id."""

    name: str
    partitions: int
    schema: bytes
    config: tuple[tuple[str, int | str], ...]
    time_us: int


class AlterTopic(NamedTuple):
    """Replace a topic's settings, and add a version of its schema unless that is empty."""

    topic: int
    config: tuple[tuple[str, int | str], ...]
    schema: bytes
    schemas: int
    """How many versions there were when this was decided."""


class AddPartitions(NamedTuple):
    """Let a topic have so many partitions in all."""

    topic: int
    partitions: int


class DeleteTopic(NamedTuple):
    """Remove a topic and everything in it."""

    topic: int


class PurgeTopic(NamedTuple):
    """Remove every record of a topic; offsets go on."""

    topic: int


class Write(NamedTuple):
    """Append batches. Result: the base offset of each run of each part, or an error for a part."""

    time_us: int
    parts: tuple[Part, ...]


class ProducerWrite(NamedTuple):
    """Append one batch under a producer. Result: as for `Write`."""

    time_us: int
    producer: int
    epoch: int
    sequences: tuple[int, ...]
    """The sequence number of each run's first record."""
    part: Part


class WriteMany(NamedTuple):
    """Append batches of many writers, each run perhaps under a producer.

    Result: as for `Write`, and what became of each run (`Written.runs`).
    """

    time_us: int
    parts: tuple[Part, ...]
    claims: tuple[tuple[tuple[int, ...], ...], ...]
    """For each run of each part: (producer, epoch, first sequence), or empty."""


class RegisterProducer(NamedTuple):
    """Take over a producer's name; an empty one is nobody's. Result: (id, epoch)."""

    name: str
    time_us: int


class BeginTransaction(NamedTuple):
    """Take over a transaction's name; an open one of that name is dropped. Result: (id, epoch)."""

    name: str
    timeout_us: int
    time_us: int


class TransactionWrite(NamedTuple):
    """Add batches to an open transaction."""

    producer: int
    epoch: int
    time_us: int
    parts: tuple[Part, ...]


class CommitTransaction(NamedTuple):
    """Make a transaction visible, with last batches and consumer offsets. Result: as `Write`."""

    producer: int
    epoch: int
    time_us: int
    parts: tuple[Part, ...]
    offsets: tuple[tuple[str, str, int, int, int], ...]


class CommitTogether(NamedTuple):
    """Make several transactions visible at once, and only once under a name and a number.

    Result: as `Write`, in the order in which they are given. If the name's marker has come as far
    as the number, it is a repeat: what is still open of them is dropped.
    """

    name: str
    number: int
    time_us: int
    keep_us: int
    """How long the marker is remembered after this."""
    transactions: tuple[tuple[int, int], ...]
    """(producer, epoch)."""
    offsets: tuple[tuple[str, str, int, int, int], ...]
    """Of consumers, as of `CommitTransaction`."""


class AbortTransaction(NamedTuple):
    """Drop a transaction."""

    producer: int
    epoch: int
    reason: str


class ExpireProducers(NamedTuple):
    """Forget producers that have written nothing since."""

    before_us: int


class ForgetProducer(NamedTuple):
    """Forget a producer that will write no more."""

    producer: int
    epoch: int


class CommitOffsets(NamedTuple):
    """Remember how far a group has come: (topic, partition, offset)."""

    group: str
    member: str
    offsets: tuple[tuple[int, int, int], ...]
    time_us: int


class ChangeGroup(NamedTuple):
    """Assign partitions to members: (topic, partition, member). Result: generation."""

    group: str
    owners: tuple[tuple[int, int, str], ...]


class DeleteGroup(NamedTuple):
    """Forget a group and its offsets."""

    group: str


class StagedFile(NamedTuple):
    """Bodies of an open transaction that were copied out of the WAL."""

    id: int
    producer: int
    epoch: int
    bodies: tuple[tuple[int, int, int, int], ...]
    """(entry, part, position in the file, checksum)."""


class Flush(NamedTuple):
    """Segments that hold what was in memtables: (topic, partition, segment); staged files."""

    added: tuple[tuple[int, int, Segment], ...]
    staged: tuple[StagedFile, ...]


class ReplaceSegments(NamedTuple):
    """Let new segments stand for old ones of the same offsets."""

    topic: int
    partition: int
    removed: tuple[int, ...]
    added: tuple[Segment, ...]
    compacted_to: int


class PlaceSegments(NamedTuple):
    """Report that files of segments are in another place now: (topic, partition, segment, place).

    Result: how many of them are part of the log still.
    """

    placed: tuple[tuple[int, int, int, int], ...]


class Trim(NamedTuple):
    """Raise low watermarks: (partition, offset)."""

    topic: int
    lows: tuple[tuple[int, int], ...]


class PutToken(NamedTuple):
    """Let a token be known. Tokens that ended long ago are forgotten."""

    id: str
    principal: str
    digest: bytes
    created_us: int
    expires_us: int
    """0: never."""


class RevokeToken(NamedTuple):
    """Let a token be valid no more."""

    id: str
    time_us: int


class SetRule(NamedTuple):
    """Let a role do something on names of a pattern, or no more. Result: whether this is new."""

    role: str
    action: str
    pattern: str
    present: int
    """1: there is such a rule from now on; 0: there is none."""


class SetGrant(NamedTuple):
    """Let a principal have a role, or no more. Result: whether this is new."""

    principal: str
    role: str
    present: int
    """1: it has the role from now on; 0: it has not."""


class SetDenial(NamedTuple):
    """Deny a role something on names of a pattern, or no more. Result: whether this is new."""

    role: str
    action: str
    pattern: str
    present: int
    """1: there is such a denial from now on; 0: there is none."""


Command = (
    CreateTopic
    | AlterTopic
    | AddPartitions
    | DeleteTopic
    | PurgeTopic
    | Write
    | ProducerWrite
    | RegisterProducer
    | BeginTransaction
    | TransactionWrite
    | CommitTransaction
    | AbortTransaction
    | ExpireProducers
    | ForgetProducer
    | CommitOffsets
    | ChangeGroup
    | DeleteGroup
    | Flush
    | ReplaceSegments
    | Trim
    | PlaceSegments
    | PutToken
    | RevokeToken
    | SetRule
    | SetGrant
    | CommitTogether
    | SetDenial
    | WriteMany
)

TOPIC_COMMANDS: Final = (CreateTopic, AlterTopic, AddPartitions, DeleteTopic, PurgeTopic)
"""The commands that change topics themselves."""


def parts_of(command: Command) -> tuple[Part, ...]:
    """Return the parts whose bodies an entry holds."""
    if isinstance(command, ProducerWrite):
        return (command.part,)
    if isinstance(command, Write | WriteMany | TransactionWrite | CommitTransaction):
        return command.parts
    return ()
