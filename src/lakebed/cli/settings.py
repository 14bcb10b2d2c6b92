"""`lakebed config`: every setting there is, as the configuration classes themselves tell it."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields
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
    allowed: object
    """(least, greatest), or the values to choose from."""
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
}


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
            "lakebed.open(folder, LogConfig(NAME=VALUE))",
            _settings(config.LogConfig, config.LOG_BOUNDS),
        ),
        Section(
            "wal",
            "lakebed.open(folder, LogConfig(wal=WalConfig(NAME=VALUE)))",
            _settings(config.WalConfig, config.WAL_BOUNDS),
        ),
    ]


def _settings(kind: type[Any], bounds: Mapping[str, tuple[int, int]]) -> list[Setting]:
    meanings = _meanings()[kind.__name__]
    return [
        Setting(
            field.name,
            field.default.value if isinstance(field.default, enum.Enum) else field.default,
            bounds.get(field.name) or _CHOICES[field.name],
            meanings[field.name],
        )
        for field in fields(kind)
        if field.name in bounds or field.name in _CHOICES
    ]


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
@click.argument("section", required=False, type=click.Choice(["topic", "log", "wal"]))
@json_option
def config_command(section: str | None, *, as_json: bool) -> None:
    """List every setting, or those of one SECTION, with its default, what it may be, and what it
    means.
    """
    shown = [each for each in sections() if section in (None, each.name)]
    for position, each in enumerate(shown):
        if not as_json:
            write_line(("\n" if position else "") + f"{each.name} settings: {each.given}")
        for setting in each.settings:
            _show(each, setting, as_json=as_json)


def _show(section: Section, setting: Setting, *, as_json: bool) -> None:
    ranged = setting.name not in _CHOICES
    if as_json:
        allowed = dict(zip(("least", "greatest"), setting.allowed, strict=True)) if ranged else None  # type: ignore[call-overload]
        values = {"section": section.name, "name": setting.name, "default": setting.default}
        choices = None if ranged else setting.allowed
        write_json("setting", {**values, "bounds": allowed, "choices": choices, "meaning": setting.meaning})
        return
    low, high = setting.allowed if ranged else (None, None)  # type: ignore[misc]
    allowed_text = f"{low} to {high}" if ranged else " | ".join(setting.allowed)  # type: ignore[call-overload]
    write_line(f"\n  {setting.name} = {setting.default}    ({allowed_text})")
    for line in textwrap.wrap(setting.meaning, _WIDTH - 6):
        write_line(f"      {line}")
