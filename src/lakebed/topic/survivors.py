"""Which offsets of a range survive a compaction, as one bit each.

A set of survivors travels compressed with zstd: `ceil((end - base) / 8)` bytes, in which bit
`i % 8` (from the lowest) of byte `i // 8` stands for the offset `base + i`. Bits behind the last
offset are zero. How large it is unpacked follows from the range, so that nothing larger is ever
unpacked.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed import limits
from lakebed.errors import InvalidArgumentError

Offsets = npt.NDArray[np.int64]

_COUNT_BYTES: Final = 1 * limits.MIB
"""Bits are counted for so many bytes at a time, which take eight times as much meanwhile."""


class Survivors:
    """The offsets from `base` up to, not including, `end` that survive."""

    def __init__(self, bits: npt.NDArray[np.uint8], base: int, end: int) -> None:
        self._bits = bits
        self.base: Final = base
        self.end: Final = end

    @classmethod
    def unpack(cls, packed: bytes, *, base: int, end: int) -> Survivors:
        """Take survivors of a range as they travel; what does not fit it exactly is refused."""
        size = _size(base, end)
        bits = np.frombuffer(_decompress(packed, size), dtype=np.uint8)
        spare = size * 8 - (end - base)
        if spare and int(bits[-1]) >> (8 - spare):
            raise InvalidArgumentError(
                "survivors have bits behind the last offset", base=base, end=end
            )
        return cls(bits, base, end)

    def count(self) -> int:
        """Return how many survive."""
        starts = range(0, len(self._bits), _COUNT_BYTES)
        return sum(
            int(np.unpackbits(self._bits[start : start + _COUNT_BYTES]).sum(dtype=np.int64))
            for start in starts
        )

    def contain(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return of each offset, all of them within the range, whether it survives."""
        places = offsets - self.base
        survives: npt.NDArray[np.bool_] = (self._bits[places >> 3] >> (places & 7) & 1).astype(bool)
        return survives

    def between(self, start: int, until: int) -> int:
        """Return how many survive of a part of the range."""
        first, last = start - self.base, until - self.base
        if first >= last:
            return 0
        whole = Survivors(self._bits[first >> 3 : (last + 7) >> 3], 0, 0).count()
        before = int(self._bits[first >> 3]) & ((1 << (first & 7)) - 1)
        behind = int(self._bits[(last - 1) >> 3]) >> (((last - 1) & 7) + 1)
        return whole - before.bit_count() - behind.bit_count()


def pack_survivors(offsets: Offsets, *, base: int, end: int) -> bytes:
    """Return offsets from `base` up to, not including, `end` as survivors travel, in any order."""
    if len(offsets) and not base <= int(offsets.min()) <= int(offsets.max()) < end:
        raise InvalidArgumentError("survivors are outside of the range", base=base, end=end)
    flags = np.zeros(end - base, dtype=bool)
    flags[offsets - base] = True
    packed: bytes = pa.compress(
        np.packbits(flags, bitorder="little").tobytes(), codec="zstd", asbytes=True
    )
    return packed


def check_survivors(packed: bytes) -> bytes:
    """Refuse survivors that are not bytes."""
    if not isinstance(packed, bytes):
        raise InvalidArgumentError("survivors must be bytes", got=type(packed).__name__)
    return packed


def _size(base: int, end: int) -> int:
    return (end - base + 7) // 8


def _decompress(packed: bytes, size: int) -> Any:
    """Return exactly `size` bytes; of what would be more, one more is unpacked and no further."""
    check_survivors(packed)
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            bits = stream.read(size + 1)
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgumentError(
            "survivors are not compressed with zstd", bytes=len(packed), reason=str(error)[:200]
        ) from error
    if len(bits) != size:
        raise InvalidArgumentError(
            "survivors are one bit for each offset from base to end",
            bytes_expected=size,
            bytes_found=f"more than {size}" if len(bits) > size else len(bits),
        )
    return bits
