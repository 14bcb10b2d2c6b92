"""What a pipeline is: sources, steps and sinks, as values that do not change.

A pipeline reads *sources* (topics, decoded, or tables), derives *steps* from them (a query each, or
a function), and writes *sinks* (topics or tables). Each sink is a *flow*: one streaming query with
its own checkpoint. A source or step whose bad records go to the dead-letter topic has one more flow
for them, so that several sinks do not write them several times.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

AVAILABLE_NOW: Final = "available-now"
"""The trigger of a pipeline that processes what exists, and ends."""

RECORD_COLUMNS: Final = ("key", "timestamp", "partition", "offset", "headers")
"""The columns of a record, beside its value, that a source can include."""


class Decoder(enum.StrEnum):
    """How a record's value becomes columns."""

    JSON = "json"
    AVRO = "avro"
    CSV = "csv"
    RAW = "raw"
    """The column `value`, binary, as it is."""


class Encoder(enum.StrEnum):
    """How the columns of a step become a record."""

    TYPED = "typed"
    """They are the fields of a typed topic."""
    JSON = "json"
    """They are one JSON object, in a raw topic."""
    RAW = "raw"
    """They are the record's own: `value` and, if there, `key`, `headers` and `timestamp`."""


class Otherwise(enum.StrEnum):
    """What happens to a row that does not meet an expectation."""

    COUNT = "count"
    """It is counted, and kept."""
    DROP = "drop"
    """It is counted, and dropped."""
    DEAD_LETTER = "dead-letter"
    """It is counted, and written to the dead-letter topic instead."""
    FAIL = "fail"
    """It stops the pipeline."""


class SinkMode(enum.StrEnum):
    """What a sink holds: every row, or the rows of each key combined."""

    APPEND = "append"
    """Every row, once it is final."""
    UPDATE = "update"
    """Of topics: every row, and the result of an aggregation each time it changes."""
    CURRENT = "current"
    """The last row of each key."""
    HISTORY = "history"
    """Every row of each key, with the time from which and until which it was the last."""


@dataclass(frozen=True)
class Watermark:
    """How late a row may come: by this column, no later than this after the latest one."""

    column: str
    delay: str


@dataclass(frozen=True)
class Expectation:
    """A condition that each row should meet: SQL that is true, not false and not null."""

    name: str
    check: str
    otherwise: Otherwise


@dataclass(frozen=True)
class Source:
    """A topic that is read as it grows, or a table that is read again for each batch."""

    name: str
    topic: str | None = None
    table: str | None = None
    decode: Decoder | None = None
    """None for a typed topic, which needs no decoding."""
    schema: str | None = None
    """The columns of JSON and CSV as Spark's DDL has them; of Avro, its schema as JSON."""
    separator: str = ","
    """Between the fields of CSV."""
    skip_bytes: int = 0
    """How many bytes stand before the value, in Avro: 5 with Confluent's, 10 in a single object."""
    starting: str = "earliest"
    include: tuple[str, ...] = ()
    """Columns of the record that stand beside those of its value."""
    otherwise: Otherwise = Otherwise.FAIL
    """What happens to a record that cannot be decoded."""
    batch_records_max: int | None = None
    watermark: Watermark | None = None
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True)
class Step:
    """Rows that are derived from sources and other steps."""

    name: str
    inputs: tuple[str, ...]
    sql: str | None = None
    python: str | None = None
    """Where the function is, as `module:function`; called with the session and a frame for each
    input, it gives a frame."""
    function: Callable[..., Any] | None = field(default=None, compare=False)
    """The function itself, of a pipeline that was written in Python."""
    watermark: Watermark | None = None
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True)
class Sink:
    """Where the rows of a step or source go."""

    name: str
    source: str
    topic: str | None = None
    table: str | None = None
    key: tuple[str, ...] = ()
    mode: SinkMode = SinkMode.APPEND
    encode: Encoder = Encoder.TYPED
    partitions: int = 1
    """Of the topic, if it is made."""
    order: str | None = None
    """The column that says which row of a key is later; in a history, from when it holds."""
    delete: str | None = None
    """The condition on which a row says that its key is gone."""
    buckets: int | None = None
    """Of the table, if it is made."""


@dataclass(frozen=True)
class Restart:
    """How a flow is started again that failed for a reason that may pass."""

    attempts_max: int = 5
    """Restarts in succession without progress in between; 0 turns restarts off."""
    backoff_ms: int = 1000
    """The wait before the first restart; it doubles with each further one."""
    backoff_max_ms: int = 60_000

    def delay_ms(self, attempt: int) -> int:
        """Return the wait before a restart, the first of which is attempt 1."""
        doublings = min(attempt - 1, 62)  # more would only make a large number larger
        return min(self.backoff_ms << doublings, self.backoff_max_ms)


@dataclass(frozen=True)
class PipelineSpec:
    """A checked pipeline: every name refers to a part, and there are no cycles."""

    name: str
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    """In an order in which each comes after its inputs."""
    sinks: Mapping[str, Sink]
    log: str | None = None
    checkpoint: str | None = None
    trigger: str = "1 second"
    dead_letter: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark."""
    restart: Restart = Restart()
    folder: Path = Path()
    """What relative paths are relative to."""

    @property
    def checkpoint_location(self) -> str:
        """Where the checkpoints of the flows are: a URL, or an absolute folder."""
        chosen = self.checkpoint or f".lakebed/{self.name}"
        return chosen if "://" in chosen else str((self.folder / chosen).resolve())

    def upstream(self, name: str) -> Iterator[str]:
        """Return a source or step and all that it is made from, inputs first, each once."""
        seen: dict[str, None] = {}
        self._visit(name, seen)
        return iter(seen)

    def _visit(self, name: str, seen: dict[str, None]) -> None:
        if name not in seen:
            for source in self.steps[name].inputs if name in self.steps else ():
                self._visit(source, seen)
            seen[name] = None

    def flows(self) -> list[Flow]:
        """List the flows: one for each sink, then one for each source and step of dead letters."""
        return [
            *(Flow(name, sink.source, sink) for name, sink in self.sinks.items()),
            *(Flow(f"{name}.dead-letter", name) for name in self._with_dead_letters()),
        ]

    def _with_dead_letters(self) -> Iterator[str]:
        used = {name for sink in self.sinks.values() for name in self.upstream(sink.source)}
        parts: list[Source | Step] = [*self.sources.values(), *self.steps.values()]
        for part in parts:
            outcomes = [expectation.otherwise for expectation in part.expect]
            if isinstance(part, Source) and decodes(part):
                outcomes.append(part.otherwise)
            if part.name in used and Otherwise.DEAD_LETTER in outcomes:
                yield part.name


def decodes(source: Source) -> bool:
    """Return whether records of a source can turn out not to be decodable."""
    return source.decode not in (None, Decoder.RAW)


@dataclass(frozen=True)
class Flow:
    """One streaming query of a pipeline."""

    name: str
    source: str
    """The source or step whose rows, or whose bad rows, it writes."""
    sink: Sink | None = None
    """None if it writes dead letters."""
