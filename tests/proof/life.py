"""A log's life, drawn from a seed: every kind of call, and the pictures a power cut may leave.

While a call runs, the log may be found as it was before, as it will be after, or (for several
entries) in between: `allowed` lists these pictures. When the call has returned, only the last one
is left, unless the log acknowledges before it syncs; then it is all since the last sync.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from lakebed.host import SimDisk
from lakebed.wal import EntryKind, HardState, Mark, SyncMode, Wal, WalConfig
from tests.proof.simulated import LAYOUT, Picture, open_on
from tests.wal.support import fill_spares, mark_idle


class Life:
    """One log on one simulated disk, and what it was asked to keep."""

    def __init__(self, rng: random.Random, sync: SyncMode) -> None:
        self.rng = rng
        self.config = self.draw_config(sync)
        self.disk = SimDisk()
        self.allowed: list[Picture] = [Picture()]
        self.log: Wal | None = None
        self.doing = ""
        self._count = 0

    def draw_config(self, sync: SyncMode) -> WalConfig:
        """Draw other sizes and counts of files."""
        file_bytes, spare_files = self.rng.choice([4096, 8192]), self.rng.randint(0, 2)
        return WalConfig(sync=sync, file_bytes=file_bytes, spare_files=spare_files)

    @property
    def now(self) -> Picture:
        """Return what the log holds if nothing is lost."""
        return self.allowed[-1]

    def open(self) -> Wal:
        """Open or create the log; what it then holds is durable."""
        self.doing = "open"
        self.log = open_on(self.disk, self.config)
        self.allowed = self.allowed[-1:]
        return self.log

    def move_to(self, disk: SimDisk, found: Picture) -> None:
        """Go on with a disk that a power cut left."""
        self.disk, self.log, self.allowed = disk, None, [found]

    def step(self) -> None:
        """Do one thing, drawn by its weight."""
        log = self.log or self.open()
        weights = [weight for _, weight in _STEPS]
        action = self.rng.choices(_STEPS, weights)[0][0]
        self.doing = action.__name__.strip("_")
        action(self, log)

    def intend(self, *pictures: Picture) -> None:
        """Return what a call is about to make of the log, step by step."""
        self.allowed += pictures

    def settle(self, *, synced: bool = False) -> None:
        """Report that the call returned; with `synced`, that everything before is on disk."""
        if synced or self.config.sync is SyncMode.ALWAYS:
            del self.allowed[:-1]

    def payload(self) -> bytes:
        """Draw an entry's bytes: unique ones of many sizes, zeros, or a piece of the log itself."""
        rng, self._count = self.rng, self._count + 1
        drawn = rng.random()
        if drawn < 0.05:
            return bytes(rng.choice([0, 1, 448, 1000]))
        if drawn < 0.10:
            return self._own_bytes()
        if drawn < 0.15:
            return rng.randbytes(rng.randint(self.config.file_bytes, 9000))
        size = rng.choice([rng.randint(0, 64), rng.randint(0, 700), rng.randint(0, 2500)])
        if drawn < 0.45:
            size = self._up_to_a_sector()
        return (b"%d/" % self._count + rng.randbytes(size))[: max(8, size)]

    def _up_to_a_sector(self) -> int:
        """Return the size of an entry whose frame ends with a sector, so that a tear hits there."""
        assert self.log is not None
        rest = -self.log.commits.tail.position % 512
        return rest - 64 if rest > 64 else rest + 448

    def _own_bytes(self) -> bytes:
        """Return frames of this very log, which as a payload must never be taken for frames."""
        contents = self.disk.contents()
        files = [path for path in contents if path.suffix == ".wal"]
        data = contents[self.rng.choice(files)]
        return data[64 : 64 * self.rng.randint(2, 32)]


def _append(life: Life, log: Wal) -> None:
    kind = life.rng.choice([EntryKind.NORMAL, EntryKind.NORMAL, EntryKind.CONFIGURATION])
    term = max(life.now.last_term, life.now.hard_state.term)
    payload = life.payload()
    life.intend(life.now.appended(term, kind, payload))
    assert log.append(payload, term=term, kind=kind) == life.now.last_index
    life.settle()


def _append_many(life: Life, log: Wal) -> None:
    payloads = [life.payload() for _ in range(life.rng.randint(2, 6))]
    term = max(life.now.last_term, life.now.hard_state.term)
    first = life.now.last_index + 1
    for payload in payloads:
        life.intend(life.now.appended(term, EntryKind.NORMAL, payload))
    assert log.append_many(payloads, term=term) == range(first, life.now.last_index + 1)
    life.settle()


def _append_async(life: Life, log: Wal) -> None:
    for _ in range(life.rng.randint(1, 4)):
        payload, term = life.payload(), life.now.last_term
        life.intend(life.now.appended(term, EntryKind.NORMAL, payload))
        assert log.append_async(payload, term=term).result(0) == life.now.last_index
    log.flush()
    life.settle(synced=True)


def _set_hard_state(life: Life, log: Wal) -> None:
    rng = life.rng
    vote = rng.choice([None, 0, rng.getrandbits(64)])
    state = HardState(life.now.hard_state.term + rng.randint(0, 3), vote)
    life.intend(life.now._replace(hard_state=state))
    log.set_hard_state(state)
    life.settle(synced=True)


def _truncate(life: Life, log: Wal) -> None:
    lowest = max(life.now.mark.index, life.now.last_index - 12)
    last = life.rng.randint(lowest, life.now.last_index)
    life.intend(life.now.truncated(last))
    log.truncate(last)
    life.settle(synced=True)


def _release(life: Life, log: Wal) -> None:
    index = life.rng.randint(life.now.mark.index, life.now.last_index)
    note = life.rng.randbytes(life.rng.choice([0, 0, 20, 600]))
    life.intend(life.now.released(Mark(index, life.now.term_at(index), note), reset=False))
    log.release(index, note)
    life.settle(synced=True)


def _release_all(life: Life, log: Wal) -> None:
    index = life.now.last_index
    life.intend(life.now.released(Mark(index, life.now.last_term, b"all"), reset=False))
    log.release(index, b"all")
    life.settle(synced=True)


def _reset(life: Life, log: Wal) -> None:
    index = life.rng.randint(life.now.mark.index, life.now.last_index + 20)
    mark = Mark(index, life.now.last_term + 1, b"reset")
    life.intend(life.now.released(mark, reset=True))
    log.release(index, b"reset", term=mark.term, reset=True)
    life.settle(synced=True)


def _fill_spares(_life: Life, log: Wal) -> None:
    fill_spares(log)


def _mark_idle(life: Life, log: Wal) -> None:
    mark_idle(log)
    life.settle(synced=True)


def _flush(life: Life, log: Wal) -> None:
    log.flush()
    life.settle(synced=True)


def _read(life: Life, log: Wal) -> None:
    """Map files, so that reclaiming meets files in use."""
    if life.now.items:
        item = life.rng.choice(life.now.items)
        assert bytes(log.entry(item.index).payload) == item.payload


def _reopen(life: Life, log: Wal) -> None:
    log.close()
    life.settle(synced=True)
    life.config = life.draw_config(life.config.sync)
    life.open()


def _lose_identity(life: Life, log: Wal) -> None:
    log.close()
    life.settle(synced=True)
    life.disk.remove(LAYOUT.identity)
    life.disk.sync_folder(LAYOUT.root)
    life.open()


_STEPS: list[tuple[Callable[[Life, Wal], None], int]] = [
    (_append, 30),
    (_append_many, 10),
    (_append_async, 4),
    (_set_hard_state, 5),
    (_truncate, 4),
    (_release, 8),
    (_release_all, 3),
    (_reset, 2),
    (_fill_spares, 5),
    (_mark_idle, 3),
    (_flush, 3),
    (_read, 4),
    (_reopen, 4),
    (_lose_identity, 1),
]
