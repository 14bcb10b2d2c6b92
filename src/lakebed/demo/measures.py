"""What the demonstration has measured, as plain data: times in seconds since its beginning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

_SHARES: Final = (50.0, 90.0, 99.0, 99.9, 100.0)


class MeasuredAck(NamedTuple):
    """A batch that the writer was told is on disk."""

    at: float
    records: int
    latency_ms: float


class Syncs(NamedTuple):
    """How much a writer has written by then, since its start."""

    at: float
    entries: int
    syncs: int


class MeasuredFlow(NamedTuple):
    """How far a flow of the pipeline was."""

    at: float
    name: str
    records: int


@dataclass
class Sale:
    """The two runs of the writer."""

    records: int
    checkouts: int
    acks: list[MeasuredAck] = field(default_factory=list)
    syncs: list[list[Syncs]] = field(default_factory=list)
    """For each life."""
    acknowledged: int = 0
    """Records, in both lives."""
    killed_at: float | None = None
    """None if the writer ended before it could be killed."""
    acknowledged_before: int = 0
    """Records, when the kill came."""
    unacknowledged: int = 0
    """Records on disk at the time of the kill whose acknowledgement was not delivered."""
    reopened_at: float = 0.0
    opening_ms: float = 0.0
    """What opening the log took after the kill."""
    replayed_entries: int = 0

    def acknowledge(self, ack: MeasuredAck) -> None:
        """Note a batch that is on disk."""
        self.acks.append(ack)
        self.acknowledged += ack.records

    def latencies_ms(self) -> dict[float, float]:
        """Return the times within which so many per cent of the batches were acknowledged."""
        ordered = sorted(ack.latency_ms for ack in self.acks) or [0.0]
        last = len(ordered) - 1
        return {share: ordered[round(share / 100 * last)] for share in _SHARES}

    def entries_per_sync(self) -> float:
        """Return how many entries shared a sync, over both lives."""
        lasts = [life[-1] for life in self.syncs if life]
        return sum(last.entries for last in lasts) / max(1, sum(last.syncs for last in lasts))


@dataclass(frozen=True)
class Comparison:
    """How many records were found, and how many were expected."""

    expected: int
    found: int
    wrong: int
    """Found, but not what it should be, or once too often."""
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "missing", self.expected - (self.found - self.wrong))

    @property
    def is_exact(self) -> bool:
        """Return whether every expected record was found, exactly once."""
        return self.wrong == 0 and self.missing == 0


@dataclass
class Piping:
    """The pipeline's two lives."""

    flows: list[MeasuredFlow] = field(default_factory=list)
    killed_at: float | None = None
    """None if the pipeline had ended before it could be killed."""
    seconds: float = 0.0
    paid: Comparison | None = None
    dead: Comparison | None = None
    table: Comparison | None = None


@dataclass(frozen=True)
class Compaction:
    """The topic, before and after."""

    records_before: int
    records_after: int
    expected: int
    seconds: float


class Sizes(NamedTuple):
    """How large the log's parts were after an act, in bytes."""

    act: str
    wal: int
    segments: int
    tables: int


@dataclass(frozen=True)
class Query:
    """What DuckDB answered."""

    name: str
    sql: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    seconds: float
    is_right: bool


@dataclass
class Measures:
    """Everything that the report shows."""

    started: str
    sale: Sale
    check: Comparison | None = None
    piping: Piping = field(default_factory=Piping)
    compaction: Compaction | None = None
    queries: list[Query] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """Count the processes that were killed in the middle of their work."""
        return sum(part.killed_at is not None for part in (self.sale, self.piping))

    @property
    def is_right(self) -> bool:
        """Return whether all checks passed."""
        compared = [self.check, self.piping.paid, self.piping.dead, self.piping.table]
        compacted = self.compaction
        return (
            all(comparison is not None and comparison.is_exact for comparison in compared)
            and compacted is not None
            and compacted.records_after == compacted.expected
            and bool(self.queries)
            and all(query.is_right for query in self.queries)
        )
