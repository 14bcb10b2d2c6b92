"""Fuzzed decoders: whatever the bytes, a value or a typed error, in bounded memory and time.

Bytes are arbitrary, or valid ones with a few changes, or valid ones with one field changed and
every checksum made right again, which is what reaches the code behind the checksums.
"""

from __future__ import annotations

import json
import random
import time
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from lakebed import limits
from lakebed.config import SyncMode
from lakebed.errors import LakebedError
from lakebed.host import Mode, SimDisk, failpoints
from lakebed.types import HardState
from lakebed.wal import WalConfig, folder
from lakebed.wal.frame import (
    FILE_HEADER,
    FRAME_HEADER,
    HEADER_BYTES,
    FileHeader,
    FrameHeader,
    FrameKind,
    decode_file_header,
    decode_gap,
    decode_hard_state,
    decode_header,
    encode_gap,
    encode_hard_state,
)
from lakebed.wal.scan import FileScan
from tests.proof.forge import forged, forged_file_header, rechained
from tests.proof.images import Image, plain, recycled
from tests.proof.scale import Rounds, repeat_with, rng
from tests.proof.simulated import LAYOUT, disk_with, open_on, picture_of, simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_fuzz.py"
_INPUTS_PER_ROUND = 500
MEMORY_BYTES_MAX = 8 * limits.MIB
"""What decoding may take: a scan's buffers, not what a length field claims."""

WIDTHS = dict(zip(FrameHeader._fields, (4, 4, 4, 4, 1, 1, 2, 4, 8, 8, 8, 8, 8), strict=True))
"""The bytes of each field of a frame header."""

SALT = 12345
LOG_ID = uuid.UUID(int=7)


class Fuzz:
    """Draws inputs and runs decoders; images to change are made once."""

    def __init__(self, seed: random.Random) -> None:
        self.seed = seed
        self.images: list[Image] = [plain(seed), recycled(seed)]

    def number(self, width: int, near: int = 0) -> int:
        """Draw a number of so many bytes: often an extreme, or close to the one that was there."""
        top: int = 256**width - 1
        extremes = [0, 1, top, top // 2, top // 2 + 1, near + 1, near - 1]
        return self.seed.choice([*extremes, self.seed.randint(0, top)]) & top

    def scrambled(self, data: bytes) -> bytes:
        """Change, insert, remove or repeat a few bytes."""
        changed = bytearray(data)
        for _ in range(self.seed.randint(1, 4)):
            at = self.seed.randint(0, len(changed))
            piece = self.seed.randbytes(self.seed.choice([1, 1, 4, 64]))
            stop = at + self.seed.choice([0, len(piece), len(piece), 1, 200])
            changed[at:stop] = self.seed.choice([piece, b"", bytes(len(piece)), changed[:64]])
        return bytes(changed)

    def fields(self, header: FrameHeader) -> dict[str, int]:
        """Draw other values for one to three fields of a frame, or make it a release or a reset."""
        if self.seed.random() < 0.1:
            flags, index = self.seed.randint(0, 1), self.number(8, header.index)
            return {"kind": FrameKind.RELEASE, "flags": flags, "index": index}
        names = self.seed.sample(FrameHeader._fields, self.seed.choice([1, 1, 2, 3]))
        drawn = {name: self.number(WIDTHS[name], getattr(header, name)) for name in names}
        if "kind" in drawn and self.seed.random() < 0.8:
            drawn["kind"] = self.seed.choice(list(FrameKind))
        return drawn

    def other_payload(self, data: bytes, position: int, header: FrameHeader, salt: int) -> bytes:
        """Return a frame another payload, such as other kinds have, with its checksum right."""
        payload = self.seed.choice([b"", bytes(8), encode_gap(self.number(8)), bytes(17)])
        payload = payload[: header.length]
        start = position + HEADER_BYTES
        data = data[:start] + payload + data[start + len(payload) :]
        changes = {"length": len(payload), "payload_checksum": crc32c(payload)}
        return forged(data, position, salt, kind=self.seed.choice(list(FrameKind)), **changes)

    def scrambled_file(self, image: Image, path: Path) -> bytes:
        """Change a few bytes of a file, checksums and all."""
        return self.scrambled(image.contents[path])

    def forged_file(self, image: Image, path: Path) -> bytes:
        """Change one field of a file, with all checksums right; half the time the chain too."""
        data = image.contents[path]
        frames = image.frames(path)
        if self.seed.random() < 0.2:
            field = self.seed.choice(["version", "number", "units", "first_index", "parent"])
            width = 4 if field in ("version", "number", "units") else 8
            data = forged_file_header(data, **{field: self.number(width)})
        else:
            position, header = self.seed.choice(frames)
            data = forged(data, position, image.salt, **self.fields(header))
        if self.seed.random() < 0.3:
            data = self.other_payload(data, *self.seed.choice(frames), image.salt)
        return rechained(data, image.salt) if self.seed.random() < 0.5 else data


def frame_header(fuzz: Fuzz) -> None:
    """Decode a frame header."""
    header = FrameHeader._make(fuzz.number(width) for width in WIDTHS.values())
    valid = forged(FRAME_HEADER.pack(*header), 0, SALT)
    data = fuzz.seed.choice([fuzz.seed.randbytes(fuzz.seed.randint(0, 130)), fuzz.scrambled(valid)])
    decoded = decode_header(data, SALT)
    assert decoded is None or FRAME_HEADER.pack(*decoded) == data[:HEADER_BYTES]


def file_header(fuzz: Fuzz) -> None:
    """Decode a file header."""
    number, first_index, parent = fuzz.number(4), fuzz.number(8), fuzz.number(8)
    header = FileHeader(number, fuzz.number(4) * 4096, LOG_ID, first_index, parent, 0)
    newer = forged_file_header(header.encode(), version=fuzz.number(4))
    arbitrary = fuzz.seed.randbytes(fuzz.seed.randint(0, 130))
    scrambled = fuzz.scrambled(header.encode())
    data = fuzz.seed.choice([arbitrary, scrambled, newer, header.encode()])
    decoded = decode_file_header(data, "name")
    assert decoded.encode() == data[:HEADER_BYTES]


def scan(fuzz: Fuzz) -> None:
    """Scan a file: frames follow each other inside it, and the scan stops inside it."""
    image = fuzz.seed.choice(fuzz.images)
    path = fuzz.seed.choice(image.files)
    data = fuzz.seed.choice(
        [
            fuzz.seed.randbytes(fuzz.seed.randint(0, 5000)),
            fuzz.scrambled_file(image, path),
            fuzz.forged_file(image, path),
        ]
    )
    disk = SimDisk()
    disk.put(path, data)
    parent = FILE_HEADER.unpack_from(image.contents[path])[7]
    scanning = FileScan(
        disk.open(path, Mode.READ), file_number=int(path.stem), salt=image.salt, parent=parent
    )
    end = HEADER_BYTES
    for position, fields in scanning.frames():
        assert position == end
        header = FrameHeader._make(fields)
        assert decode_header(data[position : position + HEADER_BYTES], image.salt) == header
        assert position + HEADER_BYTES + header.length <= len(data)
        end = position + header.span
    assert scanning.stop.position == end


def whole_log(fuzz: Fuzz) -> None:
    """Open a log with one forged or scrambled file; if it opens, read it and write to it."""
    image = fuzz.seed.choice(fuzz.images)
    path = fuzz.seed.choice(image.files)
    data = fuzz.seed.choice([fuzz.forged_file, fuzz.forged_file, fuzz.scrambled_file])(image, path)
    disk = disk_with(image.with_file(path, data))
    log = open_on(disk, image.config)
    log.append(b"one more")
    last = log.last_index
    log.close()
    log = open_on(disk, image.config)
    assert bytes(log.entry(last).payload) == b"one more"
    picture_of(log)


def folder_names(fuzz: Fuzz) -> None:
    """Open a log with files of strange names beside its own."""
    image = fuzz.seed.choice(fuzz.images)
    digits = fuzz.seed.choice(["7", "²", "٣", "-1", " 8", "x", "1e3", "0" * 19 + "9", "9" * 20])
    suffix = fuzz.seed.choice([".wal", ".spare", ".tmp", ".spare.tmp", ".torn", "", ".wal.wal"])
    parent = fuzz.seed.choice([LAYOUT.wal, LAYOUT.root, LAYOUT.torn])
    content = fuzz.seed.choice([b"", bytes(4096), image.contents[image.files[0]]])
    name = digits * fuzz.seed.choice([1, 2, 20]) + suffix
    disk, config = disk_with(image.with_file(parent / name, content)), image.config
    log = open_on(disk, replace(config, spare_files=4))
    assert picture_of(log) == image.picture
    for _ in range(2):
        log.append(bytes(3000))  # takes a new file into use


def identity(fuzz: Fuzz) -> None:
    """Decode an identity file."""
    record: dict[str, object] = {"format": _json_value(fuzz), "log": _json_value(fuzz)}
    checksum = folder._identity_checksum(record)
    valid = json.dumps({**record, "crc32c": checksum}).encode()
    nested = b"[" * fuzz.seed.randint(1, 4096)
    data = fuzz.seed.choice([fuzz.seed.randbytes(90), fuzz.scrambled(valid), valid, nested])
    found = folder._parse_identity(data, LAYOUT.identity)
    assert found is None or str(found[0]) in data.decode()


def lock_owner(fuzz: Fuzz) -> None:
    """Decode what an owner wrote into its lock."""
    valid = json.dumps({"pid": _json_value(fuzz), "host": _json_value(fuzz)})
    scrambled = fuzz.scrambled(valid.encode()).decode(errors="replace")
    nested = "[" * fuzz.seed.randint(1, 4096)
    facts = folder._owner_facts(fuzz.seed.choice([valid, scrambled, nested]))
    assert set(facts) in ({"pid", "host"}, {"owner"})


def _json_value(fuzz: Fuzz) -> object:
    choices: list[object] = [
        1,
        0,
        -1,
        2**70,
        1.5,
        float("inf"),
        float("nan"),
        None,
        True,
        "",
        "x",
        [],
        {},
        [[]],
    ]
    return fuzz.seed.choice([*choices, str(LOG_ID), str(LOG_ID), {"a": [None]}, fuzz.number(8)])


def hard_state(fuzz: Fuzz) -> None:
    """Decode a hard state, and encode it again."""
    valid = encode_hard_state(HardState(fuzz.number(8), fuzz.number(8)))
    data = fuzz.seed.choice([valid, fuzz.scrambled(valid), fuzz.seed.randbytes(17)])
    state = decode_hard_state(data)
    assert decode_hard_state(encode_hard_state(state)) == state


def gap(fuzz: Fuzz) -> None:
    """Decode a gap, and encode it again."""
    valid = encode_gap(fuzz.number(8))
    data = fuzz.seed.choice([valid, fuzz.scrambled(valid)])
    assert encode_gap(decode_gap(data)) == data


def failpoint(fuzz: Fuzz) -> None:
    """Arm failpoints from a text; nothing is hit meanwhile."""
    pieces = [*failpoints.names()[:3], "=", "kill", "error", "delay:", "@", ";", "5", "-", " ", "é"]
    valid = f"{failpoints.names()[0]}=delay:{fuzz.number(4)}@{fuzz.number(4)}"
    drawn = "".join(fuzz.seed.choices(pieces, k=fuzz.seed.randint(1, 8)))
    scrambled = fuzz.scrambled(valid.encode()).decode(errors="replace")
    try:
        failpoints.arm(fuzz.seed.choice([valid, drawn, scrambled]))
    finally:
        failpoints.disarm()


def settings(fuzz: Fuzz) -> None:
    """Build a configuration; what is accepted is within its bounds."""
    values: list[object] = [
        None,
        "4096",
        4096.0,
        -1,
        0,
        1,
        4096,
        8192,
        2**40,
        True,
        [],
        SyncMode.OS,
    ]
    drawn = {name: fuzz.seed.choice(values) for name in _some(fuzz, WalConfig.__annotations__)}
    config = WalConfig(**drawn)  # type: ignore[arg-type]  # wrong types are what is tried
    assert config.file_bytes % 4096 == 0
    assert limits.FILE_BYTES_MIN <= config.file_bytes <= limits.FILE_BYTES_MAX


def _some(fuzz: Fuzz, names: dict[str, object]) -> list[str]:
    return fuzz.seed.sample(list(names), fuzz.seed.randint(1, 2))


def arguments(fuzz: Fuzz) -> None:
    """Call a log with extreme numbers; whatever it answers, it goes on working."""
    log = open_on(SimDisk(), WalConfig(file_bytes=4096, spare_files=0))
    log.append_many([b"one", b"two"])
    extreme = fuzz.seed.choice([-1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**80, fuzz.number(8)])
    other = fuzz.seed.choice([None, 0, 3, -1, 2**64 - 1, 2**64])
    calls: list[Callable[[], object]] = [
        lambda: log.truncate(extreme),
        lambda: log.release(extreme, term=other, reset=True),
        lambda: log.release(2, term=extreme),
        lambda: log.release(other or 0, reset=True),
        lambda: log.append(b"three", term=extreme),
        lambda: log.set_hard_state(HardState(extreme, other)),
        lambda: log.set_hard_state(HardState(1, extreme)),
        lambda: log.entry(extreme),
        lambda: log.read(extreme, max_entries=extreme, max_bytes=extreme),
    ]
    try:
        fuzz.seed.choice(calls)()
    finally:
        before = log.last_index
        assert log.append(b"more") == before + 1
        assert bytes(log.entry(before + 1).payload) == b"more"


TARGETS = [
    arguments,
    frame_header,
    file_header,
    scan,
    whole_log,
    folder_names,
    identity,
    lock_owner,
    hard_state,
    gap,
    failpoint,
    settings,
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
@simulation("fuzz")
def test_a_decoder_gives_a_value_or_a_typed_error(target: Callable[[Fuzz], None]) -> None:
    """No input makes a decoder raise anything but a `LakebedError`, hang, or take much memory."""
    test = f"{FILE}::test_a_decoder_gives_a_value_or_a_typed_error[{target.__name__}]"
    values = 0
    for number in (rounds := Rounds(test, short=5_000, long=5_000_000, seconds=1.0)):
        fuzz = Fuzz(rng("fuzz", target.__name__, number))
        rounds.count(_INPUTS_PER_ROUND)
        for trial in range(_INPUTS_PER_ROUND):
            try:
                values += _bounded(target, fuzz, measure_memory=trial % 100 == 0)
            except BaseException as error:
                error.add_note(f"input {trial}; repeat with: {repeat_with(test)}")
                raise
    assert values, "no input was valid"


def _bounded(target: Callable[[Fuzz], None], fuzz: Fuzz, *, measure_memory: bool) -> bool:
    """Run one trial within bounds; return whether it gave a value."""
    started = time.process_time()
    if measure_memory:
        tracemalloc.start()
    try:
        target(fuzz)
        return True
    except LakebedError:
        return False
    finally:
        assert time.process_time() - started < 5, "it took too long"
        if measure_memory:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < MEMORY_BYTES_MAX, f"it took {peak} bytes"


@pytest.mark.parametrize("length", [2**20, 2**30, 2**32 - 1])
def test_a_length_field_alone_allocates_nothing(length: int) -> None:
    """A frame that claims gigabytes in a small file is seen to be too long before any is read."""
    image = plain(rng("fuzz", "length"))
    path = image.files[0]
    position, _ = image.frames(path)[0]
    disk = disk_with(
        image.with_file(path, forged(image.contents[path], position, image.salt, length=length))
    )
    tracemalloc.start()
    try:
        with pytest.raises(LakebedError):
            open_on(disk, image.config)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()
