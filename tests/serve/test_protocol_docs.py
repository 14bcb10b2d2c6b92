"""The page about the protocol lists every call and stream there is, and its client works."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import lakebed
from lakebed.config import ServeConfig
from lakebed.operations.description import Operation
from lakebed.operations.results import REPORTS
from lakebed.operations.routes import STREAMS
from lakebed.operations.table import OPERATIONS
from lakebed.serve.server import Server
from tests import forked

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    _, _, below = PAGE.partition(f"\n## {heading}\n")
    lines = re.search(r"^\|.*?\n\n", below, re.MULTILINE | re.DOTALL)
    assert lines is not None, heading
    table = [line.strip("|").split(" | ") for line in lines[0].strip().splitlines()]
    return [[cell.strip() for cell in row] for row in table[2:]]


def expected(call: Operation) -> list[str]:
    need = f"{call.need.action.value} {call.need.on}"
    need += (", read topic" if call.topics else "") + (", open" if call.open else "")
    parameters = [
        f"`{name}{'?' if parameter.optional else ''}`" for name, parameter in call.request.items()
    ]
    return [f"`{call.name}`", need, ", ".join(parameters) or "none", "yes" if call.safe else "no"]


def test_every_call_is_on_the_page_with_its_parameters_and_needs() -> None:
    listed = rows("Calls")
    assert [row[:4] for row in listed] == [expected(call) for call in OPERATIONS.values()]
    assert all(len(row) == 5 and row[4] for row in listed)


def test_every_stream_is_on_the_page() -> None:
    tickets = {row[0].strip("`") for row in rows("Tickets")}
    assert tickets | {"put"} == set(STREAMS)
    kinds = set(re.findall(r'\[number, "(\w+)"', PAGE))
    assert kinds == {"write", "producer", "transaction", "record"}


def test_the_reports_that_calls_give_are_those_that_the_protocol_knows() -> None:
    named = {name for row in rows("Calls") for name in re.findall(r"`([A-Z]\w+)`", row[4])}
    assert named <= set(REPORTS)


def test_the_client_of_the_page_works(tmp_path: Path) -> None:
    code, shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)[0]
    log = lakebed.Log.open(tmp_path / "log")
    token = log.access.create_token("ann", roles=["admin"])
    with Server(log, ServeConfig(port=0, http_port=-1)) as server:
        done = forked.run(
            [sys.executable, "-c", code, f"grpc://127.0.0.1:{server.port}", str(token)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert (done.stdout, done.stderr, done.returncode) == (shown, "", 0)
