"""What the documents show is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lakebed.wal import SyncMode, WalConfig

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf8")


def test_the_readmes_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code, output = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
    assert len(code.strip().splitlines()) <= 12


def test_the_demo_finds_everything_again() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(" 0 missing")
    shown = re.search(r"^([\d,]+) entries acknowledged, ([\d,]+) of them found", done.stdout, re.M)
    assert shown is not None
    assert shown[1] == shown[2]


def documents() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
    return sorted(found)


@pytest.mark.parametrize("page", documents(), ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_setting_is_in_the_catalogue_with_its_default() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf8")
    for setting in fields(WalConfig):
        default = setting.default
        shown = default.value if isinstance(default, SyncMode) else f"{default:,}"
        assert re.search(rf"^\| `{setting.name}` \| {re.escape(str(shown))} ", page, re.M), (
            setting.name
        )


def test_the_makefile_lists_its_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("setup", "check", "test", "prove", "bench", "demo"):
        assert re.search(rf"^{target}\s+\S", done.stdout, re.M), target
