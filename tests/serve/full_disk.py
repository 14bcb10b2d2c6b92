"""A served log on a file system that gets full; run in a private mount namespace.

python -m tests.serve.full_disk
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.proof.mounts import mounted
from tests.serve.test_kills import check_full_disk


def main() -> None:
    """Check a file system in memory."""
    with tempfile.TemporaryDirectory() as folder:
        on = Path(folder) / "tmpfs"
        with mounted(Path("none"), on, "-t", "tmpfs", "-o", "size=4m") as disk:
            check_full_disk(disk)


if __name__ == "__main__":
    main()
