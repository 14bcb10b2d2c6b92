"""The values that every layer speaks of: entries, their kinds, and a node's hard state."""

from __future__ import annotations

import abc
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Final, NamedTuple, Self

from lakebed.errors import InvalidNameError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TOPIC_NAME: Final = re.compile(r"(?!__)[A-Za-z0-9_][A-Za-z0-9._-]{0,248}")
"""As Kafka's; two underscores in front are for topics of the log itself."""
_GROUP_NAME: Final = re.compile(r"[A-Za-z0-9%][A-Za-z0-9._%-]{0,764}")
"""Groups of Kafka clients have any name: other characters are written as `%` and two digits."""
_TOKEN: Final = re.compile(r"lkb_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")
"""The form of a log's token, which is a secret and no name."""

ANONYMOUS: Final = "anonymous"
"""Whoever calls the server of a log that knows nobody yet."""


class Name(str):
    """A name that was checked when it was made: it is never a path, and never empty."""

    __slots__ = ()
    what: ClassVar[str] = "name"
    form: ClassVar[re.Pattern[str]] = _NAME

    def __new__(cls, text: str) -> Self:
        """Take the text as a name, or refuse it."""
        if not isinstance(text, str) or cls.form.fullmatch(text) is None:
            raise InvalidNameError(f"not a {cls.what} name", got=repr(text)[:200])
        if _TOKEN.search(text):
            raise InvalidNameError(f"this is a token, and not a {cls.what} name")
        return super().__new__(cls, text)


class TopicName(Name):
    """What a topic is called."""

    __slots__ = ()
    what = "topic"
    form = _TOPIC_NAME


class TableName(Name):
    """What a derived table is called."""

    __slots__ = ()
    what = "table"


class GroupName(Name):
    """What a consumer group is called."""

    __slots__ = ()
    what = "group"
    form = _GROUP_NAME


class ProducerName(Name):
    """What a producer or a transaction is called."""

    __slots__ = ()
    what = "producer"


class PrincipalName(Name):
    """What somebody who calls a server is called; `anonymous` is nobody's name."""

    __slots__ = ()
    what = "principal"

    def __new__(cls, text: str) -> Self:
        """Take the text as a name, or refuse it."""
        if text == ANONYMOUS:
            raise InvalidNameError("this name is reserved for anonymous callers", got=repr(text))
        return super().__new__(cls, text)


class RoleName(Name):
    """What a role is called."""

    __slots__ = ()
    what = "role"


class Secret(str):
    """Text that is not for everybody's eyes: shown by whoever asks for it, never by `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>"


def is_internal(topic: str) -> bool:
    """Return whether a name is one of the log's own topics; no user can make a topic of it."""
    return topic.startswith("__")


class BackupName(Name):
    """What a backup is called that a client asks a server for."""

    __slots__ = ()
    what = "backup"


class TopicPartition(NamedTuple):
    """One partition of a topic, by name."""

    topic: str
    partition: int


Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


def say_nothing(_doing: str, _done: int, _total: int) -> None:
    """Keep progress to oneself."""


class Closing(abc.ABC):
    """Something that is closed at the end of a `with` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close it; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class EntryKind(enum.IntEnum):
    """What an entry holds.

    A command for the state machine, or a change of the cluster's members.
    """

    NORMAL = 0
    CONFIGURATION = 1


class Entry(NamedTuple):
    """One command of the log at its index.

    `payload` is a view of the mapped file: nothing is copied, and the view stays valid however long
    it is kept.
    """

    index: int  # type: ignore[assignment]  # the word is worth more than tuple.index
    term: int
    kind: EntryKind
    time_us: int
    payload: memoryview


@dataclass(frozen=True)
class HardState:
    """The highest term of the log, and a vote in it if a user of the WAL alone sets one."""

    term: int = 0
    vote: int | None = None
