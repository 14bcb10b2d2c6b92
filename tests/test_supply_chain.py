"""What is installed: every version has hashes, and what there is can be listed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from packaging.utils import canonicalize_name
from tools.environment import ROOT, entries_of
from tools.lock import listed, pins
from tools.sbom import document


def locked(extra: str) -> dict[str, tuple[str, list[str]]]:
    text = (ROOT / "requirements" / f"{extra}.txt").read_text(encoding="utf8")
    entries = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#")]
    found = {}
    for entry in entries:
        name, version = entry.split()[0].split("==")
        found[name] = (version, re.findall(r"--hash=sha256:([0-9a-f]{64})(?= |$)", entry))
        assert len(entry.split()) == 1 + len(found[name][1]), entry
    return found


def test_every_pinned_version_is_locked_with_the_hashes_of_its_files() -> None:
    both = {**locked("dev"), **locked("bench")}
    assert {name: version for name, (version, _) in both.items()} == pins()
    assert [name for name, (_, digests) in both.items() if not digests] == []
    assert locked("dev").keys().isdisjoint(locked("bench"))
    assert entries_of(ROOT / "requirements" / "dev.txt", "pip").startswith("pip==")


def test_what_the_extras_name_is_locked() -> None:
    dev, both = locked("dev"), {**locked("dev"), **locked("bench")}
    for text in listed("lakebed"):
        match = re.match(r"[A-Za-z0-9._-]+", text)
        assert match is not None
        name = canonicalize_name(match[0])
        if name != "lakebed":
            assert name in (both if 'extra == "bench"' in text else dev), text


def test_hashes_are_checked(tmp_path: Path) -> None:
    """A package whose hash is another one is not installed."""
    entry = entries_of(ROOT / "requirements" / "dev.txt", "click")
    wheel = tmp_path / "click-0-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    wrong = tmp_path / "wrong.txt"
    digest = re.findall(r"sha256:[0-9a-f]{64}", entry)[0]
    wrong.write_text(f"click @ {wheel.as_uri()} --hash={digest}\n")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index"]
    command += ["--require-hashes", "--requirement", str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH" in done.stdout + done.stderr


def test_the_list_of_what_is_installed() -> None:
    made = document()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["name"] == "lakebed"
    names = {component["name"]: component for component in made["components"]}
    assert {"click", "pyarrow", "fastapi"} <= names.keys()
    assert names["click"]["purl"] == f"pkg:pypi/click@{names['click']['version']}"
    references = {component["bom-ref"] for component in made["components"]}
    references.add(made["metadata"]["component"]["bom-ref"])
    for dependency in made["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= references
    assert json.dumps(document()) == json.dumps(made)
