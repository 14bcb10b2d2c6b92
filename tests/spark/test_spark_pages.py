"""The pages about Spark: their programs and commands, in the tests' own session."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import lakebed
from lakebed.cli import cli
from lakebed.spark.pipeline import run as module
from lakebed.spark.pipeline.hold import hold
from lakebed.spark.pipeline.toml_file import read_pipeline
from lakebed.spark.serving import url_of
from tests.documents.pages import Block, blocks_of
from tests.documents.terminal import masked, steps_of
from tests.spark.test_pipeline_file import ORDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

OF_JAVA = ('"menu.csv"', '"out"', '"checkpoints/shouted"', '"log", "data"')
"""Paths of pages that Java and its workers open, in whose folder the tests are not."""


def programs(page: str, *sections: str) -> list[Block]:
    """Return the programs of a page, or of some sections of it."""
    return [
        each
        for each in blocks_of(page)
        if each.language == "python" and (not sections or each.section in sections)
    ]


def check_programs(blocks: list[Block], folder: Path, scope: dict[str, Any]) -> None:
    """Run programs one after another, as one; compare what each of them prints."""
    assert blocks
    for block in blocks:
        code = block.text
        for path in OF_JAVA:
            code = code.replace(path, re.sub(r'"([^"]*)"$', rf'"{folder}/\1"', path))
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, block.id, "exec"), scope)
        assert plain(said.getvalue()) == plain(block.output or ""), block.id


def plain(text: str) -> str:
    """Leave out where a folder is, and what a table's is called."""
    text = re.sub(r"file://\S*/shop/", "file://FOLDER/shop/", text)
    return masked(re.sub(r"\b[0-9a-f]{32}\b", "ID", text))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_the_programs_of_the_spark_page(here: Path) -> None:
    check_programs(programs("docs/spark.md"), here, {})


def test_the_programs_of_the_jobs_page(here: Path) -> None:
    check_programs(programs("docs/jobs.md"), here, {})


def test_the_programs_of_the_tables_page(here: Path) -> None:
    check_programs(programs("docs/tables.md", "In Python", "Derived tables"), here, {})


def test_the_programs_of_the_pipelines_page(here: Path, spark: SparkSession) -> None:
    (stepping,) = programs("docs/pipelines.md", "Steps")
    scope: dict[str, Any] = {}
    exec(stepping.text, scope)
    rows = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    assert scope["once"](spark, rows.withColumnRenamed("value", "id")).isStreaming
    declared, run = programs("docs/pipelines.md", "In Python")
    with lakebed.open("data") as log:
        log.create_topic("orders")
        amounts = (50, 150, -1)
        orders = [b'{"id": %d, "customer": "ann", "amount": %d}' % (n, n) for n in amounts]
        log.append_batch("orders", [{"value": each} for each in [*orders, b"no order"]])
        url_of(log)
        exec(declared.text.replace("pipeline.run()", ""), scope)
        check_programs([run], here, scope)
        (large,) = log.read("large-orders")["value"].to_pylist()
        assert large["amount"] == 150


# The command line


def numbered(text: str, folder: Path) -> str:
    """Leave out numbers, too: each example of the page has a log of its own."""
    text = re.sub(r"file://\S+/store", "STORE", text).replace(f"{folder}/", "")
    text = re.sub(r"\bflow=\w+", "flow=FLOW", text)
    text = re.sub(r"checkpoint=\S*\.lakebed", "checkpoint=FOLDER/.lakebed", text)
    text = re.sub(r"since=\S+", "since=TIME", masked(text))
    text = re.sub(r"\d+|(?<= )-(?= |$)", "N", text).replace("segments", "segment")
    # Of two flows that meet the same bad record, either may be the one that fails of it.
    return re.sub(r"\b(stopped|failed) N|\w+ failed:", "ENDED", text)


def commands(chapter: str) -> Iterator[tuple[str, str]]:
    """Return the commands of a chapter with what the page shows."""
    for block in blocks_of("docs/cli.md"):
        if block.chapter == chapter:
            for step in steps_of(block, Path()):
                yield step.command, step.shown


def said(command: str) -> str:
    words = shlex.split(command.removeprefix("lakebed "))
    result = CliRunner(env={"LAKEBED_DATA": "data"}).invoke(cli, words, prog_name="lakebed")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    lines = result.output.splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(r"\w+: \d+ of \d+|\S+: batch ", line))


@pytest.mark.prove
def test_the_jobs_of_the_command_line(here: Path) -> None:
    """On logs such as the page takes for granted: prices of some things, a menu, a store."""
    with lakebed.Log.open("data") as log:
        log.create_topic("stock")
        log.create_topic("prices", partitions=2, config={"cleanup": "compact"})
        for first in range(0, 4_000, 1_000):
            for partition in (0, 1):
                rows = [
                    {"key": b"%d" % (n % 50), "value": b"%d" % n}
                    for n in range(first, first + 1_000)
                ]
                log.append_batch("prices", rows, partition=partition)
            log.checkpoint()
    Path("menu.csv").write_text("id,name,cents\n1,coffee,350\n2,tea,250\n3,cake,much\n")
    store = lakebed.LogConfig(lake=lakebed.LakeConfig(store=f"file://{here}/store"))
    Path("store").mkdir()
    with lakebed.Log.open("shop", store) as log:
        log.create_topic("orders", config={"local_ms": 0})
        log.append_batch("orders", [{"value": b"%d" % n} for n in range(1_000)])
        log.checkpoint()
    Path("shop/lakebed.toml").write_text(f'[lake]\nstore = "file://{here}/store"\n')
    for command, shown in commands("`lakebed job`"):
        placed = re.sub(r" (menu\.csv|out)\b", rf" {here}/\1", command)
        assert numbered(said(placed), here) == numbered(shown, here), command


@pytest.mark.prove
def test_the_pipelines_of_the_command_line(
    here: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page; its logs are a good one and one with a record that is fatal."""
    real = module.running

    @contextlib.contextmanager
    def running(spec: Any, target: Any, **more: Any) -> Iterator[module.PipelineRun]:
        with real(spec, target, spark, available_now=more.get("available_now", False)) as run:
            yield run

    monkeypatch.setattr(module, "running", running)
    with lakebed.open("data") as log:
        url_of(log)
        log.create_topic("orders")
        log.append_batch("orders", [{"value": each} for each in _orders()])
        for command, shown in commands("`lakebed pipeline`"):
            with _file_of(shown, here):
                assert numbered(said(command), here) == numbered(shown, here), command


def _orders() -> Iterator[bytes]:
    for number in range(30):
        order = {"id": number, "customer": "ann", "amount": number % 10, "status": "paid"}
        yield json.dumps({**order, "at": "2026-11-16T09:00:00Z"}).encode()
    yield b"no order at all"


@contextlib.contextmanager
def _file_of(shown: str, folder: Path) -> Iterator[None]:
    """Put the pipeline in place whose run, or check, the page shows."""
    text = ORDERS
    if "bad_record" in shown or "failed" in shown:
        text = text.replace('dead_letter = "orders-dead"\n', 'checkpoint = "strict"\n')
    if "'jsn'" in shown:
        text = text.replace('"json"', '"jsn"').replace('from = "totals"', 'from = "total"')
    (folder / "orders.toml").write_text(text)
    if "pipeline_running" not in shown:
        yield
        return
    with hold(read_pipeline(folder / "orders.toml").check()):
        yield
