"""Bugs of the engine that the proofs found: each fails without its fix."""

from __future__ import annotations

import random

import pytest

from lakebed import LogConfig, SyncMode, WalConfig
from lakebed.host import ManualClock, SimDisk, Survival
from tests.proof.engine_life import open_log, small_transactions

CONFIG = LogConfig(wal=WalConfig(file_bytes=4096, spare_files=0))
LARGE = bytes(700)
"""With `small_transactions`, written before the commit."""


@small_transactions()
def test_an_abort_of_one_who_was_fenced_leaves_the_open_transaction_alone() -> None:
    """The bodies of a transaction survive when its predecessor of the same name is aborted."""
    disk, clock = SimDisk(), ManualClock()
    log = open_log(disk, CONFIG, clock)
    log.create_topic("orders")
    first = log.transaction("settle")
    second = log.transaction("settle")
    second.append("orders", LARGE)
    first.abort()
    log.checkpoint()
    second.commit()
    assert log.read("orders").column("value").to_pylist() == [LARGE]
    log = open_log(disk.crash(Survival.LOST, random.Random(0)), CONFIG, clock)
    assert log.read("orders").column("value").to_pylist() == [LARGE]


@small_transactions()
def test_a_transaction_outlives_the_deletion_of_its_topic_and_a_reopening() -> None:
    """An open transaction whose topic is gone can be aborted after the log was opened again."""
    disk, clock = SimDisk(), ManualClock()
    log = open_log(disk, CONFIG, clock)
    log.create_topic("orders")
    log.transaction("settle").append("orders", LARGE)
    log.delete_topic("orders")
    log.checkpoint()
    log.close()
    log = open_log(disk, CONFIG, clock)
    log.transaction("settle").abort()
    log.close()
    assert open_log(disk, CONFIG, clock).topics() == []


@pytest.mark.parametrize("sync", [SyncMode.INTERVAL, SyncMode.OS], ids=lambda sync: sync.value)
def test_a_checkpoint_of_a_log_that_syncs_later_survives_a_power_cut(sync: SyncMode) -> None:
    """Neither a snapshot nor a removed segment may be ahead of the WAL."""
    config = LogConfig(wal=WalConfig(sync=sync, file_bytes=4096, spare_files=0))
    disk, clock = SimDisk(), ManualClock()
    left: list[SimDisk] = []
    log = open_log(disk, config, clock)
    disk.on_call = lambda _: left.extend(
        disk.crash(Survival.TORN_512, random.Random(10 * len(left) + each)) for each in range(4)
    )
    log.create_topic("orders")
    for _ in range(3):
        log.append_batch("orders", [{"value": b"x"}] * 5)
        log.checkpoint()
    log.purge_topic("orders")
    found = [open_log(each, config, clock).topics() for each in left]
    assert {tuple(each) for each in found} == {(), ("orders",)}
