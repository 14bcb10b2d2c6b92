"""Opening damaged images, and the rule for all of them.

A damaged log opens with a picture that is allowed, or refuses with an error of corruption that
names the damaged file, and is then left as it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lakebed.errors import CorruptionError, LakebedError
from tests.proof.images import KINDS, Contents, Image
from tests.proof.scale import kept_on_failure, rng
from tests.proof.simulated import Picture, disk_with, open_on, picture_of, save


def images(
    rounds: Iterable[int], kind: str, *purpose: object
) -> Iterator[tuple[Image, random.Random]]:
    """Yield an image of a kind for each round, drawn from the round's seed."""
    for number in rounds:
        seed = rng("damage", kind, *purpose, number)
        yield KINDS[kind](seed), seed


def found_in(image: Image, damaged: Contents) -> Picture | LakebedError:
    """Open a damaged image and read everything, or give the typed error that refuses it."""
    disk = disk_with(damaged)
    try:
        return picture_of(open_on(disk, image.config))
    except LakebedError as error:
        after = disk.contents()
        for path, data in damaged.items():
            assert path.suffix != ".wal" or after[path] == data, f"{path} was changed"
        return error


def check(image: Image, damaged: Contents, path: Path, allowed: list[Picture]) -> bool:
    """Verify that damage to one file is refused by name, or harmless; return which."""
    found = found_in(image, damaged)
    if isinstance(found, LakebedError):
        assert isinstance(found, CorruptionError), f"not an error of corruption: {found!r}"
        assert found.facts["file"] == path, f"{found} does not name {path}"
        assert isinstance(found.facts["byte"], int)
        return True
    if found not in allowed:
        raise AssertionError(f"found {found.outline()}; it was {image.picture.outline()}")
    return False


@contextmanager
def kept(damaged: Contents, folder: Path, test: str, detail: str) -> Iterator[None]:
    """Keep a damaged image if the body fails."""
    try:
        yield
    except BaseException:
        save(disk_with(damaged), folder)
        with kept_on_failure(folder, test, detail):
            raise
