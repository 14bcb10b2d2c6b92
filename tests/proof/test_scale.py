"""Rounds keep to their budget, count their trials, and continue where a run stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof import scale
from tests.proof.scale import Rounds
from tests.proving import Note, notes


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LONG", "_WHOLE"):
        monkeypatch.setattr(scale, name, False)
    monkeypatch.setattr(scale, "_ROUND", None)


def test_without_time_left_a_tenth_is_tried() -> None:
    rounds = Rounds("t", short=50, long=1_000, seconds=0)
    assert list(rounds) == list(range(5))
    assert rounds.trials == 5


def test_with_time_left_all_are_tried_and_no_more() -> None:
    assert len(list(Rounds("t", short=50, long=1_000, seconds=600))) == 50
    assert len(list(Rounds("t", short=50, long=1_000, seconds=600, shares=5))) == 10


def test_a_mutant_is_given_the_whole_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_WHOLE", True)
    assert len(list(Rounds("t", short=50, long=1_000, seconds=0))) == 50


def test_a_round_counts_for_the_trials_it_made() -> None:
    rounds = Rounds("t", short=50, long=1_000, seconds=600)
    for _ in rounds:
        rounds.count(min(20, rounds.wanted))
    assert rounds.trials == 50


def test_one_round_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_ROUND", "17")
    assert list(Rounds("t", short=50, long=1_000, seconds=0)) == [17]


def test_a_failure_names_its_round() -> None:
    for number in Rounds("tests/t.py::test", short=50, long=1_000, seconds=600):
        if number == 3:
            assert f"LAKEBED_SEED={scale.SEED} LAKEBED_ROUND=3 " in scale.repeat_with("t")
    assert "LAKEBED_ROUND" not in scale.repeat_with("t")


def test_a_long_proof_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "LONG", True)
    monkeypatch.setattr(scale, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(scale, "_UNTIL", 0.0)
    assert list(Rounds("t", short=5, long=3, seconds=0)) == [0]  # its time is up, but it tries
    monkeypatch.setattr(scale, "_UNTIL", float("inf"))
    assert Note("t", tmp_path).read() == (1, 1)
    again = Rounds("t", short=5, long=3, seconds=0)
    assert list(again) == [1, 2]
    assert again.trials == 3
    assert [note.complete for note in notes(tmp_path)] == [True]
