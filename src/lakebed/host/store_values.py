"""What an object store's users and its two implementations share."""

from __future__ import annotations

from typing import Final, NamedTuple

CHUNK_BYTES: Final = 8 << 20
"""How much of an object is in memory at a time while it is downloaded."""


class Stored(NamedTuple):
    """An object as a listing shows it."""

    name: str
    size_bytes: int
    modified_us: int
    """When it was written, as the store says; S3 says it in seconds."""


class StoreStats(NamedTuple):
    """What a store was asked for since it was opened."""

    uploads: int = 0
    uploaded_bytes: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    removals: int = 0
    retries: int = 0
    """Attempts after the first; those within the S3 library are not counted."""
    failures: int = 0
    """Calls that raised an error of the store."""
