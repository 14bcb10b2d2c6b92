"""The page about the command line shows every command, today's help texts and real output."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from lakebed.cli import cli

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf8")
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
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def unwrapped(text: str) -> str:
    """Give a text whose lines may be broken anywhere as one line."""
    return " ".join(text.split())


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
        """Run a command of the page; give its output, with the page's ids of tokens."""
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
    result = CliRunner().invoke(cli, [*command, "--help"], prog_name="lakebed")
    shown = f"$ lakebed {' '.join(command)} --help\n{result.stdout}"
    assert unwrapped(shown) in unwrapped(PAGE)


def test_each_command_has_an_example() -> None:
    shown = [each.command for each in examples(PAGE) if not each.command.endswith("--help")]
    for command in commands(cli):
        if not isinstance(_found(command), click.Group):
            assert any(f"lakebed {' '.join(command)}" in each for each in shown), command


def _found(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


def test_the_examples_show_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the page up to `lakebed wal`, in the order of the page."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    terminal = Terminal()
    for example in examples(LIVE):
        assert masked(terminal.shows(example)) == masked(example.shown), example.command
