"""Reading from a server: what there is, in bulk, and what comes, as soon as it is there."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.flight as fl

from bench.load import seconds
from bench.logs import BATCH, TOPIC, settle, table, values
from bench.peers import RECORD_BYTES
from bench.report import Rows
from bench.served import Served, served_peers
from bench.servers import JetStream, Records
from lakebed.wire.protocol import pack

_BATCHES = 50
"""Of what is read at a time: 50 MB."""
_READ_RECORDS = 65_536
_PEER_RECORDS = 40_960
_TOGETHER = 8192
"""Records that a peer gives at a time."""
_PAUSE_MS = 3
"""Between records whose way is timed."""


# In bulk

Way = Callable[[Served, int, int], int]
"""Reads a range of a partition; gives how many records came."""


def gets(options: argparse.Namespace, rows: Rows) -> None:
    """Read what was just appended, and the same once it is sealed, in every way there is."""
    served = Served(options.folder / "gets", 1)
    peers = served_peers(options.folder, _TOGETHER)
    for peer in peers.values():
        for _ in range(0, _PEER_RECORDS, _TOGETHER):
            peer.append(values(_TOGETHER))
    rates: dict[tuple[str, str], list[float]] = {}
    scans: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(options.rounds):
        for name, way in _WAYS.items():
            # Each way gets records that nobody has read before: nothing is decoded yet.
            low = _fill(served)
            rates.setdefault(("hot", name), []).append(_mb_per_second(way, served, low))
            served.log.checkpoint()
            rates.setdefault(("sealed", name), []).append(_mb_per_second(way, served, low))
            settle(served.log)
        for name, peer in peers.items():
            took = seconds(peer.scan)
            scans[name].append(_PEER_RECORDS * RECORD_BYTES / took / 1e6)
    served.close()
    for peer in peers.values():
        peer.close()
    for state in ("hot", "sealed"):
        work = f"get of {state} data, 0.5 M x 100 B"
        each = {name: rates[state, name] for name in _WAYS}
        best = max(each, key=lambda name: float(np.median(each[name])))
        rows.figure(work, f"MB of records, {best}", each[best], "MB/s", 300)
        for name in sorted(set(each) - {best}):
            rows.figure(work, f"MB of records, {name}", each[name], "MB/s")
        for name in peers:
            rows.ratio(work, each[best], scans[name], name, 3)


def _fill(served: Served) -> int:
    """Append what is to be read; return where it begins."""
    low = served.log.offsets(TOPIC)[0][1]
    given = table()
    for future in [served.log.append_batch_async(TOPIC, given) for _ in range(_BATCHES)]:
        future.result()
    return low


def _mb_per_second(way: Way, served: Served, low: int) -> float:
    count = _BATCHES * BATCH
    started = time.perf_counter()
    found = way(served, low, low + count)
    took = time.perf_counter() - started
    assert found == count, f"read {found} of {count} records"
    return count * RECORD_BYTES / took / 1e6


def _read(served: Served, low: int, end: int) -> int:
    count = 0
    while count < end - low:
        count += served.log.read(TOPIC, 0, low + count, max_records=_READ_RECORDS).num_rows
    return count


def _poll(served: Served, low: int, end: int) -> int:
    count = 0
    with served.log.consumer(partitions=[(TOPIC, 0)], max_records=_READ_RECORDS) as consumer:
        consumer.seek(TOPIC, 0, low)
        while count < end - low:
            count += consumer.poll().num_rows
    return count


def _range(served: Served, low: int, end: int) -> int:
    ticket = {"call": "range", "topic": TOPIC, "partition": 0, "offset": low, "until": end}
    client = fl.connect(f"grpc+tcp://127.0.0.1:{served.port}")
    count = 0
    for chunk in client.do_get(fl.Ticket(pack(ticket))):
        count += chunk.data.num_rows
    client.close()
    return count


def _scan(served: Served, low: int, end: int) -> int:
    found = served.log.table(TOPIC).scan(start={0: low}, until={0: end})
    return sum(batch.num_rows for batch in found)


_WAYS: dict[str, Way] = {
    "log.read": _read,
    "consumer.poll": _poll,
    "DoGet of a range": _range,
    "table.scan": _scan,
}


# From end to end


def end_to_end(options: argparse.Namespace, rows: Rows) -> None:
    """Time records from before their append in one process until a waiting one has them."""
    served = Served(options.folder / "end-to-end", 1)
    peers = served_peers(options.folder, 1)
    kinds: dict[str, tuple[str, str, Callable[[], Records]]] = {
        "consumer.poll": ("lakebed", served.url, lambda: _polled(served)),
        "DoGet that follows": ("lakebed", served.url, lambda: _followed(served)),
    }
    for name, peer in peers.items():
        kind = "nats" if isinstance(peer, JetStream) else "redis"
        kinds[name] = (kind, str(peer.port), peer.follow)
    found: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, (kind, where, follow) in kinds.items():
            found[name].append(_way_ms(kind, where, follow(), options.samples))
    served.close()
    for peer in peers.values():
        peer.close()
    for name, given in found.items():
        ours = name not in peers
        work = f"append to a waiting {name}, one record" if ours else f"the same, {name}"
        for part, target in ((50, 5), (99, 20)):
            figures = [float(np.percentile(each, part)) for each in given]
            rows.figure(work, f"p{part}", figures, "ms", target if ours else None, at_most=True)


def _way_ms(kind: str, where: str, came: Records, count: int) -> np.ndarray[Any, Any]:
    """Have a sender send records with their time in them; return how long each was on its way."""
    warm = count // 10
    command = [sys.executable, "-m", "bench.sender", kind, where, str(count + warm), str(_PAUSE_MS)]
    took = []
    with contextlib.closing(came):
        next(came)  # it says that it waits
        sender = subprocess.Popen(command)
        for _ in range(count + warm):
            sent = int(next(came)[:20])
            took.append(time.monotonic_ns() - sent)
    if sender.wait():
        raise RuntimeError(f"{' '.join(command)} failed")
    return np.array(took[warm:]) / 1e6


def _polled(served: Served) -> Records:
    with served.log.consumer(partitions=[(TOPIC, 0)], start="latest") as consumer:
        yield b""
        while True:
            for value in consumer.poll(None).column("value"):
                yield value.as_py()


def _followed(served: Served) -> Records:
    client = fl.connect(f"grpc+tcp://127.0.0.1:{served.port}")
    ticket = {"call": "follow", "topic": TOPIC, "partition": 0, "offset": "latest"}
    reader = client.do_get(fl.Ticket(pack(ticket)))
    assert reader.schema is not None  # the server has begun
    yield b""
    try:
        for chunk in reader:
            for value in chunk.data.column("value"):
                yield value.as_py()
    finally:
        reader.cancel()
        client.close()
