"""Whatever is done to it, and whenever the power is cut, the log on disk is the one in memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lakebed.host import SimDisk, Survival
from lakebed.raft import HardState, LogEntry, Membership, MemoryLog, Snapshot
from tests.proof.machines import run_machine
from tests.proof.scale import Rounds
from tests.raft.support import configuration, entry, open_sim, picture

pytestmark = pytest.mark.proof

PAYLOADS = st.one_of(st.binary(max_size=40), st.integers(500, 3000).map(lambda n: b"x" * n))
MEMBERSHIPS = st.sets(st.integers(0, 9), max_size=4).map(lambda nodes: Membership(tuple(nodes)))


class DiskLikeMemory(RuleBasedStateMachine):
    """Does the same to both logs; a power cut may take only what was not synced."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.log = open_sim(self.disk)
        self.model = MemoryLog()
        self.synced_index = 0

    @initialize(term=st.integers(0, 3))
    def begin(self, term: int) -> None:
        self.set_hard_state(term, None)

    @rule(
        payloads=st.lists(st.one_of(PAYLOADS, MEMBERSHIPS), min_size=1, max_size=6),
        step=st.sampled_from([0, 0, 0, 1]),
    )
    def append(self, payloads: list[bytes | Membership], step: int) -> None:
        entries: list[LogEntry] = []
        term = self.model.last_term
        for index, payload in enumerate(payloads, self.model.last_index + 1):
            if isinstance(payload, Membership):
                entries.append(configuration(index, term, payload))
            else:
                entries.append(entry(index, term, payload))
            term += step
        self.log.append(entries)
        self.model.append(entries)

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.synced_index = self.model.last_index

    @rule(payload=PAYLOADS)
    def propose(self, payload: bytes) -> None:
        term = self.model.last_term
        assert self.log.propose(payload, term) == self.model.propose(payload, term)
        self.synced_index = self.model.last_index

    @rule(back=st.integers(0, 8))
    def truncate(self, back: int) -> None:
        from_index = max(self.model.first_index, self.model.last_index + 1 - back)
        self.log.truncate_suffix(from_index)
        self.model.truncate_suffix(from_index)
        self.synced_index = self.model.last_index

    @rule(step=st.integers(0, 2), vote=st.one_of(st.none(), st.integers(0, 5)))
    def set_hard_state(self, step: int, vote: int | None) -> None:
        state = HardState(self.model.hard_state.term + step, vote)
        self.log.set_hard_state(state)
        self.model.set_hard_state(state)

    @rule(ahead=st.integers(-2, 12), foreign=st.booleans(), members=MEMBERSHIPS, data=PAYLOADS)
    def apply_snapshot(self, ahead: int, foreign: bool, members: Membership, data: bytes) -> None:
        index = max(1, self.model.snapshot_index + ahead)
        term = self.model.term_at(index)
        if term is None or foreign:
            term = self.model.last_term + 1
        snapshot = Snapshot(index, term, members, data)
        newer = index > self.model.snapshot_index
        self.log.apply_snapshot(snapshot)
        self.model.apply_snapshot(snapshot)
        if newer:
            self.synced_index = self.model.last_index

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = open_sim(self.disk)
        self.synced_index = self.model.last_index

    @rule(
        survival=st.sampled_from(Survival),
        seed=st.integers(0, 2**32),
        names_in_order=st.booleans(),
    )
    def cut_power(self, survival: Survival, seed: int, names_in_order: bool) -> None:
        self.disk = self.disk.crash(survival, random.Random(seed), names_in_order=names_in_order)
        self.log = open_sim(self.disk)
        assert self.synced_index <= self.log.last_index <= self.model.last_index
        self.model.truncate_suffix(self.log.last_index + 1)
        self.synced_index = self.model.last_index

    @invariant()
    def both_show_the_same(self) -> None:
        assert picture(self.log) == picture(self.model)

    @invariant()
    def the_folder_holds_no_leftover(self) -> None:
        snapshots = [path for path in self.disk.contents() if path.parent.name == "snapshots"]
        assert len(snapshots) == (1 if self.model.snapshot_index else 0)


def test_the_log_on_disk_is_the_one_in_memory() -> None:
    test = "tests/raft/test_model.py::test_the_log_on_disk_is_the_one_in_memory"
    run_machine(DiskLikeMemory, Rounds(test, short=60, long=5_000, seconds=3), steps=30)
