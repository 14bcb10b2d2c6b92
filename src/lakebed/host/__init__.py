"""The only doors to the world.

Disk, clock and failpoints, each with a real and a test implementation.
"""

from lakebed.host.append_file import AppendFile
from lakebed.host.clock import Clock, ManualClock, SystemClock
from lakebed.host.disk import (
    Disk,
    File,
    Folder,
    Lock,
    LockHeldError,
    Mapping,
    Mode,
    Readable,
    fill,
    read_exactly,
    read_file,
    write_all,
)
from lakebed.host.faulty_disk import Fault, FaultyDisk
from lakebed.host.os_disk import OsDisk
from lakebed.host.sim_disk import SimDisk, Survival

__all__ = [
    "AppendFile",
    "Clock",
    "Disk",
    "Fault",
    "FaultyDisk",
    "File",
    "Folder",
    "Lock",
    "LockHeldError",
    "ManualClock",
    "Mapping",
    "Mode",
    "OsDisk",
    "Readable",
    "SimDisk",
    "Survival",
    "SystemClock",
    "fill",
    "read_exactly",
    "read_file",
    "write_all",
]
