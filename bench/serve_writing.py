"""Writing to a server: batches one behind the other, and many connections with one record each."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from functools import partial

import pyarrow as pa

from bench.crowd import in_a_process
from bench.load import pipelined, rate
from bench.logs import TOPIC, settle, table, values, warm_log
from bench.report import Rows
from bench.served import Served, served_peers
from bench.servers import JetStream
from lakebed.wire.received import Received, batch_bytes

PARTITIONS = 4
_BATCH = 8192
_BURST = 60
"""Batches of a burst: about 60 MB, so that its WAL files are recycled ones."""
_BURSTS = 3
"""Of each, in turn, in a round: a single one is over in a tenth of a second."""
_UNDER_WAY = 8
"""Batches that are not acknowledged yet."""
_PEER_BATCHES = 2
_KAFKA_CONNECTIONS = 64


def puts(options: argparse.Namespace, rows: Rows) -> None:
    """Put Arrow tables of 8,192 records, each durable, several under way, beside the log itself."""
    given, records = table(_BATCH), values(_BATCH)
    served = Served(options.folder / "puts", PARTITIONS)
    embedded = warm_log(options.folder / "puts-embedded", PARTITIONS)
    peers = served_peers(options.folder, _BATCH)
    rates: dict[str, list[float]] = {name: [] for name in ("served", "embedded", *peers)}
    logs = {"served": served.log, "embedded": embedded}
    for log in logs.values():
        log.append_batch(TOPIC, given)  # a client's first one opens its stream
    for _ in range(options.rounds):
        bursts: dict[str, list[float]] = {name: [] for name in logs}
        for _ in range(_BURSTS):
            for name, log in logs.items():
                call = partial(log.append_batch_async, TOPIC, given)
                bursts[name].append(_BATCH * pipelined(call, _BURST, _UNDER_WAY))
                settle(log)
        for name, found in bursts.items():
            rates[name].append(statistics.harmonic_mean(found))
        for name, peer in peers.items():
            rates[name].append(_BATCH * rate(partial(peer.append, records), _PEER_BATCHES))
    embedded.close()
    served.close()
    for peer in peers.values():
        peer.close()
    work = "put of 8,192 x 100 B, 8 batches under way"
    rows.figure(work, "records per second", rates["served"], "/s")
    rows.ratio(work, rates["served"], rates["embedded"], "the embedded log", 0.6)
    for name in peers:
        rows.ratio(work, rates["served"], rates[name], name, 3)


def checks(options: argparse.Namespace, rows: Rows) -> None:
    """Check received batches of 8,192 records, as a share of appending them to the log itself."""
    given = table(_BATCH)
    plain = given.combine_chunks().to_batches()[0]
    value = plain.schema.get_field_index("value")
    views = plain.set_column(value, "value", plain.column(value).cast(pa.binary_view()))
    log = warm_log(options.folder / "checks", PARTITIONS)
    shares: dict[str, list[float]] = {"binary": [], "binary_view": []}
    for _ in range(options.rounds):
        appended = 1 / rate(partial(log.append_batch, TOPIC, given), _BURST)
        settle(log)
        for name, batch in (("binary", plain), ("binary_view", views)):
            shares[name].append(100 * _check_seconds(batch) / appended)
    log.close()
    for name, found in shares.items():
        work = f"check of a received batch of 8,192 x 100 B, {name}"
        rows.figure(work, "share of an append", found, "%", 10, at_most=True)


def _check_seconds(batch: pa.RecordBatch) -> float:
    """Return how long one check of a batch takes."""
    received, times = Received(), 50
    started = time.perf_counter()
    for _ in range(times):
        batch_bytes(batch)
        received.check(batch)
    return (time.perf_counter() - started) / times


def connections(options: argparse.Namespace, rows: Rows) -> None:
    """Have many connections with one record on its way each, and wait for its acknowledgement."""
    served = Served(options.folder / "connections", PARTITIONS)
    peers = served_peers(options.folder, 1)
    ports = {"socket": served.http_port, "record": served.port}
    ports |= {_kind(peer): peer.port for peer in peers.values()}
    found: dict[str, list[Mapping[str, float]]] = {kind: [] for kind in ports}
    for _ in range(options.rounds):
        for kind, port in ports.items():
            found[kind].append(in_a_process(kind, port, options.connections, options.seconds))
            settle(served.log)
    served.close()
    for peer in peers.values():
        peer.close()
    rates = {kind: [each["rate"] for each in given] for kind, given in found.items()}
    work = f"{options.connections:,} connections, one 100 B record at a time"
    rows.figure(f"{work}, WebSocket", "records per second", rates["socket"], "/s", 10_000)
    p99 = [each["p99_ms"] for each in found["socket"]]
    rows.figure(f"{work}, WebSocket", "p50", [each["p50_ms"] for each in found["socket"]], "ms")
    rows.figure(f"{work}, WebSocket", "p99", p99, "ms", 200, at_most=True)
    for name, peer in peers.items():
        rows.ratio(f"{work}, WebSocket", rates["socket"], rates[_kind(peer)], name, 3)
    rows.figure(f"{work}, Flight", "records per second", rates["record"], "/s")
    rows.figure(f"{work}, Flight", "p99", [each["p99_ms"] for each in found["record"]], "ms")


def kafka_connections(options: argparse.Namespace, rows: Rows) -> None:
    """Have 64 Kafka producers with one record in flight each, beside Redis and NATS."""
    served = Served(options.folder / "kafka", PARTITIONS)
    peers = served_peers(options.folder, 1)
    ports = {"kafka": served.kafka_port, "kafka-idempotent": served.kafka_port}
    ports |= {_kind(peer): peer.port for peer in peers.values()}
    found: dict[str, list[float]] = {kind: [] for kind in ports}
    for _ in range(options.rounds):
        for kind, port in ports.items():
            given = in_a_process(kind, port, _KAFKA_CONNECTIONS, options.seconds)
            found[kind].append(given["rate"])
            settle(served.log)
    served.close()
    for peer in peers.values():
        peer.close()
    work = f"{_KAFKA_CONNECTIONS} connections, one 100 B record at a time, Kafka protocol"
    rows.figure(work, "records per second", found["kafka"], "/s")
    rows.figure(f"{work}, idempotent", "records per second", found["kafka-idempotent"], "/s")
    for name, peer in peers.items():
        rows.ratio(work, found["kafka"], found[_kind(peer)], name, 0.9)


def _kind(peer: object) -> str:
    return "nats" if isinstance(peer, JetStream) else "redis"
