"""What must hold of a log and its lake after any crash, and what was acknowledged before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from lakebed import Log
from lakebed.iceberg.table_metadata import files_in_use
from lakebed.state.values import STORE, Partition
from tests.engine.support import inner, lake_parts
from tests.foreign.readers import contents, read_pyiceberg

Contents = Counter[Any]


class LakeLedger:
    """Takes the reports of writers, and compares."""

    def __init__(self) -> None:
        self._acks: dict[tuple[str, int], dict[int, tuple[str, str]]] = {}
        self.failures: list[str] = []

    def take(self, event: list[Any]) -> None:
        """Take one report."""
        kind, *rest = event
        if kind == "ack":
            topic, partition, offset, key, value = rest
            self._acks.setdefault((topic, partition), {})[offset] = (key, value)
        elif kind == "failed":
            self.failures.append(" ".join(map(str, rest)))
        else:
            raise AssertionError(f"the child did not fail as it should: {event}")

    def deleted(self, topic: str) -> None:
        """Forget what was acknowledged of a topic: it may have been deleted."""
        self._acks = {key: acks for key, acks in self._acks.items() if key[0] != topic}

    # Acknowledged records

    def check_records(self, log: Log) -> None:
        """Every acknowledged record is there once, unless the topic's settings removed it."""
        for topic in log.topics():
            values: Counter[str] = Counter()
            for number in log.offsets(topic):
                values += self._check_partition(log, topic, number)
            twice = [value for value, count in values.items() if count > 1]
            assert not twice, f"{topic} has records twice: {twice[:5]}"

    def _check_partition(self, log: Log, topic: str, number: int) -> Counter[str]:
        low, end = log.offsets(topic)[number]
        table = log.read(topic, number, max_records=1_000_000, max_bytes=1 << 30)
        names = ("offset", "key", "value")
        rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
        there = {at: (key.decode(), value.decode()) for at, key, value in rows}
        acks = self._acks.get((topic, number), {})
        if topic == "compacted":
            _check_newest(there, acks)
        else:
            assert sorted(there) == list(range(low, end)), f"{topic}/{number} has a hole"
            lost = [at for at in acks if at >= low and there.get(at) != acks[at]]
            assert not lost, f"{topic}/{number}: acknowledged records are gone: {lost[:5]}"
        return Counter(value for _, value in there.values())


def _check_newest(there: dict[int, tuple[str, str]], acks: dict[int, tuple[str, str]]) -> None:
    """Of each key the newest record stays, which may be one that was never acknowledged."""
    newest = {key: at for at, (key, _) in sorted(acks.items())}
    present = {key: at for at, (key, _) in sorted(there.items())}
    for key, at in newest.items():
        assert present.get(key, -1) >= at, f"the newest record of key {key} is gone"
    for at in set(there) & set(acks):
        assert there[at] == acks[at]


# Tables and files


def check_tables(log: Log) -> None:
    """Every table shows exactly the records that are in segments, each once."""
    for topic in log.topics():
        shown = contents(read_pyiceberg(log.lake.table(topic)))
        assert shown == _sealed(log, topic), f"the table of {topic} differs from the log"


def _sealed(log: Log, topic: str) -> Contents:
    found: Contents = Counter()
    for number in log.offsets(topic):
        partition = _partition(log, topic, number)
        if partition.flushed > partition.low and partition.segments:
            table = log.read(topic, number, max_records=1_000_000, max_bytes=1 << 30)
            offsets = table.column("offset").to_numpy()
            found += contents(table.slice(0, int((offsets < partition.flushed).sum())))
    return found


def _partition(log: Log, topic: str, number: int) -> Partition:
    found = inner(log).parts.core.state.topic(topic)
    assert found is not None
    return inner(log).parts.core.state.partitions[(found.id, number)]


def check_files(log: Log) -> None:
    """After a removal there is every file that is needed, and no other."""
    lake, state = inner(log).lake, inner(log).parts.core.state
    parts = lake_parts(log)
    places = parts.locations
    local, stored = set(), set()
    for (topic, number), partition in state.partitions.items():
        for segment in partition.segments:
            if segment.place != STORE:
                local.add(inner(log).parts.segment_folder.path(topic, number, segment.id))
            if places.has_store:
                stored.add(f"{places.base}/{places.object_name(topic, number, segment)}")
    on_disk = set(_files(inner(log).folder / "lake"))
    # A log in a store reads what its disk lacks from there: it may have come to another machine.
    assert on_disk <= local if inner(log).config.ships else on_disk == local
    for name in log.topics():
        table = lake.table(name)
        stored |= files_in_use(table)
        stored.add(f"{table.location()}/metadata/version-hint.text")
    if parts.store is None:
        stored = {each for each in stored if each.startswith(places.base)}
        there = {f"file://{path.resolve()}" for path in _files(inner(log).folder / "iceberg")}
    else:
        own = f"{parts.log_id}/"  # other logs may have theirs beside it
        there = {parts.store.uri(each.name) for each in parts.store.listing(own)}
        if places.base.startswith("file://"):
            there |= {f"file://{path}" for path in _files(Path(places.base[7:]) / own)}
        assert {path.name for path in _files(inner(log).folder / "iceberg")} <= {"catalog.db"}
    names = ("/catalog.db", f"{parts.log_id}/segments/", f"{parts.log_id}/tables/")
    there = {each for each in there if not each.endswith(names[0])}
    if inner(log).config.ships:
        there = {each for each in there if any(name in each for name in names[1:])}
    assert there == stored, f"too many {sorted(there - stored)[:3]}, lost {stored - there}"


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
