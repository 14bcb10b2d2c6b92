"""Log lines of the process that serves: one line each, for people (`text`) or programs (`json`).

    2026-11-16T05:19:09.123Z warning lakebed.serve a call was refused: not allowed principal=ann

Times are UTC. What a caller sends can end up in a message, so line breaks in it are escaped: nobody
can add a line of their own. Whatever looks like a token is masked, wherever it stands.
Only the loggers below `lakebed` are concerned; the others belong to whoever set them up.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from lakebed.config import LOG_FORMATS
from lakebed.errors import InvalidArgumentError, LakebedError

"\0".encode("unicode_escape")  # loads the codec while there are file descriptors to read it with

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
MASK: Final = "lkb_***"
"""What stands where a token stood."""

_TOKEN: Final = re.compile(r"lkb_[A-Za-z0-9_\-.~+/=]+")
_WHOLE_TOKEN: Final = re.compile(r"lkb_[0-9a-f]{16}_[A-Za-z0-9_-]+")
_JWT: Final = re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(\.[A-Za-z0-9_-]*)?")
_JWT_MASK: Final = "eyJ***"
_PLAIN: Final = re.compile(r"[^\s\"'=\\]+")
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; anything else was given as `extra`."""


def configure(format: str, level: str, stream: TextIO) -> logging.Handler:  # noqa: A002  # its name
    """Have everything that Lakebed logs from `level` on written to `stream`.

    Called again, it takes the place of the call before. Return the handler, for `unconfigure`.
    """
    _check("format", format, LOG_FORMATS)
    _check("level", level, LEVELS)
    handler = _Handler(stream)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    logger = logging.getLogger("lakebed")
    for earlier in list(logger.handlers):
        if isinstance(earlier, _Handler):
            logger.removeHandler(earlier)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    return handler


def unconfigure(handler: logging.Handler) -> None:
    """Take back what `configure` did."""
    logger = logging.getLogger("lakebed")
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def mask(text: str) -> str:
    """Return a text without the tokens in it, nor anything that begins like one."""
    return _JWT.sub(_JWT_MASK, _TOKEN.sub(MASK, text))


def mask_tokens(text: str) -> str:
    """Return a text without the tokens in it; names that only begin like one stay."""
    return _JWT.sub(_JWT_MASK, _WHOLE_TOKEN.sub(MASK, text))


def _check(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgumentError(
            f"{name} must be one of {' | '.join(allowed)}", setting=name, value=repr(value)
        )


class _Handler(logging.StreamHandler[TextIO]):
    """The handler that `configure` adds, and knows again."""


class _TextFormatter(logging.Formatter):
    """One line a record: time, level, logger, message, and facts as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(self, record)
        parts = [
            _time(record),
            record.levelname.lower(),
            record.name,
            _one_line(record.getMessage()),
            *(f"{name}={_one_line(_show(value))}" for name, value in facts.items()),
        ]
        return mask(" ".join(parts))


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts = {name: value for name, value in _facts(self, record).items() if name not in line}
        return mask(json.dumps({**line, **facts}, default=str))


def _facts(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record says besides its message: extra fields, an error's code, a traceback."""
    facts = {name: value for name, value in vars(record).items() if name not in _USUAL}
    error = _error(record)
    if error is not None:
        facts["error_code"] = error.code
    if record.exc_info:
        facts["exception"] = formatter.formatException(record.exc_info)
    return facts


def _error(record: logging.LogRecord) -> LakebedError | None:
    """Find the error of ours that a record is about: raised, or part of the message."""
    raised = record.exc_info[1] if record.exc_info else None
    named = record.args if isinstance(record.args, tuple) else ()
    return next((error for error in (raised, *named) if isinstance(error, LakebedError)), None)


def _time(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def _show(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Escape whatever could end a line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
