"""Running a pipeline: every flow a streaming query, in one Spark application.

First everything that could go wrong is checked: plans, checkpoints, topics and tables. Only then
does the first flow start. A flow that fails for a reason that may pass is restarted while the
others run; any other failure, and one that has occurred too often in succession, stops the others.
A flow that was stopped, or killed at any moment, continues where it was: Spark repeats the
unfinished batch, and the log and the tables recognise what a repeated batch has written before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import lakebed
from lakebed.api.log import Log
from lakebed.errors import InvalidArgumentError, LakebedError, PipelineChangedError
from lakebed.spark.java import check_java
from lakebed.spark.pipeline.checkpoint_folder import FLOW, STATUS, CheckpointFolder
from lakebed.spark.pipeline.compatibility import check_compatible, definition
from lakebed.spark.pipeline.fields import PipelineProblem
from lakebed.spark.pipeline.flow_query import POLL_SECONDS, FlowQuery
from lakebed.spark.pipeline.plan import Planner
from lakebed.spark.pipeline.spec import AVAILABLE_NOW, Flow, PipelineSpec, SinkMode
from lakebed.spark.pipeline.status import FlowStatus, lag_of, owner, read_status
from lakebed.spark.pipeline.topic_sink import (
    ready_letters,
    ready_topic,
    records,
    topic_writer,
)
from lakebed.spark.serving import url_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger("lakebed.spark")

Watch = Callable[[Sequence[FlowStatus]], None]
"""Called at intervals with the status of each flow."""

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUIET_SECONDS: Final = 60


@contextlib.contextmanager
def running(
    spec: PipelineSpec,
    log: Log | str | os.PathLike[str],
    spark: SparkSession | None = None,
    *,
    master: str | None = None,
    available_now: bool = False,
    silent: bool = False,
) -> Iterator[PipelineRun]:
    """Yield a pipeline that is ready to run in `spark`, the active session, or a new one.

    A new session is stopped at the end; with `silent` its JVM writes nothing.
    """
    from lakebed.spark.session import active, session

    running_already = spark is not None or active() is not None
    if not running_already:
        check_java()  # before anything is started, such as a sidecar
    url = url_of(log)
    own = None
    if spark is None and running_already:
        spark = session(conf=spec.spark)
    elif spark is None:
        name = f"lakebed pipeline {spec.name}"
        conf = _settings(spec)
        spark = own = session(url, master=master, name=name, conf=conf, silent=silent)
    try:
        with contextlib.ExitStack() as stack:
            connection = log if isinstance(log, Log) else stack.enter_context(lakebed.open(url))
            yield PipelineRun(spec, spark, connection, url, available_now=available_now)
    finally:
        if own is not None:
            own.stop()


def _settings(spec: PipelineSpec) -> dict[str, str]:
    """Return the settings of a session: stacks for long queries, and the pipeline's."""
    options = spec.spark.get(_JAVA_OPTIONS, "")
    return {**spec.spark, _JAVA_OPTIONS: f"-Xss4m {options}".strip()}


class PipelineRun:
    """A pipeline that runs. One thread owns it; `stopping` may be set by any."""

    def __init__(
        self,
        spec: PipelineSpec,
        spark: SparkSession,
        log: Log,
        url: str,
        *,
        available_now: bool = False,
    ) -> None:
        self._spec = spec
        self._spark = spark
        self._log = log
        self._url = url
        self._checkpoints = CheckpointFolder(spec.checkpoint_location)
        self._available_now = available_now or spec.trigger == AVAILABLE_NOW
        self._flows: dict[str, FlowQuery] = {}
        self.stopping: Final = threading.Event()
        self.quiet = False
        """Whether Spark logs nothing when a flow fails: the error that is raised says why."""

    def run(self, watch: Watch = lambda _: None) -> list[FlowStatus]:
        """Start every flow, and wait until all have ended, one fails, or `stopping` is set.

        A flow that fails for a reason that may pass is restarted, as `PipelineSpec.restart` says.
        Returns the status of each flow; raises the error of a failed flow once all are stopped.
        """
        if self.quiet:
            self._spark.sparkContext.setLogLevel("OFF")
        try:
            self._start()
            while not (self.stopping.is_set() or self._has_failed() or self._has_ended()):
                self.stopping.wait(POLL_SECONDS)
                self._look()
                self._recover()
                watch(self.statuses())
        finally:
            self._stop()
        watch(self.statuses())
        for query in self._flows.values():
            if query.failure is not None:
                raise query.error()
        return self.statuses()

    def problems(self, flows: Sequence[Flow]) -> list[PipelineProblem]:
        """Analyse flows with Spark; return the problems, each once."""
        planner = Planner(self._spec, self._spark, self._url)
        problems = (problem for flow in flows for problem in planner.problems(flow))
        return list(dict.fromkeys(problems))

    def statuses(self) -> list[FlowStatus]:
        """Return how far each flow has come."""
        return [query.status for query in self._flows.values()]

    # Starting

    def _start(self) -> None:
        self._checkpoints.make()
        planner = Planner(self._spec, self._spark, self._url)
        prepared = [self._prepare(planner, flow) for flow in self._spec.flows()]
        for flow, frame, document in prepared:
            self._ready(flow, frame)
            # Before the query begins: a checkpoint without this file belongs to no flow.
            self._checkpoints.write(flow.name, FLOW, document)
        for flow, frame, document in prepared:
            if not self.stopping.is_set():
                self._flows[flow.name] = self._start_flow(flow, frame, document)

    def _prepare(self, planner: Planner, flow: Flow) -> tuple[Flow, DataFrame, dict[str, Any]]:
        frame = planner.plan(flow)
        now = definition(self._spec, flow, frame, self._spark.version)
        was = self._checkpoints.read(flow.name, FLOW)
        if was is None and self._checkpoints.holds(flow.name):
            raise PipelineChangedError(
                "the checkpoint was not made by a pipeline, or its reset was cut short",
                flow=flow.name,
                checkpoint=self._checkpoints.of(flow.name),
            )
        writer = _writer(self._spec.name, flow.name)
        if was is not None and self._checkpoints.has_begun(flow.name):
            check_compatible(flow.name, was, now)
            writer = was["writer"]  # the name under which the repeated batch may have been written
        self._check_letters(flow, now)
        return flow, frame, {**now, "pipeline": self._spec.name, "writer": writer}

    def _check_letters(self, flow: Flow, now: Mapping[str, Any]) -> None:
        if flow.sink is None and now["state"]:
            raise InvalidArgumentError(
                "otherwise = 'dead-letter' is for rows that come one by one: put the expectation on"
                " a step before the aggregation or join, or on the source",
                step=flow.source,
            )

    def _ready(self, flow: Flow, frame: DataFrame) -> None:
        """Create the target of a flow if it does not exist."""
        if flow.sink is None:
            ready_letters(self._log, str(self._spec.dead_letter))
        elif flow.sink.topic is not None:
            ready_topic(self._log, flow.sink, frame)
        else:
            from lakebed.spark.pipeline.table_sink import ready_table

            ready_table(self._log, flow.sink, frame)

    def _start_flow(self, flow: Flow, frame: DataFrame, document: Mapping[str, Any]) -> FlowQuery:
        status = read_status(self._checkpoints, flow.name).begin(owner())
        self._keep(flow.name, status)
        running = FlowQuery(status, self._spec.restart, self.stopping)
        mode = _output_mode(flow, document["state"])
        writing = self._writing(flow, frame, document, running, updates=mode == "update")
        writing = writing.outputMode(mode).queryName(f"{self._spec.name}.{flow.name}")
        writing = writing.option("checkpointLocation", self._checkpoints.of(flow.name))
        if self._available_now:
            writing = writing.trigger(availableNow=True)
        else:
            writing = writing.trigger(processingTime=self._spec.trigger)
        running.start(writing, self._await_quiet)
        return running

    def _writing(
        self,
        flow: Flow,
        frame: DataFrame,
        document: Mapping[str, Any],
        running: FlowQuery,
        *,
        updates: bool,
    ) -> DataStreamWriter:
        """Return the stream writer of a flow."""
        sink, writer = flow.sink, str(document["writer"])
        if sink is not None and sink.table is not None:
            from lakebed.spark.pipeline.table_sink import table_writer

            write = table_writer(self._log, sink, writer, stateful=bool(document["state"]))
            return frame.writeStream.foreachBatch(running.guard(write))
        made = frame if sink is None else records(frame, sink)
        topic = str(self._spec.dead_letter if sink is None else sink.topic)
        if updates:
            write = topic_writer(self._log, self._url, topic, writer)
            return made.writeStream.foreachBatch(running.guard(write))
        return made.writeStream.format("lakebed").option("log", self._url).option("topic", topic)

    def _await_quiet(self) -> None:
        """Wait until no flow works on a batch, for a while."""
        for _ in range(round(_QUIET_SECONDS / POLL_SECONDS)):
            if not any(query.works() for query in self._flows.values()):
                return
            if self.stopping.wait(POLL_SECONDS):
                return

    # Watching

    def _look(self) -> None:
        """Update the status of each flow, and write it beside the checkpoint."""
        for name, query in self._flows.items():
            if query.advance():
                if query.status.lag is None:  # Spark does not always say where the topics end
                    lag = lag_of(query.status.offsets, self._log)
                    query.status = replace(query.status, lag=lag)
                self._keep(name, query.status)

    def _recover(self) -> None:
        """Restart flows that have failed for a reason that may pass, each when its time comes."""
        for name, query in self._flows.items():
            if query.recover():
                self._keep(name, query.status)

    def _keep(self, name: str, status: FlowStatus) -> None:
        try:
            self._checkpoints.write(name, STATUS, status.document())
        except LakebedError as error:  # a status that cannot be written is no reason to stop
            _log.warning("the status of a flow cannot be written: flow=%s %s", name, error)

    def _has_failed(self) -> bool:
        return any(query.failure is not None for query in self._flows.values())

    def _has_ended(self) -> bool:
        return all(query.has_ended() for query in self._flows.values())

    # Stopping

    def _stop(self) -> None:
        """Stop every query when its running batch is done; at once if one has failed."""
        hurried = self._has_failed()
        for query in self._flows.values():
            query.finish(hurried=hurried)
        self._look()
        for name, query in self._flows.items():
            state = "stopped" if query.failure is None else "failed"
            error = None if query.failure is None else str(query.error())
            query.status = replace(
                query.status, state=state, error=error, next_attempt=None, rows_per_second=0.0
            )
            self._keep(name, query.status)


def _writer(pipeline: str, flow: str) -> str:
    """Return a new name for the writer of a flow, from its first start to its reset."""
    return f"{pipeline[:40]}.{flow[:40]}.{uuid.uuid4().hex}"


def _output_mode(flow: Flow, state: Sequence[str]) -> str:
    """Return the output mode: final results of aggregations, or changed ones."""
    mode = SinkMode.APPEND if flow.sink is None else flow.sink.mode
    aggregates = any(operator.startswith("Aggregate") for operator in state)
    return (
        "update"
        if mode == SinkMode.UPDATE or (mode == SinkMode.CURRENT and aggregates)
        else "append"
    )
