"""The log that a job works on: itself for what the owner does, and its URL for Spark's tasks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lakebed.api.log import Log
from lakebed.client.config import ClientConfig
from lakebed.client.log import RemoteLog
from lakebed.spark.connection import connected
from lakebed.spark.options import Target
from lakebed.spark.session import target_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AnyLog = Log | str | os.PathLike[str]
"""An open log, its folder, or the URL of a served one."""


def reached(spark: SparkSession, log: AnyLog) -> tuple[Log, Target]:
    """Return the log itself, and how Spark's processes get at it."""
    client = log._connection.config if isinstance(log, RemoteLog) else ClientConfig()
    target = target_of(spark, log, client)
    return (log if isinstance(log, Log) else connected(target)), target
