"""The log that a job works on: an open log for the driver, and a URL for Spark's tasks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lakebed.api.log import Log
from lakebed.client.config import ClientConfig
from lakebed.client.log import RemoteLog
from lakebed.spark.connection import connect
from lakebed.spark.options import Target
from lakebed.spark.session import target_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnyLog = Log | str | os.PathLike[str]
"""An open log, its folder, or the URL of a served one."""


def resolve_log(spark: SparkSession, log: AnyLog) -> tuple[Log, Target]:
    """Return an open log, and how Spark's processes reach it."""
    client = log._connection.config if isinstance(log, RemoteLog) else ClientConfig()
    target = target_of(spark, log, client)
    return (log if isinstance(log, Log) else connect(target)), target
