"""`lakebed group`: consumer groups, their progress, and resetting it."""

from __future__ import annotations

from dataclasses import asdict

import click

from lakebed.cli.completion import complete_group, complete_topic
from lakebed.cli.data import Target, confirm, data_option, open_log, yes_option
from lakebed.cli.output import (
    json_option,
    number,
    write_facts,
    write_json,
    write_line,
    write_table,
)
from lakebed.cli.positions import Position, PositionType, check_offset, offset_of, select_partitions
from lakebed.errors import OffsetOutOfRangeError
from lakebed.reports.groups import GroupInfo, GroupPartition
from lakebed.types import TopicPartition

_name = click.argument("name", shell_complete=complete_group)


@click.group()
def group() -> None:
    """Show, reset and delete consumer groups."""


@group.command("list", short_help="List the consumer groups.")
@data_option
@json_option
def list_command(folder: Target, *, as_json: bool) -> None:
    """List the consumer groups with their lag: records not committed yet."""
    with open_log(folder, silent=as_json) as log:
        groups = [log.describe_group(name) for name in log.groups()]
    if as_json:
        for info in groups:
            write_json("group", _values(info))
    elif groups:
        write_table(("group", "topics", ">partitions", ">lag"), map(_row, groups))
    else:
        write_line("no groups")


def _row(info: GroupInfo) -> tuple[str, ...]:
    topics = ", ".join(sorted({partition.topic for partition in info.partitions}))
    return info.name, topics or "-", str(len(info.partitions)), str(info.lag)


@group.command("describe", short_help="Show the offsets and lag of a group.")
@_name
@data_option
@json_option
def describe_command(name: str, folder: Target, *, as_json: bool) -> None:
    """Show the offsets and lag of the group NAME, and the partitions of each member."""
    with open_log(folder, silent=as_json) as log:
        info = log.describe_group(name)
    if as_json:
        write_json("group", _values(info))
        return
    members = str(len(info.members))
    write_facts([("group", info.name), ("members", members), ("lag", str(info.lag))])
    if info.partitions:
        write_line("")
        columns = ("topic", ">partition", ">committed", ">earliest", ">end", ">lag")
        rows = [
            (
                partition.topic,
                str(partition.partition),
                number(partition.committed),
                str(partition.earliest),
                str(partition.end),
                str(partition.lag),
            )
            for partition in info.partitions
        ]
        write_table(columns, rows)
    if info.members:
        write_line("")
        held = [
            (
                member,
                ", ".join(
                    f"{partition.topic}/{partition.partition}"
                    for partition in _partitions_of(info, member)
                ),
            )
            for member in info.members
        ]
        write_table(("member", "partitions"), [(member, text or "-") for member, text in held])


def _partitions_of(info: GroupInfo, member: str) -> list[GroupPartition]:
    """List the partitions that a member reads."""
    return [partition for partition in info.partitions if partition.member == member]


def _values(info: GroupInfo) -> dict[str, object]:
    return {
        "group": info.name,
        "lag": info.lag,
        "generation": info.generation,
        "members": [
            {
                "member": member,
                "partitions": [
                    {"topic": partition.topic, "partition": partition.partition}
                    for partition in _partitions_of(info, member)
                ],
            }
            for member in info.members
        ],
        "partitions": [asdict(partition) for partition in info.partitions],
    }


@group.command("reset", short_help="Move the offsets of a group.")
@_name
@data_option
@click.option(
    "--topic", metavar="NAME", required=True, shell_complete=complete_topic, help="The topic."
)
@click.option("--to", "target", required=True, type=PositionType(), help="The new position.")
@click.option(
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; may be repeated. Default: all.",
)
@json_option
def reset_command(
    name: str,
    folder: Target,
    *,
    topic: str,
    target: Position,
    partitions: tuple[int, ...],
    as_json: bool,
) -> None:
    """Set the committed offsets of the group NAME; a new group is created.

    A TIME means the first record of that time or later.
    """
    with open_log(folder, silent=as_json) as log:
        numbers = select_partitions(log, topic, partitions)
        check_offset(target, numbers, named=bool(partitions))
        bounds = log.offsets(topic)
        before = log.committed(name)
        after = {partition: offset_of(log, topic, partition, target) for partition in numbers}
        for partition, offset in after.items():
            _check(topic, partition, offset, bounds[partition])
        log.reset_group(name, {(topic, partition): offset for partition, offset in after.items()})
    moves = [
        (partition, before.get(TopicPartition(topic, partition)), offset)
        for partition, offset in after.items()
    ]
    if as_json:
        for partition, was, now in moves:
            moved = {"group": name, "topic": topic, "partition": partition}
            write_json("reset", {**moved, "before": was, "after": now})
        return
    rows = [(topic, str(partition), number(was), str(now)) for partition, was, now in moves]
    write_table(("topic", ">partition", ">before", ">after"), rows)


def _check(topic: str, partition: int, offset: int, bounds: tuple[int, int]) -> None:
    earliest, end = bounds
    if not earliest <= offset <= end:
        raise OffsetOutOfRangeError(
            "the partition does not have this offset",
            topic=topic,
            partition=partition,
            offset=offset,
            earliest=earliest,
            end=end,
        )


@group.command("delete", short_help="Delete a group.")
@_name
@data_option
@yes_option
@json_option
def delete_command(name: str, folder: Target, *, yes: bool, as_json: bool) -> None:
    """Delete the group NAME and its offsets; the records stay."""
    with open_log(folder, silent=as_json) as log:
        log.describe_group(name)
        confirm(f"Forget the group {name}?", yes=yes)
        log.delete_group(name)
    if as_json:
        write_json("deleted", {"group": name})
    else:
        write_line(f"deleted {name}")
