"""Reads and checks the file of a pipeline; every mistake has its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from lakebed.errors import PipelineFileError, from_os_error
from lakebed.spark.pipeline.checks import PipelineProblem, draft_document
from lakebed.spark.pipeline.spec import PipelineSpec

KeyPath = tuple[str, ...]

_HEADER: Final = re.compile(r"\s*\[{1,2}([^\[\]]+)\]{1,2}\s*(?:#.*)?")
_KEY: Final = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'|[\s.])+?)\s*=""")
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_PIECE: Final = re.compile(
    r'''"""|\'\'\'|"(?:[^"\\]|\\.)*"|'[^']*'|\#.*|[\[\]{}]|[A-Za-z0-9_-]+(?=\s*[.=])'''
)
_SYNTAX: Final = re.compile(r"(.*?) \(at (?:line (\d+), column (\d+)|end of document)\)")


class FileMistake(NamedTuple):
    """A mistake in a file, with where it is."""

    file: str
    line: int
    message: str
    fatal: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {'' if self.fatal else 'note: '}{self.message}"


class PipelineFile(NamedTuple):
    """What a file says, and every mistake in it."""

    path: Path
    spec: PipelineSpec | None
    """None if there is a mistake that is not just a note."""
    problems: list[FileMistake]
    lines: dict[KeyPath, int]
    draft: PipelineSpec | None = None
    """The pipeline as far as it can be read; None if the file is not TOML."""
    wrong: frozenset[KeyPath] = frozenset()
    """The keys with mistakes that are not just notes."""

    def locate(self, problem: PipelineProblem) -> FileMistake:
        """Return a problem with its line in the file."""
        line = line_of(self.lines, problem.path)
        if problem.below:
            line += problem.below - 1 + self._begins_below(line)
        return FileMistake(str(self.path), line, problem.message, problem.fatal)

    def _begins_below(self, line: int) -> bool:
        """Return whether a long text begins in the line after its key."""
        lines = self.path.read_text("utf8").splitlines()
        return lines[line - 1].rstrip().endswith(('"""', "'''"))

    def check(self) -> PipelineSpec:
        """Return the pipeline; raise `PipelineFileError` with all mistakes of the file."""
        if self.spec is None:
            raise refusal(self.problems)
        return self.spec


def refusal(problems: list[FileMistake]) -> PipelineFileError:
    """Return the error that lists every mistake, one a line."""
    fatal = [str(problem) for problem in problems if problem.fatal]
    return PipelineFileError("\n".join(fatal))


def read_pipeline(path: Path) -> PipelineFile:
    """Read and check the file of a pipeline."""
    try:
        text = path.read_bytes().decode("utf8")
    except FileNotFoundError as error:
        raise PipelineFileError("the file does not exist", file=path) from error
    except OSError as error:
        raise from_os_error(error, "reading the pipeline", path) from error
    except UnicodeDecodeError as error:
        raise PipelineFileError("the file is not text in UTF-8", file=path) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return PipelineFile(path, None, [_syntax(path, text, error)], {})
    return check_document(path, document, lines_of(text))


def check_document(path: Path, document: Any, lines: dict[KeyPath, int]) -> PipelineFile:
    """Check a document; return every problem with its line, in the order of the lines."""
    draft, problems = draft_document(document, path.parent)
    wrong = frozenset(problem.path for problem in problems if problem.fatal)
    file = PipelineFile(path, None if wrong else draft, [], lines, draft, wrong)
    mistakes = sorted(
        (file.locate(problem) for problem in problems), key=lambda mistake: mistake.line
    )
    return file._replace(problems=mistakes)


def _syntax(path: Path, text: str, error: tomllib.TOMLDecodeError) -> FileMistake:
    match = _SYNTAX.fullmatch(str(error))
    message = match[1] if match else str(error)
    line = int(match[2]) if match and match[2] else text.count("\n") + 1
    return FileMistake(str(path), line, f"not TOML: {message}", True)


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a key, or of the innermost table around it that has one."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return 1


def lines_of(text: str) -> dict[KeyPath, int]:
    """Return the line of each table and key of a document that `tomllib` accepts.

    A key of an inline table has the line that it is written on.
    """
    lines: dict[KeyPath, int] = {}
    for line, path in _keys(text):
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)
    return lines


def _keys(text: str) -> Iterator[tuple[int, KeyPath]]:
    table: KeyPath = ()
    scanner = _Scanner()
    for line_number, line in enumerate(text.splitlines(), 1):
        if scanner.inside:
            yield from ((line_number, (*scanner.key, key_part)) for key_part in scanner.scan(line))
            continue
        header, key = _HEADER.fullmatch(line), _KEY.match(line)
        if header:
            table = _parts(header[1])
            yield line_number, table
        elif key:
            scanner.key = (*table, *_parts(key[1]))
            yield line_number, scanner.key
            yield from (
                (line_number, (*scanner.key, key_part))
                for key_part in scanner.scan(line[key.end() :])
            )


def _parts(text: str) -> KeyPath:
    return tuple(part.strip("\"'") for part in _PART.findall(text))


class _Scanner:
    """Tracks whether a value continues on the next line: a long text, array or inline table."""

    def __init__(self) -> None:
        self.key: KeyPath = ()
        self._quotes = ""
        self._depth = 0

    @property
    def inside(self) -> bool:
        return bool(self._quotes or self._depth)

    def scan(self, text: str) -> list[str]:
        """Read a line of a value; return the keys of inline tables that begin in it."""
        keys, position = [], 0
        while position < len(text):
            if self._quotes:
                end = text.find(self._quotes, position)
                if end < 0:
                    break
                position, self._quotes = end + 3, ""
                continue
            match = _PIECE.search(text, position)
            if match is None or match[0].startswith("#"):
                break
            position = match.end()
            piece = match[0]
            if piece in ('"""', "'''"):
                self._quotes = piece
            elif piece in "[{":
                self._depth += 1
            elif piece in "]}":
                self._depth -= 1
            elif self._depth and not piece.startswith(('"', "'")):
                keys.append(piece)
        return keys
