"""Settings of a topic, which the log itself keeps."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

from lakebed import limits
from lakebed.config.checks import check_bounds, refuse
from lakebed.errors import InvalidArgumentError
from lakebed.suggest import did_you_mean


@dataclass(frozen=True)
class TopicConfig:
    """Settings of one topic."""

    retention_ms: int = -1
    """Records older than this are removed, whole segments at a time; -1 keeps them forever."""

    retention_bytes: int = -1
    """Segments of a partition beyond this size are removed, oldest first; -1 for no limit."""

    cleanup: str = "delete"
    """What removes records: `delete` (retention), `compact` (a newer record of the same key) or
    `compact,delete` (both).
    """

    segment_bytes: int = 128 * limits.MIB
    """About how large a segment may become; small ones are merged up to this."""

    segment_ms: int = 3_600_000
    """The longest time that a record stays in the memtable before it is put into a segment."""

    compression: str = "zstd"
    """Of segments: `zstd`, `snappy`, `lz4`, `gzip` or `none`."""

    record_bytes_max: int = 8 * limits.MIB
    """The largest record accepted: key, headers and value together."""

    tombstone_retention_ms: int = 86_400_000
    """With `compact`: how long a tombstone is kept for readers that have not seen it yet."""

    compact_dirty_percent: int = 50
    """With `compact`: the share of a partition's sealed bytes that must be new since the last
    compaction for the next one to begin.
    """

    compact_lag_ms: int = 0
    """With `compact`: segments with records younger than this are not compacted yet."""

    compact_hold_ms: int = 86_400_000
    """With `compact`: what a consumer group has yet to read is not compacted as long as the group
    has committed within this time, so that reading a range again finds the same records; 0
    never lets compaction wait.
    """

    local_ms: int = -1
    """With a store: segments older than this are kept there alone, and not on the local disk; -1
    keeps them in both.
    """

    local_bytes: int = -1
    """With a store: segments of a partition beyond this size are kept there alone, oldest first; -1
    for no limit.
    """

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        if self.cleanup not in CLEANUPS:
            refuse("cleanup", self.cleanup, "one of " + " | ".join(CLEANUPS))
        if self.compression not in COMPRESSIONS:
            refuse("compression", self.compression, "one of " + " | ".join(COMPRESSIONS))
        check_bounds(self, TOPIC_BOUNDS)

    @classmethod
    def of(
        cls, settings: Mapping[str, object] | TopicConfig, base: TopicConfig | None = None
    ) -> TopicConfig:
        """Return settings by name over those of `base`; numbers may be text.

        Raises:
            InvalidArgumentError: a setting is unknown, or a value is not allowed.
        """
        if isinstance(settings, TopicConfig):
            settings = settings.changed() if base is None else asdict(settings)
        if not isinstance(settings, Mapping):
            refuse("config", settings, "a TopicConfig or a dictionary of settings")
        defined = {field.name: field for field in fields(cls)}
        values: dict[str, object] = {} if base is None else asdict(base)
        for name, value in settings.items():
            if name not in defined:
                raise InvalidArgumentError(
                    f"unknown topic setting {name!r}{did_you_mean(str(name), defined)}",
                    setting=name,
                    known=", ".join(defined),
                )
            if isinstance(defined[name].default, int) and isinstance(value, str):
                value = _whole_number(name, value)
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]  # the class checks each value

    def changed(self) -> dict[str, int | str]:
        """Return the settings that differ from the defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


@functools.lru_cache(maxsize=4096)
def stored_config(settings: tuple[tuple[str, int | str], ...]) -> TopicConfig:
    """Return a topic's settings from those in the log's state, which has no defaults."""
    return TopicConfig.of(dict(settings))


CLEANUPS: Final = ("delete", "compact", "compact,delete")
COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")
_YEARS_MS: Final = 1000 * 365 * 86_400_000
TOPIC_BOUNDS: Final = {
    "retention_ms": (-1, _YEARS_MS),
    "retention_bytes": (-1, 2**60),
    "segment_bytes": (4 * limits.KIB, 16 * limits.GIB),
    "segment_ms": (10, _YEARS_MS),
    "record_bytes_max": (1, limits.RECORD_BYTES_MAX),
    "tombstone_retention_ms": (0, _YEARS_MS),
    "compact_dirty_percent": (0, 100),
    "compact_lag_ms": (0, _YEARS_MS),
    "compact_hold_ms": (0, _YEARS_MS),
    "local_ms": (-1, _YEARS_MS),
    "local_bytes": (-1, 2**60),
}


def _whole_number(setting: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"{setting} must be an integer", setting=setting, value=repr(text)
        ) from None
