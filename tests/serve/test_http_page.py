"""The page about HTTP: its commands answer what it shows, and it lists what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lakebed import limits
from lakebed.serve.http_errors import STATUSES
from tests.serve.over_http import Served, served

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf8")
CONSOLE = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))


def commands() -> list[tuple[str, str]]:
    """Return each command of the page with the output that the page shows."""
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", CONSOLE, re.MULTILINE)
    return [(command, output) for command, output in found]


def curl(here: Served, command: str) -> str:
    """Do what a command says, as far as the page uses curl."""
    words = iter(shlex.split(command)[1:])
    method, body, url, shown, status = "GET", None, "", True, False
    headers: dict[str, str] = {}
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(words).encode()
        elif word == "-o":
            shown = next(words) != "/dev/null"
        elif word == "-w":
            status = next(words) == "%{http_code}\\n"
        elif word != "-s":
            url = word
    answer = here.send(method, url.removeprefix("localhost:4748"), body, headers)
    text = str(answer.status) if status else answer.body.decode()
    return f"{text}\n" if (shown or status) and text else ""


def masked(text: str) -> str:
    """Leave out what is another one each time."""
    text = re.sub(r'"created_us":\d+', '"created_us":0', text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)


def test_the_websocket_of_the_page_answers_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = (
        each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "ws://" in each
    )
    with served(tmp_path / "log") as here:
        here.log.create_topic("orders")
        here.log.append("orders", b"two apples")
        exec(code.replace("localhost:4748", f"127.0.0.1:{here.port}"), {})
    shown = [line.rpartition("# ")[2] for line in code.splitlines() if "# {" in line]
    told = capsys.readouterr().out.splitlines()
    assert told[0] == shown[0]
    assert told[1].startswith(shown[1].partition(", ...")[0])


def test_every_command_answers_what_the_page_shows(tmp_path: Path) -> None:
    assert len(commands()) > 10
    with served(tmp_path / "log") as here:
        for command, output in commands():
            assert masked(curl(here, command)) == masked(output), command


def test_the_page_lists_every_path(tmp_path: Path) -> None:
    listed = set(re.findall(r"^\| `([A-Z]+ /\S+)` \|", PAGE, re.MULTILINE))
    with served(tmp_path / "log") as here:
        document = here.get("/openapi.json").json
        offered = {
            f"{method.upper()} {path}"
            for path, methods in document["paths"].items()
            for method in methods
        }
        declared = {
            int(status)
            for methods in document["paths"].values()
            for operation in methods.values()
            for status in operation["responses"]
        }
    assert listed == offered
    rows = re.findall(r"^\| ((?:\d{3}(?:, )?)+) \|", PAGE, re.MULTILINE)
    told = {int(status) for row in rows for status in row.split(", ")}
    assert told == declared | {405, 421}  # 421: of a log with several servers
    assert set(STATUSES.values()) - {410} <= told  # nothing that HTTP offers is released


@pytest.mark.parametrize(
    "shown",
    [
        f"bodies of {limits.JSON_BYTES_MAX // limits.MIB} MiB for records",
        f"{limits.JSON_RECORDS_MAX:,} records and {limits.JSON_VALUES_MAX:,} values in a body",
        f"{limits.HTTP_REQUESTS_MAX:,} requests in progress",
        f"{limits.HTTP_WAITS_MAX:,} of them waiting",
    ],
)
def test_the_page_tells_the_limits(shown: str) -> None:
    assert shown in PAGE
