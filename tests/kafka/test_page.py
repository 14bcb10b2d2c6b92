"""The page of Kafka clients does what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests import forked
from tests.documents.pages import ROOT
from tests.serve.support import ServerProcess
from tests.waiting import PATIENCE_SECONDS

PAGE = (ROOT / "docs" / "kafka.md").read_text(encoding="utf8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_program_of_the_page_writes_a_record(server: ServerProcess, broker: str) -> None:
    program = block("python").replace("127.0.0.1:9092", broker)
    forked.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)
    with server.open() as log:
        rows = log.read("orders", 0, "earliest").to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(b"7", b'{"amount": 12}')]


def test_the_command_of_the_page_says_where_it_serves(tmp_path: Path) -> None:
    command, first, second = block("console").splitlines()
    assert command.startswith("$ lakebed serve --data shop --kafka-port ")
    with ServerProcess(tmp_path / "shop", kafka_port=0, http_port=0) as server:
        shown = (server.port, server.http_port, server.kafka_port)
    assert min(shown) > 0
    assert (first.count("127.0.0.1"), second) == (2, "Kafka clients: 127.0.0.1:9092")
