"""Running a pipeline: every flow a streaming query, in one Spark application.

First everything is looked at that could go wrong: plans, checkpoints, topics and tables. Only then
does the first flow start. A flow that fails for a reason that may pass is started again, while the
others run; any other failure, and one that has occurred too often in succession, stops the others.
A flow that was stopped, or killed at any moment, goes on where it was: Spark repeats the batch that
was not finished, and what a repeated batch has written before is recognised by the log and by the
tables.
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
from lakebed.spark.pipeline.compatibility import check_compatible, definition
from lakebed.spark.pipeline.fields import Problem
from lakebed.spark.pipeline.flow_query import POLL_SECONDS, FlowQuery
from lakebed.spark.pipeline.place import FLOW, STATUS, CheckpointFolder
from lakebed.spark.pipeline.plan import Planner
from lakebed.spark.pipeline.spec import AVAILABLE_NOW, Flow, Mode, PipelineSpec
from lakebed.spark.pipeline.status import FlowStatus, lag_of, owner, stored
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
"""Is told how far the flows are, now and then."""

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
    """Return a pipeline that is ready to run, in this session or in one of its own.

    Without one it takes the session that runs, if there is one, wherever that runs. A session of
    its own is stopped in the end; with `silent` its Java writes nothing.
    """
    from lakebed.spark.session import active, session

    running_already = spark is not None or active() is not None
    if not running_already:
        check_java()  # before anything is started, such as a keeper
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
        self._place = CheckpointFolder(spec.place)
        self._available_now = available_now or spec.trigger == AVAILABLE_NOW
        self._flows: dict[str, FlowQuery] = {}
        self.stopping: Final = threading.Event()
        self.quiet = False
        """Whether Spark is to say nothing when a flow fails: the error that is raised says why."""

    def run(self, watch: Watch = lambda _: None) -> list[FlowStatus]:
        """Start every flow and wait until all have ended, one fails, or `stopping` is set.

        A flow that fails for a reason that may pass is restarted, as `PipelineSpec.restart` says.
        Returns how far each flow has come; raises what a flow failed of, when all are stopped.
        """
        if self.quiet:
            self._spark.sparkContext.setLogLevel("OFF")
        try:
            self._start()
            while not (self.stopping.is_set() or self._failed() or self._ended()):
                self.stopping.wait(POLL_SECONDS)
                self._look()
                self._recover()
                watch(self.statuses())
        finally:
            self._stop()
        watch(self.statuses())
        for each in self._flows.values():
            if each.failure is not None:
                raise each.error()
        return self.statuses()

    def problems(self, flows: Sequence[Flow]) -> list[Problem]:
        """Let Spark analyse flows; return what it finds wrong, each problem once."""
        planner = Planner(self._spec, self._spark, self._url)
        found = (each for flow in flows for each in planner.problems(flow))
        return list(dict.fromkeys(found))

    def statuses(self) -> list[FlowStatus]:
        """Return how far each flow has come."""
        return [each.status for each in self._flows.values()]

    # Starting

    def _start(self) -> None:
        self._place.make()
        planner = Planner(self._spec, self._spark, self._url)
        prepared = [self._prepared(planner, flow) for flow in self._spec.flows()]
        for flow, frame, document in prepared:
            self._ready(flow, frame)
            # Before the query begins: a checkpoint without this file is nobody's.
            self._place.write(flow.name, FLOW, document)
        for flow, frame, document in prepared:
            if not self.stopping.is_set():
                self._flows[flow.name] = self._started(flow, frame, document)

    def _prepared(self, planner: Planner, flow: Flow) -> tuple[Flow, DataFrame, dict[str, Any]]:
        frame = planner.plan(flow)
        now = definition(self._spec, flow, frame, self._spark.version)
        was = self._place.read(flow.name, FLOW)
        if was is None and self._place.holds(flow.name):
            raise PipelineChangedError(
                "the checkpoint was not made by a pipeline, or its reset was cut short",
                flow=flow.name,
                checkpoint=self._place.of(flow.name),
            )
        writer = _writer(self._spec.name, flow.name)
        if was is not None and self._place.begun(flow.name):
            check_compatible(flow.name, was, now)
            writer = was["writer"]  # who may have written the batch that is repeated
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
        """Make what a flow writes to, if it is missing."""
        if flow.sink is None:
            ready_letters(self._log, str(self._spec.dead_letter))
        elif flow.sink.topic is not None:
            ready_topic(self._log, flow.sink, frame)
        else:
            from lakebed.spark.pipeline.table_sink import ready_table

            ready_table(self._log, flow.sink, frame)

    def _started(self, flow: Flow, frame: DataFrame, document: Mapping[str, Any]) -> FlowQuery:
        status = stored(self._place, flow.name).begun(owner())
        self._keep(flow.name, status)
        running = FlowQuery(status, self._spec.restart, self.stopping)
        mode = _output_mode(flow, document["state"])
        writing = self._writing(flow, frame, document, running, updates=mode == "update")
        writing = writing.outputMode(mode).queryName(f"{self._spec.name}.{flow.name}")
        writing = writing.option("checkpointLocation", self._place.of(flow.name))
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
        """Return what becomes of each batch of a flow."""
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
            if not any(each.works() for each in self._flows.values()):
                return
            if self.stopping.wait(POLL_SECONDS):
                return

    # Watching

    def _look(self) -> None:
        """Take what the queries have done since, and write it beside their checkpoints."""
        for name, each in self._flows.items():
            if each.advance():
                if each.status.lag is None:  # Spark does not always say where the topics end
                    lag = lag_of(each.status.offsets, self._log)
                    each.status = replace(each.status, lag=lag)
                self._keep(name, each.status)

    def _recover(self) -> None:
        """Restart flows that have failed for a reason that may pass, each when its time comes."""
        for name, each in self._flows.items():
            if each.recover():
                self._keep(name, each.status)

    def _keep(self, name: str, status: FlowStatus) -> None:
        try:
            self._place.write(name, STATUS, status.document())
        except LakebedError as error:  # a status that cannot be told is no reason to stop
            _log.warning("the status of a flow cannot be written: flow=%s %s", name, error)

    def _failed(self) -> bool:
        return any(each.failure is not None for each in self._flows.values())

    def _ended(self) -> bool:
        return all(each.has_ended() for each in self._flows.values())

    # Stopping

    def _stop(self) -> None:
        """Stop every query when its running batch is done; at once if one has failed."""
        hurried = self._failed()
        for each in self._flows.values():
            each.finish(hurried=hurried)
        self._look()
        for name, each in self._flows.items():
            state = "stopped" if each.failure is None else "failed"
            error = None if each.failure is None else str(each.error())
            each.status = replace(
                each.status, state=state, error=error, next_attempt=None, rows_per_second=0.0
            )
            self._keep(name, each.status)


def _writer(pipeline: str, flow: str) -> str:
    """Name whoever writes the batches of a flow, from its first start to its reset."""
    return f"{pipeline[:40]}.{flow[:40]}.{uuid.uuid4().hex}"


def _output_mode(flow: Flow, state: Sequence[str]) -> str:
    """Choose what an aggregation gives with each batch: final results, or those that changed."""
    mode = Mode.APPEND if flow.sink is None else flow.sink.mode
    aggregates = any(each.startswith("Aggregate") for each in state)
    return "update" if mode == Mode.UPDATE or (mode == Mode.CURRENT and aggregates) else "append"
