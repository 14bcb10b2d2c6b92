"""The report is one page with plots of what was measured, and says if anything is wrong."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from lakebed.demo.measures import (
    Compaction,
    Comparison,
    MeasuredAck,
    MeasuredFlow,
    Measures,
    Piping,
    Query,
    Sale,
    Sizes,
    Syncs,
)
from lakebed.demo.plots import PlotMark, Series, bars, over_time, short
from lakebed.demo.report import page


def measured() -> Measures:
    exact = Comparison(expected=100, found=100, wrong=0)
    sale = Sale(
        records=100,
        checkouts=2,
        acks=[MeasuredAck(0.5 + number / 10, 10, 1.0 + number) for number in range(10)],
        syncs=[[Syncs(0.5, 0, 0), Syncs(0.8, 6, 2)], [Syncs(1.1, 0, 0), Syncs(1.5, 4, 2)]],
        killed_at=0.9,
        reopened_at=1.0,
    )
    flows = [
        MeasuredFlow(3.0, "paid", 0),
        MeasuredFlow(4.0, "paid", 70),
        MeasuredFlow(5.0, "now", 100),
    ]
    piping = Piping(flows, killed_at=3.5, seconds=5.0, paid=exact, dead=exact, table=exact)
    query = Query("sold <all>", "SELECT 1 < 2", ("name", "sum"), [("a&b", 12345.5)], 0.1, True)
    sizes = [Sizes("written", 2**20, 0, 0), Sizes("checkpoint", 2**20, 2**19, 2**18)]
    compaction = Compaction(100, 70, 70, 2.0)
    return Measures("today", sale, exact, piping, compaction, [query], sizes, 12.0)


def test_the_page_needs_nothing_else_and_is_well_formed() -> None:
    text = page(measured())
    assert not re.search(r"(src|href)=|url\(|@import|<script", text)
    body = text.partition("<body>")[2].partition("</body>")[0]
    tree = ElementTree.fromstring(f"<body>{body}</body>")
    assert len(tree.findall(".//svg")) == 6
    assert "12,345.5" in text
    assert "sold &lt;all&gt;" in text
    assert "All checks passed" in text
    assert len(tree.findall(".//path[@class='kill']")) == 3


def test_three_and_two_entries_shared_a_sync() -> None:
    assert "<dd>2.5</dd>" in page(measured())


@pytest.mark.parametrize("what", ["check", "paid", "dead", "table", "compaction", "query", "none"])
def test_whatever_is_wrong_is_the_verdict(what: str) -> None:
    measures = measured()
    bad = Comparison(expected=100, found=99, wrong=0)
    if what == "check":
        measures.check = bad
    elif what == "compaction":
        measures.compaction = Compaction(100, 71, 70, 2.0)
    elif what == "query":
        measures.queries[0] = Query("n", "s", ("a",), [(1,)], 0.1, False)
    elif what == "none":
        measures.queries = []
    else:
        setattr(measures.piping, what, bad)
    assert not measures.is_right
    assert "Some checks failed" in page(measures)


def test_a_plot_stands_where_its_values_are() -> None:
    drawing = over_time("t", "u", [Series("a", [(0, 0), (10, 5)])], [PlotMark(5, "k", True)])
    points = re.findall(r'd="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', drawing)
    ((x0, y0, x1, y1),) = [tuple(map(float, each)) for each in points]
    assert (x0, x1) == (74, 742)
    assert (y0, y1) == (210, 26)
    assert f"M{(x0 + x1) / 2:.1f} 26V210" in drawing


def test_plots_of_nothing_can_be_drawn() -> None:
    for drawing in (over_time("t", "u", [Series("a", [])], []), bars("t", [], str)):
        assert ElementTree.fromstring(drawing).tag == "figure"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (12_000, "12 k"), (999_999, "1 M"), (3.4e6, "3.4 M"), (2e9, "2 G")],
)
def test_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert short(value) == text
