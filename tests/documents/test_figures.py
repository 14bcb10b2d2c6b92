"""Figures that pages give in passing are the code's. A sentence that is reworded fails here too."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest

import lakebed
from lakebed import ClientConfig, LogConfig, ServeConfig, WalConfig, limits
from lakebed.api.transaction import _WRITE_BYTES
from lakebed.client.reading import WAIT_MS_MAX
from lakebed.engine.audit import _RETENTION_MS
from lakebed.host import failpoints
from lakebed.reports.access import EXPIRES_MS
from lakebed.serve.audit import REFUSALS_PER_SECOND, REFUSALS_PER_SECOND_IN_ALL
from lakebed.serve.refusals import _LINES_PER_SECOND
from lakebed.spark.tables.folding import _PART, DELETED_SHARE, FILES_MAX
from lakebed.spark.tables.materialising import _BUCKET_RECORDS
from lakebed.wire.protocol import STREAM_REQUESTS_MAX
from tests.documents.pages import ROOT

DAY_MS = 86_400_000
WORDS = {10: "ten", 10_000: "ten"}
PARTS = {2: "half", 5: "a fifth", 8: "an eighth"}


def default(function: Any, argument: str) -> Any:
    return inspect.signature(function).parameters[argument].default


def mib(size_bytes: int) -> str:
    return f"{size_bytes // limits.MIB} MiB"


CLAIMS = [
    (
        "docs/durability.md",
        f"{PARTS[1000 // WalConfig().idle_mark_ms]} a second of its last commit (`idle_mark_ms`)",
    ),
    ("docs/concepts.md", f"A small transaction (up to {mib(_WRITE_BYTES)}) is one entry"),
    ("docs/operations.md", f"{WORDS[_LINES_PER_SECOND]} a second have a separate line"),
    (
        "docs/operations.md",
        f"A consumer holds `max_bytes` ({mib(default(lakebed.Log.consumer, 'max_bytes'))}), a "
        f"producer up to `memory_bytes` ({mib(default(lakebed.Log.producer, 'memory_bytes'))})",
    ),
    ("docs/security.md", f"It is valid for {EXPIRES_MS // DAY_MS} days unless `--expires`"),
    (
        "docs/security.md",
        f"expired is listed for {limits.TOKEN_KEPT_US // 1000 // DAY_MS} more days",
    ),
    ("docs/security.md", f"Records are kept for {_RETENTION_MS // DAY_MS} days by default"),
    (
        "docs/security.md",
        f"refusals {REFUSALS_PER_SECOND} a second are recorded one by one, of all callers' "
        f"{REFUSALS_PER_SECOND_IN_ALL};",
    ),
    (
        "docs/security.md",
        f"{limits.TOKENS_MAX:,} tokens, {limits.RULES_MAX:,} rules "
        f"and {limits.GRANTS_MAX:,} grants",
    ),
    ("docs/server.md", f"cannot be reached; {ClientConfig().retry_ms:,} |"),
    ("docs/server.md", f"costs one request in {WORDS[WAIT_MS_MAX]} seconds"),
    ("docs/server.md", f"`stop_timeout_ms` ({ServeConfig().stop_timeout_ms // 1000} s)"),
    (
        "docs/server.md",
        f"A request has at most {mib(limits.JSON_BYTES_MAX)}, of most calls 256 KiB, "
        f"and a batch `request_bytes_max` "
        f"({mib(ServeConfig().request_bytes_max)})",
    ),
    (
        "docs/server.md",
        f"producer {limits.SEQUENCES_KEPT} batches are under way at a time, of a transaction "
        f"{STREAM_REQUESTS_MAX // 2}.",
    ),
    (
        "docs/tables.md",
        f"`checkpoint_interval_ms` ({LogConfig().checkpoint_interval_ms // 60_000} minutes)",
    ),
    (
        "docs/tables.md",
        f"{PARTS[round(1 / DELETED_SHARE)]} of the rows is deleted, or that has {FILES_MAX} files, "
        f"is folded into one file, {PARTS[_PART]} of the buckets",
    ),
    ("docs/tables.md", f"there is one for {_BUCKET_RECORDS:,} records"),
]


@pytest.mark.parametrize(("page", "claim"), CLAIMS)
def test_a_figure_is_the_codes(page: str, claim: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf8").split())
    assert claim in text


def test_every_failpoint_of_the_testing_page_exists() -> None:
    for module in pkgutil.walk_packages(lakebed.__path__, "lakebed."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf8")
    chapter = page.partition("\n## Failpoints\n")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", chapter, re.MULTILINE)
    listed = [
        f"{prefix}.{step}" for prefix, steps in rows for step in re.findall(r"`(\w+)`", steps)
    ]
    assert sorted(listed) == sorted(failpoints.names())
