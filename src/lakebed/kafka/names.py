"""Names of groups: any text in Kafka, and a narrow set of characters in the log.

What the log does not allow is written as `%` and two hexadecimal digits for each byte, so every
name has one form inside, and names that the log allows are the same on both sides.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from lakebed.kafka.codes import INVALID_GROUP_ID, Refusal

_NAME_CHARS_MAX: Final = 255
_PLAIN: Final = re.compile(r"[A-Za-z0-9._-]")


def internal_name(name: str) -> str:
    """Return the name under which the log keeps a group."""
    if not name or len(name) > _NAME_CHARS_MAX:
        raise Refusal(INVALID_GROUP_ID, f"a group's name has 1 to {_NAME_CHARS_MAX} characters")
    inside = "".join(
        character
        if _PLAIN.fullmatch(character)
        else "".join(f"%{byte:02X}" for byte in character.encode("utf8", "surrogatepass"))
        for character in name
    )
    return inside if inside[0] not in "._-" else f"%{ord(inside[0]):02X}{inside[1:]}"


def kafka_name(name: str) -> str:
    """Return the name of a group as Kafka clients know it."""
    return unquote(name)
