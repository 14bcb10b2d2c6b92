"""A flow as a DataFrame: its sources opened and its steps applied, but not started."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.spark.failures import error_in
from lakebed.spark.pipeline.expectations import (
    accept,
    apply_expectations,
    letters_of_source,
    letters_of_step,
)
from lakebed.spark.pipeline.failures import first_line
from lakebed.spark.pipeline.fields import PipelineProblem
from lakebed.spark.pipeline.spec import Decoder, Flow, PipelineSpec, Sink, Source, Step, Watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LINE: Final = re.compile(r"line (\d+),? pos \d+")


class PlanError(Exception):
    """A part of a pipeline that Spark cannot analyse."""

    def __init__(self, problem: PipelineProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Planner:
    """Makes the DataFrames of a pipeline's flows in a session."""

    def __init__(self, spec: PipelineSpec, spark: SparkSession, log: str) -> None:
        self._spec = spec
        self._spark = spark
        self._log = log

    def plan(self, flow: Flow) -> DataFrame:
        """Return what a flow writes: rows of its sink, or dead letters."""
        frames: dict[str, DataFrame] = {}
        for name in self._spec.upstream(flow.source):
            frames[name] = self._part(name, flow, frames)
        return frames[flow.source]

    def problems(self, flow: Flow) -> Iterator[PipelineProblem]:
        """Yield what is wrong with a flow; parts that depend on a wrong part are not checked."""
        frames: dict[str, DataFrame] = {}
        for name in self._spec.upstream(flow.source):
            step = self._spec.steps.get(name)
            if step is not None and not all(source in frames for source in step.inputs):
                continue
            try:
                frames[name] = self._part(name, flow, frames)
            except PlanError as error:
                yield error.problem
        if flow.sink is not None and flow.source in frames:
            yield from _lacking(flow.sink, frames[flow.source].columns)

    def _part(self, name: str, flow: Flow, frames: dict[str, DataFrame]) -> DataFrame:
        letters = flow.sink is None and name == flow.source
        source = self._spec.sources.get(name)
        if source is None:
            return self._step(self._spec.steps[name], frames, letters=letters)
        with _naming(("source", name)):
            return self._source(source, flow, frames, letters=letters)

    def _source(
        self, source: Source, flow: Flow, others: dict[str, DataFrame], *, letters: bool
    ) -> DataFrame:
        if source.table:
            from lakebed.spark.pipeline.table_source import read_each_batch

            return read_each_batch(self._spark, source.table, self._log)
        if source.decode in (Decoder.JSON, Decoder.CSV):
            with _naming(("source", source.name, "schema")):
                _check_columns(source)
        frame = self._stream(source, flow, others)
        if letters:
            return letters_of_source(frame, source, self._spec)
        if "headers" not in source.include:
            frame = frame.drop("headers")
        return _late(accept(frame, source), source.watermark)

    def _stream(self, source: Source, flow: Flow, others: dict[str, DataFrame]) -> DataFrame:
        read = {self._spec.sources[name].topic for name in others if name in self._spec.sources}
        group = f"{self._spec.name}.{flow.name}"
        if source.topic in read:  # one group would alternate between the positions of both
            group = f"{group}.{source.name}"
        reader = (
            self._spark.readStream.format("lakebed")
            .option("log", self._log)
            .option("topic", str(source.topic))
            .option("startingOffsets", source.starting)
            .option("consumerGroup", group)
            .option("includeHeaders", "true")
        )
        if source.batch_records_max is not None:
            reader = reader.option("maxOffsetsPerTrigger", source.batch_records_max)
        return reader.load()

    def _step(self, step: Step, frames: dict[str, DataFrame], *, letters: bool) -> DataFrame:
        inputs = {name: frames[name] for name in step.inputs}
        if step.sql is None:
            with _naming(("step", step.name, "python")):
                frame = _apply(step, self._spark, inputs, str(self._spec.folder))
        else:
            with _naming(("step", step.name, "sql"), text=step.sql):
                for name, frame in inputs.items():
                    frame.createOrReplaceTempView(name)
                frame = self._spark.sql(step.sql)
        with _naming(("step", step.name)):
            frame = _late(frame, step.watermark)
        with _naming(("step", step.name, "expect")):
            if letters:
                return letters_of_step(frame, step, self._spec)
            return apply_expectations(frame, f"step.{step.name}", step.expect)


def _lacking(sink: Sink, columns: Sequence[str]) -> Iterator[PipelineProblem]:
    """Yield a problem for each column that a sink names and its rows do not have."""
    there = {column.lower() for column in columns}
    for key, names in (("key", sink.key), ("order", (sink.order,) if sink.order else ())):
        for name in names:
            if name.lower() not in there:
                message = f"unknown column {name!r}; known are {', '.join(columns)}"
                yield PipelineProblem(("sink", sink.name, key), message)


def _late(frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    if watermark is None:
        return frame
    return frame.withWatermark(watermark.column, watermark.delay)


def _apply(step: Step, spark: SparkSession, inputs: dict[str, DataFrame], folder: str) -> DataFrame:
    from pyspark.sql import DataFrame

    frame = function_of(step, folder)(spark, **inputs)
    if not isinstance(frame, DataFrame):
        raise InvalidArgumentError(
            "the function must return a DataFrame", function=step.python, got=type(frame).__name__
        )
    return frame


def function_of(step: Step, folder: str) -> Callable[..., Any]:
    """Find the function of a step; modules beside the pipeline's file are found too."""
    if step.function is not None:
        return step.function
    module, _, name = str(step.python).partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        function: Any = importlib.import_module(module)
        for attribute in name.split("."):
            function = getattr(function, attribute)
    except Exception as error:  # anything that importing a user's module may raise
        raise InvalidArgumentError(
            f"{step.python} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise InvalidArgumentError(f"{step.python} is not a function")
    return function  # type: ignore[no-any-return]  # what a user's module holds


def _check_columns(source: Source) -> None:
    """Parse the schema alone: within a query Spark would report the error elsewhere."""
    from lakebed.spark.jobs.import_rows import columns_of

    columns_of(source.schema or "")


@contextlib.contextmanager
def _naming(path: tuple[str, ...], text: str = "") -> Iterator[None]:
    """Raise a `PlanError` at this key for an error of Spark, the log or a function."""
    from pyspark.errors import PySparkException

    try:
        yield
    except LakebedError as error:
        raise PlanError(PipelineProblem(path, f"{error}; {error.advice}")) from error
    except PySparkException as error:
        said = str(error)
        line = _LINE.search(said)
        below = int(line[1]) if line and "\n" in text else 0
        ours = error_in(said)
        message = first_line(said) if ours is None else f"{ours}; {ours.advice}"
        raise PlanError(PipelineProblem(path, message, below=below)) from error
    except Exception as error:
        if path[-1] != "python":
            raise
        message = f"the function failed: {type(error).__name__}: {error}"
        raise PlanError(PipelineProblem(path, message)) from error
