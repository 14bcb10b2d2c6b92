"""A drawing that can be tried: a compaction."""

from __future__ import annotations

import re
from pathlib import Path

import lakebed
from lakebed import LogConfig
from tests.documents.pages import blocks_of


def drawing(section: str) -> str:
    (text,) = (each.text for each in blocks_of("docs/concepts.md") if each.section == section)
    return text


def records(text: str) -> list[tuple[int, bytes, bytes | None]]:
    """Return offset, key and value of each column of a drawing's three rows."""
    offsets, keys, values = (
        re.findall(r"\S+", re.split(r" {4,}(?=[a-z†]\w* \w)", row.partition(name)[2])[0])
        for name, row in zip(("offset", "key", "value"), text.splitlines()[:3], strict=True)
    )
    found = zip(offsets, keys, values, strict=False)
    return [
        (int(offset), key.encode(), None if value == "†" else value.encode())
        for offset, key, value in found
        if offset.isdigit()
    ]


def test_a_compaction_leaves_what_is_drawn(tmp_path: Path) -> None:
    before, _, after = drawing("What is removed").partition("\n\n")
    given, left = records(before), records(after)
    assert len(given) > len(left) > 1
    with lakebed.open(tmp_path / "log", LogConfig(retention_interval_ms=86_400_000)) as log:
        log.create_topic("t", config={"cleanup": "compact"})
        for _, key, value in given:
            log.append("t", value, key=key)
        log.checkpoint()
        log.retain("t")
        rows = log.read("t").select(["offset", "key", "value"]).to_pylist()
    first = given[0][0]
    assert [(row["offset"] + first, row["key"], row["value"]) for row in rows] == left
