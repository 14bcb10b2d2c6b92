"""`lakebed pipeline`: run Spark pipelines that are declared in a file, and look at them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import lakebed
from lakebed.cli.data import Target, TargetType, check_log, confirm, open_log, yes_option
from lakebed.cli.job_session import interruptible, master_option
from lakebed.cli.output import (
    count_text,
    json_option,
    number,
    write_json,
    write_line,
    write_table,
    write_wrapped,
)
from lakebed.cli.pipeline_view import View, counts_text, restarts_text
from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.spark.pipeline import graph
from lakebed.spark.pipeline.checks import PipelineProblem
from lakebed.spark.pipeline.spec import Flow, PipelineSpec
from lakebed.spark.pipeline.toml_file import PipelineFile, read_pipeline, refusal

_file = click.argument("file", type=click.Path(path_type=Path))

_data = click.option(
    "--data",
    "folder",
    metavar="DIR|URL",
    type=TargetType(),
    help="The log's folder or URL, instead of the one that FILE names.",
)


@click.group()
def pipeline() -> None:
    """Run, check and show Spark pipelines declared in a file."""


@pipeline.command("run", short_help="Run a pipeline.")
@_file
@_data
@master_option
@click.option("--available-now", is_flag=True, help="Process what is there, and end.")
@click.option(
    "--reset", metavar="FLOW", multiple=True, help="Restart this flow from the beginning."
)
@yes_option
@click.option("--verbose", is_flag=True, help="Show the output of Spark, with stack traces.")
@json_option
def run_command(
    file: Path,
    folder: Target | None,
    *,
    master: str,
    available_now: bool,
    reset: tuple[str, ...],
    yes: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run the pipeline of FILE until Ctrl-C or SIGTERM; each flow then finishes its batch.

    A pipeline that was stopped or killed continues exactly where it was. A flow that has changed
    incompatibly is refused; --reset drops its checkpoint, so that it starts from the beginning and
    writes its output again.
    """
    from lakebed.spark.pipeline.hold import hold
    from lakebed.spark.pipeline.plan import PlanError
    from lakebed.spark.pipeline.run import running

    pipeline_file = read_pipeline(file)
    spec = pipeline_file.check()
    target = _log_of(spec, folder)
    _check_flows(spec, reset)
    try:
        with interruptible(), hold(spec):
            _reset(spec, reset, yes=yes)
            with (
                running(
                    spec, target, master=master, available_now=available_now, silent=not verbose
                ) as run,
                View(as_json=as_json) as view,
                _signals(run),
            ):
                run.quiet = not verbose
                view.finish(run.run(view))
    except PlanError as error:
        raise refusal([pipeline_file.locate(error.problem)]) from error


@contextlib.contextmanager
def _signals(run: Any) -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end the pipeline after the running batches; a second one at once."""

    def stop(*_: object) -> None:
        if run.stopping.is_set():
            raise KeyboardInterrupt
        run.stopping.set()

    before = {
        signal_number: signal.signal(signal_number, stop)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def _log_of(spec: PipelineSpec, folder: Target | None) -> str:
    """Return the log of a pipeline: from the option, the file, or LAKEBED_DATA."""
    named = spec.log and (spec.log if "://" in spec.log else str(spec.folder / spec.log))
    target = os.fspath(folder) if folder else named or os.environ.get("LAKEBED_DATA")
    if not target:
        raise click.UsageError("no log given: use --data, or log = '...' in the file")
    if "://" not in target:
        check_log(Path(target))
    return target


def _check_flows(spec: PipelineSpec, flows: tuple[str, ...]) -> None:
    names = [flow.name for flow in spec.flows()]
    for flow in flows:
        if flow not in names:
            raise InvalidArgumentError(
                "the pipeline does not have this flow", flow=flow, known=", ".join(names)
            )


def _reset(spec: PipelineSpec, flows: tuple[str, ...], *, yes: bool) -> None:
    from lakebed.spark.pipeline.checkpoint_folder import CheckpointFolder

    checkpoints = CheckpointFolder(spec.checkpoint_location)
    for flow in flows:
        confirm(f"Restart {flow} from the beginning? It writes its output again.", yes=yes)
        checkpoints.remove(flow)


@pipeline.command("validate", short_help="Check a pipeline's file.")
@_file
@_data
@master_option
@click.option("--plan", is_flag=True, help="Check the queries with Spark.")
@json_option
@click.pass_context
def validate_command(
    ctx: click.Context,
    file: Path,
    folder: Target | None,
    *,
    master: str,
    plan: bool,
    as_json: bool,
) -> None:
    """Check FILE, and report every mistake with its line.

    If there is a log, its topics and tables are looked up. --plan lets Spark check the queries; the
    topics must exist then. Parts that depend on an invalid part are not checked.
    """
    from lakebed.spark.pipeline.lookup import functions_and_schemas, sound_flows

    pipeline_file = read_pipeline(file)
    problems = list(pipeline_file.problems)
    if pipeline_file.draft is not None:
        more = list(functions_and_schemas(pipeline_file.draft, pipeline_file.wrong))
        more += _in_the_log(pipeline_file.draft, folder, pipeline_file.wrong)
        wrong = pipeline_file.wrong.union(problem.path for problem in more if problem.fatal)
        flows = sound_flows(pipeline_file.draft, wrong) if plan else []
        if flows:
            more += _check_queries(
                pipeline_file.draft, flows, _log_of(pipeline_file.draft, folder), master
            )
        problems += map(pipeline_file.locate, more)
    problems.sort(key=lambda mistake: mistake.line)
    fatal = any(problem.fatal for problem in problems)
    for problem in problems:
        if as_json:
            write_json("problem", problem._asdict())
        else:
            write_line(str(problem))
    _write_verdict(pipeline_file, valid=not fatal, planned=plan, as_json=as_json)
    if fatal:
        ctx.exit(1)


def _write_verdict(
    pipeline_file: PipelineFile, *, valid: bool, planned: bool, as_json: bool
) -> None:
    if as_json:
        name = None if pipeline_file.spec is None else pipeline_file.spec.name
        write_json("pipeline", {"file": pipeline_file.path, "name": name, "valid": valid})
    elif valid and pipeline_file.spec is not None:
        spec = pipeline_file.spec
        parts = (
            count_text(len(spec.sources), "source", "sources"),
            count_text(len(spec.steps), "step", "steps"),
            count_text(len(spec.flows()), "flow", "flows"),
        )
        rest = "" if planned else " in the file; --plan also checks the queries"
        write_line(f"{spec.name}: {', '.join(parts)}; no mistakes{rest}")


def _in_the_log(
    spec: PipelineSpec, folder: Target | None, wrong: Collection[tuple[str, ...]]
) -> list[PipelineProblem]:
    """Look up topics and tables, if there is a log that can be asked."""
    from lakebed.spark.pipeline.lookup import topics_and_tables

    try:
        target = _log_of(spec, folder)
        with open_log(_target(target), silent=True) as log:
            return list(topics_and_tables(spec, log, wrong))
    except click.UsageError:
        if ("log",) in wrong:
            return []
        return [
            PipelineProblem((), "no log is named, so its topics were not looked up", fatal=False)
        ]
    except LakebedError as error:
        message = f"the log cannot be asked, so its topics were not looked up: {error}"
        return [PipelineProblem(("log",), message, fatal=False)]


def _target(text: str) -> Target:
    return text if "://" in text else Path(text)


def _check_queries(
    spec: PipelineSpec, flows: Sequence[Flow], target: str, master: str
) -> list[PipelineProblem]:
    from lakebed.spark.pipeline.run import running

    with running(spec, target, master=master) as run:
        return run.problems(flows)


@pipeline.command("status", short_help="Show the progress of a pipeline.")
@_file
@_data
@json_option
def status_command(file: Path, folder: Target | None, *, as_json: bool) -> None:
    """Show the flows of FILE: last batch, lag, restarts, and counters.

    Read from the checkpoints and the log, whether or not the pipeline runs.
    """
    from lakebed.spark.pipeline.checkpoint_folder import CheckpointFolder
    from lakebed.spark.pipeline.status import look

    spec = read_pipeline(file).check()
    with _open_for_lag(_log_of(spec, folder)) as log:
        statuses = look(spec, CheckpointFolder(spec.checkpoint_location), log)
    if as_json:
        for status in statuses:
            write_json("flow", {"pipeline": spec.name, **status.document()})
        return
    columns = ("flow", "state", ">batch", "time", ">read", ">lag")
    rows = [
        (
            status.flow,
            status.state,
            number(status.batch),
            status.time or "-",
            str(status.rows),
            number(status.lag),
        )
        for status in statuses
    ]
    write_table(columns, rows)
    for status in statuses:
        for line in counts_text(status):
            write_line(f"{status.flow}: {line}")
        for line in restarts_text(status):
            write_wrapped(f"{status.flow} {line}")
        if status.error:
            write_wrapped(f"{status.flow} failed: {status.error}")


@contextlib.contextmanager
def _open_for_lag(target: str) -> Iterator[lakebed.Log | None]:
    """Open a log to read the ends of topics; None, with a warning, if that fails."""
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(open_log(_target(target), silent=True))
        except LakebedError as error:
            click.echo(f"warning: the lag is not known: {error}", err=True)
            log = None
        yield log


@pipeline.command("graph", short_help="Draw a pipeline.")
@_file
@click.option("--mermaid", is_flag=True, help="Draw it as a Mermaid diagram.")
@json_option
def graph_command(file: Path, *, mermaid: bool, as_json: bool) -> None:
    """Show the sources, steps and sinks of FILE."""
    spec = read_pipeline(file).check()
    if as_json:
        write_json("graph", graph.as_data(spec))
    else:
        write_line(graph.as_mermaid(spec) if mermaid else graph.as_text(spec))
