"""What an entry names is in the store before the entry: segments, and data of open transactions.

    STORE/{log}/segments/…                             as the lake places them
    STORE/{log}/staged/{file:020d}-{position}-{checksum:08x}   one body of an open transaction

Without this, a machine that takes over would find entries that name files of a machine that is
gone. Names end in a checksum, so the copies of two owners never replace each other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from lakebed.errors import CorruptionError, LakebedError, MissingFileError
from lakebed.host import failpoints
from lakebed.host.store import ObjectStore
from lakebed.lake.folder import LakeFolder
from lakebed.lake.locations import Locations
from lakebed.lake.open_segment import map_segment
from lakebed.state.image import State, decode_state, encode_state
from lakebed.state.values import BOTH, LOCAL, Segment

_log = logging.getLogger("lakebed.engine")

_SEGMENT = failpoints.define("ship.segment_uploaded")
_STAGED = failpoints.define("ship.staged_uploaded")


class Uploads:
    """Copies files into the store, before an entry names them. Any thread."""

    def __init__(
        self, *, store: ObjectStore, locations: Locations, lake: LakeFolder, log_id: str
    ) -> None:
        self._store = store
        self._locations = locations
        self._lake = lake
        self._prefix = f"{log_id}/staged"
        self._staged: dict[int, list[str]] = {}

    def segment(self, topic: int, partition: int, segment: Segment) -> Segment:
        """Upload a segment of the local disk; return it as one that is in both places.

        One that was moved to the store after a snapshot is there already.
        """
        path = self._lake.path(topic, partition, segment.id)
        name = self._locations.object_name(topic, partition, segment)
        try:
            mapping = map_segment(self._lake.disk, path, segment)
        except MissingFileError:
            if self._store.size(name) != segment.file_bytes:
                raise
            return segment._replace(place=BOTH)
        self._store.put(name, mapping.view(0, segment.file_bytes))
        _SEGMENT.hit()
        return segment._replace(place=BOTH)

    def segments(
        self, written: Iterable[tuple[int, int, Segment]]
    ) -> list[tuple[int, int, Segment]]:
        """Upload segments; return them as they are in both places."""
        return [
            (topic, partition, self.segment(topic, partition, segment))
            for topic, partition, segment in written
        ]

    def state(self, state: State) -> bytes:
        """Return a snapshot for the store: each of its segments is there when this returns."""
        data = encode_state(state)
        copy = decode_state(data, "the snapshot for the store")
        for key, partition in copy.partitions.items():
            if any(segment.place == LOCAL for segment in partition.segments):
                placed = tuple(
                    self.segment(*key, segment) if segment.place == LOCAL else segment
                    for segment in partition.segments
                )
                copy.partitions[key] = partition._replace(segments=placed)
        return encode_state(copy)

    # Data of open transactions

    def upload_staged(
        self, file_id: int, places: Sequence[tuple[int, int]], bodies: Sequence[memoryview]
    ) -> None:
        """Upload the bodies of a staged file."""
        for (position, checksum), body in zip(places, bodies, strict=True):
            name = self._name_staged(file_id, position, checksum)
            self._store.put(name, body, checksum=checksum)
            self._staged.setdefault(file_id, []).append(name)
            _STAGED.hit()

    def load_staged(self, file_id: int, position: int, length: int, checksum: int) -> memoryview:
        """Return a body whose staged file is not on this machine; its checksum is the caller's."""
        pieces = bytearray()

        def begin() -> object:
            pieces.clear()
            return pieces.extend

        name = self._name_staged(file_id, position, checksum)
        self._store.fetch(name, begin)  # type: ignore[arg-type]
        if len(pieces) != length:
            raise CorruptionError(
                "a staged object is cut short", uri=self._store.uri(name), bytes=len(pieces)
            )
        return memoryview(bytes(pieces))

    def keep_staged(self, needed: set[int]) -> None:
        """Remove the objects of staged files that this process uploaded and no snapshot names."""
        for file_id in [file_id for file_id in self._staged if file_id not in needed]:
            try:
                for name in self._staged[file_id]:
                    self._store.remove(name)
            except LakebedError as error:
                _log.warning("staged objects could not be removed yet: %s", error)
                return
            del self._staged[file_id]

    def _name_staged(self, file_id: int, position: int, checksum: int) -> str:
        return f"{self._prefix}/{file_id:020d}-{position}-{checksum:08x}"
