"""`lakebed demo --failover`: the README's sentence, shown by its own command."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from lakebed.cli import cli


def test_an_owner_is_killed_with_its_disk_and_every_acknowledged_order_is_there(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "demo"
    command = ["demo", "--failover", "--records", "2000", "--folder", str(folder), "--json"]
    run = CliRunner().invoke(cli, command)
    assert run.exit_code == 0, run.output
    shown = json.loads(run.stdout)
    shown = shown.get("demo", shown)
    assert shown["is_right"]
    assert (shown["acknowledged"], shown["lost"], shown["twice"]) == (2000, 0, 0)
    assert shown["first_owner"] != shown["second_owner"]
    assert not (folder / "machine-1").exists()
    report = (folder / "report.html").read_text()
    assert "All checks passed" in report
    assert f"{shown['gap_ms']:,} ms" in report
