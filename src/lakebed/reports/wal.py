"""What the WAL counts about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass
class Counters:
    """Counters since the log was opened.

    Each is changed by one thread at a time and read at any time.
    """

    appends: int = 0
    """Entries acknowledged."""
    bytes: int = 0
    """Bytes of frames written, headers and padding included."""
    groups: int = 0
    """Group commits."""
    syncs: int = 0
    """Calls of fdatasync for entries."""
    rotations: int = 0
    """Files taken into use after the first."""
    reclaimed_files: int = 0
    """Released files removed or recycled."""
    recycled_files: int = 0
    """Of these, recycled."""
    reclaim_failures: int = 0
    """Attempts to free a file that failed and are repeated at the next release."""
    spares_missed: int = 0
    """Times that no ready file was there when one was needed."""
    errors: int = 0
    """Failures of the disk, the fatal one included."""
    entries_per_sync: list[int] = field(default_factory=lambda: [0] * 14)
    """How many group commits had 1, 2, 3-4, 5-8 … entries: slot n counts up to 2**n."""

    def group(self, entries: int, size_bytes: int) -> None:
        """Count a group commit."""
        self.groups += 1
        self.appends += entries
        self.bytes += size_bytes
        if entries:
            slot = (entries - 1).bit_length()
            self.entries_per_sync[min(slot, len(self.entries_per_sync) - 1)] += 1


@dataclass(frozen=True)
class RecoveryStats:
    """What opening the log found."""

    seconds: float
    files: int
    frames: int
    bytes: int
    torn_bytes: int
    torn_kept_in: str | None


@dataclass(frozen=True)
class WalStats:
    """A moment's picture of the log."""

    log_id: str
    sync: str
    first_index: int
    last_index: int
    durable_index: int
    term: int
    files: int
    size_bytes: int
    poisoned: str | None
    counters: Counters
    recovery: RecoveryStats

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return asdict(self)
