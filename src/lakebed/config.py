"""Settings, each with its default, its bounds and its meaning.

A value out of bounds is refused when it is given.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

from lakebed import limits
from lakebed.errors import InvalidArgumentError


class SyncMode(enum.Enum):
    """When an append is acknowledged, and so what a power cut can take from it."""

    ALWAYS = "always"
    """After fdatasync. A power cut takes nothing that was acknowledged."""

    INTERVAL = "interval"
    """After the write.

    Synced every `sync_interval_ms`. A power cut takes at most about that much time, a kill nothing.
    """

    OS = "os"
    """After the write.

    Synced when a file is full, when the log has been quiet, and when it is closed. A power cut may
    take a whole file's worth, a kill nothing.
    """


@dataclass(frozen=True)
class WalConfig:
    """Settings of the write-ahead log."""

    sync: SyncMode = SyncMode.ALWAYS
    """When an append is acknowledged: `always`, `interval` or `os`."""

    sync_interval_ms: int = 100
    """With `interval`: the longest time between a write and its sync."""

    file_bytes: int = 64 * limits.MIB
    """Size of a WAL file. A larger one makes fewer rotations and frees space later."""

    entry_bytes_max: int = 64 * limits.MIB
    """The largest entry accepted."""

    spare_files: int = 2
    """How many files to keep ready ahead of the writer.

    Released files become spares before they are removed.
    """

    idle_mark_ms: int = 500
    """How long after the last commit the idle mark is written, from which on damage to that commit
    is told from a torn write.
    """

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        if not isinstance(self.sync, SyncMode):
            _refuse(
                "sync", self.sync, "one of " + ", ".join(f"SyncMode.{m.name}" for m in SyncMode)
            )
        bounds = {
            "sync_interval_ms": (1, 60_000),
            "file_bytes": (limits.FILE_BYTES_MIN, limits.FILE_BYTES_MAX),
            "entry_bytes_max": (1, limits.ENTRY_BYTES_MAX),
            "spare_files": (0, 64),
            "idle_mark_ms": (1, 1_000),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                _refuse(name, value, f"a whole number from {low} to {high}")
        if self.file_bytes % 4096:
            _refuse("file_bytes", self.file_bytes, "a multiple of 4096")


def _refuse(setting: str, value: object, allowed: str) -> None:
    raise InvalidArgumentError(f"{setting} must be {allowed}", setting=setting, value=repr(value))


def setting_names(kind: type) -> list[str]:
    """List the settings of a configuration class."""
    return [field.name for field in fields(kind)]
