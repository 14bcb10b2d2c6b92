"""Settings, each with its default, its bounds and its meaning.

A value out of bounds raises `InvalidArgumentError` where it is set.
"""

from lakebed.config.log import (
    LAKE_BOUNDS,
    LOG_BOUNDS,
    STORE_SCHEMES,
    WAL_BOUNDS,
    AckMode,
    LakeConfig,
    LogConfig,
    SyncMode,
    WalConfig,
)
from lakebed.config.serve import (
    LOG_FORMATS,
    SERVE_BOUNDS,
    TLS_PRINCIPALS,
    ServeConfig,
)
from lakebed.config.sources import (
    CONFIG_NAME,
    SECTIONS,
    parse_config,
    parts_of_a_log,
    resolve_env,
    setting_names,
    settings_in,
    variable_of,
    with_environment,
)
from lakebed.config.topic import (
    CLEANUPS,
    COMPRESSIONS,
    TOPIC_BOUNDS,
    TopicConfig,
    stored_config,
)

__all__ = [
    "CLEANUPS",
    "COMPRESSIONS",
    "CONFIG_NAME",
    "LAKE_BOUNDS",
    "LOG_BOUNDS",
    "LOG_FORMATS",
    "SECTIONS",
    "SERVE_BOUNDS",
    "STORE_SCHEMES",
    "TLS_PRINCIPALS",
    "TOPIC_BOUNDS",
    "WAL_BOUNDS",
    "AckMode",
    "LakeConfig",
    "LogConfig",
    "ServeConfig",
    "SyncMode",
    "TopicConfig",
    "WalConfig",
    "parse_config",
    "parts_of_a_log",
    "resolve_env",
    "setting_names",
    "settings_in",
    "stored_config",
    "variable_of",
    "with_environment",
]
