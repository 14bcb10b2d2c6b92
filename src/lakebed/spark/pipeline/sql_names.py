"""Which tables a query reads, as far as its text shows: the names after FROM and JOIN.

Enough to draw a pipeline and to order its steps without a Spark session. The caller leaves out
names that are neither a source nor a step (of a WITH clause, columns in `extract(YEAR FROM at)`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""
    --[^\n]* | /\*.*?\*/                 # comments
    | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*"  # texts
    | `[^`]+` | [A-Za-z_][A-Za-z0-9_]*   # names
    | [^\s]
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME: Final = re.compile(r"`[^`]+`|[A-Za-z_][A-Za-z0-9_]*")
_BEFORE_A_TABLE: Final = frozenset(["from", "join", "table"])
_AFTER_THE_TABLES: Final = frozenset(
    [
        *("where", "group", "having", "order", "sort", "limit", "cluster", "distribute", "window"),
        *("union", "intersect", "except", "minus", "select", "on", "using", "lateral"),
        *("pivot", "unpivot", "tablesample"),
    ]
)


def tables_of(sql: str) -> list[str]:
    """Return the names that a query reads from, each once, in their order."""
    return list(dict.fromkeys(_tables(_tokens(sql))))


def _tokens(sql: str) -> list[str]:
    tokens = (match[0] for match in _TOKEN.finditer(sql))
    return [token for token in tokens if not token.startswith(("--", "/*", "'", '"'))]


def _tables(tokens: list[str]) -> Iterator[str]:
    listing: list[bool] = [False]
    """Whether a list of tables is being read, for each parenthesis that is open."""
    expected = False
    for token in tokens:
        word = token.lower()
        if word in _BEFORE_A_TABLE:
            expected = listing[-1] = True
        elif word == "(":
            listing.append(False)
            expected = False
        elif word == ")":
            listing = listing[:-1] or [False]
        elif word == ",":
            expected = listing[-1]
        elif word in _AFTER_THE_TABLES:
            expected = listing[-1] = False
        elif expected:
            expected = False
            if _NAME.fullmatch(token):
                yield token.strip("`")
