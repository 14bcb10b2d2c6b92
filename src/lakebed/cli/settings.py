"""`lakebed config`: every setting there is, as the configuration classes themselves tell it."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import click

from lakebed import config
from lakebed.cli.output import json_option, write_json, write_line

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


@dataclass(frozen=True)
class Section:
    """Settings that are given in the same place."""

    name: str
    given: str
    """How they are given."""
    settings: list[Setting]


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "cleanup": config.CLEANUPS,
    "compression": config.COMPRESSIONS,
    "sync": tuple(mode.value for mode in config.SyncMode),
    "iceberg": ("true", "false"),
}
_KINDS: Final[Mapping[str, str]] = {
    "catalog": "a table of names and text",
    "namespace": "names with a dot between them",
    "store": "a URL",
    "store_options": "a table of names and text",
}
_FILE: Final = f"{config.CONFIG_NAME} in the log's folder"


def sections() -> list[Section]:
    """Give every setting."""
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
        )
        for field in fields(kind)
        if field.name in bounds or field.name in _CHOICES or field.name in _KINDS
    ]


def _plain(default: object) -> object:
    return default.value if isinstance(default, enum.Enum) else default


@functools.cache
def _meanings() -> dict[str, dict[str, str]]:
    """Give the text under each field, by class: the source is the one place that says it."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(config)).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                field.target.id: " ".join(text.value.value.split())
                for field, text in zip(node.body, node.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return found


@click.command("config", short_help="List every setting and what it means.")
@click.argument("section", required=False, type=click.Choice(["topic", "log", "wal", "lake"]))
@json_option
def config_command(section: str | None, *, as_json: bool) -> None:
    """List every setting, or those of one SECTION: its default, its bounds, and what it means."""
    shown = [each for each in sections() if section in (None, each.name)]
    for position, each in enumerate(shown):
        if not as_json:
            write_line(("\n" if position else "") + f"{each.name} settings: {each.given}")
        for setting in each.settings:
            _show(each, setting, as_json=as_json)


def _show(section: Section, setting: Setting, *, as_json: bool) -> None:
    if as_json:
        write_json("setting", {"section": section.name, **asdict(setting)})
        return
    allowed = setting.kind or " | ".join(setting.choices or ())
    if setting.bounds is not None:
        allowed = "{} to {}".format(*setting.bounds)
    write_line(f"\n  {setting.name} = {_as_toml(setting.default)}    ({allowed})")
    for line in textwrap.wrap(setting.meaning, _WIDTH - 6):
        write_line(f"      {line}")


def _as_toml(default: object) -> str:
    """Show a default as it would be written, where that is not how it reads."""
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default != "" else '""'
