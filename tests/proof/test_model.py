"""A log against a model: any sequence of calls, crashes and reopenings, compared with a list.

Hypothesis draws the calls and, when a comparison fails, shrinks them to a short sequence. The model
is a picture (`simulated.py`): plain values and none of the log's code.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lakebed.errors import (
    EntryNotFoundError,
    EntryReleasedError,
    EntryTooLargeError,
    InvalidArgumentError,
)
from lakebed.host import SimDisk, Survival
from lakebed.wal import EntryKind, HardState, Mark, SyncMode, Wal, WalConfig
from tests.proof.machines import run_machine
from tests.proof.scale import Rounds, trials
from tests.proof.simulated import Item, Picture, open_on, picture_of, simulation
from tests.wal.support import fill_spares, mark_idle

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_model.py"
ENTRY_BYTES_MAX = 15_000

numbers = st.integers(0, 2**32)
sizes = st.one_of(st.integers(0, 70), st.integers(0, 1000), st.sampled_from([448, 3900, 5000]))
payloads = st.builds(lambda size, number: random.Random(number).randbytes(size), sizes, numbers)
terms = st.integers(0, 3)
counts = st.integers(0, 12)


class LogMachine(RuleBasedStateMachine):
    """Every call of the log, and the same on a picture."""

    sync = SyncMode.ALWAYS

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.allowed = [Picture()]
        self.config = WalConfig()
        self.log: Wal

    @initialize(file_bytes=st.sampled_from([4096, 8192]), spare_files=st.integers(0, 2))
    def create(self, file_bytes: int, spare_files: int) -> None:
        """Make a new log."""
        self.config = WalConfig(
            sync=self.sync,
            file_bytes=file_bytes,
            spare_files=spare_files,
            entry_bytes_max=ENTRY_BYTES_MAX,
        )
        self.log = open_on(self.disk, self.config)

    @property
    def model(self) -> Picture:
        """Return what the log holds if nothing is lost."""
        return self.allowed[-1]

    def became(self, picture: Picture, *, synced: bool = False) -> None:
        """Note what a call made of the log, and whether all of it is on disk now."""
        self.allowed.append(picture)
        if synced or self.sync is SyncMode.ALWAYS:
            del self.allowed[:-1]

    def before_the_end(self, count: int) -> int:
        """Return the index so many entries before the last, or the last one released."""
        return max(self.model.mark.index, self.model.last_index - count)

    @rule(payload=payloads, term=terms, kind=st.sampled_from(EntryKind))
    def append(self, payload: bytes, term: int, kind: EntryKind) -> None:
        """Append an entry."""
        assert self.log.append(payload, term=term, kind=kind) == self.model.last_index + 1
        self.became(self.model.appended(term, kind, payload))

    @rule(parts=st.lists(payloads, max_size=3))
    def append_parts(self, parts: list[bytes]) -> None:
        """Append an entry that is handed over in pieces, without naming a term."""
        self.log.append_async(parts).result()
        term = self.model.hard_state.term
        self.became(self.model.appended(term, EntryKind.NORMAL, b"".join(parts)))

    @rule(batch=st.lists(payloads, max_size=8), term=terms)
    def append_many(self, batch: list[bytes], term: int) -> None:
        """Append several entries."""
        first = self.model.last_index + 1
        assert self.log.append_many(batch, term=term) == range(first, first + len(batch))
        for payload in batch:
            self.became(self.model.appended(term, EntryKind.NORMAL, payload))

    @rule(term=terms, vote=st.one_of(st.none(), st.integers(0, 2**64 - 1)))
    def set_hard_state(self, term: int, vote: int | None) -> None:
        """Set term and vote."""
        self.log.set_hard_state(HardState(term, vote))
        self.became(self.model._replace(hard_state=HardState(term, vote)), synced=True)

    @rule(count=st.integers(0, 3))
    def truncate(self, count: int) -> None:
        """Void the last entries."""
        last = self.before_the_end(count)
        self.log.truncate(last)
        self.became(self.model.truncated(last), synced=True)

    @rule(count=st.sampled_from([20, 10, 5, 2, 0]), note=st.binary(max_size=100))
    def release(self, count: int, note: bytes) -> None:
        """Release all but the last entries."""
        index = self.before_the_end(count)
        mark = Mark(index, self.model.term_at(index), note)
        self.log.release(index, note)
        self.became(self.model.released(mark, reset=False), synced=True)

    @precondition(lambda self: len(self.model.items) > 8)
    @rule(count=counts, beyond=counts, term=terms)
    def reset(self, count: int, beyond: int, term: int) -> None:
        """Void all entries and go on after an index, often beyond the end."""
        index = self.before_the_end(count) + beyond
        self.log.release(index, b"reset", term=term, reset=True)
        self.became(self.model.released(Mark(index, term, b"reset"), reset=True), synced=True)

    @rule(beyond=st.integers(1, 5))
    def refused(self, beyond: int) -> None:
        """Ask for what lies outside the log or over its limits, which changes nothing."""
        below, above = self.model.mark.index - beyond, self.model.last_index + beyond
        for call in (self.log.truncate, self.log.release):
            for index in (below, above):
                with pytest.raises(InvalidArgumentError):
                    call(index)
        with pytest.raises(EntryReleasedError):
            self.log.read(below + 1)
        with pytest.raises(EntryNotFoundError):
            self.log.entry(above)
        with pytest.raises(EntryTooLargeError):
            self.log.append(bytes(ENTRY_BYTES_MAX + 1))
        assert self.log.read(self.model.last_index + 1) == []

    @rule()
    def flush(self) -> None:
        """Sync everything appended before."""
        self.log.flush()
        self.became(self.model, synced=True)
        assert self.log.stats().durable_index == self.model.last_index

    @rule(idle=st.booleans())
    def background(self, idle: bool) -> None:
        """Do what threads do meanwhile: make spare files, mark the log as idle."""
        fill_spares(self.log)
        if idle:
            mark_idle(self.log)
            self.became(self.model, synced=True)

    @precondition(lambda self: self.model.items)
    @rule(back=counts, count=st.integers(1, 8), size=st.integers(1, 3000))
    def read(self, back: int, count: int, size: int) -> None:
        """Read from any index: at least one entry, then as many as both limits allow."""
        start = max(0, len(self.model.items) - 1 - back)
        expected: list[Item] = []
        taken = 0
        for item in self.model.items[start : start + count]:
            if expected and taken >= size:
                break
            expected.append(item)
            taken += len(item.payload)
        entries = self.log.read(expected[0].index, max_entries=count, max_bytes=size)
        found = [(each.index, each.term, each.kind, bytes(each.payload)) for each in entries]
        assert found == expected

    @rule()
    def reopen(self) -> None:
        """Close and open again: nothing is lost, in any mode."""
        self.log.close()
        self.became(self.model, synced=True)
        self.log = open_on(self.disk, self.config)

    @rule(survival=st.sampled_from(Survival), number=numbers, in_order=st.booleans())
    def crash(self, survival: Survival, number: int, in_order: bool) -> None:
        """Cut the power: what was synced is there, and a beginning of what was not."""
        draw = random.Random(number)
        durable = self.log.stats().durable_index
        self.disk = self.disk.crash(survival, draw, names_in_order=in_order)
        self.log = open_on(self.disk, self.config)
        found = picture_of(self.log)
        assert found in self.allowed
        assert found.last_index >= durable
        self.allowed = [found]

    @invariant()
    def looks_like_the_model(self) -> None:
        """The ends, the hard state and the mark are the model's after every step."""
        if not hasattr(self, "log"):
            return
        model, log = self.model, self.log
        assert (log.mark, log.hard_state) == (model.mark, model.hard_state)
        assert (log.last_index, log.last_term) == (model.last_index, model.last_term)
        assert log.stats().durable_index >= self.allowed[0].last_index

    def teardown(self) -> None:
        """Read everything, close, open again and read everything once more."""
        if hasattr(self, "log"):
            assert picture_of(self.log) == self.model
            self.log.close()
            assert picture_of(open_on(self.disk, self.config)) == self.model


def machine(mode: SyncMode) -> type[LogMachine]:
    """Return the machine for a sync mode."""

    class Machine(LogMachine):
        sync = mode

    return Machine


@pytest.mark.parametrize("sync", list(SyncMode), ids=lambda sync: sync.value)
@simulation("model")
def test_a_log_behaves_like_a_list(sync: SyncMode) -> None:
    """Any sequence of calls, crashes and reopenings leaves what the model says, in every mode."""
    test = f"{FILE}::test_a_log_behaves_like_a_list[{sync.value}]"
    rounds = Rounds(test, short=100, long=5_000, seconds=4)
    run_machine(machine(sync), rounds, steps=trials(50, 200))
