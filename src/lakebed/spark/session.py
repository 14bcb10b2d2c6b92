"""A Spark session set up for Lakebed: quiet, on this machine's cores, with a default log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakebed.client.config import ClientConfig
from lakebed.errors import InvalidArgumentError
from lakebed.spark import naming
from lakebed.spark.connection import reachable
from lakebed.spark.java import check_java, end_children
from lakebed.spark.options import Target
from lakebed.spark.packages import check_packages
from lakebed.spark.serving import url_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.api.log import Log

LOG_SETTING: Final = "spark.lakebed.log"
"""The setting of a session that names its log."""

DAEMON: Final = {"spark.python.daemon.module": "lakebed.spark.daemon"}
"""Makes Python workers start with everything imported."""

_SETTINGS: Final = {
    **DAEMON,
    # Spark's 15 s are short where cores are few. The 10 s for a streaming source's process to
    # connect, and the 60 s for the daemon to fork a worker, are constants in Spark: tasks that miss
    # them are retried (LOCAL_MASTER), and a pipeline restarts its flow.
    "spark.python.authenticate.socketTimeout": "300s",
    # Rows sent to the sink: 10,000 at a time cost an eighth more, and without a limit in
    # bytes a batch of large values would fill the memory.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.execution.arrow.maxBytesPerBatch": "33554432",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_MASTER: Final = "local[*,4]"
"""The default master: all cores, and up to 4 attempts at a task, as on a cluster.

With plain `local[*]` Spark never retries a task: one Python worker that dies, or is slow to connect
on a busy machine, fails the whole query.
"""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` for the program that it starts; it has chosen the master already."""
_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Log a page about each error in a query, besides the exception that says the same."""
_LOCAL_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def session(
    log: Log | str | os.PathLike[str] | None = None,
    *,
    master: str | None = None,
    name: str = "lakebed",
    conf: Mapping[str, str] | None = None,
    silent: bool = False,
) -> SparkSession:
    """Return a Spark session, the running one if there is one.

    `log` is what `format("lakebed")` reads and writes when its options name none: an open log,
    which is then served on this machine for Spark's processes, a folder or a URL. Without a
    `master` it runs on this machine's cores, with up to 4 attempts at a task (`local[*,4]`), or
    where `spark-submit` says; a `master` that is given is used as it is. `conf` are Spark's own
    settings, which win over ours. With `silent` its Java writes nothing: what it has to say, it
    says by exceptions.
    """
    running = active()
    address = None if log is None else naming.address_of(log)
    if running is None:
        check_java()
        naming.prepare()
        naming.set_application_log("")  # the log of an earlier session does not carry over
        for logger in _QUERY_LOGGERS:
            logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
        with _mute() if silent else contextlib.nullcontext():
            running = _start(master, name, conf or {})
    elif conf:
        _apply(running, conf)
    if address is not None:
        naming.set_application_log(address)
        running.conf.set(LOG_SETTING, address)
    return running


def active() -> SparkSession | None:
    """Return the session that runs in this process, if there is one."""
    check_packages("spark", "pyspark")
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def target_of(
    spark: SparkSession,
    log: Log | str | os.PathLike[str] | None,
    client: ClientConfig | None = None,
) -> Target:
    """Return how Spark's processes reach `log`, or the session's log if it is None."""
    address = _session_log(spark) if log is None else naming.address_of(log)
    return reachable(Target(address, client or ClientConfig()))


def log_of(spark: SparkSession, log: Log | str | os.PathLike[str] | None) -> str:
    """Return the URL of `log`, or of the session's log if it is None."""
    return url_of(_session_log(spark) if log is None else log)


def _session_log(spark: SparkSession) -> str:
    log = spark.conf.get(LOG_SETTING, None) or naming.application_log()
    if not log:
        raise InvalidArgumentError(
            "no log given: pass log=..., or create the session with lakebed.spark.session(log=...)"
        )
    return log


def _start(master: str | None, name: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = dict(_SETTINGS)
    if master is None and _SUBMITTED not in os.environ:
        master = LOCAL_MASTER
    if master is not None and master.startswith("local"):
        settings |= _LOCAL_SETTINGS | _sizes()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "spark.pyspark.python" not in conf:
        # Spark would start the first python3 on the path, which may be another one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings |= conf
    settings |= _quiet(conf)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except BaseException:
        end_children()  # Ctrl-C does not reach a JVM that is being started
        raise


@contextlib.contextmanager
def _mute() -> Iterator[None]:
    """Discard what a JVM that is started within the block writes."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _sizes() -> dict[str, str]:
    """Return sizes for one machine: Spark's defaults are for a cluster."""
    cores = os.cpu_count() or 1
    return {"spark.sql.shuffle.partitions": str(max(2, cores)), "spark.driver.memory": "2g"}


def _quiet(conf: Mapping[str, str]) -> dict[str, str]:
    """Return settings that make Spark log only errors, from its first line on."""
    extra = conf.get("spark.driver.extraJavaOptions", "")
    with resources.as_file(resources.files("lakebed.spark") / "log4j2.properties") as file:
        java = f"-Dlog4j2.configurationFile=file:{file} {extra}".strip()
        return {"spark.driver.extraJavaOptions": java}


def _apply(running: SparkSession, conf: Mapping[str, str]) -> None:
    """Apply settings to a running session; raise for one that cannot be changed any more."""
    from pyspark.errors import PySparkException

    for key, value in conf.items():
        if running.conf.get(key, None) == value:
            continue
        try:
            running.conf.set(key, value)
        except PySparkException as error:
            raise InvalidArgumentError(
                "a session that runs cannot be changed in this: stop it first", setting=key
            ) from error
