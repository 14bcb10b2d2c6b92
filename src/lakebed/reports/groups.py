"""Consumer groups as the log describes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupPartition:
    """How far a group has come in a partition."""

    topic: str
    partition: int
    committed: int | None
    earliest: int
    end: int
    lag: int
    """Records that the group has not committed yet."""
    member: str | None


@dataclass(frozen=True)
class GroupInfo:
    """A group as `describe_group` shows it."""

    name: str
    generation: int
    members: tuple[str, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        """Count the records that the group has not committed yet."""
        return sum(partition.lag for partition in self.partitions)
