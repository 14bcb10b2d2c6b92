"""`lakebed doctor` of a log in a store: a fence that is missing, and an owner that is gone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import lakebed
from lakebed.cli import cli


@pytest.fixture
def log_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "store").mkdir()
    url = f"file://{tmp_path / 'store'}"
    monkeypatch.setenv("LAKEBED_LAKE_STORE", url)
    monkeypatch.setenv("LAKEBED_WAL_ACKS", "store")
    monkeypatch.setenv("LAKEBED_WAL_LEASE_MS", "300")
    folder = tmp_path / "log"
    with lakebed.open(url, folder=folder) as log:
        log.create_topic("a", 1)
        log.append("a", b"1")
    return folder


def _checks(folder: Path) -> dict[str, str]:
    run = CliRunner().invoke(cli, ["doctor", "--data", str(folder), "--json"])
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return {line["name"]: line["verdict"] for line in lines}


def test_a_released_lease_and_every_fence_are_well(log_folder: Path) -> None:
    checks = _checks(log_folder)
    assert (checks["lease"], checks["fences"]) == ("ok", "ok")


def test_a_fence_that_was_removed_is_a_problem(log_folder: Path) -> None:
    (fence,) = (log_folder.parent / "store").glob("*/wal/0000000000000001")
    fence.unlink()
    assert _checks(log_folder)["fences"] == "problem"


def test_a_lease_that_was_edited_is_a_warning(log_folder: Path) -> None:
    (lease,) = (log_folder.parent / "store").glob("*/lease")
    lease.write_text("edited")
    assert _checks(log_folder)["lease"] == "warning"
