"""Settings of the server, and where the value of a setting comes from."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lakebed
from lakebed import AckMode, LakeConfig, LogConfig, ServeConfig, SyncMode, WalConfig
from lakebed.cli import cli
from lakebed.config import (
    SECTIONS,
    SERVE_BOUNDS,
    parse_config,
    setting_names,
    variable_of,
    with_environment,
)
from lakebed.errors import InvalidArgumentError, SettingsFileError
from tests.engine.support import inner

# The server's


@pytest.mark.parametrize("setting", SERVE_BOUNDS)
def test_a_number_of_the_server_is_held_to_its_bounds(setting: str) -> None:
    low, high = SERVE_BOUNDS[setting]
    for value in (low, high):
        assert getattr(ServeConfig(**{setting: value}), setting) == value  # type: ignore[arg-type]
    for value in (low - 1, high + 1, True, "1", 1.5, None):  # type: ignore[assignment]
        with pytest.raises(InvalidArgumentError, match=setting) as caught:
            ServeConfig(**{setting: value})  # type: ignore[arg-type]
        assert caught.value.facts["setting"] == setting


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"host": ""}, "host"),
        ({"host": " localhost"}, "host"),
        ({"host": "a\nb"}, "host"),
        ({"host": 1}, "host"),
        ({"tls_cert": None}, "tls_cert"),
        ({"tls_cert": "cert.pem"}, "tls_key"),
        ({"tls_key": "key.pem"}, "tls_cert"),
        ({"tls_client_ca": "ca.pem"}, "tls_cert"),
        ({"insecure": 1}, "insecure"),
        ({"audit": "yes"}, "audit"),
        ({"log_format": "xml"}, "log_format"),
        ({"port": 5000, "http_port": 5000}, "http_port"),
    ],
)
def test_what_cannot_be_served_is_refused(given: dict[str, Any], setting: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ServeConfig(**given)
    assert caught.value.facts["setting"] == setting


def test_ports_that_the_system_chooses_may_look_alike() -> None:
    assert ServeConfig(port=0, http_port=0).http_port == 0


def test_the_file_has_a_table_for_the_server() -> None:
    text = "[serve]\nhost = '::1'\ntls_cert = 'c'\ntls_key = 'k'\nlog_format = 'json'\n"
    assert parse_config(text, "f").serve == ServeConfig(
        host="::1", tls_cert="c", tls_key="k", log_format="json"
    )
    for text, setting in (("prt = 1", "prt"), ("port = -1", "port"), ("audit = 1", "audit")):
        with pytest.raises(SettingsFileError) as caught:
            parse_config(f"[serve]\n{text}\n", "f")
        assert (caught.value.facts["section"], caught.value.facts["setting"]) == ("serve", setting)


# The environment


OTHERS: dict[str, tuple[str, object]] = {
    "sync": ("interval", SyncMode.INTERVAL),
    "acks": ("store", AckMode.STORE),
    "namespace": ("a.b", "a.b"),
    "advertise": ("a.example.com:4747", "a.example.com:4747"),
    "store": ("s3://b/p", "s3://b/p"),
    "catalog": ('{ type = "sql", "a.b" = "env:C" }', {"type": "sql", "a.b": "env:C"}),
    "store_options": ('{ "s3.region" = "x" }', {"s3.region": "x"}),
    "host": ("0.0.0.0", "0.0.0.0"),
    "kafka_advertised_address": ("broker:9092", "broker:9092"),
    "log_format": ("json", "json"),
    "backups": ("/b", "/b"),
    "audit_file": ("/a", "/a"),
}
"""A text for each setting that is neither a number nor true or false, and what it means."""


def settings() -> list[tuple[str, str]]:
    return [
        (section, each.name)
        for section, kind in SECTIONS.items()
        for each in fields(kind)
        if each.name not in SECTIONS and not each.name.startswith(("tls_", "oidc_"))
    ]


@pytest.mark.parametrize(("section", "setting"), settings())
def test_the_environment_has_a_variable_for_each_setting(section: str, setting: str) -> None:
    default = getattr(SECTIONS[section](), setting)
    text, value = OTHERS.get(setting, ("", None))
    if isinstance(default, bool):
        text, value = str(not default).lower(), not default
    elif isinstance(default, int):
        value = 1 << 20 if default > 1 << 20 else default + 2
        text = str(value)
    held = with_environment(LogConfig(), {variable_of(section, setting): text})
    assert getattr(held if section == "log" else getattr(held, section), setting) == value
    assert value != default


def test_settings_of_an_issuer_are_given_together() -> None:
    given = {
        "LAKEBED_SERVE_OIDC_ISSUER": "https://issuer.example",
        "LAKEBED_SERVE_OIDC_AUDIENCE": "lakebed",
        "LAKEBED_SERVE_OIDC_JWKS": "keys.json",
        "LAKEBED_SERVE_OIDC_ROLES_CLAIM": "groups",
        "LAKEBED_SERVE_OIDC_ROLES": '{ "lake.admins" = "admin" }',
    }
    held = with_environment(LogConfig(), given).serve
    assert (held.oidc_issuer, held.oidc_jwks) == ("https://issuer.example", "keys.json")
    assert held.oidc_roles == {"lake.admins": "admin"}
    with pytest.raises(SettingsFileError, match="names with a dot must be quoted"):
        parse_config("[serve]\noidc_roles = { lake.admins = 'admin' }\n", "f")


def test_files_of_tls_are_given_together() -> None:
    given = {"LAKEBED_SERVE_TLS_CERT": "c", "LAKEBED_SERVE_TLS_KEY": "k"}
    held = with_environment(LogConfig(), {**given, "LAKEBED_SERVE_TLS_CLIENT_CA": "a"}).serve
    assert (held.tls_cert, held.tls_key, held.tls_client_ca) == ("c", "k", "a")
    with pytest.raises(InvalidArgumentError, match="belong together") as caught:
        with_environment(LogConfig(), {"LAKEBED_SERVE_TLS_CERT": "c"})
    assert caught.value.facts["variable"] == "LAKEBED_SERVE_TLS_CERT"


def test_variables_that_are_no_settings_are_left_alone() -> None:
    names = ("DATA", "TOKEN", "CA", "PROVE", "SEED", "FAILPOINTS", "CATALOG_URI", "COMPLETE", "WAL")
    given = {f"LAKEBED_{name}": "x" for name in names}
    config = LogConfig(memtable_bytes=1 << 20)
    assert with_environment(config, {**given, "_LAKEBED_COMPLETE": "x", "PATH": "x"}) is config


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("LAKEBED_SERVE_PORT", "x"),
        ("LAKEBED_SERVE_PORT", ""),
        ("LAKEBED_SERVE_PORT", "70000"),
        ("LAKEBED_SERVE_AUDIT", "yes"),
        ("LAKEBED_SERVE_LOG_FORMAT", "xml"),
        ("LAKEBED_WAL_SYNC", "never"),
        ("LAKEBED_LOG_MEMTABLE_BYTES", "1"),
        ("LAKEBED_LAKE_CATALOG", "swordfish"),
        ("LAKEBED_LAKE_CATALOG", "{ uri = 'swordfish' }"),
        ("LAKEBED_LAKE_STORE_OPTIONS", "{ a = ['swordfish'] }"),
    ],
)
def test_a_value_that_is_refused_is_told_with_its_variable(variable: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        with_environment(LogConfig(), {variable: text})
    assert caught.value.facts["variable"] == variable
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize("variable", ["LAKEBED_SERVE_PRT", "LAKEBED_LOG_WAL", "LAKEBED_WAL_"])
def test_a_variable_that_names_no_setting_is_refused_with_those_there_are(variable: str) -> None:
    with pytest.raises(InvalidArgumentError, match="unknown setting") as caught:
        with_environment(LogConfig(), {variable: "1"})
    assert caught.value.facts["variable"] == variable
    known = str(caught.value.facts["known"]).split(", ")
    section = variable.split("_")[1].lower()
    names = [each for each in setting_names(SECTIONS[section]) if each not in SECTIONS]
    assert known == [variable_of(section, each) for each in names]


# Which value holds


def test_code_goes_before_environment_before_file_before_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lakebed.toml").write_text(
        "wal_bytes = 100_000\n[wal]\nspare_files = 1\nsync = 'os'\n[serve]\nport = 1\n"
    )
    monkeypatch.setenv("LAKEBED_WAL_SYNC", "interval")
    monkeypatch.setenv("LAKEBED_SERVE_PORT", "2")
    monkeypatch.setenv("LAKEBED_LAKE_ICEBERG", "false")
    with lakebed.open(tmp_path) as log:
        held = inner(log).config
    assert held == LogConfig(
        wal_bytes=100_000,
        wal=WalConfig(spare_files=1, sync=SyncMode.INTERVAL),
        lake=LakeConfig(iceberg=False),
        serve=ServeConfig(port=2),
    )
    given = replace(held, serve=ServeConfig(port=3))
    with lakebed.open(tmp_path, given) as log:
        assert inner(log).config is given


def test_a_mistake_in_the_environment_keeps_a_log_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_WAL_SYNK", "os")
    with pytest.raises(InvalidArgumentError, match="LAKEBED_WAL_SYNK"):
        lakebed.open(tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_the_command_shows_where_each_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / "lakebed.toml").write_text(
        "[serve]\nport = 1\nhost = '::1'\n"
        "[lake.store_options]\n's3.secret' = 'swordfish'\n's3.key' = 'env:KEY'\n"
    )
    env = {"LAKEBED_SERVE_PORT": "2", "LAKEBED_DATA": os.fspath(tmp_path)}
    result = CliRunner(env=env).invoke(cli, ["config", "--json"])
    assert result.exit_code == 0, result.output
    found = {}
    for line in result.output.splitlines():
        each = json.loads(line)
        found[each["section"], each["name"]] = (each["value"], each["source"], each["variable"])
    assert found["serve", "port"] == (2, "environment", "LAKEBED_SERVE_PORT")
    assert found["serve", "host"] == ("::1", "file", "LAKEBED_SERVE_HOST")
    assert found["serve", "audit"] == (True, "default", "LAKEBED_SERVE_AUDIT")
    options = {"s3.secret": "...", "s3.key": "env:KEY"}
    assert found["lake", "store_options"] == (options, "file", "LAKEBED_LAKE_STORE_OPTIONS")
    assert found["topic", "cleanup"] == ("delete", None, None)
    text = CliRunner(env=env).invoke(cli, ["config", "serve"]).output
    assert "port = 2    (0 to 65535; from LAKEBED_SERVE_PORT, default 4747)" in text
    assert "host = ::1    (an address or a name; from lakebed.toml, default 127.0.0.1)" in text
    assert "swordfish" not in result.output + text


def test_every_setting_of_a_log_is_shown() -> None:
    result = CliRunner(env={"LAKEBED_DATA": ""}).invoke(cli, ["config", "--json"])
    shown = [json.loads(line) for line in result.output.splitlines()]
    names = {(each["section"], each["name"]) for each in shown if each["section"] != "topic"}
    assert names == {
        (section, name)
        for section, kind in SECTIONS.items()
        for name in setting_names(kind)
        if name not in SECTIONS
    }
