"""Where to begin: `earliest`, `latest`, an offset, or a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

import lakebed

Position = str | int | datetime


class PositionType(click.ParamType[Position]):
    """A position in a partition, as it is written on the command line."""

    name = "position"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Name the forms there are."""
        del param, ctx
        return "earliest|latest|OFFSET|TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        """Parse the text by the first form that it matches."""
        if value in ("earliest", "latest") or not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither earliest, latest, an offset, nor a time such as "
                "2026-11-15T21:30:00Z (UTC if it does not say)",
                param,
                ctx,
            )


def offset_of(log: lakebed.Log, topic: str, partition: int, position: Position) -> int:
    """Return the offset of a position; it may be outside the range that exists."""
    if isinstance(position, datetime):
        return log.offset_for_time(topic, partition, timestamp=position)
    if isinstance(position, int):
        return position
    earliest, end = log.offsets(topic)[partition]
    return earliest if position == "earliest" else end


def select_partitions(log: lakebed.Log, topic: str, partitions: tuple[int, ...]) -> list[int]:
    """Return the partitions to work on: those named, or all.

    Raises:
        PartitionNotFoundError: a named partition does not exist.
    """
    there = log.offsets(topic)
    for partition in partitions:
        if partition not in there:
            log.read(topic, partition, "latest")  # raises what any reader would get
    return sorted(set(partitions)) or sorted(there)


def check_offset(position: Position, partitions: list[int], *, named: bool) -> None:
    """Raise if one offset is used for all partitions: offsets are per partition."""
    if isinstance(position, int) and len(partitions) > 1 and not named:
        raise click.UsageError("an offset needs --partition N, because offsets are per partition")
