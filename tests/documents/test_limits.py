"""The page about limits has every number of the program, and the numbers are the program's."""

from __future__ import annotations

import re

import pytest

from lakebed import LogConfig, TopicConfig, limits
from tests.documents.pages import ROOT

PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf8")
ROWS = dict(re.findall(r"^\| `([A-Z_]+)` \| (.+?) \| .+ \|$", PAGE, re.MULTILINE))
UNITS = {"KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}
DAY = {"_MS_MAX": 86_400_000, "_US": 86_400_000_000}


def program_limits() -> dict[str, int]:
    named = {name: value for name, value in vars(limits).items() if isinstance(value, int)}
    return {name: value for name, value in named.items() if name not in ("KIB", "MIB", "GIB")}


def amount(name: str, shown: str) -> int:
    power = re.fullmatch(r"2\^(\d+) - 1", shown)
    if power:
        return int(2 ** int(power[1])) - 1
    number, _, unit = shown.replace(",", "").partition(" ")
    if unit == "days":
        (ticks,) = (each for ending, each in DAY.items() if name.endswith(ending))
        return int(number) * ticks
    return int(number) * UNITS.get(unit, 1)


def test_the_page_has_every_limit_of_the_program() -> None:
    assert set(ROWS) == set(program_limits())


@pytest.mark.parametrize("name", ROWS)
def test_a_limit_is_what_the_page_says(name: str) -> None:
    assert amount(name, ROWS[name]) == program_limits()[name]


def test_the_defaults_below_the_limits_are_what_the_page_says() -> None:
    assert f"{TopicConfig().record_bytes_max // limits.MIB} MiB unless `record_bytes_max`" in PAGE
    assert f"{LogConfig().wal.entry_bytes_max // limits.MIB} MiB unless `entry_bytes_max`" in PAGE
