"""Reads a document's values by type, and reports a problem for each that does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from lakebed.config.checks import is_whole
from lakebed.errors import InvalidNameError
from lakebed.suggest import did_you_mean
from lakebed.types import TopicName

IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
SINK_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
INTERVAL: Final = re.compile(r"(\d+) (millisecond|second|minute|hour|day|week)s?")
_UNIT_MS: Final = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}

_Choice = TypeVar("_Choice", bound=StrEnum)


class PipelineProblem(NamedTuple):
    """A mistake: at which key, what it is, and what to do."""

    path: tuple[str, ...]
    message: str
    fatal: bool = True
    """Whether the pipeline cannot run with it."""
    below: int = 0
    """The line of the key's text that it is in, if the text has several."""


class Fields:
    """A table of the document. A value that is read and does not fit is added to the problems.

    `finish` reports the keys that were not read.
    """

    def __init__(
        self, values: object, path: tuple[str, ...], problems: list[PipelineProblem]
    ) -> None:
        self.path = path
        self.problems = problems
        self._asked: list[str] = []
        self.values: Mapping[str, Any] = {}
        if isinstance(values, Mapping):
            self.values = values
        else:
            self.complain(f"{self._name()} must be a table of keys and values")

    def _name(self) -> str:
        return ".".join(self.path) or "the file"

    def complain(self, message: str, key: str | None = None, *, fatal: bool = True) -> None:
        """Add a problem, at a key or at the table."""
        path = self.path if key is None else (*self.path, key)
        self.problems.append(PipelineProblem(path, message, fatal))

    def has(self, key: str) -> bool:
        """Return whether the table has the key."""
        return key in self.values

    def raw(self, key: str) -> Any:
        """Return a value as it is; None if there is none."""
        self._asked.append(key)
        return self.values.get(key)

    def text(self, key: str, *, needed: bool = False) -> str | None:
        """Return a text that is not empty."""
        value = self.raw(key)
        if value is None:
            if needed:
                self.complain(f"{self._name()} needs {key}")
            return None
        if not isinstance(value, str) or not value.strip():
            self.complain(f"{key} must be a text that is not empty, not {show(value)}", key)
            return None
        return value

    def topic(self, key: str) -> str | None:
        """Return the name of a topic."""
        value = self.text(key)
        if value is None:
            return None
        try:
            return str(TopicName(value))
        except InvalidNameError as error:
            self.complain(f"{key} = {value!r} is not the name of a topic: {error.advice}", key)
            return None

    def interval(self, key: str, *, also: str | None = None, needed: bool = False) -> str | None:
        """Return a time such as `10 minutes`, or the one other text that is allowed."""
        value = self.text(key, needed=needed)
        if value is None or value == also or INTERVAL.fullmatch(value):
            return value
        other = f" or '{also}'" if also else ""
        self.complain(f"{key} must be a time such as '10 seconds'{other}, not {value!r}", key)
        return None

    def interval_ms(self, key: str, default: int) -> int:
        """Return a time such as `10 seconds` in milliseconds."""
        match = INTERVAL.fullmatch(self.interval(key) or "")
        return default if match is None else int(match[1]) * _UNIT_MS[match[2]]

    def choice(self, key: str, kind: type[_Choice], default: _Choice | None) -> _Choice | None:
        """Return one of a few texts."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, str) and value in list(kind):
            return kind(value)
        allowed = ", ".join(kind)
        self.complain(f"{key} must be one of {allowed}, not {show(value)}", key)
        return default

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Return an integer within bounds."""
        value = self.raw(key)
        if value is None:
            return None
        if is_whole(value, low, high):
            return value
        self.complain(f"{key} must be an integer from {low} to {high}, not {value!r}", key)
        return None

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return a text or a list of texts, none of them twice."""
        value = self.raw(key)
        if value is None:
            return None
        names = [value] if isinstance(value, str) else value
        proper = isinstance(names, list | tuple) and all(
            isinstance(name, str) and name for name in names
        )
        if not proper or not names or len(set(names)) != len(names):
            self.complain(f"{key} must be a name or a list of different names", key)
            return None
        return tuple(names)

    def tables(self, key: str) -> dict[str, Fields]:
        """Return the tables below a key, by name."""
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.complain(f"{key} must be tables: [{key}.NAME]", key)
            return {}
        return {
            name: Fields(table, (*self.path, key, name), self.problems)
            for name, table in value.items()
        }

    def inner(self, key: str) -> Fields | None:
        """Return the table at a key."""
        value = self.raw(key)
        return None if value is None else Fields(value, (*self.path, key), self.problems)

    def finish(self, also: Iterable[str] = ()) -> None:
        """Report the keys that were not read, except `also`."""
        allowed = [*dict.fromkeys([*self._asked, *also])]
        for key in self.values:
            if key not in allowed:
                meant = did_you_mean(str(key), allowed) or f"; known are {', '.join(allowed)}"
                self.complain(f"unknown key {key!r} in {self._name()}{meant}", key)


def show(value: object) -> str:
    """Return a value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
