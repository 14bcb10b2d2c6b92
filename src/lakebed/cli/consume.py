"""`lakebed consume`: records of a topic on stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Final

import click
import pyarrow as pa
import pyarrow.compute as pc

import lakebed
from lakebed.cli.completion import complete_group, complete_topic
from lakebed.cli.data import Target, data_option, is_served, open_log
from lakebed.cli.formats import NAMES, format_of
from lakebed.cli.output import flush, json_option, write_bytes
from lakebed.cli.positions import Position, PositionType, check_offset, offset_of, select_partitions
from lakebed.errors import GroupNotEmptyError, GroupNotFoundError
from lakebed.topic.schema import value_type
from lakebed.types import TopicPartition

_BATCH_RECORDS: Final = 10_000
_SESSION_MS: Final = 60_000
"""How long the reader of its output may hold up a member before others take over."""
_ALONE_MS: Final = 86_400_000
_SHARE_SECONDS: Final = 5.0
"""How long a member waits for partitions before it takes it that there are none for it."""
_LOOK_SECONDS: Final = 0.05


@click.command(short_help="Write records of a topic to stdout.")
@click.argument("topic", shell_complete=complete_topic)
@data_option
@click.option(
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Read this partition; may be repeated. Default: all.",
)
@click.option(
    "--from",
    "start",
    type=PositionType(),
    default="earliest",
    show_default=True,
    help="Where to start; with --group, where a group without commits starts.",
)
@click.option(
    "--max", "limit", metavar="N", type=click.IntRange(min=1), help="End after N records."
)
@click.option("--follow", is_flag=True, help="Wait for more records at the end.")
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=complete_group,
    help="Read as a member of this group, and commit what was written.",
)
@click.option(
    "--format",
    "name",
    type=click.Choice(NAMES),
    default="value",
    show_default=True,
    help="Output format.",
)
@json_option
def consume(
    topic: str,
    folder: Target,
    *,
    partitions: tuple[int, ...],
    start: Position,
    limit: int | None,
    follow: bool,
    group: str | None,
    name: str,
    as_json: bool,
) -> None:
    """Write the records of TOPIC to stdout, up to its end.

    value: one value per line. key-value: key, tab, value. table: with position and time, long
    values truncated. json: everything, as --json. raw: the bytes of the values without separators.

    With --group the command is a member of the group: it reads its share of the partitions, and
    without --follow ends where those end. With --partition it reads exactly those, of a group
    without members. Offsets are committed after the output is flushed; after a crash the last
    records may be written again.
    """
    if group is not None and start not in ("earliest", "latest"):
        raise click.UsageError(
            "with --group, --from must be earliest or latest; see `lakebed group reset`"
        )
    as_json = as_json or name == "json"
    with open_log(folder, silent=as_json) as log:
        info = log.describe_topic(topic)
        numbers = select_partitions(log, topic, partitions)
        check_offset(start, numbers, named=bool(partitions))
        show = format_of(
            "json" if as_json else name, value_type(info.schema), terminal=sys.stdout.isatty()
        )
        if group is None:
            consumer = _reader(log, topic, numbers, start, limit)
        elif partitions:
            consumer = _committer(log, topic, numbers, start, group, limit)
        else:
            consumer = _member(log, topic, start, group, limit)
        with consumer:
            if group is not None and not partitions and not follow:
                _await_share(consumer)
            for table in _tables(consumer, limit, follow=follow):
                write_bytes(show(table))
                flush()
                if group is not None:
                    consumer.commit(_behind(topic, table))


def _reader(
    log: lakebed.Log, topic: str, partitions: list[int], start: Position, limit: int | None
) -> lakebed.Consumer:
    """Open a consumer of exactly these partitions, at its place."""
    consumer = log.consumer(
        partitions=[(topic, partition) for partition in partitions],
        start=_beginning(start),
        max_records=_at_once(limit),
    )
    if start not in ("earliest", "latest"):
        for partition in partitions:
            consumer.seek(topic, partition, offset_of(log, topic, partition, start))
    return consumer


def _committer(
    log: lakebed.Log,
    topic: str,
    partitions: list[int],
    start: Position,
    group: str,
    limit: int | None,
) -> lakebed.Consumer:
    """Open a consumer of exactly these partitions, for a group without members."""
    with contextlib.suppress(GroupNotFoundError):
        members = log.describe_group(group).members
        if members:
            raise GroupNotEmptyError(
                "the group has members, which share its partitions: leave --partition out to be "
                "one of them",
                group=group,
                members=len(members),
            )
    consumer = log.consumer(
        group,
        partitions=[(topic, partition) for partition in partitions],
        start=_beginning(start),
        max_records=_at_once(limit),
    )
    if start == "latest":
        consumer.commit(consumer.positions())  # what "latest" was is remembered
    return consumer


def _member(
    log: lakebed.Log, topic: str, start: Position, group: str, limit: int | None
) -> lakebed.Consumer:
    """Join a group."""

    def remember(gained: list[TopicPartition]) -> None:
        """Commit where it begins, so that what "latest" was is remembered."""
        positions = consumer.positions()
        consumer.commit({partition: positions[partition] for partition in gained})

    consumer = log.consumer(
        group,
        [topic],
        start=_beginning(start),
        max_records=_at_once(limit),
        # An embedded log has no other member that would wait for one that is held up.
        session_timeout_ms=_SESSION_MS if is_served(log) else _ALONE_MS,
        on_assign=remember if start == "latest" else None,
    )
    return consumer


def _beginning(start: Position) -> str:
    return "latest" if start == "latest" else "earliest"


def _at_once(limit: int | None) -> int:
    return _BATCH_RECORDS if limit is None else min(limit, _BATCH_RECORDS)


def _await_share(consumer: lakebed.Consumer) -> None:
    """Wait for the group's other members to leave a member its share, if it is to have any."""
    deadline = time.monotonic() + _SHARE_SECONDS
    consumer.heartbeat()
    while not consumer.assignment() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        consumer.heartbeat()


def _tables(consumer: lakebed.Consumer, limit: int | None, *, follow: bool) -> Iterator[pa.Table]:
    """Return batches up to the end, or forever, and no more records than asked for."""
    left = limit
    while left is None or left > 0:
        table = consumer.poll(None if follow else 0)
        if not table.num_rows:
            return
        if left is not None:
            table = table.slice(0, left)
            left -= table.num_rows
        yield table


def _behind(topic: str, table: pa.Table) -> dict[tuple[str, int], int]:
    """Return the offsets behind the last record of each partition in a batch."""
    # Not through numpy: pyarrow then looks for pandas, and a Ctrl-C in that import gets lost.
    # Nor by `group_by`, which complains on stderr of how the buffers of received batches lie.
    behind: dict[tuple[str, int], int] = {}
    for partition in pc.unique(table["partition"]):
        offsets = table["offset"].filter(pc.equal(table["partition"], partition))
        behind[(topic, partition.as_py())] = pc.max(offsets).as_py() + 1
    return behind
