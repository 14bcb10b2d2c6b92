"""Derived tables as `lakebed lake tables` lists them: mode, what each is made of, how far it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import lakebed
from lakebed.cli.output import (
    error_facts,
    number,
    size,
    write_json,
    write_line,
    write_table,
    write_wrapped,
)
from lakebed.errors import LakebedError
from lakebed.reports.derived import DerivedTable

_FLOW: Final = re.compile(r"(.+)\.[0-9a-f]{32}")
"""How the flow of a pipeline signs what it commits."""
_COLUMNS: Final = (
    *("derived table", "mode", "made of"),
    *(">files", ">rows", ">size", "position", ">lag"),
)


class Listed(NamedTuple):
    """A derived table in the list."""

    name: str
    table: DerivedTable | None
    """None if it cannot be read."""
    lag: int | None
    """Records that are not in it yet; None if its writers do not say how far they have read."""
    problem: LakebedError | None = None


class Listing(NamedTuple):
    """The derived tables of a log, or why there is no list of them."""

    tables: list[Listed]
    problem: LakebedError | None = None


def listing_of(log: lakebed.Log) -> Listing:
    """Look at every derived table; one that cannot be read does not hide the others."""
    try:
        names = log.derived.tables()
    except LakebedError as error:
        return Listing([], error)
    return Listing([_list_table(log, name) for name in sorted(names)])


def _list_table(log: lakebed.Log, name: str) -> Listed:
    try:
        table = log.derived.describe(name)
    except LakebedError as error:
        return Listed(name, None, None, error)
    return Listed(name, table, _lag(log, table.positions))


def _lag(log: lakebed.Log, positions: Mapping[str, Mapping[int, int]]) -> int | None:
    if not positions:
        return None
    try:
        ends = {topic: log.offsets(topic) for topic in positions}
    except LakebedError:  # the topic is gone, or is not for the caller to read
        return None
    return sum(
        max(0, end - positions[topic].get(partition, 0))
        for topic, parts in ends.items()
        for partition, (_, end) in parts.items()
    )


def show_listing(listing: Listing) -> None:
    """Write the list as a table after a blank line; nothing if it is empty."""
    if listing.tables or listing.problem is not None:
        write_line("")
    if listing.tables:
        write_table(_COLUMNS, map(_row, listing.tables), whole=True)
    for table in listing.tables:
        if table.problem is not None:
            write_wrapped(f"problem of {table.name}: {table.problem}")
    if listing.problem is not None:
        write_wrapped(f"problem of the derived tables: {listing.problem}")


def _row(listed: Listed) -> tuple[str, ...]:
    table = listed.table
    if table is None:
        return (listed.name, *("-",) * (len(_COLUMNS) - 1))
    key = f" by {', '.join(table.key)}" if table.key else ""
    return (
        table.name,
        f"{table.kind}{key}",
        ", ".join(_origins(table)) or "-",
        str(table.files),
        str(table.records),
        size(table.bytes),
        "; ".join(_positions(table)) or "-",
        number(listed.lag),
    )


def _origins(table: DerivedTable) -> Iterator[str]:
    """Return what a table is made of: topics, or its writer where these are unknown."""
    if table.positions:
        yield from (f"topic {topic}" for topic in sorted(table.positions))
        return
    for writer in sorted(table.writers):
        flow = _FLOW.fullmatch(writer)
        yield f"flow {flow[1]}" if flow else f"writer {writer}"


def _positions(table: DerivedTable) -> Iterator[str]:
    """Return a table's progress: each partition's next offset, or a writer's last batch."""
    several = len(table.positions) > 1
    for topic, parts in sorted(table.positions.items()):
        offsets = ", ".join(f"{partition}: {end}" for partition, end in sorted(parts.items()))
        yield f"{topic} {offsets}" if several else offsets
    if not table.positions:
        yield from (f"batch {last}" for _, last in sorted(table.writers.items()))


def write_listing(listing: Listing) -> None:
    """Write the list for programs: a line for each table."""
    for table in listing.tables:
        problem = "" if table.problem is None else str(table.problem)
        facts = {} if table.table is None else _facts(table.table)
        lag = {"lag_records": table.lag, "problem": problem}
        write_json("derived_table", {"table": table.name, **facts, **lag})
    if listing.problem is not None:
        write_json("problem", {"of": "derived tables", **error_facts(listing.problem)})


def _facts(table: DerivedTable) -> dict[str, object]:
    return {
        "kind": table.kind,
        "key": list(table.key),
        "buckets": table.buckets,
        "made_of": list(_origins(table)),
        "version": table.version,
        "location": table.location,
        "metadata": table.metadata,
        "snapshot": table.snapshot,
        "files": table.files,
        "records": table.records,
        "bytes": table.bytes,
        "positions": table.positions,
        "writers": table.writers,
    }
