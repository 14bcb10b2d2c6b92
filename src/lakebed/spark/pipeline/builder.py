"""A pipeline written in Python: the same parts and the same checks as in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lakebed.errors import PipelineFileError
from lakebed.spark.pipeline.checks import PipelineProblem, read_document
from lakebed.spark.pipeline.spec import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.api.log import Log
    from lakebed.spark.pipeline.run import Watch
    from lakebed.spark.pipeline.status import FlowStatus

Expect = Mapping[str, str | tuple[str, str]]
"""By name: a condition, or a condition and what happens to a row that does not meet it."""


class Pipeline:
    """A pipeline, put together part by part and then run.

    `docs/pipelines.md` explains each key.

        Pipeline("orders", log="data", dead_letter="orders-dead")
            .source("orders", topic="orders", decode="json", schema="id LONG, status STRING")
            .step("paid", sql="SELECT id FROM orders WHERE status = 'paid'")
            .sink("paid", "paid", topic="paid-orders", key="id")
            .run()
    """

    def __init__(
        self,
        name: str,
        *,
        log: Log | str | os.PathLike[str],
        checkpoint: str | os.PathLike[str] | None = None,
        trigger: str = "1 second",
        dead_letter: str | None = None,
        spark: Mapping[str, str] | None = None,
        restart: Mapping[str, int | str] | None = None,
    ) -> None:
        self._log = log
        self._document: dict[str, Any] = _without_none(
            name=name,
            checkpoint=None if checkpoint is None else os.fspath(checkpoint),
            trigger=trigger,
            dead_letter=dead_letter,
            spark=dict(spark) if spark else None,
            restart=dict(restart) if restart else None,
            source={},
            step={},
            sink={},
        )

    def source(
        self,
        name: str,
        *,
        topic: str | None = None,
        table: str | None = None,
        watermark: tuple[str, str] | None = None,
        expect: Expect | None = None,
        **more: Any,
    ) -> Self:
        """Add a source; `watermark` is a column and a delay, `more` are the keys of the file."""
        return self._add(
            "source",
            name,
            topic=topic,
            table=table,
            watermark=_watermark(watermark),
            expect=_expect(expect),
            **more,
        )

    def step(
        self,
        name: str,
        function: Callable[..., Any] | None = None,
        *,
        sql: str | None = None,
        inputs: Sequence[str] | None = None,
        watermark: tuple[str, str] | None = None,
        expect: Expect | None = None,
    ) -> Self:
        """Add a step: a query, or a function of the session and a DataFrame for each input."""
        return self._add(
            "step",
            name,
            sql=sql,
            python=function,
            watermark=_watermark(watermark),
            expect=_expect(expect),
            **({} if inputs is None else {"from": list(inputs)}),
        )

    def sink(self, name: str, source: str, **more: Any) -> Self:
        """Add a sink for the rows of a step or source; `more` are the keys of the file."""
        return self._add("sink", name, **{"from": source}, **more)

    def _add(self, kind: str, name: str, **values: Any) -> Self:
        if name in self._document[kind]:
            raise PipelineFileError(f"a {kind} of this name exists already", name=name)
        self._document[kind][name] = _without_none(**values)
        return self

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline as a value, or a `PipelineFileError` that names every mistake."""
        spec, problems = read_document(self._document, Path.cwd())
        if spec is None:
            raise PipelineFileError(
                "\n".join(_describe(problem) for problem in problems if problem.fatal)
            )
        return spec

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        available_now: bool = False,
        watch: Watch = lambda _: None,
    ) -> list[FlowStatus]:
        """Run until interrupted; with `available_now`, process what is there, and end."""
        from lakebed.spark.pipeline.hold import hold
        from lakebed.spark.pipeline.plan import PlanError
        from lakebed.spark.pipeline.run import running

        spec = self.spec
        try:
            with (
                hold(spec),
                running(spec, self._log, spark, available_now=available_now) as run,
            ):
                return run.run(watch)
        except PlanError as error:
            raise PipelineFileError(_describe(error.problem)) from error


def _without_none(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _watermark(watermark: tuple[str, str] | None) -> dict[str, str] | None:
    return None if watermark is None else {"column": watermark[0], "delay": watermark[1]}


def _expect(expectations: Expect | None) -> dict[str, dict[str, str]] | None:
    if expectations is None:
        return None
    pairs = {
        name: (condition, "count") if isinstance(condition, str) else condition
        for name, condition in expectations.items()
    }
    return {name: {"check": pair[0], "otherwise": pair[1]} for name, pair in pairs.items()}


def _describe(problem: PipelineProblem) -> str:
    return f"{'.'.join(problem.path) or 'pipeline'}: {problem.message}"
