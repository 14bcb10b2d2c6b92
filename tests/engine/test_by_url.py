"""Opening a log by the URL of its store, on any machine."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

import lakebed
from lakebed import AckMode, ClientConfig, LakeConfig, LogConfig, WalConfig
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import InvalidArgumentError, StoreNotFoundError, StoreUnfitError
from lakebed.state.values import BOTH
from tests.engine.shipped import values
from tests.s3 import Proxy, Server, options, proxy, s3
from tests.waiting import until
from tests.weed import weed

__all__ = ["proxy", "s3", "weed"]


def settings(url: str) -> LogConfig:
    return LogConfig(
        wal=WalConfig(lease_ms=1000), lake=LakeConfig(store_options=options(url), iceberg=False)
    )


def embedded(log: lakebed.Log) -> EmbeddedLog:
    assert isinstance(log, EmbeddedLog)
    return log


@pytest.fixture(params=["moto", "weed"])
def bucket(request: pytest.FixtureRequest) -> tuple[str, LogConfig]:
    """Return the URL of a prefix, and settings to open it with."""
    if request.param == "moto":
        server: Server = request.getfixturevalue("s3")
        return f"s3://{server.bucket()}/shop", settings(server.url)
    return f"s3://logs/{uuid.uuid4().hex}", settings(request.getfixturevalue("weed"))


def test_a_bucket_outlives_its_machines(bucket: tuple[str, LogConfig], tmp_path: Path) -> None:
    url, config = bucket
    with lakebed.open(url, config, folder=tmp_path / "a") as log:
        assert embedded(log).config.wal.acks is AckMode.STORE
        log.create_topic("orders")
        log.append_batch("orders", [b"%d" % number for number in range(50)])
        log.checkpoint()
        log.append("orders", b"last")
    shutil.rmtree(tmp_path / "a")
    with lakebed.open(url, config, folder=tmp_path / "b") as log:
        assert values(log) == [*(b"%d" % number for number in range(50)), b"last"]


def test_a_large_group_goes_to_a_bucket_in_parts(
    bucket: tuple[str, LogConfig], tmp_path: Path
) -> None:
    url, config = bucket
    rows = [bytes([number]) * 1000 for number in range(200)] * 30
    with lakebed.open(url, config, folder=tmp_path / "a") as log:
        log.create_topic("orders")
        log.append_batch("orders", rows)
    shutil.rmtree(tmp_path / "a")
    with lakebed.open(url, config, folder=tmp_path / "b") as log:
        assert values(log) == rows


@pytest.mark.parametrize("status", [(503, "SlowDown"), (409, "ConditionalRequestConflict")])
def test_an_outage_delays_and_loses_nothing(
    s3: Server, proxy: Proxy, tmp_path: Path, status: tuple[int, str]
) -> None:
    url = f"s3://{s3.bucket()}/shop"
    with lakebed.open(url, settings(proxy.url), folder=tmp_path / "a") as log:
        log.create_topic("orders")
        proxy.answer(*status, method="PUT", containing="/wal/", times=4)
        proxy.cut_answer(method="PUT", containing="/wal/", times=2)
        for number in range(5):
            assert log.append("orders", b"%d" % number).offset == number
    with lakebed.open(url, settings(s3.url), folder=tmp_path / "b") as log:
        assert values(log) == [b"%d" % number for number in range(5)]


def test_expired_credentials_stop_writes_and_lose_nothing(
    s3: Server, proxy: Proxy, tmp_path: Path
) -> None:
    url = f"s3://{s3.bucket()}/shop"
    with lakebed.open(url, settings(proxy.url), folder=tmp_path / "a") as log:
        log.create_topic("orders")
        proxy.answer(403, "ExpiredToken", times=1 << 20)
        written = log.append_batch_async("orders", [b"x"])
        until(lambda: log.stats().shipping.last_failure is not None)  # type: ignore[union-attr]
        assert not written.done()
        proxy.behave()
        written.result(timeout=120)
        assert values(log) == [b"x"]


def test_a_store_that_ignores_conditions_is_refused(
    s3: Server, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.dropped_headers = ("if-none-match", "if-match")
    with pytest.raises(StoreUnfitError, match="put_new"):
        lakebed.open(f"s3://{s3.bucket()}/shop", settings(proxy.url), folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_segments_are_in_the_store_before_an_entry_names_them(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    with lakebed.open(f"file://{tmp_path}/shop", folder=tmp_path / "a") as log:
        log.create_topic("orders")
        log.append("orders", b"x")
        log.checkpoint()
        state = embedded(log).parts.core.state
        segments = [each for found in state.partitions.values() for each in found.segments]
        assert [segment.place for segment in segments] == [BOTH]
        assert len(list((tmp_path / "shop").glob("*/segments/*/*.parquet"))) == 1


def test_tables_are_there_again_on_another_machine(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    url = f"file://{tmp_path}/shop"
    for machine, records in (("a", 3), ("b", 6)):
        with lakebed.open(url, folder=tmp_path / machine) as log:
            log.get_or_create_topic("orders")
            log.append_batch("orders", [b"x"] * 3)
            log.checkpoint()
            log.lake.sync()
            (table,) = log.lake.tables()
            assert table.records == records
        shutil.rmtree(tmp_path / machine)


def test_without_a_folder_the_copy_is_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "shop").mkdir()
    with lakebed.open(f"file://{tmp_path}/shop") as log:
        assert embedded(log).folder.is_relative_to(tmp_path / "cache" / "lakebed")


def test_a_url_may_ship_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    config = LogConfig(wal=WalConfig(acks=AckMode.LOCAL, ship_ms=50))
    with lakebed.open(f"file://{tmp_path}/shop", config, folder=tmp_path / "a") as log:
        assert embedded(log).config.wal.acks is AckMode.LOCAL
        assert log.stats().shipping.acks == "local"  # type: ignore[union-attr]


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    """The drive may not be mounted."""
    with pytest.raises(StoreNotFoundError):
        lakebed.open(f"file://{tmp_path}/absent", folder=tmp_path / "a")


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    url = f"file://{tmp_path}/shop"
    with pytest.raises(InvalidArgumentError, match="LogConfig"):
        lakebed.open(url, ClientConfig(), folder=tmp_path / "a")
    with pytest.raises(InvalidArgumentError, match="another store"):
        other = LogConfig(lake=LakeConfig(store="file:///elsewhere"))
        lakebed.open(url, other, folder=tmp_path / "a")
    with pytest.raises(InvalidArgumentError, match="folder"):
        lakebed.open(tmp_path / "log", folder=tmp_path / "a")
