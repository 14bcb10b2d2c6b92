"""Cut the power of a writer on ext4, many times; run in a private mount namespace.

    python -m tests.proof.ext4_power_cuts

A writer works on an image that is mounted through a loop device. It is stopped at a random moment,
and the image is copied: the copy is what a disk would hold if the power failed then, because what
the kernel had not yet given to the device is not in it. The copy is mounted, which replays ext4's
journal, and the log in it is opened and compared with what the writer had been told.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path

from lakebed.wal import Wal, WalConfig
from tests.proof.child import Child
from tests.proof.ledger import Ledger
from tests.proof.mounts import make_image, mounted, quick_folder, run
from tests.proof.scale import SEED, Rounds, kept_on_failure, rng

_TEST = (
    "tests/proof/test_power_cut_ext4.py"
    "::test_a_power_cut_on_ext4_loses_nothing_that_was_acknowledged"
)
_CONFIG = WalConfig(file_bytes=256 << 10)
_IMAGE_BYTES = 64 << 20
_CUTS_PER_WRITER = 25
_STILL_SECONDS_MAX = 600.0


def _written(device: int) -> tuple[int, int]:
    """Return how many writes a device has finished and how many are under way."""
    path = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    words = path.read_text().split()
    return int(words[4]), int(words[8])


def _copy_still(image: Path, device: int, copy: Path) -> None:
    """Copy an image at one moment: if the kernel wrote to it meanwhile, copy it again."""
    deadline = time.monotonic() + _STILL_SECONDS_MAX
    while True:
        before = _written(device)
        run("cp", "--sparse=always", "--reflink=auto", image, copy)
        if before[1] == 0 and _written(device) == before:
            return
        assert time.monotonic() < deadline, "the kernel never stops writing to the image"


def _verify(copy: Path, on: Path, ledger: Ledger) -> None:
    """Mount a copy, recover the log, compare it with the ledger, and see that it goes on."""
    with mounted(copy, on):
        with Wal.open(on / "log", _CONFIG) as log:
            ledger.check(log)
            log.release(log.append(b"the log goes on"))
        with Wal.open(on / "log", _CONFIG) as log:
            assert log.first_index == log.last_index + 1


def _life(work: Path, life: int, cuts: int, chance: random.Random) -> int:
    """Let one writer be cut many times; return how many acknowledgements it had by then."""
    image = make_image(work / f"{life}.image", _IMAGE_BYTES)
    taken = work / "taken"
    taken.mkdir(exist_ok=True)
    copy = taken / "image"
    ledger = Ledger()
    with (
        mounted(image, work / "disk") as disk,
        Child(
            *("tests.proof.writer", disk / "log", life, SEED, "write"),
            take=ledger.take,
            errors=work / "stderr",
        ) as child,
    ):
        device = disk.stat().st_dev
        for cut in range(cuts):
            lines = child.lines + chance.randint(1, 20 if cut == 0 else 400)
            child.listen(lambda lines=lines: child.lines >= lines)  # type: ignore[misc]
            child.listen_for(chance.uniform(0, 0.003))
            child.stop()
            _copy_still(image, device, copy)
            child.resume()
            with kept_on_failure(taken, _TEST, f"writer {life}, cut {cut}"):
                _verify(copy, work / "after", ledger)
        assert not child.errors()
    image.unlink()
    return ledger.acks


def main() -> None:
    """Cut the power of one writer after another."""
    with tempfile.TemporaryDirectory(dir=quick_folder()) as work:
        acks, made = 0, 0
        for life in (rounds := Rounds(_TEST, short=10, long=5_000, seconds=10)):
            cuts = min(rounds.wanted, _CUTS_PER_WRITER)
            rounds.count(cuts)
            acks += _life(Path(work), life, cuts, rng("ext4", life))
            made += cuts
    assert acks > 10 * made, f"the writers hardly wrote: {acks} acknowledgements"


if __name__ == "__main__":
    main()
