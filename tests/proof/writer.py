"""A process that writes to a log until it is killed, and reports what it does (see `ledger`).

    python -m tests.proof.writer FOLDER RUN SEED MODE [SYNC]

Modes: `write` writes until it is killed, `close` closes after a while, `recover` only opens and
closes. Several threads append one by one, many at once, and without waiting; some entries are
larger than a file. The first thread also releases, truncates and sets the hard state. Every thread
reads back, and keeps some views to look at them again later.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

from lakebed.errors import EntryNotFoundError, EntryReleasedError, LakebedError
from lakebed.wal import HardState, SyncMode, Wal, WalConfig
from tests.proof.ledger import BYTES_MIN, Name, name_of, note_of, payload_of

THREADS = 3
_LIVE_ENTRIES_MAX = 300
_KEPT_VIEWS = 8
_ROUNDS_BEFORE_CLOSE = 20


def tell(*lines: str) -> None:
    """Report lines in one write, which a kill cannot cut."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def random_config(rng: random.Random, sync: str) -> WalConfig:
    """Choose settings under which files are soon full."""
    return WalConfig(
        sync=SyncMode(sync),
        sync_interval_ms=rng.choice((1, 20)),
        file_bytes=rng.choice((64, 128, 256)) << 10,
        entry_bytes_max=1 << 20,
        spare_files=rng.randrange(3),
        idle_mark_ms=rng.choice((1, 10, 500)),
    )


class Threads:
    """What the writing threads share: the log, and a lock each, held while it writes."""

    def __init__(self, log: Wal, run: int, seed: str) -> None:
        self.log = log
        self.run = run
        self.seed = seed
        self.stopping = threading.Event()
        self.writing = [threading.Lock() for _ in range(THREADS)]

    def work(self, thread: int, rounds: int | None) -> None:
        """Write until stopped; anything unexpected ends the process with a report."""
        try:
            worker = Worker(self, thread)
            done = 0
            while not self.stopping.is_set() and done != rounds:
                worker.step()
                done += 1
        except BaseException as error:
            tell(f"failed {type(error).__name__} {error}".replace("\n", " "))
            os._exit(3)


class Worker:
    """One thread's work."""

    def __init__(self, threads: Threads, thread: int) -> None:
        self._threads = threads
        self._log = threads.log
        self._thread = thread
        self._rng = random.Random(f"{threads.seed}/{threads.run}/{thread}")
        self._number = 0
        self._last_ack = 0
        self._views: list[tuple[Name, memoryview]] = []
        actions: list[tuple[int, Callable[[], None]]] = [
            (60, self._append),
            (15, self._append_many),
            (15, self._append_async),
            (20, self._read_back),
        ]
        if thread == 0:
            actions += [(8, self._release), (8, self._set_state), (2, self._truncate)]
        self._weights = [weight for weight, _ in actions]
        self._actions = [action for _, action in actions]

    def step(self) -> None:
        """Do one thing."""
        (action,) = self._rng.choices(self._actions, self._weights)
        with self._threads.writing[self._thread]:
            action()
            if self._thread == 0 and self._log.last_index - self._log.mark.index > (
                _LIVE_ENTRIES_MAX
            ):
                self._release()

    def _size(self) -> int:
        kind = self._rng.random()
        if kind < 0.01:
            return self._rng.randrange(64 << 10, 300 << 10)
        return self._rng.randrange(BYTES_MIN, 8192 if kind < 0.2 else 400)

    def _intend(self, count: int) -> tuple[list[str], list[bytes]]:
        names = [Name(self._threads.run, self._thread, self._number + i) for i in range(count)]
        self._number += count
        sizes = [self._size() for _ in names]
        words = [f"entry {name.run} {name.thread} {name.number}" for name in names]
        tell(*(f"intend {word} {size}" for word, size in zip(words, sizes, strict=True)))
        return words, [payload_of(name, size) for name, size in zip(names, sizes, strict=True)]

    def _append(self) -> None:
        (words,), (payload,) = self._intend(1)
        half = len(payload) // 2
        index = self._log.append([payload[:half], payload[half:]] if half % 2 else payload)
        self._acknowledged(words, index)

    def _append_many(self) -> None:
        words, payloads = self._intend(self._rng.randrange(2, 20))
        indexes = self._log.append_many(payloads)
        tell(*(f"ack {word} {index}" for word, index in zip(words, indexes, strict=True)))
        self._last_ack = indexes[-1]

    def _append_async(self) -> None:
        words, payloads = self._intend(self._rng.randrange(1, 6))
        futures = [self._log.append_async(payload) for payload in payloads]
        for word, future in zip(words, futures, strict=True):
            self._acknowledged(word, future.result())

    def _acknowledged(self, words: str, index: int) -> None:
        tell(f"ack {words} {index}")
        self._last_ack = index

    def _read_back(self) -> None:
        """Look at kept views again, and at some entries again."""
        for name, view in self._views:
            assert name_of(view)[0] == name, f"a view of {name} changed"
        first = self._log.first_index
        if self._last_ack < first:
            return
        try:
            entries = self._log.read(self._rng.randint(first, self._last_ack), max_entries=5)
        except (EntryReleasedError, EntryNotFoundError):
            return  # the first thread has released or truncated it meanwhile
        seen = [(name_of(entry.payload)[0], entry.payload) for entry in entries]
        self._views = (self._views + self._rng.sample(seen, min(2, len(seen))))[-_KEPT_VIEWS:]

    def _release(self) -> None:
        first, last = self._log.first_index, self._last_ack
        if last < first:
            return
        index = self._rng.randint(first, last)
        tell(f"intend mark {index}")
        self._log.release(index, note_of(index))
        tell("ack mark")

    def _set_state(self) -> None:
        before = self._log.hard_state
        state = HardState(before.term + self._rng.randrange(2), self._rng.randrange(1, 4))
        tell(f"intend state {state.term} {state.vote}")
        self._log.set_hard_state(state)
        tell("ack state")

    def _truncate(self) -> None:
        """Cut off the last few entries while nobody writes."""
        with ExitStack() as stack:
            for other in self._threads.writing[1:]:
                stack.enter_context(other)
            low = max(self._log.mark.index, self._log.last_index - 10)
            last = self._rng.randint(low, self._log.last_index)
            tell(f"intend cut {last}")
            self._log.truncate(last)
            tell("ack cut")
            self._last_ack = min(self._last_ack, last)


def _write(log: Wal, run: int, seed: str, rounds: int | None) -> None:
    threads = Threads(log, run, seed)
    workers = [
        threading.Thread(target=threads.work, args=(number, rounds)) for number in range(THREADS)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main(folder: str, run: str, seed: str, mode: str, sync: str = "always") -> None:
    """Live one life of the writer."""
    rng = random.Random(f"{seed}/{run}")
    tell("opening log")
    try:
        log = Wal.open(folder, random_config(rng, sync))
        tell("opened log")
        if mode != "recover":
            rounds = rng.randrange(_ROUNDS_BEFORE_CLOSE) if mode == "close" else None
            _write(log, int(run), seed, rounds)
        tell("closing log")
        log.close()
        tell("closed log")
    except LakebedError as error:
        tell(f"failed {type(error).__name__} {error}".replace("\n", " "))
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
