"""`lakebed top`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import LakeConfig, LogConfig
from lakebed.cli.top import SHOWN_MAX, picture, sample
from tests import forked
from tests.cli.engine import PROGRAM, Shell

PLAIN = LogConfig(lake=LakeConfig(iceberg=False))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Make a log with a topic and a group."""
    with lakebed.open(tmp_path / "log", PLAIN) as log:
        log.create_topic("orders", 2)
        log.append_batch("orders", [{"value": b"x" * 100}] * 50)
        log.checkpoint()
        log.commit_offsets("readers", {("orders", 0): 5})
    return Shell(tmp_path / "log")


# What is shown


def test_rates_are_of_what_was_written_between_two_looks(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log", PLAIN) as log:
        for name in ("idle", "busy"):
            log.create_topic(name, 2)
            log.append_batch(name, [{"value": b"x" * 100}] * 100)
        log.checkpoint()
        log.commit_offsets("readers", {("busy", 0): 0, ("busy", 1): 0})
        before = sample(log)
        log.append_batch("busy", [{"value": b"x" * 100}] * 300)
        now = sample(log)
        log.delete_topic("idle")
        log.create_topic("idle")
        log.append("idle", b"x")
        after = sample(log)
    shown = picture(before, now)
    busy, idle = shown["topics"]
    seconds = shown["seconds"]
    assert (busy["topic"], busy["end"], busy["records"]) == ("busy", 400, 400)
    assert busy["records_per_second"] * seconds == pytest.approx(300)
    each = busy["segment_bytes"] / 100
    assert busy["bytes_per_second"] == pytest.approx(busy["records_per_second"] * each)
    assert (idle["topic"], idle["records_per_second"], idle["end"]) == ("idle", 0, 100)
    assert shown["records_per_second"] * seconds == pytest.approx(300)
    assert shown["groups"] == [{"group": "readers", "members": 0, "lag": 400}]
    assert shown["wal"]["syncs_per_second"] > 0
    assert shown["wal"]["entries_per_sync"] >= 1
    assert shown["wal"]["bytes_per_second"] * seconds > 300 * 100
    assert shown["memory"]["memtable_bytes"] > 0
    assert shown["checkpoint_age_ms"] >= 0
    # A topic that was made anew has no past, and nothing in a segment to judge its bytes by.
    anew = {each["topic"]: each for each in picture(now, after)["topics"]}["idle"]
    assert (anew["records_per_second"], anew["bytes_per_second"]) == (0, None)


def test_of_many_topics_the_busiest_are_shown(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log", PLAIN) as log:
        for number in range(SHOWN_MAX + 5):
            log.create_topic(f"t{number:02}")
            log.commit_offsets(f"g{number:02}", {(f"t{number:02}", 0): 0})
        before = sample(log)
        log.append("t23", b"x")
        log.append_batch("t07", [{"value": b"x"}] * 2)
        shown = picture(before, sample(log))
    assert shown["topics_in_all"] == SHOWN_MAX + 5
    assert [each["topic"] for each in shown["topics"]][:3] == ["t07", "t23", "t00"]
    assert [each["group"] for each in shown["groups"]][:3] == ["g07", "g23", "g00"]
    assert len(shown["topics"]) == len(shown["groups"]) == SHOWN_MAX


# The command


def test_one_picture(shell: Shell) -> None:
    text = shell.text("top", "--once", "--interval", "0.05")
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].split()[0] == "time"
    orders = next(line.split() for line in lines if line.startswith("orders"))
    assert orders[1:2] + orders[4:6] == ["0.0", "50", "50"]
    readers = next(line.split() for line in lines if line.startswith("readers"))
    assert readers[1] == "0"
    assert int(readers[2]) == 45


def test_one_picture_for_programs(shell: Shell) -> None:
    (shown,) = shell.json("top", "--once", "--interval", "0.05")
    assert shown["type"] == "top"
    assert shown["topics"][0]["topic"] == "orders"
    assert shown["groups"][0]["lag"] == 45


def test_an_empty_log_has_a_picture(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log", PLAIN):
        pass
    shell = Shell(tmp_path / "log")
    (shown,) = shell.json("top", "--once", "--interval", "0.05")
    assert (shown["topics"], shown["groups"], shown["checkpoint_age_ms"]) == ([], [], None)
    assert "none yet" in shell.text("top", "--once", "--interval", "0.05")


def test_what_is_refused(shell: Shell, tmp_path: Path) -> None:
    for interval in ("0", "-1", "x", "1e9"):
        assert "interval" in shell.usage("top", "--interval", interval)
    assert Shell(tmp_path / "no").error("top", "--once")["code"] == "not_a_log"


def watched(shell: Shell, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    words = [*PROGRAM, "top", "--data", str(shell.folder), "--interval", "0.05", *arguments]
    return forked.Popen(words, **more)


def test_programs_get_a_line_each_time_until_they_have_enough(shell: Shell) -> None:
    with watched(shell, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as top:
        assert top.stdout is not None
        assert top.stderr is not None
        lines = [json.loads(top.stdout.readline()) for _ in range(3)]
        top.send_signal(signal.SIGINT)
        top.stdout.read()
        assert top.stderr.read() == b""
    assert top.returncode == 0
    assert [line["type"] for line in lines] == ["top"] * 3
    assert lines[0]["time_us"] < lines[2]["time_us"]


def test_without_a_terminal_pictures_follow_each_other(shell: Shell) -> None:
    with watched(shell, stdout=subprocess.PIPE) as top:
        assert top.stdout is not None
        text = b"".join(top.stdout.readline() for _ in range(30))
        top.send_signal(signal.SIGINT)
        top.stdout.read()
    assert top.returncode == 0
    assert text.count(b"orders") >= 2
    assert b"\x1b" not in text


def test_on_a_terminal_the_picture_is_drawn_anew(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    with watched(shell, stdout=theirs, env={**os.environ, "TERM": "xterm"}) as top:
        os.close(theirs)
        seen = b""
        while seen.count(b"orders") < 2:
            seen += os.read(ours, 65536)
        top.send_signal(signal.SIGINT)
        while b"\x1b[?1049l" not in seen:  # the screen is given back
            seen += os.read(ours, 65536)
    os.close(ours)
    assert top.returncode == 0
    assert b"\x1b[?1049h" in seen


def test_a_reader_that_goes_away_ends_it(shell: Shell) -> None:
    with watched(shell, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as top:
        assert top.stdout is not None
        assert top.stderr is not None
        top.stdout.readline()
        top.stdout.close()
        assert top.stderr.read() == b""
    assert top.returncode == 141
