"""The values of the state machine. None of them changes: a new state refers to new values."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from msgspec import Meta

NonNegative = Annotated[int, Meta(ge=0)]
ZeroOrOne = Annotated[int, Meta(ge=0, le=1)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""SHA-256."""
Settings = tuple[tuple[str, int | str], ...]
"""Names and values, sorted by name."""
GroupOffset = tuple[str, str, NonNegative, NonNegative, NonNegative]
"""An offset that a transaction commits: (group, member, topic, partition, offset)."""

LOCAL: Final = 0
"""A segment's file is on the local disk."""
BOTH: Final = 1
"""It is in the object store too."""
STORE: Final = 2
"""It is in the object store; on the local disk there may be a copy still."""


class Segment(NamedTuple):
    """A sealed Parquet file of one partition.

    It answers for every offset from `base` up to, not including, `end`; after a compaction some of
    these have no record any more.
    """

    id: NonNegative
    base: NonNegative
    end: NonNegative
    records: NonNegative
    file_bytes: NonNegative
    tail_bytes: NonNegative
    """Length of the file's end behind the last column chunk: page index, footer, magic."""
    tail_checksum: NonNegative
    """CRC32C of that end. The footer in it holds the checksum of every column chunk."""
    time_min_us: int
    time_max_us: int
    """The least and the greatest timestamp of its records."""
    place: int = 0
    """Where its file is: `LOCAL`, `BOTH` or `STORE`."""


class Topic(NamedTuple):
    """A topic, without its records."""

    id: int
    name: str
    partitions: int
    schemas: tuple[bytes, ...]
    """Every version of its schema, encoded; none for a raw topic."""
    config: Settings
    """The settings that differ from the defaults."""
    created_us: int


class Partition(NamedTuple):
    """Where a partition begins and ends, and what of it is sealed."""

    low: int = 0
    """The low watermark: records below it are gone."""
    end: int = 0
    """The offset of the next record."""
    flushed: int = 0
    """Records below it are in segments (or gone), the others in the memtable."""
    segments: tuple[Segment, ...] = ()
    compacted_to: int = 0
    """The last compaction by key saw everything below this."""


class ProducerState(NamedTuple):
    """Somebody who writes under a name: only the latest of that name may."""

    id: int
    name: str
    """Empty for one without a name. `OWNER/NAME` belongs to a caller of the server, and `OWNER/` is
    one of it without a name.
    """
    epoch: int
    seen_us: int
    transactional: bool
    outcome: str = ""
    """Of a transactional one: how the last transaction ended."""

    @property
    def named(self) -> bool:
        """Whether somebody may come back to it by its name."""
        return bool(self.name) and not self.name.endswith("/")

    @property
    def owner(self) -> str:
        """Whose it is; empty for one that was not opened by a known caller of a server."""
        return owner_of(self.name)


def owner_of(name: str) -> str:
    """Return whose a name of a producer, a transaction or a marker is; empty for nobody's."""
    return name.rpartition("/")[0]


class Sequences(NamedTuple):
    """The last batches of a producer in one partition: (first sequence, records, base offset)."""

    epoch: int
    batches: tuple[tuple[int, int, int], ...]


class Run(NamedTuple):
    """Consecutive rows of a part that go to one partition."""

    partition: NonNegative
    records: NonNegative


class Part(NamedTuple):
    """One batch of one topic within an entry; its rows stand partition by partition."""

    topic: NonNegative
    schema: NonNegative
    """Which version of the topic's schema; 0 for a raw topic."""
    runs: tuple[Run, ...]
    body_bytes: NonNegative


class Pending(NamedTuple):
    """A part of an open transaction: where its body lies, and what it will become."""

    index: int  # type: ignore[assignment]  # the word is worth more than tuple.index
    number: int
    """Which part of the entry."""
    part: Part
    staged: int = 0
    """The staged file that holds the body; 0 if it is in the WAL still."""
    position: int = 0
    checksum: int = 0


class TransactionState(NamedTuple):
    """An open transaction: its data is invisible until it commits."""

    producer: int
    epoch: int
    started_us: int
    timeout_us: int
    pending: tuple[Pending, ...] = ()
    offsets: tuple[GroupOffset, ...] = ()
    """Consumer offsets that commit with it."""


class Marker(NamedTuple):
    """How far somebody has come who commits transactions together, one number after another."""

    number: NonNegative
    """The last one that was committed; this and every smaller one is a repeat."""
    time_us: int
    keep_us: NonNegative
    """It may be forgotten so long after its time."""


class Group(NamedTuple):
    """A consumer group: how often its partitions changed hands, and who holds them now."""

    generation: int = 0
    owners: tuple[tuple[int, int, str], ...] = ()
    """(topic, partition, member), sorted."""


class CommittedOffset(NamedTuple):
    """The next offset that a group will read in a partition, and when it said so."""

    offset: int
    time_us: int


class Token(NamedTuple):
    """What a principal proves with who it is. The secret itself is not kept."""

    id: str
    principal: str
    digest: Digest
    """SHA-256 of the log's identity, the id and the secret."""
    created_us: int
    expires_us: NonNegative
    """0: never."""
    revoked_us: int
    """0: not revoked."""

    def end_us(self) -> int:
        """Return when it stopped or will stop to be valid; 0 if never."""
        return min(
            (time_us for time_us in (self.expires_us, self.revoked_us) if time_us), default=0
        )

    def valid_at(self, time_us: int) -> bool:
        """Return whether it is neither revoked nor expired."""
        return not self.revoked_us and (not self.expires_us or time_us < self.expires_us)
