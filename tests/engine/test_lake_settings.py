"""Each setting of the lake has a test here that shows its effect, named after it; and the file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed import LakeConfig, Log, LogConfig, SyncMode, WalConfig
from lakebed.config import LAKE_BOUNDS, parse_config, resolve_env, setting_names
from lakebed.errors import InvalidArgumentError, LakebedError, SettingsFileError
from lakebed.host import ManualClock, OsDisk, SystemClock
from tests.engine.support import inner, quiet, rows
from tests.s3 import SECRET, Server, options, s3
from tests.waiting import until

__all__ = ["s3"]

HOUR = 3600.0


def opened(folder: Path, clock: ManualClock | None = None, **settings: Any) -> Log:
    """Open a log that syncs its tables only when it is told to."""
    config = LogConfig(lake=LakeConfig(**settings))
    return quiet(folder, config, disk=OsDisk(), clock=clock)


def flushed(log: Log, *values: bytes, topic: str = "t") -> None:
    """Write records into a segment of their own."""
    log.append_batch(topic, list(values))
    log.checkpoint()


def filled(log: Log, times: int = 1) -> None:
    """Make a topic whose table has so many snapshots."""
    log.create_topic("t")
    for number in range(times):
        flushed(log, b"%d" % number)
        log.lake.sync()


def local(folder: Path) -> list[Path]:
    return sorted((folder / "lake").rglob("*.parquet"))


# Tables


def test_setting_iceberg(tmp_path: Path) -> None:
    """Without it there is no table, no catalog, and nothing to sync."""
    with opened(tmp_path / "off", iceberg=False) as log:
        log.create_topic("t")
        flushed(log, b"x")
        with pytest.raises(InvalidArgumentError, match="neither tables nor a store"):
            log.lake.sync()
        assert rows(log, "t") == [b"x"]
    assert not (tmp_path / "off" / "iceberg").exists()
    with opened(tmp_path / "on") as log:
        filled(log)
        assert log.lake.describe("t").exists


def test_setting_catalog(tmp_path: Path) -> None:
    """Tables are in the catalog that is named, and others find them there."""
    from pyiceberg.catalog import load_catalog

    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/other.db"}
    with opened(tmp_path / "log", catalog=given) as log:
        filled(log)
    assert not (tmp_path / "log" / "iceberg" / "catalog.db").exists()
    catalog = load_catalog("lakebed", **given)
    assert catalog.load_table(("lakebed", "t")).scan().to_arrow().num_rows == 1
    catalog.close()


def test_setting_catalog_takes_values_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_URI", f"sqlite:///{tmp_path}/other.db")
    with opened(tmp_path / "log", catalog={"type": "sql", "uri": "env:CATALOG_URI"}) as log:
        filled(log)
    assert (tmp_path / "other.db").exists()


def test_setting_namespace(tmp_path: Path) -> None:
    """Tables are in the namespace that is named."""
    with opened(tmp_path / "log", namespace="shop.events") as log:
        filled(log)
        assert log.lake.table("t").name() == ("shop", "events", "t")


def test_setting_sync_interval_ms(tmp_path: Path) -> None:
    """A table appears automatically, without a checkpoint that says so."""
    folder = tmp_path / "log"
    with opened(folder) as log:
        log.create_topic("t")
        flushed(log, b"x")
        assert log.lake.stats().syncs == 0
    config = LogConfig(lake=LakeConfig(sync_interval_ms=10))
    with lakebed.open(folder, config) as log:
        until(lambda: log.lake.stats().tables_changed == 1)
        assert log.lake.describe("t").records == 1
        count = log.lake.stats().syncs
        until(lambda: log.lake.stats().syncs > count + 3)
    config = LogConfig(lake=LakeConfig(sync_interval_ms=86_400_000))
    with lakebed.open(folder, config) as log:
        assert log.lake.stats().syncs == 0


def test_setting_snapshots_kept(tmp_path: Path) -> None:
    """So many snapshots stay readable, the newest ones."""
    with opened(tmp_path / "log", snapshots_kept=3) as log:
        filled(log, 5)
        assert [each.records for each in log.lake.history("t")] == [3, 4, 5]
    with opened(tmp_path / "one", snapshots_kept=1) as log:
        filled(log, 3)
        assert [each.records for each in log.lake.history("t")] == [3]


def test_setting_snapshot_age_ms(tmp_path: Path) -> None:
    """A snapshot that keeps a dropped file goes when it is older than this, and not before."""
    clock = ManualClock(time_us=SystemClock().time_us())  # pyiceberg's snapshots have real times
    with opened(tmp_path / "log", clock, snapshot_age_ms=3_600_000, grace_ms=0) as log:
        filled(log)
        log.purge_topic("t")
        log.lake.sync()
        clock.advance(HOUR / 2)
        log.lake.gc()
        assert (len(log.lake.history("t")), len(local(tmp_path / "log"))) == (2, 1)
        clock.advance(HOUR)
        log.lake.gc()
        assert (len(log.lake.history("t")), len(local(tmp_path / "log"))) == (1, 0)


def test_setting_grace_ms(tmp_path: Path) -> None:
    """A file that no snapshot refers to stays for so long."""
    clock = ManualClock()
    with opened(tmp_path / "log", clock, snapshots_kept=1, grace_ms=3_600_000) as log:
        filled(log)
        log.purge_topic("t")
        log.lake.sync()
        assert log.lake.gc().waiting > 0
        clock.advance(HOUR - 1)
        assert log.lake.gc().segments_removed == 0
        assert len(local(tmp_path / "log")) == 1
        clock.advance(2)
        assert log.lake.gc().segments_removed == 1
        assert local(tmp_path / "log") == []


# The store


def test_setting_store(tmp_path: Path) -> None:
    """Segments and tables are below its URL, and a log without them reads from there."""
    (tmp_path / "store").mkdir()
    folder, store = tmp_path / "log", f"file://{tmp_path}/store"
    with opened(folder, store=store) as log:
        filled(log, 2)
        assert log.lake.describe("t").location.startswith(store)
    objects = [each for each in (tmp_path / "store").rglob("*") if each.is_file()]
    assert len([each for each in objects if each.suffix == ".parquet"]) == 2
    assert any(each.name.endswith(".metadata.json") for each in objects)
    for path in local(folder):
        path.unlink()
    with opened(folder, store=store) as log:
        assert rows(log, "t") == [b"0", b"1"]


def test_setting_store_options(tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint and credentials reach the store, and the tables' readers."""
    monkeypatch.setenv("STORE_SECRET", SECRET)
    given = {**options(s3.url), "s3.secret-access-key": "env:STORE_SECRET"}
    bucket = s3.bucket()
    with opened(tmp_path / "log", store=f"s3://{bucket}/deep", store_options=given) as log:
        filled(log, 2)
        log.alter_topic("t", {"local_bytes": 0})
        assert log.lake.sync("t").segments_moved == 2
        assert local(tmp_path / "log") == []
        assert rows(log, "t") == [b"0", b"1"]
        assert log.lake.table("t").scan().to_arrow().num_rows == 2
    keys = s3.keys(bucket)
    assert len([key for key in keys if key.endswith(".parquet")]) == 2
    assert all(key.startswith("deep/") for key in keys)


@pytest.mark.parametrize(("cache_bytes", "kept"), [(0, 1), (1 << 20, 3)])
def test_setting_store_cache_bytes(tmp_path: Path, cache_bytes: int, kept: int) -> None:
    """So many bytes of segments stay on the local disk beside the one that was read last."""
    (tmp_path / "store").mkdir()
    store = f"file://{tmp_path}/store"
    with opened(tmp_path / "log", store=store, store_cache_bytes=cache_bytes, iceberg=False) as log:
        log.create_topic("t", config={"local_bytes": 0})
        for value in (b"a", b"b", b"c"):
            flushed(log, value)
        log.lake.sync()
        assert local(tmp_path / "log") == []
        assert rows(log, "t") == [b"a", b"b", b"c"]
        assert log.lake.stats().cache_evictions == 3 - kept
    assert len(list((tmp_path / "log" / "fetched").iterdir())) == kept


@pytest.mark.parametrize("setting", setting_names(LakeConfig))
def test_each_setting_has_its_test(setting: str) -> None:
    names = [name for name in vars(sys.modules[__name__]) if name.startswith("test_setting_")]
    assert any(name.startswith(f"test_setting_{setting}") for name in names)


# Bad values


@pytest.mark.parametrize("setting", LAKE_BOUNDS)
def test_a_number_out_of_bounds_is_refused(setting: str) -> None:
    for value in (-1, 2**70, "1", None, True, 1.5):
        with pytest.raises(InvalidArgumentError, match=setting):
            LakeConfig(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("iceberg", 1),
        ("iceberg", "true"),
        ("catalog", None),
        ("catalog", "sqlite:///x"),
        ("catalog", {"type": 1}),
        ("catalog", {1: "sql"}),
        ("catalog", {"uri": "sqlite:///x"}),
        ("namespace", ""),
        ("namespace", "a..b"),
        ("namespace", ["a"]),
        ("store", None),
        ("store", "bucket/path"),
        ("store_options", {"s3.region": None}),
    ],
)
def test_a_value_of_another_kind_is_refused(setting: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=setting):
        LakeConfig(**{setting: value})  # type: ignore[arg-type]


def test_secrets_are_in_no_message_and_no_picture_of_the_settings() -> None:
    secret = "swordfish"
    config = LakeConfig(
        catalog={"type": "rest", "token": secret}, store_options={"s3.secret-access-key": secret}
    )
    assert secret not in repr(LogConfig(lake=config))
    bad: list[Mapping[str, Any]] = [
        {"catalog": {"uri": f"postgresql://user:{secret}@host/db"}},
        {"catalog": {"type": "rest", "token": [secret]}},
        {"store_options": {"s3.secret-access-key": secret.encode()}},
        {"store_options": [secret]},
    ]
    for settings in bad:
        with pytest.raises(InvalidArgumentError) as caught:
            LakeConfig(**settings)
        assert secret not in str(caught.value)
        with pytest.raises(InvalidArgumentError) as caught:
            LogConfig(lake=settings)  # type: ignore[arg-type]
        assert secret not in str(caught.value)
        with pytest.raises(InvalidArgumentError) as caught:
            lakebed.open("nowhere", {"lake": settings})  # type: ignore[arg-type]
        assert secret not in str(caught.value)


def test_a_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="variable=NOT_SET_ANYWHERE") as caught:
        resolve_env({"s3.secret-access-key": "env:NOT_SET_ANYWHERE"})
    assert caught.value.facts["setting"] == "s3.secret-access-key"
    given = {"type": "sql", "uri": "env:NOT_SET_ANYWHERE"}
    with opened(tmp_path / "log", catalog=given) as log:
        log.create_topic("t")
        flushed(log, b"x")  # records do not depend on it
        with pytest.raises(InvalidArgumentError, match="NOT_SET_ANYWHERE"):
            log.lake.sync()
        assert "NOT_SET_ANYWHERE" in log.lake.describe("t").problem
        assert rows(log, "t") == [b"x"]


def test_a_catalog_that_pyiceberg_does_not_know_is_refused_when_it_is_needed(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "log", catalog={"type": "nothing"}) as log:
        log.create_topic("t")
        flushed(log, b"x")
        with pytest.raises(LakebedError):
            log.lake.sync()
        assert log.lake.describe("t").problem


# The file


def written(folder: Path, text: str | bytes) -> Path:
    folder.mkdir()
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "lakebed.toml").write_bytes(data)
    return folder


def test_the_file_gives_the_settings_of_a_log_that_is_opened_without(tmp_path: Path) -> None:
    text = """
memtable_bytes = 1_048_576

[wal]
sync = "interval"

[lake]
iceberg = false
namespace = "a.b"
"""
    folder = written(tmp_path / "log", text)
    with lakebed.open(folder) as log:
        assert inner(log).config == LogConfig(
            wal=WalConfig(sync=SyncMode.INTERVAL),
            lake=LakeConfig(iceberg=False, namespace="a.b"),
            memtable_bytes=1 << 20,
        )
    with lakebed.open(folder, LogConfig()) as log:
        assert inner(log).config == LogConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memtable = 1", "unknown setting 'memtable'; did you mean 'memtable_bytes'?"),
        ("[lake]\nicebreg = true", "unknown setting 'icebreg'; did you mean 'iceberg'?"),
        ("[wal]\nfsync = true", "section=wal"),
        ("[lakes]\n", "unknown setting 'lakes'"),
        ("lake = 1", "must be a table of settings"),
        ("wal = [1]", "must be a table of settings"),
        ("[lake]\ngrace_ms = '1'", "grace_ms must be"),
        ("[lake]\niceberg = 0", "iceberg must be"),
        ("[wal]\nsync = 'never'", "sync must be"),
        ("[lake", "not TOML"),
        ("a = ", "not TOML"),
        ("a = 1\na = 2", "not TOML"),
        ("memtable_bytes = 1", "memtable_bytes must be"),
        ("[wal]\nfile_bytes = 4097", "a multiple of 4096"),
        ("[lake]\nstore = 'bucket'", "store must be"),
        ("[lake.catalog]\nuri = 'x'", "catalog must be given with its `type`"),
        ("[lake.store_options]\n's3.connect-timeout' = 5", "name=s3.connect-timeout got=int"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_name(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    folder = written(tmp_path / "log", text)
    with pytest.raises(InvalidArgumentError) as caught:
        lakebed.open(folder)
    assert said in str(caught.value)
    assert caught.value.facts["file"] == folder / "lakebed.toml"
    assert [each.name for each in folder.iterdir()] == ["lakebed.toml"]


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("memtable_bytes = 1", "log"),
        ("memtable_bytes = '1'", "log"),
        ("[wal]\nspare_files = 1000", "wal"),
        ("[wal]\nsync = 'never'", "wal"),
        ("[lake]\nsnapshots_kept = 0", "lake"),
        ("[lake]\niceberg = 'yes'", "lake"),
        ("[lake]\nstore_options = 'x'", "lake"),
    ],
)
def test_a_value_in_a_file_that_is_refused_is_told_with_its_section(
    text: str, section: str
) -> None:
    with pytest.raises(SettingsFileError) as caught:
        parse_config(text, "lakebed.toml")
    facts = caught.value.facts
    assert (facts["file"], facts["section"]) == ("lakebed.toml", section)
    assert str(facts["setting"]) in text
    assert caught.value.advice.startswith("correct the named file")


@pytest.mark.parametrize(
    ("text", "section", "name"),
    [
        ("[lake.store_options]\ns3.endpoint = 'x'", "lake.store_options", "s3.endpoint"),
        ("[lake]\nstore_options = {s3.region = 'x'}", "lake.store_options", "s3.region"),
        (
            "[lake.catalog]\ntype = 'sql'\nheader.a.b = 'swordfish'",
            "lake.catalog",
            "header.a.b",
        ),
    ],
)
def test_a_name_with_a_dot_outside_quotes_is_told(text: str, section: str, name: str) -> None:
    with pytest.raises(SettingsFileError, match="names with a dot must be quoted") as caught:
        parse_config(text, "lakebed.toml")
    assert caught.value.facts == {"file": "lakebed.toml", "section": section, "name": name}


def test_a_mistake_in_a_file_shows_no_secret() -> None:
    for text in (
        "[lake.store_options]\n's3.secret-access-key' = ['swordfish']",
        "[lake.store_options]\ns3.secret-access-key = 'swordfish'",
        "[lake.catalog]\nuri = 'postgresql://user:swordfish@host/db'",
        "[lake.catalog]\ntype = 'sql'\npassword = swordfish",
        "lake = 'swordfish'",
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            parse_config(text, "lakebed.toml")
        assert "swordfish" not in str(caught.value)


def test_a_log_whose_folder_holds_settings_alone_is_new(tmp_path: Path) -> None:
    folder = written(tmp_path / "log", "default_partitions = 3\n")
    with lakebed.open(folder) as log:
        assert len(log.create_topic("t").partitions) == 3


def test_segments_are_plain_parquet_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with opened(tmp_path / "log", store=f"file://{tmp_path}/store") as log:
        filled(log)
    (stored,) = (tmp_path / "store").rglob("*.parquet")
    (here,) = local(tmp_path / "log")
    assert stored.read_bytes() == here.read_bytes()
    assert pq.read_table(stored).num_rows == 1
