"""A scripted life of a log that comes by every place where a disk can fail or a process die.

    python -m tests.proof.script FOLDER

Create, append, rotate, take a spare, release, recycle, truncate, set the hard state, close, tear
the tail, recover, go on, close, reopen. It is the same life each time. Whatever is refused or fails
is reported (see `ledger`) and the life goes on, as a careful caller would: a log that cannot be
used is closed and opened again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lakebed.errors import LakebedError, PoisonedError, RejectedError, UnknownOutcomeError
from lakebed.host import Disk, OsDisk
from lakebed.wal import HardState, SyncMode, Wal, WalConfig
from lakebed.wal.folder import Layout
from lakebed.wal.recovery import Verdict, survey
from tests.proof.ledger import Ledger, Name, note_of, payload_of

CONFIG = WalConfig(
    file_bytes=8192, entry_bytes_max=65_536, spare_files=2, idle_mark_ms=1_000, sync=SyncMode.ALWAYS
)
_OPENINGS_MAX = 2
_SPARE_SECONDS_MAX = 600.0


class LifeOverError(Exception):
    """The log could not be opened however often it was tried."""


class Script:
    """One life, in one thread. `report` gets each line."""

    def __init__(
        self,
        folder: Path,
        report: Callable[[str], None],
        *,
        disk: Disk | None = None,
        threaded: bool = True,
    ) -> None:
        self.ledger = Ledger()
        self.run = 0
        self._folder = folder
        self._report = report
        self._disk = disk
        self._threaded = threaded
        self._open: Wal | None = None
        self._number = 0

    @property
    def log(self) -> Wal:
        """Return the open log."""
        assert self._open is not None
        return self._open

    def tell(self, line: str) -> None:
        """Report a line, and remember it to check the log against."""
        self.ledger.take(line)
        self._report(line)

    def live(self, rounds: int = 1) -> None:
        """Live the life, `rounds` times on the same folder."""
        for _ in range(rounds):
            self._open_log()
            self._write_some()
            self._rotate_and_release()
            self._truncate_and_go_on()
            self._close_log()
            self._tear_the_tail()
            self._open_log()
            self._write_some()
            self._rotate_and_release()
            self._close_log()
        self._open_log()
        self._close_log()

    # What happens in it

    def _write_some(self) -> None:
        self.state(HardState(self.log.hard_state.term + 1, 2))
        for size in (16, 100, 500, 1500):
            self.append(size)
        self.append_many([64, 300, 20])
        self.append_async(200)
        self._fill_file()
        if self.append(2_500) == "ack":  # a quarter of the new file: spares are made
            self._await_spares()
        self.look()

    def _rotate_and_release(self) -> None:
        self._fill_file()
        self.append(10_000)  # larger than a file
        self._fill_file()
        self.look()
        # Right after a rotation the pool lacks the file just taken, so one is recycled.
        self.release(max(self.log.mark.index, self.log.last_index - 1))
        self._fill_file()
        self.look()
        self.release(self.log.last_index)
        self.append(700)

    def _truncate_and_go_on(self) -> None:
        self.append_many([40] * 5)
        self.truncate(max(self.log.mark.index, self.log.last_index - 2))
        self.append(50)
        self.look()

    def _fill_file(self) -> None:
        """Append until another file is in use, or nothing is accepted."""
        before = self.log.stats().counters.rotations
        for _ in range(40):
            if self.append(1_200) != "ack" or self.log.stats().counters.rotations > before:
                return

    # One call each

    def append(self, size: int) -> str:
        """Append an entry; say what became of it."""
        words, payload = self._intend(size)
        return self._entries([words], lambda: [self.log.append(payload)])

    def append_many(self, sizes: list[int]) -> str:
        """Append several at once."""
        intended = [self._intend(size) for size in sizes]
        words = [word for word, _ in intended]
        return self._entries(words, lambda: [*self.log.append_many([each for _, each in intended])])

    def append_async(self, size: int) -> str:
        """Append without waiting, then wait."""
        words, payload = self._intend(size)
        return self._entries([words], lambda: [self.log.append_async(payload).result()])

    def state(self, state: HardState) -> str:
        """Set the hard state."""
        return self._mark("state", f"{state.term} {state.vote}", self.log.set_hard_state, state)

    def release(self, index: int) -> str:
        """Release up to an index."""
        return self._mark("mark", str(index), self.log.release, index, note_of(index))

    def truncate(self, last: int) -> str:
        """Void what is above an index."""
        return self._mark("cut", str(last), self.log.truncate, last)

    def look(self) -> None:
        """Compare the open log with what is known."""
        self.ledger.check(self.log)

    def _intend(self, size: int) -> tuple[str, bytes]:
        self._number += 1
        name = Name(self.run, 0, self._number)
        words = f"entry {name.run} {name.thread} {name.number}"
        self.tell(f"intend {words} {size}")
        return words, payload_of(name, size)

    def _entries(self, words: list[str], call: Callable[[], list[int]]) -> str:
        try:
            indexes = call()
        except UnknownOutcomeError as error:
            return self._told("unknown", words, error.code)
        except LakebedError as error:
            return self._told("refused", words, error.code)
        for word, index in zip(words, indexes, strict=True):
            self.tell(f"ack {word} {index}")
        return "ack"

    def _mark(self, what: str, value: str, call: Callable[..., None], *arguments: object) -> str:
        self.tell(f"intend {what} {value}")
        try:
            call(*arguments)
        except (RejectedError, PoisonedError) as error:
            return self._told("refused", [what], error.code)
        except LakebedError as error:
            return self._told("unknown", [what], error.code)
        return self._told("ack", [what], "")

    def _told(self, outcome: str, words: list[str], code: str) -> str:
        for word in words:
            self.tell(f"{outcome} {word} {code}".rstrip())
        return outcome

    # Opening and closing

    @staticmethod
    def open(folder: Path, *, disk: Disk | None = None, threaded: bool = True) -> Wal:
        """Open the log that the script is about."""
        return Wal.open(folder, CONFIG, disk=disk, threaded=threaded)

    def _open_log(self) -> None:
        for _ in range(_OPENINGS_MAX):
            self.tell("opening log")
            try:
                self._open = self.open(self._folder, disk=self._disk, threaded=self._threaded)
                lines = self.ledger.resolve(self._open)
            except LakebedError as error:
                self._report(f"closed log {error.code}")
                self._close_log()
                continue
            for line in lines:
                self.tell(line)
            return
        raise LifeOverError

    def _close_log(self) -> None:
        log, self._open = self._open, None
        if log is None:
            return
        self.tell("closing log")
        try:
            log.close()
        except LakebedError as error:
            self.tell(f"closed log {error.code}")
        else:
            self.tell("closed log")

    def _tear_the_tail(self) -> None:
        """Leave at the end of the log what a power cut in the middle of a write may leave."""
        found = survey(OsDisk(), Layout(self._folder))
        last = found.files[-1]
        if found.verdict is Verdict.OPEN and last.used_bytes + 256 <= last.size_bytes:
            with last.path.open("r+b") as file:
                file.seek(last.used_bytes)
                file.write(b"\xab" * 200)

    def _await_spares(self) -> None:
        """Wait until the background thread has filled the pool or failed to."""
        deadline = time.monotonic() + _SPARE_SECONDS_MAX
        while self._threaded:
            spares = list(Layout(self._folder).wal.glob("*.spare"))
            if len(spares) >= CONFIG.spare_files or self.log.stats().counters.errors:
                return
            assert time.monotonic() < deadline, "no spare file was made"
            time.sleep(0.001)


def main(folder: str) -> None:
    """Live a life in a process of its own, reporting to standard output."""

    def report(line: str) -> None:
        os.write(1, f"{line}\n".encode())

    Script(Path(folder), report).live()


if __name__ == "__main__":
    main(*sys.argv[1:])
