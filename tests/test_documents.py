"""What the documents show is what happens.

Every block and every link of every page: `tests/documents/`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from enum import Enum
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import LakeConfig, LogConfig, ServeConfig, TopicConfig, WalConfig
from lakebed.config import (
    LAKE_BOUNDS,
    LOG_BOUNDS,
    SERVE_BOUNDS,
    TOPIC_BOUNDS,
    WAL_BOUNDS,
    parse_config,
)
from lakebed.serve.server import Server

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf8")


TABLES = (ROOT / "docs" / "tables.md").read_text(encoding="utf8")
SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf8")


def examples(text: str) -> list[tuple[str, str]]:
    """Return each program in a page with the output that the page shows."""
    return re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)


EXAMPLES = examples(README)
SERVER = (ROOT / "docs" / "server.md").read_text(encoding="utf8")


*_, (BY_TLS, BY_TLS_SAYS) = examples(SERVER)


def test_the_query_of_the_current_state_gives_what_latest_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the lines that load DuckDB's extension, by which the query is run."""
    monkeypatch.chdir(tmp_path)
    with lakebed.open("shop") as log:
        log.create_topic("orders", partitions=3, schema=pa.schema({"item": pa.string()}))
        for number in range(60):
            value = None if number % 7 == 3 else {"item": str(number) if number % 5 else None}
            log.append("orders", value, key=b"%d" % (number % 11))
            if number == 30:
                log.checkpoint()
        log.append("orders", {"item": "without a key"})
        log.checkpoint()
        log.lake.sync()
        latest = log.table("orders").latest(["key", "value"]).to_pylist()
    assert 0 < len(latest) < 11
    (loading,) = re.findall(r"```python\n(import importlib.*?)```", TABLES, re.DOTALL)
    (query,) = re.findall(r"```sql\n(.*?)```", TABLES, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(loading, scope)
    found = scope["connection"].execute(query).to_arrow_table().to_pylist()
    scope["connection"].close()
    assert sorted(found, key=itemgetter("key")) == sorted(latest, key=itemgetter("key"))


def test_the_readme_shows_five_lines_of_python_and_of_duckdb_on_the_same_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both programs run in one session, as a reader types them in."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    assert len(EXAMPLES) == 2
    for code, shown in EXAMPLES:
        exec(code, scope)
        assert capsys.readouterr().out == shown
        assert len([line for line in code.splitlines() if line.strip()]) <= 6
    scope["log"].close()


def test_the_readme_is_short_and_begins_with_code() -> None:
    lines = README.splitlines()
    assert len(README.split()) <= 900
    assert any(line.startswith("    pip install ") for line in lines[:15])
    before, _, _ = README.partition("\n## Pipelines\n")
    assert not re.search(r"\bJava\b|\bJVM\b", before)


def test_every_method_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"\blog\.([a-z_]+)\(", README))
    assert named >= {"append", "append_batch", "table"}
    assert [name for name in named if not hasattr(lakebed.Log, name)] == []


def test_the_certificates_of_the_server_page_serve(tmp_path: Path) -> None:
    """Its commands make an authority, a server's certificate and a client's, which fit."""
    (commands,) = re.findall(r"```sh\n(.*?)```", SERVER, re.DOTALL)
    subprocess.run(
        ["bash", "-ec", commands], cwd=tmp_path, capture_output=True, check=True, timeout=60
    )

    def file(name: str) -> str:
        return str(tmp_path / name)

    log = lakebed.Log.open(tmp_path / "log")
    log.access.grant("till-7", "admin")
    config = ServeConfig(
        host="localhost",
        port=0,
        http_port=-1,
        tls_cert=file("server.pem"),
        tls_key=file("server.key"),
        tls_client_ca=file("authority.pem"),
    )
    client = lakebed.ClientConfig(
        ca=file("authority.pem"), cert=file("till-7.pem"), key=file("till-7.key")
    )
    with Server(log, config) as server:
        for host in ("localhost", "127.0.0.1"):
            with lakebed.open(f"lakebed+tls://{host}:{server.port}", client) as remote:
                assert remote.topics() == []
    token = tmp_path / "root.token"
    log = lakebed.Log.open(tmp_path / "log")
    token.write_text(log.access.create_token("root", roles=["admin"]) + "\n")
    with Server(log, replace(config, tls_client_ca="")) as server:
        done = subprocess.run(
            [sys.executable, "-c", BY_TLS.replace(":4747", f":{server.port}")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert (done.stdout, done.stderr, done.returncode) == (BY_TLS_SAYS, "", 0)


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_four_readers_see_every_record_once_of_a_log_that_is_written_and_was_killed() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "readers.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed (SIGKILL)") == 2
    for reader in ("pyiceberg", "DuckDB", "Polars", "Spark"):
        assert re.search(rf"{reader} +│ [\d,]{{4,}} +│ 0 +│ 0 +│ 0 +│", done.stdout), done.stdout


SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf8")


def catalogue(kind: type) -> dict[str, tuple[str, str]]:
    """Return default and bounds of each setting in the table of a configuration class."""
    table = re.search(rf"\(`{kind.__name__}`.*?(?=^## |\Z)", SETTINGS, re.M | re.S)
    assert table is not None, kind
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", table[0], re.M)
    return {name: (default, bounds) for name, default, bounds in rows}


@pytest.mark.parametrize("kind", [WalConfig, LakeConfig, ServeConfig, LogConfig, TopicConfig])
def test_every_setting_is_in_the_catalogue_with_its_default(kind: Any) -> None:
    listed = catalogue(kind)
    assert list(listed) == [setting.name for setting in fields(kind)]
    for setting in fields(kind):
        default = getattr(kind(), setting.name)
        assert listed[setting.name][0] == shown_default(default), setting.name


def shown_default(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int):
        return f"{default:,}"
    if isinstance(default, Enum):
        return str(default.value)
    if isinstance(default, WalConfig | LakeConfig | ServeConfig):
        return f"{type(default).__name__}()"
    return str(default) or "none"


UNITS = {
    "byte": 1,
    "KiB": 2**10,
    "GiB": 2**30,
    "MiB": 2**20,
    "TiB": 2**40,
    "EiB": 2**60,
    "years": 365 * 86_400_000,
    "year": 365 * 86_400_000,
}


def amount(text: str) -> int:
    number, _, unit = text.strip().replace("one ", "1 ").partition(" ")
    return int(number.replace(",", "")) * UNITS.get(unit, 1)


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        (WalConfig, WAL_BOUNDS),
        (LakeConfig, LAKE_BOUNDS),
        (ServeConfig, SERVE_BOUNDS),
        (LogConfig, LOG_BOUNDS),
        (TopicConfig, TOPIC_BOUNDS),
    ],
)
def test_every_bound_is_in_the_catalogue(kind: type, bounds: dict[str, tuple[int, int]]) -> None:
    for name, (low, high) in bounds.items():
        shown = catalogue(kind)[name][1].partition(", a multiple")[0]
        assert tuple(map(amount, shown.split(" to "))) == (low, high), name


def test_the_example_of_the_settings_page_runs(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", SETTINGS, re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_files_of_the_settings_page_can_be_read() -> None:
    plain, complete = (
        parse_config(text, "docs/settings.md")
        for text in re.findall(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)
    )
    assert plain == LogConfig(memtable_bytes=256 * 2**20)
    lake = complete.lake
    named = {setting.name for setting in fields(lake) if f"\n{setting.name} = " in SETTINGS}
    assert named | {"catalog", "store_options"} == {setting.name for setting in fields(lake)}
    assert (lake.namespace, lake.store) == ("shop.events", "s3://bucket/lakebed")
    assert lake.catalog == {"type": "sql", "uri": "env:LAKEBED_CATALOG_URI"}
    assert lake.store_options["s3.endpoint"] == "https://storage.example.com"
    assert "env:" not in repr(complete)


def test_the_settings_of_the_security_page_can_be_read() -> None:
    issuer, text = re.findall(r"```toml\n(.*?)```", SECURITY, re.DOTALL)
    assert parse_config(issuer, "docs/security.md").serve.oidc_roles["lake-admins"] == "admin"
    serve = parse_config(text, "docs/security.md").serve
    assert (serve.host, bool(serve.tls_client_ca), serve.insecure) == ("0.0.0.0", True, False)


def test_the_makefile_lists_its_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = "setup check test prove bench compare demo reference fresh"
    for target in named.split():
        assert re.search(rf"^{target}\s+\S", done.stdout, re.M), target
