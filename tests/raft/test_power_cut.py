"""A power cut at any call leaves the log as it was before or as it is after, whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lakebed.host import SimDisk, Survival
from lakebed.raft import HardState, Membership, WalLog
from tests.raft.support import Picture, configuration, entry, fill, open_sim, picture, snapshot


@dataclass(frozen=True)
class Cut:
    """The disk as it is found after a power cut at one call."""

    call: int
    kind: str
    survival: Survival
    disk: SimDisk


def cuts_during(disk: SimDisk, act: Callable[[], None]) -> list[Cut]:
    """Cut the power after every call that `act` makes, in every way."""
    cuts: list[Cut] = []

    def cut(kind: str) -> None:
        for survival in Survival:
            rng = random.Random(f"{disk.calls}/{survival}")
            in_order = rng.random() < 0.5
            found = disk.crash(survival, rng, names_in_order=in_order)
            cuts.append(Cut(disk.calls, kind, survival, found))

    disk.on_call = cut
    act()
    disk.on_call = None
    return cuts


def prepared() -> tuple[SimDisk, WalLog]:
    """Return a log of several files with a snapshot, a hard state and two memberships."""
    disk = SimDisk()
    log = open_sim(disk)
    fill(log, 4)
    log.apply_snapshot(snapshot(3, data=b"the first"))
    log.set_hard_state(HardState(5, 2))
    log.append([configuration(5, 2, Membership((1, 2), (7,)))])
    fill(log, 20, term=3, payload_bytes=700)
    return disk, log


CHANGES: dict[str, Callable[[WalLog], None]] = {
    "snapshot that keeps the tail": lambda log: log.apply_snapshot(
        snapshot(12, 3, b"new" * 2000, (4, 5))
    ),
    "snapshot of the whole log": lambda log: log.apply_snapshot(snapshot(20, 3, b"all")),
    "snapshot beyond the end": lambda log: log.apply_snapshot(snapshot(50, 9, b"remote")),
    "snapshot of another history": lambda log: log.apply_snapshot(snapshot(10, 9, b"other")),
    "truncation": lambda log: log.truncate_suffix(6),
    "hard state": lambda log: log.set_hard_state(HardState(9, None)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_happens_whole_or_not_at_all(change: str) -> None:
    disk, log = prepared()
    before = picture(log)
    cuts = cuts_during(disk, lambda: CHANGES[change](log))
    after = picture(log)
    assert before != after
    seen = set()
    for cut in cuts:
        found = picture(open_sim(cut.disk))
        assert found in (before, after), cut
        seen.add(found == after)
    assert seen == {True, False}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_returned_survives(change: str) -> None:
    disk, log = prepared()
    CHANGES[change](log)
    after = picture(log)
    for survival in Survival:
        found = disk.crash(survival, random.Random(3), names_in_order=False)
        assert picture(open_sim(found)) == after


def test_appended_entries_survive_in_order_from_the_first() -> None:
    disk, log = prepared()
    before = picture(log)
    log.append([entry(index, 4, b"y" * 900) for index in range(21, 33)])
    cuts = cuts_during(disk, log.sync)
    after = picture(log)
    lengths = set()
    for cut in cuts:
        found = picture(open_sim(cut.disk))
        assert found.entries == after.entries[: len(found.entries)]
        assert len(found.entries) >= len(before.entries)
        assert _beside_entries(found) == _beside_entries(after)
        lengths.add(len(found.entries))
    assert {len(before.entries), len(after.entries)} <= lengths


def _beside_entries(shown: Picture) -> tuple[object, ...]:
    return shown.first_index, shown.hard_state, shown.snapshot, shown.membership


def test_a_second_cut_while_the_first_is_recovered_changes_nothing() -> None:
    disk, log = prepared()
    before = picture(log)
    cuts = cuts_during(disk, lambda: log.apply_snapshot(snapshot(12, 3, b"new")))
    after = picture(log)
    for cut in cuts[::3]:
        for again in cuts_during(cut.disk, lambda disk=cut.disk: open_sim(disk).close()):  # type: ignore[misc]
            assert picture(open_sim(again.disk)) in (before, after), (cut, again)


def test_nothing_staged_survives_a_cut_before_sync() -> None:
    disk, log = prepared()
    before = picture(log)
    log.append([entry(21, 4)])
    assert picture(open_sim(disk.crash(Survival.KEPT, random.Random(1)))) == before
