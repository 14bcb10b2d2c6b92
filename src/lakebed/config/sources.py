"""Where the value of a setting comes from: the environment, else the file, else its default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from lakebed.config.log import LakeConfig, LogConfig, WalConfig
from lakebed.config.serve import ServeConfig
from lakebed.errors import InvalidArgumentError, SettingsFileError
from lakebed.suggest import did_you_mean

CONFIG_NAME: Final = "lakebed.toml"
"""The file of a log's folder that holds its settings, used if it is opened without any."""


SECTIONS: Final[Mapping[str, Any]] = {
    "log": LogConfig,
    "wal": WalConfig,
    "lake": LakeConfig,
    "serve": ServeConfig,
}
"""The sections of the settings: in the file, `log` stands at its top, the others have a table."""


def parse_config(text: str, source: object) -> LogConfig:
    """Return the settings of a TOML document: those of the log, and one for each of its parts."""
    values = {
        name: _section(SECTIONS[name], value, name, source) if name in parts_of_a_log() else value
        for name, value in _document(text, source).items()
    }
    config: LogConfig = _section(LogConfig, values, "log", source)
    return config


def parts_of_a_log() -> list[str]:
    """List the sections that have a separate table."""
    return [name for name in SECTIONS if name != "log"]


def settings_in(text: str, source: object) -> set[tuple[str, str]]:
    """Return section and name of each setting in a TOML document."""
    named: set[tuple[str, str]] = set()
    for name, value in _document(text, source).items():
        inner = name in parts_of_a_log() and isinstance(value, dict)
        named |= {(name, setting) for setting in value} if inner else {("log", name)}
    return named


def _document(text: str, source: object) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsFileError(
            "the settings are not TOML", file=source, reason=str(error)
        ) from error


def variable_of(section: str, setting: str) -> str:
    """Return the environment variable of a setting."""
    return f"LAKEBED_{section}_{setting}".upper()


def with_environment(config: LogConfig, environ: Mapping[str, str]) -> LogConfig:
    """Return settings, overridden by the environment.

    `LAKEBED_<SECTION>_<SETTING>` stands for a setting: `LAKEBED_SERVE_PORT` for `port` in
    `[serve]`, `LAKEBED_LOG_WAL_BYTES` for `wal_bytes` at the top of the file. A variable of a
    section that names no setting is an error; any other variable is ignored.
    """
    changed: dict[str, Any] = {}
    for section in parts_of_a_log():
        values = _values_of(section, environ)
        if values:
            changed[section] = _replace(getattr(config, section), section, values)
    changed |= _values_of("log", environ)
    return _replace(config, "log", changed) if changed else config


def _values_of(section: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that the environment has for a section."""
    variables = {
        variable_of(section, field.name): field
        for field in fields(SECTIONS[section])
        if field.name not in SECTIONS
    }
    prefix = variable_of(section, "")
    for variable in sorted(environ):
        if variable.startswith(prefix) and variable not in variables:
            raise InvalidArgumentError(
                f"unknown setting {variable!r}{did_you_mean(variable, variables)}",
                variable=variable,
                known=", ".join(variables),
            )
    return {
        field.name: _from_text(
            variable, environ[variable], getattr(SECTIONS[section](), field.name)
        )
        for variable, field in variables.items()
        if variable in environ
    }


def _from_text(variable: str, text: str, default: object) -> object:
    """Parse a variable's text as a value of the type of the setting's default."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            _refuse_variable(variable, text, "true or false")
        return text == "true"
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            _refuse_variable(variable, text, "an integer")
    if isinstance(default, Mapping):
        try:
            return tomllib.loads(f"given = {text}")["given"]
        except tomllib.TOMLDecodeError:  # without the text, which may hold a secret
            _refuse_variable(
                variable, "...", "a table as TOML has it in one line: { name = 'text' }"
            )
    return text


def _refuse_variable(variable: str, value: object, allowed: str) -> None:
    raise InvalidArgumentError(
        f"{variable} must be {allowed}", variable=variable, value=repr(value)
    ) from None


def _replace(config: Any, section: str, values: Mapping[str, Any]) -> Any:
    """Return a configuration with other values; an error names the variables they came from."""
    try:
        return replace(config, **values)
    except InvalidArgumentError as error:
        variables = [variable_of(section, name) for name in values if name not in SECTIONS]
        facts = {"variable": ", ".join(variables), **error.facts}
        raise InvalidArgumentError(error.message, **facts) from error


def _section(kind: Any, values: object, name: str, source: object) -> Any:
    if not isinstance(values, dict):
        raise SettingsFileError(f"[{name}] must be a table of settings", file=source)
    for setting, value in values.items():
        if setting not in setting_names(kind):
            raise SettingsFileError(
                f"unknown setting {setting!r}{did_you_mean(setting, setting_names(kind))}",
                file=source,
                section=name,
                setting=setting,
                known=", ".join(setting_names(kind)),
            )
        if setting in ("catalog", "oidc_roles", "store_options"):
            _check_quotes(value, f"{name}.{setting}", source)
    try:
        return kind(**values)
    except InvalidArgumentError as error:
        raise SettingsFileError(error.message, file=source, section=name, **error.facts) from error


def _check_quotes(options: object, section: str, source: object) -> None:
    """Raise for options whose names TOML has split at a dot outside quotes."""
    for name, value in options.items() if isinstance(options, dict) else ():
        parts = [name]
        while isinstance(value, dict) and value:
            part, value = next(iter(value.items()))
            parts.append(part)
        if len(parts) > 1:
            raise SettingsFileError(
                "names with a dot must be quoted",
                file=source,
                section=section,
                name=".".join(parts),
            )


def setting_names(kind: type) -> list[str]:
    """List the settings of a configuration class."""
    return [field.name for field in fields(kind)]


def resolve_env(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with every `env:NAME` replaced by the variable's value.

    Raises:
        InvalidArgumentError: a variable is not set.
    """
    return {name: _from_environment(name, value) for name, value in options.items()}


def _from_environment(setting: str, value: str) -> str:
    prefix, _, name = value.partition(":")
    if prefix != "env":
        return value
    if name not in os.environ:
        raise InvalidArgumentError(
            "a setting refers to an environment variable that is not set",
            setting=setting,
            variable=name,
        )
    return os.environ[name]
