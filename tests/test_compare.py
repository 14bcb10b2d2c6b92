"""The comparison with other stores writes what it measured, and drops nobody silently."""

from __future__ import annotations

import shutil
import signal
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import compare, compare_page, rabbit
from bench.compare_results import Found, Line, Measure, Results
from bench.compare_work import SCALES, Entry, Plan, Workload, run
from bench.report import RESULTS

PAGE = compare_page.PAGE
KEPT = RESULTS / "compare.json"
RATE = Measure("records per second", "/s", more_is_better=True)
TIME = Measure("ms", "ms", more_is_better=False)


class Peer:
    """Gives a figure when it is asked, and says when it was closed."""

    def __init__(self, value: float, said: list[str]) -> None:
        self.value, self.said = value, said

    def close(self) -> None:
        self.said.append("closed")


def workload(*entries: Entry, measure: Callable[[Any], float] | None = None) -> Workload:
    def measured(peer: Any, _scale: object) -> dict[str, float]:
        return {RATE.name: measure(peer) if measure else peer.value}

    return Workload("work", "Work of {writers} writers", (RATE,), entries, measured)


def ours(said: list[str]) -> Entry:
    return Entry("Lakebed", "as it is", lambda *_: Peer(10.0, said), against="", optional=False)


def plan(rounds: int = 2, peers: frozenset[str] | None = None) -> Plan:
    return Plan(SCALES["small"], rounds, peers)


def test_a_run_writes_table_results_and_charts_of_every_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "comparison.md"
    shutil.copy(PAGE, page)
    asked = ("SQLite", "pyiceberg", "raw disk, growing file")
    options = ["--scale", "small", "--rounds", "1", "--publish", "--page", str(page)]
    options += ["--dir", str(tmp_path / "data"), "--json", str(tmp_path / "compare.json")]
    before = signal.getsignal(signal.SIGTERM)
    compare.main([*options, *(word for name in asked for word in ("--peers", name))])
    assert signal.getsignal(signal.SIGTERM) == before
    results = Results.load(tmp_path / "compare.json")
    assert [found.name for found in results.workloads] == list(compare.WORKLOADS)
    for found in results.workloads:
        names = {measure.name for measure in found.measures}
        assert set(found.line("Lakebed").figures) == names
        for line in found.lines:
            assert bool(line.figures) != bool(line.reason), line
            assert set(line.figures) in (set(), names)
            measured = line.peer in (*asked, "Lakebed")
            assert bool(line.figures) == measured, line
        drawn = ET.parse(tmp_path / "comparison" / f"{found.name}.svg").getroot()
        texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert {line.peer for line in found.lines} <= set(texts)
    text = page.read_text(encoding="utf8")
    assert text == compare_page.render(PAGE.read_text(encoding="utf8"), results)
    assert "left out by --peers" in text
    shown = capsys.readouterr().out
    assert all(found.title in shown for found in results.workloads)
    assert not (tmp_path / "data").exists()


def test_the_page_is_what_the_results_render_to() -> None:
    results = Results.load(KEPT)
    assert [found.name for found in results.workloads] == list(compare.WORKLOADS)
    text = PAGE.read_text(encoding="utf8")
    assert text == compare_page.render(text, results)
    folder = PAGE.parent / compare_page.CHARTS
    there = {path.name: path.read_text(encoding="utf8") for path in folder.iterdir()}
    assert there == compare_page.charts(results)


def test_the_front_page_has_what_the_results_say() -> None:
    results = Results.load(KEPT)
    text = compare_page.README.read_text(encoding="utf8")
    assert compare_page.summary(results) in text
    assert len(compare_page.summary(results).splitlines()) == 8
    assert "Redis Streams 0." in text  # where another is faster is on the front page too


def test_a_peer_that_is_not_installed_is_named_with_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    work = workload(
        ours([]),
        Entry("Redis", "served", lambda *_: None, programs=("redis-server",)),
        Entry("Stone", "embedded", lambda *_: None, modules=("no_such_module",)),
        Entry("Queue", "what is consumed is gone"),
    )
    found = run(work, tmp_path, plan(), lambda _: None)
    table = compare_page.table(found)
    said = capsys.readouterr().err
    wanted = "redis-server is not installed: apt-get install redis-server"
    assert wanted in table and f"Redis is left out: {wanted}" in said
    assert "the Python package no_such_module is not installed" in table
    assert "| Queue | what is consumed is gone | \u2013 | \u2013 |" in table


def test_a_peer_that_fails_is_reported_and_the_rest_goes_on(tmp_path: Path) -> None:
    said: list[str] = []

    def measure(peer: Peer) -> float:
        if peer.value < 0:
            raise OSError("the disk is gone\nand more")
        return peer.value

    work = workload(ours(said), Entry("Other", "", lambda *_: Peer(-1.0, said)), measure=measure)
    found = run(work, tmp_path, plan(), lambda _: None)
    assert found.title == "Work of 8 writers"
    assert found.line("Lakebed").figures == {RATE.name: [10.0, 10.0]}
    assert found.line("Other").reason == "it failed: OSError: the disk is gone"
    assert found.line("Other").figures == {}
    assert said == ["closed", "closed"]


def test_a_comparison_without_lakebed_is_none(tmp_path: Path) -> None:
    said: list[str] = []

    def interrupted(peer: Peer) -> float:
        raise KeyboardInterrupt

    for measure, expected in ((interrupted, KeyboardInterrupt), (lambda _: 1 / 0, ArithmeticError)):
        with pytest.raises(expected):
            place = tmp_path / expected.__name__
            run(workload(ours(said), measure=measure), place, plan(), lambda _: None)
    assert said == ["closed", "closed"]


def test_a_ratio_says_how_many_times_as_fast_lakebed_is() -> None:
    mine = Line("Lakebed", "", True, "", figures={RATE.name: [10, 30, 20], TIME.name: [2, 4, 6]})
    other = Line(
        "Other", "", False, "Lakebed", figures={RATE.name: [5, 10, 20], TIME.name: [1, 1, 1]}
    )
    assert "**not synced**" in compare_page.table(Found("work", "Work", [RATE], [other, mine]))
    found = Found("work", "Work", [RATE, TIME], [mine, other], reference="Lakebed")
    assert found.times_as_fast(other, RATE) == 2
    assert found.times_as_fast(other, TIME) == 0.25
    assert found.times_as_fast(mine, RATE) is None
    assert found.share(other, RATE) == 0.5
    results = Results({"cores": 2, "python": "3", "system": "Linux"}, {}, "full", 3, [found])
    marks = "".join(
        f"<!-- table: {name} -->\n<!-- end of table: {name} -->\n"
        for name in ("run", "behind", "work")
    )
    text = compare_page.render(marks, results)
    assert "* Work. **ms**: Other\\* 4.00.\n" in text
    assert text.count("Other") == 2  # in the table, and where another is ahead


def test_frames_of_amqp_that_came_in_pieces_are_put_together() -> None:
    frame = b"\x03\x00\x01\x00\x00\x00\x02hi\xce"
    frames, rest = rabbit.split(frame + frame + frame[:5])
    assert (frames, rest) == ([(3, b"hi"), (3, b"hi")], frame[:5])
    ack = b"\x00\x3c\x00\x50" + (7).to_bytes(8, "big") + b"\x01"
    assert rabbit.confirmed(1, ack) == 7
    assert rabbit.confirmed(3, b"hi") == 0
    with pytest.raises(RuntimeError, match="refused"):
        rabbit.confirmed(1, b"\x00\x3c\x00\x78" + ack[4:])
