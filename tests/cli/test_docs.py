"""The page about the command line shows every command, today's help texts and real output."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner
from tools.cli_page import command_at, help_of

import lakebed
from lakebed import LakeConfig, Log, LogConfig, ServeConfig, WalConfig
from lakebed.cli import cli
from lakebed.engine.by_url import open_replica
from lakebed.serve.log_metrics import log_families
from lakebed.serve.server import Server

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "lakebed"
SETTINGS = (ROOT / "docs" / "settings.md").read_text(encoding="utf8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf8")
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf8")
LIVE, _, _ = PAGE.partition("\n## `lakebed wal`")
"""The part of the page whose examples are run one after another, in one folder."""

FILES = {
    "payments.json": """\
{"fields": [
  {"name": "id", "type": "int64", "nullable": false},
  {"name": "price", "type": "decimal(10, 2)"},
  {"name": "paid", "type": "timestamp"},
  {"name": "tags", "type": {"list": "string"}}
]}
""",
    "lines.txt": "42:two coffees\n7:one tea\n42:one coffee less\n",
    "records.jsonl": """\
{"key": "8", "value": {"item": "cake", "count": 1}, "timestamp": "2026-11-15T21:30:00Z"}
{"key": "42", "value": null, "headers": {"reason": "left"}}
""",
}

TOKEN = r"lkb_([0-9a-f]{16})_[A-Za-z0-9_-]{43}"
MASKS = [
    (r"(?m)^[A-Za-z ]+: \d+ % of .*$", ""),
    (r"pid=\d+ host=\S+", "OWNER"),
    (r"\b[0-9a-f]{16}(?=  )", "TOKEN"),
    (TOKEN, r"lkb_\1_SECRET"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"(file|sqlite)://[^' \n]*/data/", r"\1://FOLDER/data/"),
    (r"iceberg_scan\('[^']*/data/", "iceberg_scan('FOLDER/data/"),
    (r"\b\d{12,19}\b", "SNAPSHOT"),
    (r'"created_us": \d+', '"created_us": TIME'),
    (r"\d+\.\d+ s\b", "SECONDS"),
    (r"\d+ MiB free", "SPACE free"),
    (r"\d+(\.\d)? (B|KiB|MiB|bytes)\b", "SIZE"),
    (r"(byte|length)=\d+", "PLACE"),
    (r"\s+", " "),
]
"""What differs from run to run, or with the version of a library."""


class Example(NamedTuple):
    """A command of the page and what stands below it."""

    command: str
    shown: str


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def masked(text: str) -> str:
    for pattern, instead in MASKS:
        text = re.sub(pattern, instead, text)
    return text.strip()


def examples(page: str) -> Iterator[Example]:
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            yield Example(*piece.split("\n", 1))


class Terminal:
    """Runs the page's commands: ours in this process, everything else in a shell."""

    def __init__(self) -> None:
        self._code = 0
        self._ids: dict[str, str] = {}
        """The ids of tokens, by those that the page shows."""

    def shows(self, example: Example) -> str:
        """Run a command of the page; return its output, with the page's ids of tokens."""
        command = example.command
        for shown, real in self._ids.items():
            command = command.replace(shown, real)
        output = self.run(command)
        made = re.findall(TOKEN, output)
        self._ids |= dict(zip(re.findall(TOKEN, example.shown), made, strict=True))
        for shown, real in self._ids.items():
            output = output.replace(real, shown)
        return output

    def run(self, command: str) -> str:
        if command == "echo $?":
            return f"{self._code}\n"
        if command.startswith("export "):
            return ""
        before, ours, call = command.rpartition("lakebed ")
        if not ours or before not in ("", f"{before.rstrip(' |')} | "):
            return _shell(command)
        call, _, after = call.partition(" | ")
        return self._lakebed(call, _shell(before.rstrip("| ")) if before else None, after)

    def _lakebed(self, call: str, given: str | None, after: str) -> str:
        arguments = shlex.split(call.removesuffix(" </dev/null"))
        env = {"LAKEBED_DATA": "data"}
        result = CliRunner(env=env).invoke(cli, arguments, input=given, prog_name="lakebed")
        assert result.exception is None or isinstance(result.exception, SystemExit), call
        self._code = result.exit_code
        return _shell(after, result.output) if after else result.output


def _shell(command: str, given: str | None = None) -> str:
    done = subprocess.run(
        ["sh", "-c", command], input=given, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("command", commands(cli), ids=" ".join)
def test_the_page_shows_the_help_of_each_command(command: tuple[str, ...]) -> None:
    """But for `--data`, `--json` and `--help`, which it explains once; groups are headings."""
    name = " ".join(command)
    if isinstance(command_at(list(command)), click.Group):
        assert f"\n## `lakebed {name}`\n" in PAGE
    else:
        text = help_of(list(command), set()).partition("\n\n")[0]
        assert re.search(rf"^#+ `lakebed {name}\b.*`\n\n<!--help-->\n{re.escape(text)}", PAGE, re.M)


def test_an_option_is_described_once_in_a_chapter() -> None:
    shown: set[str] = set()
    first = help_of(["topic", "create"], shown)
    again = help_of(["topic", "alter"], shown)
    assert "* `--partitions N`: Total number of partitions. [x>=1]\n" in first
    assert again.endswith("\n\nAlso `--partitions`, `--schema`, `--config`.\n")


def test_each_command_has_an_example() -> None:
    shown = [example.command for example in examples(PAGE)]
    for command in commands(cli):
        if not isinstance(command_at(list(command)), click.Group):
            assert any(f"lakebed {' '.join(command)}" in each for each in shown), command


def test_the_examples_show_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the page up to `lakebed wal`, in the order of the page."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    terminal = Terminal()
    for example in examples(LIVE):
        assert masked(terminal.shows(example)) == masked(example.shown), example.command


# Nothing that the code has is left out


def test_every_option_and_argument_says_what_it_is_for() -> None:
    """Its help text is on the page too: the page has the help of each command, word for word."""
    silent = [
        (*path, option.opts[-1])
        for path in commands(cli)
        for option in command_at(list(path)).params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_every_exit_code_is_on_the_page_and_no_other() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \| .+ \|$", PAGE, re.M)}
    used = {2}  # click's own, for a wrong call
    for path in (SOURCES / "cli").glob("*.py"):
        module = importlib.import_module(f"lakebed.cli.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "exit":
                used |= set(_codes(node.args[0], vars(module)))
    assert listed == used


def _codes(node: ast.expr, scope: dict[str, Any]) -> Iterator[int]:
    """Return every number that an expression can be."""
    if isinstance(node, ast.IfExp):
        yield from _codes(node.body, scope)
        yield from _codes(node.orelse, scope)
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        yield from scope[node.value.id].values()
    else:
        yield eval(ast.unparse(node), dict(scope))


def test_every_kind_of_json_line_is_on_the_page() -> None:
    _, _, below = PAGE.partition("| `type` |")
    listed = set(re.findall(r"`(\w+)`", below.partition("\n\n")[0]))
    written: set[str] = {"record", "error"}
    for path in (SOURCES / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "write_json":
                written |= {
                    str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)
                }
    assert written <= listed


def test_every_variable_that_the_code_asks_for_is_on_the_page() -> None:
    sections = {"LOG": LogConfig, "WAL": WalConfig, "LAKE": LakeConfig, "SERVE": ServeConfig}
    settings = {
        f"LAKEBED_{section}_{field.name.upper()}"
        for section, kind in sections.items()
        for field in fields(kind)
    }
    asked: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        asked |= set(re.findall(r"\bLAKEBED_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf8")))
    asked -= {"LAKEBED_SECTION_SETTING"} | settings
    assert (
        asked
        == set(re.findall(r"`(LAKEBED_\w+)`", SETTINGS.partition("## Environment")[2])) - settings
    )


# Operations


def _metrics(tmp_path: Path) -> str:
    """Return the metrics of a server whose log has done something of everything."""
    log = Log.open(tmp_path / "log")
    log.create_topic("orders")
    log.append("orders", b"one")
    log.commit_offsets("billing", {("orders", 0): 1})
    log.checkpoint()
    with Server(log, ServeConfig(port=0, http_port=0)) as server:
        return _fetched(f"http://127.0.0.1:{server.http_port}/metrics")


def _of_a_replica(tmp_path: Path) -> set[str]:
    """Return the names of the metrics that only a replica has."""
    store = f"file://{tmp_path}/store"
    (tmp_path / "store").mkdir()
    with lakebed.open(store, folder=tmp_path / "owner"), open_replica(store, None) as replica:
        return {metric.name for metric in log_families(replica) if "replica" in metric.name}


def _fetched(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def test_every_metric_that_the_operations_page_names_exists(tmp_path: Path) -> None:
    there = set(re.findall(r"^# TYPE (\w+) ", _metrics(tmp_path), re.M)) | _of_a_replica(tmp_path)
    named = set(re.findall(r"\b(lakebed_\w+)", OPERATIONS))
    assert len(named) > 15
    assert named <= there


class Shell(Terminal):
    """Runs a page's commands as a shell does; ours, where nothing else is asked for, in here."""

    def shows(self, example: Example) -> str:
        """Run a command; return what it writes."""
        plain = re.fullmatch(
            r"(?:(seq \d+) \| )?lakebed ([^|&;()<>]*?)(?: >(\S+))?(?: \| (tail [-n \d]+))?",
            example.command,
        )
        if plain is None:
            return _bash(example.command)
        given = _shell(plain[1]) if plain[1] else ""
        arguments = shlex.split(plain[2])
        result = CliRunner().invoke(cli, arguments, input=given, prog_name="lakebed")
        assert result.exception is None or isinstance(result.exception, SystemExit), example
        if plain[3]:
            Path(plain[3]).write_text(result.stdout)
            return result.stderr
        return _shell(plain[4], result.output) if plain[4] else result.output


def _bash(command: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=600,
    )
    return done.stdout


def test_the_operations_page_shows_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of "What to do when", in the order of the page, in one folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEBED_DATA", raising=False)
    _, _, chapter = OPERATIONS.partition("\n## What to do when\n")
    shell = Shell()
    found = list(examples(chapter))
    assert len(found) > 30
    for example in found:
        assert masked(shell.shows(example)) == masked(example.shown), example.command


def test_a_line_of_the_servers_log_is_as_the_operations_page_shows_it(tmp_path: Path) -> None:
    """Time, level, logger, a message, and what is known."""
    (block,) = re.findall(r"^```text\n(.*?)^```$", OPERATIONS, re.M | re.S)
    form = re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z (info|warning|error) lakebed\.\w+ \S.*")
    for line in block.splitlines():
        assert form.fullmatch(line), line
    folder = tmp_path / "shop"
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{Path(sys.executable).parent}/lakebed serve --data {folder} --port 0 --http-port 0 &"
            f" until grep -qs url {folder}/lock; do sleep 0.05; done; kill $!; wait $!",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    said = [line for line in done.stderr.splitlines() if form.fullmatch(line)]
    shown = {" ".join(line.split()[1:4]) for line in block.splitlines()}
    assert {" ".join(line.split()[1:4]) for line in said} <= shown
    (serving,) = [line for line in said if " lakebed.serve serving: " in line]
    assert serving.split()[4].startswith("url=lakebed://127.0.0.1:")
