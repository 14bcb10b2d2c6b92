"""`lakebed config`: every setting there is, as the configuration classes themselves tell it."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import os
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import click

from lakebed import config
from lakebed.cli.data import FolderType
from lakebed.cli.output import json_option, write_json, write_line
from lakebed.engine.settings import effective_config, settings_text
from lakebed.host import OsDisk

_WIDTH: Final = 92


@dataclass(frozen=True)
class Setting:
    """One setting: what it is without being given, what it may be, and what it means."""

    name: str
    default: object
    bounds: tuple[int, int] | None
    """The least and the greatest value of a number."""
    choices: tuple[str, ...] | None
    """The values that a word may have."""
    kind: str | None
    """What anything else is."""
    meaning: str
    value: object
    """The value in force."""
    source: str | None = None
    """Where that comes from: `default`, `file` or `environment`; None for a topic's."""


@dataclass(frozen=True)
class Section:
    """Settings that are set in the same place."""

    name: str
    syntax: str
    """How they are set."""
    settings: list[Setting]


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "cleanup": config.CLEANUPS,
    "compression": config.COMPRESSIONS,
    "sync": tuple(mode.value for mode in config.SyncMode),
    "acks": tuple(mode.value for mode in config.AckMode),
    "iceberg": ("true", "false"),
    "insecure": ("true", "false"),
    "audit": ("true", "false"),
    "access_log": ("true", "false"),
    "kafka_auto_create_topics": ("true", "false"),
    "log_format": config.LOG_FORMATS,
    "tls_principal": config.TLS_PRINCIPALS,
}
_KINDS: Final[Mapping[str, str]] = {
    "catalog": "a table of names and text",
    "namespace": "names with a dot between them",
    "store": "a URL",
    "store_options": "a table of names and text",
    "host": "an address or a name",
    "advertise": "a host, or a host and a port",
    "kafka_advertised_address": "host:port",
    "tls_cert": "a path",
    "tls_key": "a path",
    "tls_client_ca": "a path",
    "tls_principal_rules": "rules with commas between them",
    "backups": "a path",
    "audit_file": "a path",
    "oidc_issuer": "text",
    "oidc_audience": "text",
    "oidc_jwks": "a URL or a path",
    "oidc_algorithms": "names with commas between them",
    "oidc_principal_claim": "text",
    "oidc_principal_rules": "rules with commas between them",
    "oidc_roles_claim": "text",
    "oidc_roles": "a table of names and text",
}
_FILE: Final = f"{config.CONFIG_NAME} in the log's folder"


def sections() -> list[Section]:
    """Return every setting."""
    return [
        Section(
            "topic",
            "lakebed topic create or alter, --config NAME=VALUE",
            _settings(config.TopicConfig, config.TOPIC_BOUNDS),
        ),
        Section(
            "log",
            f"{_FILE}, or lakebed.open(folder, LogConfig(NAME=VALUE))",
            _settings(config.LogConfig, config.LOG_BOUNDS),
        ),
        Section(
            "wal",
            f"[wal] of {_FILE}, or LogConfig(wal=WalConfig(NAME=VALUE))",
            _settings(config.WalConfig, config.WAL_BOUNDS),
        ),
        Section(
            "lake",
            f"[lake] of {_FILE}, or LogConfig(lake=LakeConfig(NAME=VALUE))",
            _settings(config.LakeConfig, config.LAKE_BOUNDS),
        ),
        Section(
            "serve",
            f"[serve] of {_FILE}, or LogConfig(serve=ServeConfig(NAME=VALUE))",
            _settings(config.ServeConfig, config.SERVE_BOUNDS),
        ),
    ]


def current(folder: Path | None, environ: Mapping[str, str]) -> list[Section]:
    """Return every setting with its value for the log in `folder`, and the value's source."""
    text, held = None, config.with_environment(config.LogConfig(), environ)
    if folder is not None:
        text = settings_text(OsDisk(), folder)
        held = effective_config(OsDisk(), folder, environ)
    named = set() if text is None else config.settings_in(text, _FILE)
    return [
        section
        if section.name == "topic"
        else replace(section, settings=_with_values(section, held, named, environ))
        for section in sections()
    ]


def _with_values(
    section: Section,
    held: config.LogConfig,
    named: set[tuple[str, str]],
    environ: Mapping[str, str],
) -> list[Setting]:
    part = held if section.name == "log" else getattr(held, section.name)
    return [
        replace(
            setting,
            value=_plain(getattr(part, setting.name)),
            source="environment"
            if config.variable_of(section.name, setting.name) in environ
            else "file"
            if (section.name, setting.name) in named
            else "default",
        )
        for setting in section.settings
    ]


def _settings(kind: type[Any], bounds: Mapping[str, tuple[int, int]]) -> list[Setting]:
    meanings, defaults = _meanings()[kind.__name__], kind()
    return [
        Setting(
            field.name,
            _plain(getattr(defaults, field.name)),
            bounds.get(field.name),
            _CHOICES.get(field.name),
            _KINDS.get(field.name),
            meanings[field.name],
            _plain(getattr(defaults, field.name)),
        )
        for field in fields(kind)
        if field.name in bounds or field.name in _CHOICES or field.name in _KINDS
    ]


def _plain(value: object) -> object:
    """Return a value for display; of options only their names, since they may be secrets."""
    if isinstance(value, Mapping):
        return {name: text if text.startswith("env:") else "..." for name, text in value.items()}
    return value.value if isinstance(value, enum.Enum) else value


@functools.cache
def _meanings() -> dict[str, dict[str, str]]:
    """Return the docstring of each field, by class, from the source."""
    meanings: dict[str, dict[str, str]] = {}
    kinds = [config.TopicConfig, *config.SECTIONS.values()]
    for kind in kinds:
        (node,) = ast.parse(inspect.getsource(kind)).body
        if isinstance(node, ast.ClassDef):
            meanings[node.name] = {
                field.target.id: " ".join(text.value.value.split())
                for field, text in zip(node.body, node.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return meanings


@click.command("config", short_help="List settings with values, bounds and meaning.")
@click.argument(
    "section", required=False, type=click.Choice(["topic", "log", "wal", "lake", "serve"])
)
@click.option(
    "--data",
    "folder",
    metavar="DIR",
    envvar="LAKEBED_DATA",
    show_envvar=True,
    type=FolderType(),
    help="The log's folder, whose file counts.",
)
@json_option
def config_command(section: str | None, folder: Path | None, *, as_json: bool) -> None:
    """List all settings, or those of one SECTION, with values, bounds and meaning.

    A setting of a log comes from the environment (LAKEBED_SECTION_SETTING, such as
    LAKEBED_SERVE_PORT), or from lakebed.toml in the log's folder, or is the default. Values other
    than defaults show their source.
    """
    shown = [part for part in current(folder, os.environ) if section in (None, part.name)]
    for position, part in enumerate(shown):
        if not as_json:
            write_line(("\n" if position else "") + f"{part.name} settings: {part.syntax}")
        for setting in part.settings:
            _show(part, setting, as_json=as_json)


def _show(section: Section, setting: Setting, *, as_json: bool) -> None:
    variable = config.variable_of(section.name, setting.name)
    if as_json:
        shown_variable = None if setting.source is None else variable
        write_json(
            "setting", {"section": section.name, **asdict(setting), "variable": shown_variable}
        )
        return
    allowed = setting.kind or " | ".join(setting.choices or ())
    if setting.bounds is not None:
        allowed = "{} to {}".format(*setting.bounds)
    if setting.source == "environment":
        allowed += f"; from {variable}, default {_as_toml(setting.default)}"
    elif setting.source == "file":
        allowed += f"; from {config.CONFIG_NAME}, default {_as_toml(setting.default)}"
    write_line(f"\n  {setting.name} = {_as_toml(setting.value)}    ({allowed})")
    for line in textwrap.wrap(setting.meaning, _WIDTH - 6):
        write_line(f"      {line}")


def _as_toml(value: object) -> str:
    """Show a value as it would be written, where that is not how it reads."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'
