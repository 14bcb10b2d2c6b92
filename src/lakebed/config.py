"""Settings, each with its default, its bounds and its meaning.

A value out of bounds is refused when it is given.
"""

from __future__ import annotations

import enum
import functools
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from lakebed import limits
from lakebed.errors import InvalidArgumentError, SettingsFileError


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


def _check_bounds(config: object, bounds: Mapping[str, tuple[int, int]]) -> None:
    for name, (low, high) in bounds.items():
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            _refuse(name, value, f"a whole number from {low} to {high}")


def _refuse(setting: str, value: object, allowed: str) -> None:
    raise InvalidArgumentError(f"{setting} must be {allowed}", setting=setting, value=repr(value))


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
        given: object = self.sync
        if given in [mode.value for mode in SyncMode]:
            object.__setattr__(self, "sync", SyncMode(given))  # its name will do
        if not isinstance(self.sync, SyncMode):
            _refuse("sync", self.sync, "one of " + " | ".join(mode.value for mode in SyncMode))
        _check_bounds(self, WAL_BOUNDS)
        if self.file_bytes % 4096:
            _refuse("file_bytes", self.file_bytes, "a multiple of 4096")


WAL_BOUNDS: Final = {
    "sync_interval_ms": (1, 60_000),
    "file_bytes": (limits.FILE_BYTES_MIN, limits.FILE_BYTES_MAX),
    "entry_bytes_max": (1, limits.ENTRY_BYTES_MAX),
    "spare_files": (0, 64),
    "idle_mark_ms": (1, 1_000),
}


@dataclass(frozen=True)
class LakeConfig:
    """Settings of the lake: the Iceberg tables, and the object store."""

    iceberg: bool = True
    """Whether every topic is an Iceberg table."""

    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the pyiceberg catalog that holds the tables; none for a SQLite catalog inside
    the log's folder. A value `env:NAME` is taken from the environment.
    """

    namespace: str = "lakebed"
    """The catalog's namespace in which the tables are; a dot separates levels."""

    sync_interval_ms: int = 10_000
    """The longest time between a checkpoint or a removal and the table that shows it, if nothing
    fails.
    """

    snapshots_kept: int = 20
    """Snapshots of a table that stay readable, the newest ones."""

    snapshot_age_ms: int = 86_400_000
    """Older snapshots go before they are too many, if a file waits for them that the log has
    dropped.
    """

    grace_ms: int = 3_600_000
    """How long a file stays after the last snapshot that refers to it is gone: readers that have
    begun may need it.
    """

    store: str = ""
    """Where segments and tables are kept, as a URL: `s3://bucket/path`, or that of another file
    system that pyarrow knows. Empty for the log's own folder alone.
    """

    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Endpoint, region and credentials of the store, under the names that pyiceberg gives them,
    such as `s3.endpoint`. A value `env:NAME` is taken from the environment.
    """

    store_cache_bytes: int = 1 * limits.GIB
    """Segments read back from the store that are kept on the local disk for the next reader."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        _check_bounds(self, LAKE_BOUNDS)
        if not isinstance(self.iceberg, bool):
            _refuse("iceberg", self.iceberg, "true or false")
        for name in ("catalog", "store_options"):
            _check_options(name, getattr(self, name))
        if not isinstance(self.namespace, str) or not all(self.namespace.split(".")):
            _refuse("namespace", self.namespace, "names with a dot between them")
        if not isinstance(self.store, str) or (self.store and "://" not in self.store):
            _refuse("store", self.store, "a URL such as s3://bucket/path")
        if self.catalog and "type" not in self.catalog and "py-catalog-impl" not in self.catalog:
            _refuse("catalog", sorted(self.catalog), "given with its `type` (sql, rest, glue, ...)")


def _check_options(setting: str, options: object) -> None:
    """Refuse options that are not text, without showing a value, which may be a secret."""
    if not isinstance(options, Mapping):
        _refuse(setting, type(options).__name__, "a dictionary of text by name")
        return
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"{setting} must be a dictionary of text by name",
                setting=setting,
                name=name,
                got=type(value).__name__,
            )


def resolved(options: Mapping[str, str]) -> dict[str, str]:
    """Give options with every `env:NAME` taken from the environment."""
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


LAKE_BOUNDS: Final = {
    "sync_interval_ms": (10, 86_400_000),
    "snapshots_kept": (1, 10_000),
    "snapshot_age_ms": (0, 365 * 86_400_000),
    "grace_ms": (0, 365 * 86_400_000),
    "store_cache_bytes": (0, 1024 * limits.GIB),
}


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the process that serves a log over the network."""

    host: str = "127.0.0.1"
    """The address to listen on. Any but a loopback one needs TLS, or `insecure`."""

    port: int = 4747
    """The port of Arrow Flight, the one of `lakebed://host:port`; 0 for any that is free."""

    http_port: int = 4748
    """The port of HTTP: REST, health, metrics; 0 for any that is free, -1 for no HTTP."""

    tls_cert: str = ""
    """File with the certificate that the server shows, PEM; empty for no TLS."""

    tls_key: str = ""
    """File with the certificate's key, PEM."""

    tls_client_ca: str = ""
    """File with the certificates of those who sign for clients, PEM.

    With it every client must show a certificate that one of them has signed.
    """

    insecure: bool = False
    """Whether to serve without TLS on an address that is not a loopback one."""

    connections_max: int = 2_000
    """Streams that are served at a time; the next ones are refused until one ends."""

    request_bytes_max: int = 64 * limits.MIB
    """The largest request accepted."""

    inflight_bytes_max: int = 256 * limits.MIB
    """Bytes of all requests that are being served at a time."""

    principal_inflight_bytes_max: int = 128 * limits.MIB
    """Bytes of one principal's requests that are being served at a time."""

    principal_bytes_per_second: int = 0
    """How many bytes one principal may write and read in a second; 0 for no limit."""

    principal_requests_per_second: int = 0
    """How many requests one principal may make in a second; 0 for no limit."""

    stop_timeout_ms: int = 30_000
    """How long a stopping server waits for the requests that it has begun."""

    log_format: str = "text"
    """How the server's own log lines are written: `text` or `json`, one object a line."""

    audit: bool = True
    """Whether refused calls and administrative acts are written to the server's log."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        _check_bounds(self, SERVE_BOUNDS)
        for name in ("insecure", "audit"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "true or false")
        for name in ("host", "tls_cert", "tls_key", "tls_client_ca"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.isprintable():
                _refuse(name, value, "text")
        if not self.host or self.host != self.host.strip():
            _refuse("host", self.host, "an address or a name")
        if self.log_format not in LOG_FORMATS:
            _refuse("log_format", self.log_format, "one of " + " | ".join(LOG_FORMATS))
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            _refuse(missing, "", "given too: a certificate and its key belong together")
        if self.tls_client_ca and not self.tls_cert:
            _refuse("tls_cert", "", "given too: tls_client_ca needs TLS")
        if self.port and self.port == self.http_port:
            _refuse("http_port", self.http_port, "another one than port")


LOG_FORMATS: Final = ("text", "json")
SERVE_BOUNDS: Final = {
    "port": (0, 65_535),
    "http_port": (-1, 65_535),
    "connections_max": (1, 1_000_000),
    "request_bytes_max": (64 * limits.KIB, limits.ENTRY_BYTES_MAX),
    "inflight_bytes_max": (64 * limits.KIB, 1024 * limits.GIB),
    "principal_inflight_bytes_max": (64 * limits.KIB, 1024 * limits.GIB),
    "principal_bytes_per_second": (0, 1024 * limits.GIB),
    "principal_requests_per_second": (0, 1_000_000_000),
    "stop_timeout_ms": (0, 3_600_000),
}


@dataclass(frozen=True)
class LogConfig:
    """Settings of a log: its memory, its checkpoints, its schedule."""

    wal: WalConfig = WalConfig()
    """Settings of the write-ahead log."""

    lake: LakeConfig = LakeConfig()
    """Settings of the Iceberg tables and the object store."""

    serve: ServeConfig = ServeConfig()
    """Settings of the process that serves the log over the network."""

    memtable_bytes: int = 128 * limits.MIB
    """Acknowledged bytes kept in memory until they are in segments.

    A checkpoint begins at half of it; from three quarters on writers are slowed, at all of it they
    wait.
    """

    wal_bytes: int = 1 * limits.GIB
    """Bytes of WAL after which a checkpoint begins; at twice as many writers wait for it."""

    checkpoint_interval_ms: int = 300_000
    """The longest time between a write and the checkpoint that puts it into a segment."""

    write_timeout_ms: int = 30_000
    """How long a writer waits for room before it gets `OverloadedError`."""

    cache_bytes: int = 64 * limits.MIB
    """Decoded row groups of segments that are kept for the next reader."""

    retention_interval_ms: int = 60_000
    """How often retention and cleanup look at every topic."""

    producer_expiry_ms: int = 7 * 86_400_000
    """How long a producer's last batches are remembered after its last one."""

    default_partitions: int = 1
    """Partitions of a topic that is created without saying how many."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        if not isinstance(self.wal, WalConfig):
            _refuse("wal", type(self.wal), "a WalConfig")
        if not isinstance(self.lake, LakeConfig):
            _refuse("lake", type(self.lake), "a LakeConfig")  # there may be secrets in it
        if not isinstance(self.serve, ServeConfig):
            _refuse("serve", type(self.serve), "a ServeConfig")
        _check_bounds(self, LOG_BOUNDS)


LOG_BOUNDS: Final = {
    "memtable_bytes": (64 * limits.KIB, 1024 * limits.GIB),
    "wal_bytes": (64 * limits.KIB, 1024 * limits.GIB),
    "checkpoint_interval_ms": (10, 86_400_000),
    "write_timeout_ms": (0, 3_600_000),
    "cache_bytes": (0, 1024 * limits.GIB),
    "retention_interval_ms": (10, 86_400_000),
    "producer_expiry_ms": (1_000, 365 * 86_400_000),
    "default_partitions": (1, limits.PARTITIONS_MAX),
}


@dataclass(frozen=True)
class TopicConfig:
    """Settings of one topic."""

    retention_ms: int = -1
    """Records older than this are removed, whole segments at a time; -1 keeps them for ever."""

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
            _refuse("cleanup", self.cleanup, "one of " + " | ".join(CLEANUPS))
        if self.compression not in COMPRESSIONS:
            _refuse("compression", self.compression, "one of " + " | ".join(COMPRESSIONS))
        _check_bounds(self, TOPIC_BOUNDS)

    @classmethod
    def of(
        cls, given: Mapping[str, object] | TopicConfig, base: TopicConfig | None = None
    ) -> TopicConfig:
        """Take settings by name, over those of `base`; numbers may be text."""
        if isinstance(given, TopicConfig):
            given = given.changed() if base is None else asdict(given)
        if not isinstance(given, Mapping):
            _refuse("config", given, "a TopicConfig or a dictionary of settings")
        known = {field.name: field for field in fields(cls)}
        values: dict[str, object] = {} if base is None else asdict(base)
        for name, value in given.items():
            if name not in known:
                raise InvalidArgumentError(
                    "there is no such topic setting", setting=name, known=", ".join(known)
                )
            if isinstance(known[name].default, int) and isinstance(value, str):
                value = _whole_number(name, value)
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]  # the class checks each value

    def changed(self) -> dict[str, int | str]:
        """Give the settings that differ from the defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


@functools.lru_cache(maxsize=4096)
def stored_config(settings: tuple[tuple[str, int | str], ...]) -> TopicConfig:
    """Give a topic's settings from those that the state keeps: the ones that are not defaults."""
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
    "local_ms": (-1, _YEARS_MS),
    "local_bytes": (-1, 2**60),
}


def _whole_number(setting: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"{setting} must be a whole number", setting=setting, value=repr(text)
        ) from None


CONFIG_NAME: Final = "lakebed.toml"
"""The file of a log's folder that holds its settings, for whoever opens it without giving any."""


SECTIONS: Final[Mapping[str, Any]] = {
    "log": LogConfig,
    "wal": WalConfig,
    "lake": LakeConfig,
    "serve": ServeConfig,
}
"""The sections of the settings: in the file, `log` stands at its top, the others have a table."""


def parse_config(text: str, source: object) -> LogConfig:
    """Give the settings of a TOML document: those of the log, and a table for each of its parts."""
    values = {
        name: _section(SECTIONS[name], value, name, source) if name in parts_of_a_log() else value
        for name, value in _document(text, source).items()
    }
    config: LogConfig = _section(LogConfig, values, "log", source)
    return config


def parts_of_a_log() -> list[str]:
    """List the sections that have a table of their own."""
    return [name for name in SECTIONS if name != "log"]


def named_settings(text: str, source: object) -> set[tuple[str, str]]:
    """Give section and name of each setting that a TOML document names."""
    named: set[tuple[str, str]] = set()
    for name, value in _document(text, source).items():
        inner = name in parts_of_a_log() and isinstance(value, dict)
        named |= {(name, each) for each in value} if inner else {("log", name)}
    return named


def _document(text: str, source: object) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsFileError(
            "the settings are not TOML", file=source, reason=str(error)
        ) from error


def variable_of(section: str, setting: str) -> str:
    """Give the environment variable of a setting."""
    return f"LAKEBED_{section}_{setting}".upper()


def with_environment(config: LogConfig, environ: Mapping[str, str]) -> LogConfig:
    """Give settings in which the environment has the last word.

    `LAKEBED_<SECTION>_<SETTING>` stands for a setting: `LAKEBED_SERVE_PORT` for `port` in
    `[serve]`, `LAKEBED_LOG_WAL_BYTES` for `wal_bytes` at the top of the file. A variable of a
    section that names no setting is refused; any other variable is none of ours.
    """
    changed: dict[str, Any] = {}
    for section in parts_of_a_log():
        given = _given(section, environ)
        if given:
            changed[section] = _changed(getattr(config, section), section, given)
    changed |= _given("log", environ)
    return _changed(config, "log", changed) if changed else config


def _given(section: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Give the values that the environment has for a section."""
    known = {
        variable_of(section, field.name): field
        for field in fields(SECTIONS[section])
        if field.name not in SECTIONS
    }
    prefix = variable_of(section, "")
    for variable in sorted(environ):
        if variable.startswith(prefix) and variable not in known:
            raise InvalidArgumentError(
                "there is no such setting", variable=variable, known=", ".join(known)
            )
    return {
        field.name: _from_text(
            variable, environ[variable], getattr(SECTIONS[section](), field.name)
        )
        for variable, field in known.items()
        if variable in environ
    }


def _from_text(variable: str, text: str, default: object) -> object:
    """Read a variable's text as a value of the kind that the setting's default is of."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            _refuse_variable(variable, text, "true or false")
        return text == "true"
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            _refuse_variable(variable, text, "a whole number")
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


def _changed(config: Any, section: str, values: Mapping[str, Any]) -> Any:
    """Give a configuration with other values; a refusal names the variables they came from."""
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
                "there is no such setting",
                file=source,
                section=name,
                setting=setting,
                known=", ".join(setting_names(kind)),
            )
        if setting in ("catalog", "store_options"):
            _check_quotes(value, f"{name}.{setting}", source)
    try:
        return kind(**values)
    except InvalidArgumentError as error:
        raise SettingsFileError(error.message, file=source, section=name, **error.facts) from error


def _check_quotes(options: object, section: str, source: object) -> None:
    """Refuse options whose names TOML has taken apart, as it does at a dot outside quotes."""
    for name, value in options.items() if isinstance(options, dict) else ():
        parts = [name]
        while isinstance(value, dict) and value:
            part, value = next(iter(value.items()))
            parts.append(part)
        if len(parts) > 1:
            raise SettingsFileError(
                "put names with a dot in quotes", file=source, section=section, name=".".join(parts)
            )


def setting_names(kind: type) -> list[str]:
    """List the settings of a configuration class."""
    return [field.name for field in fields(kind)]
