"""The settings of a log that is opened without any: its folder's file, then the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakebed.config import CONFIG_NAME, LogConfig, parse_config, with_environment
from lakebed.errors import SettingsFileError, translate_os_errors
from lakebed.host import Disk, Mode, read_exactly


def effective_config(disk: Disk, folder: Path, environ: Mapping[str, str]) -> LogConfig:
    """Return a log's settings: the environment over the file in its folder over the defaults."""
    text = settings_text(disk, folder)
    config = LogConfig() if text is None else parse_config(text, folder / CONFIG_NAME)
    return with_environment(config, environ)


def settings_text(disk: Disk, folder: Path) -> str | None:
    """Return the settings in a log's folder as they are written, or None if there are none."""
    path = folder / CONFIG_NAME
    with translate_os_errors("reading the settings", path):
        if CONFIG_NAME not in disk.names(folder):
            return None
        file = disk.open(path, Mode.READ)
        try:
            data = read_exactly(file, 0, file.size())
        finally:
            file.close()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SettingsFileError("the settings are not text", file=path) from error
