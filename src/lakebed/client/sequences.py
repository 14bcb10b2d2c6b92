"""The sequence numbers of a put stream, by which the server recognizes a batch that comes again."""

from __future__ import annotations

from lakebed.client.put_items import Item


class PutSequences:
    """The next number of each partition, and the last that is acknowledged. One thread."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}

    def assign(self, item: Item) -> None:
        """Set the sequence numbers of a batch."""
        item.sequences = tuple(self._next.get(partition, 0) for partition, _ in item.runs)
        for partition, records in item.runs:
            self._next[partition] = self._next.get(partition, 0) + records

    def keep(self, item: Item) -> None:
        """Continue behind the numbers that a batch has already."""
        self._next.update(_ends(item))

    def acknowledge(self, item: Item) -> None:
        """Note that the server has written a batch."""
        self._acknowledged.update(_ends(item))

    def rewind(self) -> None:
        """Continue behind what is acknowledged: later numbers are free again."""
        self._next = dict(self._acknowledged)

    def forget(self) -> None:
        """Begin with 0 again, under another producer."""
        self._next, self._acknowledged = {}, {}


def _ends(item: Item) -> dict[int, int]:
    """Return the number behind the last record of each partition; empty without numbers."""
    if item.sequences is None:
        return {}
    return {
        partition: first + records
        for (partition, records), first in zip(item.runs, item.sequences, strict=True)
    }
