"""The file of a pipeline: what it says, and every mistake in it with its line. No Spark."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import lakebed.spark
from lakebed.errors import PipelineFileError
from lakebed.spark.pipeline.compatibility import check_compatible
from lakebed.spark.pipeline.fields import PipelineProblem
from lakebed.spark.pipeline.graph import as_data, as_mermaid, as_text
from lakebed.spark.pipeline.spec import (
    Decoder,
    Encoder,
    Otherwise,
    PipelineSpec,
    Restart,
    SinkMode,
    Watermark,
)
from lakebed.spark.pipeline.sql_names import tables_of
from lakebed.spark.pipeline.toml_file import PipelineFile, lines_of, read_pipeline

ORDERS = """\
name = "orders"
log = "data"
dead_letter = "orders-dead"

[source.orders]
topic = "orders"
decode = "json"
schema = "id BIGINT, customer STRING, amount DOUBLE, status STRING, at TIMESTAMP"
watermark = { column = "at", delay = "10 minutes" }

[step.paid]
sql = "SELECT id, customer, amount FROM orders WHERE status = 'paid'"
expect.positive = { check = "amount > 0", otherwise = "drop" }

[step.totals]
sql = "SELECT customer, sum(amount) AS amount, count(*) AS orders FROM paid GROUP BY customer"

[sink.paid]
from = "paid"
topic = "paid-orders"
key = "id"

[sink.by_customer]
from = "totals"
table = "orders_by_customer"
key = ["customer"]
mode = "current"
"""


def read(folder: Path, text: str) -> PipelineFile:
    path = folder / "orders.toml"
    path.write_text(textwrap.dedent(text))
    return read_pipeline(path)


def complaints(folder: Path, text: str) -> list[str]:
    """Return line and message of each problem."""
    return [f"{each.line}: {each.message}" for each in read(folder, text).problems]


def changed(line: str, instead: str) -> str:
    assert ORDERS.count(line) == 1
    return ORDERS.replace(line, instead)


def spec_of(folder: Path, text: str = ORDERS) -> PipelineSpec:
    return read(folder, text).check()


def test_a_file_becomes_a_pipeline(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    orders, paid = spec.sources["orders"], spec.steps["paid"]
    assert (orders.topic, orders.decode, orders.starting) == ("orders", Decoder.JSON, "earliest")
    assert orders.watermark == Watermark("at", "10 minutes")
    assert orders.otherwise == Otherwise.DEAD_LETTER  # since there is a topic for them
    assert (paid.inputs, spec.steps["totals"].inputs) == (("orders",), ("paid",))
    assert [(each.name, each.otherwise) for each in paid.expect] == [("positive", "drop")]
    assert (spec.sinks["paid"].encode, spec.sinks["paid"].key) == (Encoder.TYPED, ("id",))
    assert spec.sinks["by_customer"].mode == SinkMode.CURRENT
    assert [each.name for each in spec.flows()] == ["paid", "by_customer", "orders.dead-letter"]
    assert spec.checkpoint_location == str(tmp_path / ".lakebed" / "orders")


def test_without_a_topic_for_dead_letters_a_bad_record_is_fatal(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, changed('dead_letter = "orders-dead"\n', ""))
    assert spec.sources["orders"].otherwise == Otherwise.FAIL
    assert [each.name for each in spec.flows()] == ["paid", "by_customer"]


MISTAKES = [
    ('name = "orders"', "nam = 'orders'", "1: unknown key 'nam' in the file; did you mean 'name'?"),
    ('log = "data"', "log = 7", "2: log must be a text that is not empty, not 7"),
    ('topic = "orders"', 'topic = "a/b"', "6: topic = 'a/b' is not the name of a topic"),
    ('topic = "orders"', "", "5: source.orders needs either topic or table"),
    (
        'decode = "json"',
        'decode = "xml"',
        "7: decode must be one of json, avro, csv, raw, not 'xml'",
    ),
    ('decode = "json"', "", "8: schema is for decode = 'json', 'csv' or 'avro'"),
    ('decode = "json"', 'decode = "raw"', "8: schema is for decode = 'json', 'csv' or 'avro'"),
    ('"10 minutes"', '"soon"', "9: delay must be a time such as '10 seconds', not 'soon'"),
    (
        'otherwise = "drop"',
        'otherwise = "no"',
        "13: otherwise must be one of count, drop, dead-lett",
    ),
    ("FROM paid", "FROM payed", "16: the query reads payed, which is neither a source nor a step"),
    ('from = "totals"', 'from = "total"', "24: unknown source or step 'total'"),
    ('key = ["customer"]\n', "", "26: mode = 'current' needs key: the columns that name a row"),
    ('mode = "current"', 'mode = "update"', "27: mode = 'update' is for topics"),
    ('mode = "current"', 'mode = "history"', "27: mode = 'history' needs order"),
    ('key = "id"', 'key = ["id", "id"]', "21: key must be a name or a list of different names"),
    ('key = "id"', 'mode = "current"', "21: mode = 'current' is for tables"),
    (
        'key = "id"',
        "partitions = 0",
        "21: partitions must be an integer from 1 to 10000, not 0",
    ),
    ('topic = "paid-orders"', 'topic = "orders"', "20: the pipeline reads topic orders and would"),
    ('topic = "paid-orders"', 'topic = "orders-dead"', "20: this is the dead-letter topic already"),
    ('"orders-dead"', '"orders"', "3: the pipeline reads this topic: dead letters would return"),
    ("[sink.paid]", "[sink.'a b']", "18: 'a b' cannot be a sink's name"),
    ("[step.totals]", "[step.orders]", "15: a source is called orders too: use another name"),
]


@pytest.mark.parametrize(("line", "instead", "said"), MISTAKES, ids=[each[2] for each in MISTAKES])
def test_a_mistake_is_named_with_its_line(
    tmp_path: Path, line: str, instead: str, said: str
) -> None:
    found = complaints(tmp_path, changed(line, instead))
    assert any(each.startswith(said) for each in found), found


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    text = changed('decode = "json"', 'decode = "xml"').replace('"totals"', '"nothing"')
    with pytest.raises(PipelineFileError) as caught:
        read(tmp_path, text).check()
    path = tmp_path / "orders.toml"
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        f"{path}:7",
        f"{path}:24",
    ]
    assert caught.value.code == "pipeline_file"


def test_steps_that_are_made_from_each_other_are_refused(tmp_path: Path) -> None:
    found = complaints(tmp_path, changed("FROM orders WHERE", "FROM totals WHERE"))
    assert "11: steps are made from each other: paid -> totals -> paid" in found


def test_what_is_not_toml_is_told_with_its_line(tmp_path: Path) -> None:
    assert complaints(tmp_path, 'name = "a"\n[sink\n')[0].startswith("2: not TOML: ")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match="the file does not exist"):
        read_pipeline(tmp_path / "none.toml")


def test_what_no_sink_is_made_from_is_worth_a_note(tmp_path: Path) -> None:
    found = read(tmp_path, ORDERS + '[source.other]\ntopic = "other"\ndecode = "raw"\n')
    assert [str(each) for each in found.problems] == [
        f"{tmp_path}/orders.toml:28: note: no sink is made from other"
    ]
    assert found.spec is not None


def test_a_table_alone_moves_nothing(tmp_path: Path) -> None:
    text = """\
    name = "a"
    [source.b]
    table = "b"
    [sink.c]
    from = "b"
    topic = "c"
    """
    assert complaints(tmp_path, text) == ["5: b reads no topic, so nothing would ever move it"]


def test_a_schema_may_be_in_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "orders.avsc").write_text("{}")
    spec = spec_of(
        tmp_path,
        """\
        name = "a"
        [source.b]
        topic = "b"
        decode = "avro"
        schema_file = "orders.avsc"
        skip_bytes = 5
        [sink.c]
        from = "b"
        topic = "c"
        """,
    )
    assert (spec.sources["b"].schema, spec.sources["b"].skip_bytes) == ("{}", 5)


def test_settings_of_spark_are_given_with_or_without_quotes(tmp_path: Path) -> None:
    settings = '[spark]\nspark.sql.shuffle.partitions = 4\n"spark.driver.memory" = "1g"\n'
    assert spec_of(tmp_path, ORDERS + settings).spark == {
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "1g",
    }
    assert complaints(tmp_path, ORDERS + "[spark]\nshuffle = 4\n")[0].startswith(
        "29: shuffle is no"
    )


def test_restarts_have_settings_and_each_acts(tmp_path: Path) -> None:
    assert spec_of(tmp_path).restart == Restart(5, backoff_ms=1000, backoff_max_ms=60_000)
    settings = (
        '[restart]\nattempts_max = 9\nbackoff = "50 milliseconds"\nbackoff_max = "1 second"\n'
    )
    restart = spec_of(tmp_path, ORDERS + settings).restart
    assert restart == Restart(9, backoff_ms=50, backoff_max_ms=1000)
    delays = [restart.delay_ms(attempt) for attempt in (1, 2, 3, 5, 6, 100_000)]
    assert delays == [50, 100, 200, 800, 1000, 1000]
    assert (
        spec_of(tmp_path, ORDERS + '[restart]\nbackoff = "1 hour"\n').restart.delay_ms(2)
        == 3_600_000
    )
    built = (
        lakebed.spark.Pipeline("a", log="data", restart={"attempts_max": 0, "backoff": "2 seconds"})
        .source("b", topic="b", decode="raw")
        .sink("c", "b", topic="c")
    )
    assert built.spec.restart == Restart(0, backoff_ms=2000, backoff_max_ms=60_000)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("attempts_max = -1", "29: attempts_max must be an integer from 0 to 1000000, not -1"),
        ('backoff = "soon"', "29: backoff must be a time such as '10 seconds', not 'soon'"),
        ("backoff_max = 5", "29: backoff_max must be a text that is not empty, not 5"),
        (
            'backoff_max = "10 milliseconds"',
            "29: backoff_max must not be shorter than backoff: 10 ms, 1000 ms",
        ),
        ("attempts = 5", "29: unknown key 'attempts' in restart; did you mean 'attempts_max'?"),
    ],
)
def test_a_mistake_in_the_settings_of_restarts_is_named(
    tmp_path: Path, setting: str, said: str
) -> None:
    assert complaints(tmp_path, f"{ORDERS}[restart]\n{setting}\n") == [said]


def test_lines_are_found_behind_long_texts_and_lists() -> None:
    text = textwrap.dedent('''\
        a = """
        [b]
        c = 1
        """
        d = [
          "x = 1",  # e = 2
          { f = 1 },
        ]
        g.h = 'i = 1'
        [j."k.l"]
        m = { n = 1 }
        ''')
    assert lines_of(text) == {
        ("a",): 1,
        ("d",): 5,
        ("d", "f"): 7,
        ("g",): 9,
        ("g", "h"): 9,
        ("j",): 10,
        ("j", "k.l"): 10,
        ("j", "k.l", "m"): 11,
        ("j", "k.l", "m", "n"): 11,
    }


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT a AS b FROM c", ["c"]),
        ("select * from `a` x, b y where c = 'from d' -- from e", ["a", "b"]),
        ("SELECT * FROM a JOIN b ON a.x = b.x LEFT JOIN c USING (x, y)", ["a", "b", "c"]),
        ("WITH q AS (SELECT * FROM a) SELECT * FROM q /* from z */", ["a", "q"]),
        ("SELECT count(DISTINCT x, y) FROM (SELECT * FROM a), b", ["a", "b"]),
        ("SELECT x FROM a WHERE y IN (SELECT y FROM b) GROUP BY x, z", ["a", "b"]),
    ],
)
def test_the_tables_that_a_query_reads_are_found(sql: str, tables: list[str]) -> None:
    assert tables_of(sql) == tables


# Pictures


def test_a_pipeline_is_drawn_as_text_and_as_mermaid(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert as_text(spec).splitlines()[2] == ("step         totals              from paid: SQL")
    drawn = as_mermaid(spec)
    assert drawn.startswith("flowchart LR\n")
    assert "    step_paid --> step_totals\n" in drawn
    assert "    source_orders --> sink_orders_dead_letter" in drawn


def test_a_pipeline_as_data_tells_what_leads_to_what(tmp_path: Path) -> None:
    data = as_data(spec_of(tmp_path))
    assert {"from": "step.paid", "to": "sink.paid"} in data["edges"]
    assert {each["kind"] for each in data["nodes"]} == {"source", "step", "sink", "dead-letter"}


# In Python


def made() -> lakebed.spark.Pipeline:
    return (
        lakebed.spark.Pipeline("orders", log="data", dead_letter="orders-dead")
        .source(
            "orders",
            topic="orders",
            decode="json",
            schema="id BIGINT, customer STRING, amount DOUBLE, status STRING, at TIMESTAMP",
            watermark=("at", "10 minutes"),
        )
        .step(
            "paid",
            sql="SELECT id, customer, amount FROM orders WHERE status = 'paid'",
            expect={"positive": ("amount > 0", "drop")},
        )
        .step(
            "totals",
            sql="SELECT customer, sum(amount) AS amount, count(*) AS orders FROM paid"
            " GROUP BY customer",
        )
        .sink("paid", "paid", topic="paid-orders", key="id")
        .sink("by_customer", "totals", table="orders_by_customer", key=["customer"], mode="current")
    )


def test_a_pipeline_in_python_is_the_same_as_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert made().spec == spec_of(tmp_path, changed('log = "data"\n', ""))


def test_mistakes_of_a_pipeline_in_python_are_named_with_their_part() -> None:
    pipeline = made().sink("more", "nothing", topic="t").step("f", print, inputs=["nobody"])
    with pytest.raises(PipelineFileError) as caught:
        _ = pipeline.spec
    assert str(caught.value).splitlines() == [
        "step.f.from: unknown source or step 'nobody'; known are f, orders, paid, totals",
        "sink.more.from: unknown source or step 'nothing'; known are f, orders, paid, totals",
    ]
    with pytest.raises(PipelineFileError, match="a sink of this name exists already"):
        pipeline.sink("more", "paid", topic="u")


def test_nothing_here_needs_spark() -> None:
    """The modules by which a file is read, checked and drawn do not import pyspark."""
    import subprocess

    code = (
        "import sys, lakebed.cli, lakebed.spark.pipeline.toml_file, lakebed.spark.pipeline.builder;"
        "sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# What may change


WAS: dict[str, Any] = {
    "spark": "4.3.0",
    "topics": ["orders"],
    "state": ["Aggregate [customer] -> struct<customer:string>"],
    "target": "table totals",
    "key": ["customer"],
    "mode": "current",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"topics": ["payments"]},
            "read other topics, or in another order: was orders, is payments",
        ),
        ({"target": "table sums"}, "wrote elsewhere: was table totals, is table sums"),
        ({"key": ["id"]}, "under another key: was customer, is id"),
        ({"mode": "history"}, "in another mode: was current, is history"),
        (
            {"state": ["Aggregate [id] -> struct<id:bigint>"]},
            r"keeps another state.*is Aggregate \[id\]",
        ),
        ({"state": []}, "keeps another state.*is none"),
    ],
)
def test_a_flow_that_became_another_one_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(lakebed.errors.PipelineChangedError, match=said) as caught:
        check_compatible("totals", WAS, {**WAS, **change})
    assert caught.value.facts == {"flow": "totals"}
    assert "--reset FLOW" in caught.value.advice


def test_another_version_of_spark_may_word_a_plan_differently() -> None:
    check_compatible("totals", WAS, {**WAS, "spark": "4.4.0", "state": ["Aggregate (customer)"]})
    with pytest.raises(lakebed.errors.PipelineChangedError):
        check_compatible("totals", WAS, {**WAS, "spark": "4.4.0", "state": ["Join customer"]})


# The page


PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf8")


def documented(title: str) -> set[str]:
    """Return the keys of the first table below a title of the page."""
    _, _, below = PAGE.partition(f"\n## {title}\n")
    table = below.partition("\n## ")[0].partition("| key |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def known(folder: Path, part: str) -> set[str]:
    """Return the keys that a part of a file has, as a complaint about another one lists them."""
    lines = {
        "": "zzzzzz = 1\n",
        "source": "[source.zzzzzz]\ntopic = 't'\nzzzzzz = 1\n",
        "step": "[step.zzzzzz]\nsql = 'SELECT * FROM orders'\nzzzzzz = 1\n",
        "sink": "[sink.zzzzzz]\nfrom = 'paid'\ntopic = 't'\nzzzzzz = 1\n",
        "expect": "[source.zzzzzz]\ntopic = 't'\nexpect.e = { check = 'true', zzzzzz = 1 }\n",
    }[part]
    text = ORDERS + lines if part else lines + ORDERS
    (said,) = [each for each in complaints(folder, text) if "unknown key 'zzzzzz'" in each]
    return set(said.partition("known are ")[2].split(", "))


@pytest.mark.parametrize(
    ("title", "part"),
    [
        ("At the top", ""),
        ("Sources", "source"),
        ("Steps", "step"),
        ("Sinks", "sink"),
        ("Expectations", "expect"),
    ],
)
def test_the_page_explains_every_key(tmp_path: Path, title: str, part: str) -> None:
    assert documented(title) == known(tmp_path, part)


def test_the_pages_example_is_the_one_that_is_tested(tmp_path: Path) -> None:
    text, restart = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert text == ORDERS
    assert spec_of(tmp_path, ORDERS + restart).restart == Restart(), "it shows the defaults"
    (_, shown), *_ = re.findall(r"\$ lakebed pipeline (graph \S+)\n(.*?)```", PAGE, re.DOTALL)
    assert as_text(spec_of(tmp_path)) + "\n" == shown
    mistaken = ORDERS.replace('decode = "json"', 'decode = "jsn"').replace('"totals"', '"total"')
    (_, shown), *_ = re.findall(r"\$ lakebed pipeline (validate \S+)\n(.*?)```", PAGE, re.DOTALL)
    said = [str(each) for each in read(tmp_path, mistaken).problems]
    assert shown.splitlines() == [each.replace(f"{tmp_path}/", "") for each in said]


def test_the_program_of_the_page_makes_a_pipeline() -> None:
    (code,) = re.findall(r"```python\n(import lakebed.*?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code.replace("pipeline.run()", "made = pipeline.spec"), scope)
    assert list(scope["made"].sinks) == ["large"]


def test_a_mistake_within_a_long_query_is_told_with_its_own_line(tmp_path: Path) -> None:
    """What Spark finds in the second line of a query is two lines below a key that ends its own."""
    query = 'sql = """\nSELECT id, customer, amount\nFROM orders WHERE status = \'paid\'\n"""'
    sql = "sql = \"SELECT id, customer, amount FROM orders WHERE status = 'paid'\""
    file = read(tmp_path, changed(sql, query))
    assert file.locate(PipelineProblem(("step", "paid", "sql"), "no", below=2)).line == 14
    assert file.locate(PipelineProblem(("step", "paid", "sql"), "no")).line == 12
    file = read(tmp_path, changed(sql, query.replace('"""\nS', '"""S')))
    assert file.locate(PipelineProblem(("step", "paid", "sql"), "no", below=2)).line == 13
