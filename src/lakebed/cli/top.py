"""`lakebed top`: what a log is doing now, refreshed until Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

import lakebed
from lakebed.cli.data import Target, data_option, open_log
from lakebed.cli.output import count_text, flush, json_option, moment, size, write_json, write_line
from lakebed.cli.shipping import replica_text, shipping_text
from lakebed.errors import GroupNotFoundError, LakebedError, TopicNotFoundError
from lakebed.reports.groups import GroupInfo
from lakebed.reports.replica import ReplicaStats
from lakebed.reports.shipping import ShippingStats
from lakebed.reports.stats import LogStats
from lakebed.reports.topics import TopicInfo

if TYPE_CHECKING:
    from rich.console import Group

SHOWN_MAX: Final = 20
"""Topics and groups that are shown: the busiest, and those with the most lag."""


@dataclass(frozen=True)
class Sample:
    """A log as it was at one moment."""

    at: float
    """Seconds, by a clock that only goes forward."""
    time_us: int
    stats: LogStats
    topics: dict[str, TopicInfo]
    groups: list[GroupInfo]


def sample(log: lakebed.Log) -> Sample:
    """Look at a log."""
    return Sample(
        at=time.monotonic(),
        time_us=time.time_ns() // 1000,
        stats=log.stats(),
        topics=dict(_topics(log)),
        groups=list(_groups(log)),
    )


def _topics(log: lakebed.Log) -> Iterator[tuple[str, TopicInfo]]:
    for name in log.topics():
        with contextlib.suppress(TopicNotFoundError):  # it was deleted in the meantime
            yield name, log.describe_topic(name)


def _groups(log: lakebed.Log) -> Iterator[GroupInfo]:
    for name in log.groups():
        with contextlib.suppress(GroupNotFoundError):
            yield log.describe_group(name)


def picture(before: Sample, now: Sample) -> dict[str, Any]:
    """Return the rates between two samples, and the current state, as plain data."""
    seconds = max(now.at - before.at, 1e-6)
    stats, counters, earlier = now.stats, now.stats.wal.counters, before.stats.wal.counters
    topics = [_topic(before.topics.get(name), topic, seconds) for name, topic in now.topics.items()]
    topics.sort(key=lambda topic: (-topic["records_per_second"], -topic["records"], topic["topic"]))
    groups = [
        {"group": group.name, "members": len(group.members), "lag": group.lag}
        for group in now.groups
    ]
    groups.sort(key=lambda group: (-int(str(group["lag"])), str(group["group"])))
    syncs = counters.syncs - earlier.syncs
    return {
        "time_us": now.time_us,
        "seconds": seconds,
        "records_per_second": _rate(before.stats.records_written, stats.records_written, seconds),
        "topics_in_all": len(topics),
        "topics": topics[:SHOWN_MAX],
        "groups_in_all": len(groups),
        "groups": groups[:SHOWN_MAX],
        "wal": {
            "files": stats.wal.files,
            "size_bytes": stats.wal.size_bytes,
            "bytes_per_second": _rate(earlier.bytes, counters.bytes, seconds),
            "syncs_per_second": _rate(earlier.syncs, counters.syncs, seconds),
            "entries_per_sync": (counters.appends - earlier.appends) / syncs if syncs else None,
            "poisoned": stats.wal.poisoned,
        },
        "memory": {
            "memtable_bytes": stats.memtable_bytes,
            "budget_bytes": stats.memtable_budget_bytes,
            "throttled_ms": stats.throttled_ms - before.stats.throttled_ms,
        },
        "checkpoints": stats.checkpoints,
        "checkpoint_age_ms": stats.checkpoint_age_ms,
        "open_transactions": stats.open_transactions,
        "lake": {"lag_records": stats.lake.lag_records, "tables_behind": stats.lake.tables_behind},
        "shipping": None if stats.shipping is None else asdict(stats.shipping),
        "replica": None if stats.replica is None else asdict(stats.replica),
        "last_failure": stats.last_failure or stats.lake.last_failure,
    }


def _topic(before: TopicInfo | None, now: TopicInfo, seconds: float) -> dict[str, Any]:
    """Return a topic's rates; that of bytes from the size that its records have in segments."""
    end = sum(partition.end for partition in now.partitions)
    same = before is not None and before.id == now.id
    written = end - sum(partition.end for partition in before.partitions) if before and same else 0
    held = sum(partition.segment_bytes for partition in now.partitions)
    sealed = now.records - sum(partition.memtable_records for partition in now.partitions)
    rate = written / seconds
    return {
        "topic": now.name,
        "partitions": len(now.partitions),
        "end": end,
        "records": now.records,
        "segment_bytes": held,
        "records_per_second": rate,
        "bytes_per_second": rate * held / sealed if sealed > 0 else None,
    }


def _rate(before: int, now: int, seconds: float) -> float:
    return max(0, now - before) / seconds


@click.command(short_help="Monitor a log.")
@data_option
@click.option("--once", is_flag=True, help="Show the state once, and end.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0.05, 3600),
    default=2.0,
    show_default=True,
    help="Refresh interval; rates are over this time.",
)
@json_option
def top(folder: Target, *, once: bool, interval: float, as_json: bool) -> None:
    """Monitor a log: its busiest topics, groups, WAL, memory and tables.

    On a terminal the display is refreshed until Ctrl-C. Bytes of a topic are estimated from the
    average size of its records in segments.
    """
    with contextlib.suppress(KeyboardInterrupt), open_log(folder, silent=as_json) as log:
        pictures = _pictures(log, interval, once=once)
        if as_json:
            for picture in pictures:
                write_json("top", picture)
                flush()
        elif sys.stdout.isatty() and not once:
            _live(pictures)
        else:
            for index, picture in enumerate(pictures):
                _write(picture, first=index == 0)


def _pictures(log: lakebed.Log, interval: float, *, once: bool) -> Iterator[dict[str, Any]]:
    _learn_how_far_tables_are(log)
    pause, before = threading.Event(), sample(log)
    while True:
        pause.wait(interval)
        now = sample(log)
        yield picture(before, now)
        if once:
            return
        before = now


def _learn_how_far_tables_are(log: lakebed.Log) -> None:
    """Make a log that was just opened look at its tables, which otherwise count as behind."""
    stats = log.stats()
    if stats.lake.iceberg and stats.segments:
        with contextlib.suppress(LakebedError):  # a catalog that is down is no reason not to look
            log.lake.tables()


# For people


def _live(pictures: Iterator[dict[str, Any]]) -> None:
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        for picture in pictures:
            live.update(_draw(picture), refresh=True)


def _write(shown: dict[str, Any], *, first: bool) -> None:
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=120, color_system=None, markup=False, highlight=False).print(
        _draw(shown)
    )
    if not first:
        write_line("")
    for line in text.getvalue().splitlines():
        write_line(line.rstrip())
    flush()


def _draw(shown: dict[str, Any]) -> Group:
    """Draw a picture: facts, then topics, then groups."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(shown):
        facts.add_row(Text(name, style="bold"), Text(value))
    parts: list[Any] = [facts, Text("")]
    parts.append(
        _table(
            _title("topic", len(shown["topics"]), shown["topics_in_all"]),
            ("records/s", "bytes/s", "end", "records", "segments"),
            [
                (
                    topic["topic"],
                    _number(topic["records_per_second"]),
                    _bytes(topic["bytes_per_second"]),
                    str(topic["end"]),
                    str(topic["records"]),
                    size(topic["segment_bytes"]),
                )
                for topic in shown["topics"]
            ],
        )
    )
    if shown["groups"]:
        rows = [
            (group["group"], str(group["members"]), str(group["lag"])) for group in shown["groups"]
        ]
        title = _title("group", len(rows), shown["groups_in_all"])
        parts += [Text(""), _table(title, ("members", "lag"), rows)]
    return Group(*parts)


def _facts(shown: dict[str, Any]) -> Iterator[tuple[str, str]]:
    wal, memory, lake = shown["wal"], shown["memory"], shown["lake"]
    yield "time", moment(shown["time_us"])
    yield "written", f"{_number(shown['records_per_second'])} records/s"
    entries = wal["entries_per_sync"]
    batches = "-" if entries is None else f"{entries:.1f}"
    files = f"{count_text(wal['files'], 'file', 'files')}, {size(wal['size_bytes'])}"
    speed = f"{_bytes(wal['bytes_per_second'])}/s, {_number(wal['syncs_per_second'])} syncs/s"
    yield "WAL", f"{files}; {speed}, {batches} entries a sync"
    budget = memory["budget_bytes"]
    filled = f"{size(memory['memtable_bytes'])} of {size(budget)}"
    yield "memory", f"{filled} ({memory['memtable_bytes'] * 100 // max(1, budget)} %)"
    age = shown["checkpoint_age_ms"]
    yield "checkpoint", "none yet" if age is None else f"{age / 1000:.0f} s ago"
    yield "transactions", f"{shown['open_transactions']} open"
    behind = count_text(lake["tables_behind"], "topic", "topics")
    yield "lake", f"{count_text(lake['lag_records'], 'record', 'records')} behind, of {behind}"
    if shown["shipping"] is not None:
        yield "store", shipping_text(ShippingStats(**shown["shipping"]))
    if shown["replica"] is not None:
        yield "behind", replica_text(ReplicaStats(**shown["replica"]))
    if memory["throttled_ms"]:
        yield "throttled", f"writers waited {memory['throttled_ms']} ms"
    if wal["poisoned"] or shown["last_failure"]:
        yield "trouble", str(wal["poisoned"] or shown["last_failure"])


def _table(first: str, others: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _title(name: str, shown: int, total: int) -> str:
    return name if shown == total else f"{name} ({shown} of {total})"


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else size(round(value))
