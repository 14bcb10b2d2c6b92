"""What pages show of a server: commands with tokens, the audit, a predicate of the protocol."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from lakebed.wire.predicates import unpack_predicate
from tests.documents.pages import blocks_of
from tests.documents.terminal import Step, steps_of, typed


@pytest.mark.proof  # a process for each command: too slow for the quick check
def test_the_commands_of_the_security_page(tmp_path: Path) -> None:
    """They take a served log for granted, and leave out what it says to them."""
    (tokens, denials, audit) = (
        list(steps_of(block, tmp_path))
        for block in blocks_of("docs/security.md")
        if block.language == "console"
    )
    create, use = tokens
    serve = Step("lakebed serve --data data", "", "before")
    denied = Step("lakebed topic list --data lakebed://localhost:4747", "", "before")
    stop = Step("stop", "", "before")
    said = Step("echo $?", "", "after")
    steps = [create, said, serve, use, said, denied, said, stop]
    steps += [each for command in (*audit, *denials) for each in (command, said)]
    outputs = typed(steps, tmp_path)
    codes = [text for step, text in zip(steps, outputs, strict=True) if step is said]
    assert codes == ["0\n", "0\n", "1\n", *["0\n"] * 5], outputs
    assert "unauthenticated" in outputs[5]
    assert '"outcome":"unauthenticated"' in outputs[8], outputs


def test_the_predicate_of_the_protocol() -> None:
    """It is a tree that the server takes, and means what the page says."""
    (text,) = (
        block.text
        for block in blocks_of("docs/protocol.md")
        if block.language == "text" and not block.is_output
    )
    found = unpack_predicate(json.loads(text))
    before, after = (datetime.fromisoformat(f"2024-01-0{day}T12:00:00Z") for day in (1, 3))
    rows = [(2, before), (5, before), (5, after)]
    table = pa.table(
        {
            "value": [{"amount": amount} for amount, _ in rows],
            "timestamp": pa.array([time for _, time in rows], pa.timestamp("us", "UTC")),
        }
    )
    kept = ds.dataset(table).to_table(filter=found).to_pylist()
    assert [(each["value"]["amount"], each["timestamp"]) for each in kept] == [(5, before)]
