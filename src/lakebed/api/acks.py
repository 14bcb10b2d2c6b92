"""Acknowledgements: where records are, once they are on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from lakebed.state.decision import Placed


class Ack(NamedTuple):
    """A record is on disk, at this place."""

    topic: str
    partition: int
    offset: int


class Acks(Sequence[Ack]):
    """The acknowledgement of a batch: one `Ack` for each row, made when it is looked at."""

    def __init__(self, topic: str, runs: Sequence[Placed], order: npt.NDArray[Any] | None) -> None:
        self.topic = topic
        self._runs = tuple(runs)
        self._order = order
        self._rows = runs[-1].start + runs[-1].records if runs else 0
        self._places: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None = None

    @property
    def offsets(self) -> dict[int, range]:
        """Return the offsets of the batch in each partition that got some of it."""
        return {run.partition: range(run.base, run.base + run.records) for run in self._runs}

    def arrays(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return partition and offset of each row, in the order the rows were given."""
        if self._places is None:
            counts = [run.records for run in self._runs]
            partitions = np.repeat(np.array([r.partition for r in self._runs], np.int32), counts)
            pieces = [np.arange(r.base, r.base + r.records, dtype=np.int64) for r in self._runs]
            offsets = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
            if self._order is not None:
                unsorted = np.empty_like(partitions), np.empty_like(offsets)
                unsorted[0][self._order], unsorted[1][self._order] = partitions, offsets
                partitions, offsets = unsorted
            self._places = partitions, offsets
        return self._places

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, row: int) -> Ack: ...

    @overload
    def __getitem__(self, row: slice) -> list[Ack]: ...

    def __getitem__(self, row: int | slice) -> Ack | list[Ack]:
        if self._order is None and isinstance(row, int) and 0 <= row < self._rows:
            return self._at(row)
        partitions, offsets = self.arrays()
        if isinstance(row, slice):
            pairs = zip(partitions[row].tolist(), offsets[row].tolist(), strict=True)
            return [Ack(self.topic, *pair) for pair in pairs]
        return Ack(self.topic, int(partitions[row]), int(offsets[row]))

    def _at(self, row: int) -> Ack:
        """Find one row among the runs, which is all that a single record's writer wants."""
        for run in self._runs:
            if row < run.start + run.records:
                return Ack(self.topic, run.partition, run.base + row - run.start)
        raise IndexError(row)

    def __iter__(self) -> Iterator[Ack]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Acks) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it is a list of what happened, not a key

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{run.partition}: {run.base} to {run.base + run.records - 1}" for run in self._runs
        )
        return f"<Acks of {self._rows} records of {self.topic!r} in {{{shown}}}>"
