"""The folder of the segments: what they are called, and how their names come and go.

DIR/lake/{topic}/{partition}-{segment:020d}.parquet      a segment
DIR/lake/{topic}/{partition}-{segment:020d}.parquet.tmp  one being written, or left unfinished

Topics and partitions are their numbers, never a name that a user chose.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lakebed.errors import LakebedError, from_os_error
from lakebed.host import Disk, failpoints
from lakebed.lake.pins import Pin, Pins

_log = logging.getLogger("lakebed.lake")

UNFINISHED: Final = ".tmp"
"""Ends the name of a segment that is being written. Left behind by a crash, it may be removed."""

_FOLDER_SYNCED = failpoints.define("lake.folder.synced")
_TOPIC: Final = re.compile(r"0|[1-9]\d{0,18}", re.ASCII)
_SEGMENT: Final = re.compile(r"(0|[1-9]\d{0,18})-(\d{20})\.parquet", re.ASCII)


class SegmentName(NamedTuple):
    """Whose segment a file is, as its name says."""

    topic: int
    partition: int
    segment: int


class LakeFolder:
    """Paths, folders and names of segments. Any thread."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self.disk = disk
        self._root = root
        self._lake = root / "lake"
        self._pins = Pins()
        self._put_off: set[SegmentName] = set()
        """Segments whose removal waits for a pin to end."""

    def path(self, topic: int, partition: int, segment: int) -> Path:
        """Return the path of a segment, whether or not it exists."""
        return self._topic(topic) / f"{partition}-{segment:020d}.parquet"

    def _topic(self, topic: int) -> Path:
        return self._lake / str(topic)

    def prepare(self, topic: int) -> None:
        """Make the topic's folder, so that it survives a power cut from here on."""
        path = self._topic(topic)
        try:
            self.disk.make_folder(path)
            # A folder that is there already may have been made by a process that was killed before
            # it could sync the name.
            self.disk.sync_folder(self._lake)
            self.disk.sync_folder(self._root)
        except OSError as error:
            raise from_os_error(error, "making the folder of a topic", path) from error

    def sync(self, topic: int) -> None:
        """Make every rename and removal in the topic's folder survive a power cut."""
        path = self._topic(topic)
        try:
            self.disk.sync_folder(path)
            _FOLDER_SYNCED.hit()
        except OSError as error:
            raise from_os_error(error, "syncing the folder of a topic", path) from error

    def remove(self, topic: int, partition: int, segment: int) -> None:
        """Remove a segment's name, if it is there; durable after `sync`.

        A reader that has the segment mapped can continue. A pinned segment is removed when the pin
        ends; if the process dies before, when the log is opened next.
        """
        name = SegmentName(topic, partition, segment)
        with self._pins.guard:
            if self._pins.is_pinned(name):
                self._put_off.add(name)
                return
        path = self.path(topic, partition, segment)
        try:
            self.disk.remove(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise from_os_error(error, "removing a segment", path) from error

    @contextlib.contextmanager
    def pin(self) -> Iterator[Pin]:
        """Remove no segment's file within the block; `Pin.narrow` names the ones that matter.

        A segment that the state names when the block has begun exists until it ends.
        """
        try:
            with self._pins.pin() as pin:
                yield pin
        finally:
            self.remove_put_off()

    def remove_put_off(self) -> None:
        """Remove the segments that are not pinned any more."""
        with self._pins.guard:
            due = {name for name in self._put_off if not self._pins.is_pinned(name)}
            self._put_off -= due
        for name in sorted(due):
            try:
                self.remove(*name)
            except LakebedError as error:
                _log.warning("a segment is removed when the log is opened next: %s", error)

    def listing(self) -> Iterator[SegmentName | Path]:
        """Return every segment by its name, and the path of everything else that lies there."""
        for topic in self._names(self._lake):
            folder = self._lake / topic
            names = self._names_in_topic(folder) if _TOPIC.fullmatch(topic) else None
            if names is None:
                yield folder
                continue
            topic_id = int(topic)
            for name in names:
                match = _SEGMENT.fullmatch(name)
                yield (
                    SegmentName(topic_id, int(match[1]), int(match[2])) if match else folder / name
                )

    def parse_unfinished(self, path: Path) -> SegmentName | None:
        """Return the segment that a path from `listing` is an unfinished file of, if it is one."""
        match = _SEGMENT.fullmatch(path.name.removesuffix(UNFINISHED))
        topic = path.parent
        if not path.name.endswith(UNFINISHED) or match is None or topic.parent != self._lake:
            return None
        return SegmentName(int(topic.name), int(match[1]), int(match[2]))

    def _names_in_topic(self, folder: Path) -> list[str] | None:
        try:
            return self.disk.names(folder)
        except NotADirectoryError:
            return None
        except OSError as error:
            raise from_os_error(error, "listing segments", folder) from error

    def _names(self, folder: Path) -> list[str]:
        try:
            return self.disk.names(folder)
        except OSError as error:
            raise from_os_error(error, "listing the lake", folder) from error
