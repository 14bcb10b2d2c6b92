"""Single records that wait for the next batch of their topic's put stream."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from lakebed.api.acks import Ack, Acks
from lakebed.api.encoding import GATHERED_RECORDS_MAX, RECORD_BYTES, EncodedPart, Record
from lakebed.client.put_items import Item, Runs
from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.state.decision import Placed


class GatheringWriter(Protocol):
    """What gathered records need of the writer that sends them: `RemoteWriting` is one."""

    @property
    def gathered_bytes_max(self) -> int:
        """The size of a batch of single records, at most."""

    def encode_records(self, records: list[Record]) -> EncodedPart:
        """Make one batch of records of one topic."""

    def doubt(self, topic: str | int, error: LakebedError | None) -> None:
        """Look at a topic again before the next write, if an error may mean that it changed."""


class GatheredRecords:
    """Single records of one topic that wait for the next batch."""

    def __init__(self, writing: GatheringWriter) -> None:
        self._writing = writing
        self._guard = threading.Lock()
        self._records: list[tuple[Record, Future[Ack]]] = []
        self._since = math.inf

    def add(self, record: Record, future: Future[Ack]) -> None:
        """Take a record."""
        with self._guard:
            if not self._records:
                self._since = time.monotonic()
            self._records.append((record, future))

    def since(self) -> float:
        """Report since when the oldest of them waits, by the monotonic clock."""
        return self._since if self._records else math.inf

    def refuse(self, error: LakebedError) -> None:
        """Fail the futures of the records: they will not be written."""
        with self._guard:
            refused, self._records = self._records, []
        _refuse([future for _, future in refused], error)

    def is_crowded(self) -> bool:
        """Whether there are more than the next batch can take."""
        return len(self._records) >= GATHERED_RECORDS_MAX

    def waiting(self) -> bool:
        """Return whether there are some."""
        return bool(self._records)

    def take(self) -> Item | None:
        """Make a batch of them, as large as one may be."""
        with self._guard:
            size = count = 0
            for record, _ in self._records[:GATHERED_RECORDS_MAX]:
                size += record.size + RECORD_BYTES
                if count and size > self._writing.gathered_bytes_max:
                    break
                count += 1
            taken, self._records = self._records[:count], self._records[count:]
            self._since = time.monotonic()
        if not taken:
            return None
        futures = [future for _, future in taken]
        try:
            encoded = self._writing.encode_records([record for record, _ in taken])
        except LakebedError as error:
            _refuse(futures, error)
            return self.take()
        name = taken[0][0].target.topic.name

        def settle(runs: Runs | None, error: LakebedError | None) -> None:
            self._writing.doubt(name, error)
            if runs is None:
                _refuse(futures, error or InvalidArgumentError("nothing was written"))
                return
            acks = Acks(name, placements(runs), encoded.order)
            for future, ack in zip(futures, acks, strict=True):
                future.set_result(ack)

        return Item(encoded.body.batch(), encoded.part.runs, settle)


def _refuse(futures: Sequence[Future[Ack]], error: LakebedError) -> None:
    for future in futures:
        future.set_exception(error)


def placements(runs: Runs) -> tuple[Placed, ...]:
    """Return the runs of an acknowledgement as the engine reports them."""
    return tuple(Placed(*run, 0, 0) for run in runs)
