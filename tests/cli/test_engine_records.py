"""Records on the command line: what goes in by `produce` comes out by `consume`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import lakebed
from tests.cli.engine import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path / "data")
    made.run("topic", "create", "t")
    return made


# Lines


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\na\r\n", ["", "", "a\r"]),
        ("ä😀\n".encode(), ["ä😀"]),
        (b"\xff\x00\n", [{"base64": "/wA="}]),
    ],
)
def test_each_line_is_a_value(shell: Shell, given: bytes, values: list[object]) -> None:
    (done,) = shell.json("produce", "t", given=given)
    assert done["records"] == len(values)
    assert shell.values("t") == values


def test_files_are_read_one_after_another_and_a_dash_is_stdin(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a\nb")
    (tmp_path / "two").write_text("c\n")
    shell.run("produce", "t", tmp_path / "one", "-", tmp_path / "two", given="x\n")
    assert shell.values("t") == ["a", "b", "x", "c"]


def test_lines_that_reach_over_what_is_read_at_once_stay_whole(
    shell: Shell, tmp_path: Path
) -> None:
    values = ["x" * size for size in (5_000_000, 1, 0, 7_000_000, 4 << 20, 3)]
    (tmp_path / "long").write_text("\n".join(values))
    shell.run("produce", "t", tmp_path / "long")
    assert shell.values("t") == values


def test_it_says_how_many_records_went_where(shell: Shell) -> None:
    shell.run("topic", "create", "two", "--partitions", 2)
    lines = "".join(f"{number}\n" for number in range(100))
    (done,) = shell.json("produce", "two", "--batch", 7, given=lines)
    assert done["records"] == 100 == sum(each["records"] for each in done["partitions"])
    with lakebed.open(shell.folder) as log:
        ends = {number: end for number, (_, end) in log.offsets("two").items()}
    assert {each["partition"]: each["last"] + 1 for each in done["partitions"]} == ends
    shown = shell.text("produce", "two", "--partition", 1, given="x\n").splitlines()
    assert shown[0] == "1 record written to two"
    assert shown[2].split() == ["1", "1", str(ends[1]), str(ends[1])]


def test_a_batch_is_at_most_so_many_records(shell: Shell) -> None:
    with lakebed.open(shell.folder) as log:
        before = log.stats().applied_index
    shell.run("produce", "t", "--batch", 10, given="x\n" * 95)
    with lakebed.open(shell.folder) as log:
        assert log.stats().applied_index - before == 10


def test_a_key_stands_before_its_separator(shell: Shell) -> None:
    shell.run("produce", "t", "--key-separator", "::", given="a::1\nb::2::3\n::\n")
    assert [(each["key"], each["value"]) for each in shell.json("consume", "t")] == [
        ("a", "1"),
        ("b", "2::3"),
        ("", ""),
    ]
    assert shell.text("consume", "t", "--format", "key-value") == "a\t1\nb\t2::3\n\t\n"


def test_headers_are_those_of_every_record(shell: Shell) -> None:
    headers = ["--header", "from=till-7", "--header", "x=a=b"]
    shell.run("produce", "t", *headers, given="1\n2\n")
    assert [each["headers"] for each in shell.json("consume", "t")] == [
        {"from": "till-7", "x": "a=b"}
    ] * 2


def test_a_whole_file_is_one_value(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"a\nb\n")
    (tmp_path / "two").write_bytes(b"")
    shell.run("produce", "t", "--whole-files", tmp_path / "one", tmp_path / "two")
    assert shell.values("t") == ["a\nb\n", ""]


# JSON


def test_json_lines_say_everything_about_a_record(shell: Shell) -> None:
    shell.run("topic", "create", "two", "--partitions", 2)
    lines: list[dict[str, Any]] = [
        {"value": "text", "key": "k", "headers": {"h": "v", "b": {"base64": "/w=="}}},
        {"value": {"a": [1, None]}, "timestamp": "2001-02-03T04:05:06.000007+01:00"},
        {"value": 1.5, "timestamp": 7, "partition": 1},
        {"value": {"base64": "AAE="}, "partition": 0},
        {"value": None, "key": "k"},
    ]
    given = "\n\n".join(map(json.dumps, lines))
    shell.run("produce", "two", "--json-lines", "--header", "h=all", given=given)
    found = {json.dumps(each["value"]): each for each in shell.json("consume", "two")}
    assert found['"text"']["headers"] == {"h": "v", "b": {"base64": "/w=="}}
    assert found['"text"']["key"] == "k"
    assert found['"{\\"a\\":[1,null]}"']["timestamp"] == "2001-02-03T03:05:06.000007Z"
    assert found['"1.5"']["timestamp"] == "1970-01-01T00:00:00.000007Z"
    assert found['"1.5"']["partition"] == 1
    assert found['"\\u0000\\u0001"']["partition"] == 0
    assert found["null"]["key"] == "k"
    assert found["null"]["headers"] == {"h": "all"}


def test_what_consume_writes_as_json_produce_takes(shell: Shell) -> None:
    shell.run("topic", "create", "copy", "--partitions", 3)
    shell.run("topic", "create", "from", "--partitions", 3)
    lines: list[dict[str, Any]] = [
        {"value": "é", "key": f"k{n}", "headers": {"n": str(n)}} for n in range(20)
    ]
    lines += [{"value": {"base64": "/w=="}}, {"value": None, "key": {"base64": "/w=="}}]
    shell.run("produce", "from", "--json-lines", given="\n".join(map(json.dumps, lines)))
    whole = shell.text("consume", "from", "--json")
    shell.run("produce", "copy", "--json-lines", given=whole)
    copied = shell.text("consume", "copy", "--json").replace('"copy"', '"from"')
    assert sorted(copied.splitlines()) == sorted(whole.splitlines())


FIELDS: list[tuple[str, object, list[Any]]] = [
    ("id", "int64", [1, -(2**63), None]),
    ("price", "decimal(20, 3)", ["12345678901234567.125", "-0.500", None]),
    ("at", "timestamp", ["2026-11-15T21:30:00.000001Z", "0001-01-01T00:00:00.000000Z", None]),
    ("local", "timestamp_ntz", ["2026-11-15T21:30:00.000000", None, None]),
    ("day", "date", ["2026-11-15", None, None]),
    ("note", "binary", ["text", {"base64": "/w=="}, None]),
    ("ratio", "double", [0.1, "NaN", "-Infinity"]),
    ("tags", {"list": "timestamp"}, [["2026-11-15T21:30:00.000000Z", None], [], None]),
    ("counts", {"map": "decimal(3, 1)"}, [{"a": "1.5", "b": None}, {}, None]),
    ("codes", {"map": "string", "keys": "int64"}, [[[1, "a"], [2, None]], [], None]),
    ("to", {"struct": [{"name": "day", "type": "date"}]}, [{"day": "2026-01-02"}, None, None]),
]


def test_typed_values_of_every_type_go_in_and_out_as_json(shell: Shell, tmp_path: Path) -> None:
    fields = [{"name": name, "type": kind} for name, kind, _ in FIELDS]
    (tmp_path / "schema").write_text(json.dumps({"fields": fields}))
    shell.run("topic", "create", "typed", "--schema", tmp_path / "schema")
    rows = [{name: values[row] for name, _, values in FIELDS} for row in range(3)]
    shell.run("produce", "typed", given="\n".join(map(json.dumps, rows)))
    assert shell.values("typed") == rows
    assert [json.loads(line) for line in shell.text("consume", "typed").splitlines()] == rows
    shell.run("produce", "typed", "--json-lines", given=shell.text("consume", "typed", "--json"))
    assert shell.values("typed") == rows * 2


def test_times_and_decimals_of_a_typed_value_may_be_numbers(shell: Shell, tmp_path: Path) -> None:
    fields = [{"name": "at", "type": "timestamp"}, {"name": "price", "type": "decimal(5, 2)"}]
    (tmp_path / "schema").write_text(json.dumps({"fields": fields}))
    shell.run("topic", "create", "typed", "--schema", tmp_path / "schema")
    given = '{"at": 1, "price": 1.25}\n{"at": "2026-01-02", "price": 3}\n'
    shell.run("produce", "typed", given=given)
    assert shell.values("typed") == [
        {"at": "1970-01-01T00:00:00.000001Z", "price": "1.25"},
        {"at": "2026-01-02T00:00:00.000000Z", "price": "3.00"},
    ]


def test_typed_values_have_keys_and_tombstones_too(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "schema").write_text('{"fields": [{"name": "id", "type": "int64"}]}')
    shell.run("topic", "create", "typed", "--schema", tmp_path / "schema")
    shell.run("produce", "typed", "--key-separator", "=", given='k={"id": 1}\n')
    shell.run("produce", "typed", "--json-lines", given='{"key": "k", "value": null}')
    assert [(each["key"], each["value"]) for each in shell.json("consume", "typed")] == [
        ("k", {"id": 1}),
        ("k", None),
    ]


# Bad lines


BAD = [
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\nnonsense\n{"value": 3}\n', "not JSON"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n[1]\n', "not a JSON object"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n{"key": "k"}\n', "value is missing"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n{"value": 1, "time": 2}\n', "'time'"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n{"value": 1, "timestamp": "now"}', "now"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n{"value": 1, "headers": [1]}\n', "headers"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n{"value": 1, "partition": "0"}', "integer"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n{"value": {"base64": "?"}}\n', "base64"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n{"value": "\\ud800"}\n', "surrogates"),
    ("--json-lines", '{"value": 1}\n{"value": 2}\n\n' + "[" * 100_000, "deep"),
]


@pytest.mark.parametrize(("option", "given", "why"), BAD)
def test_a_bad_line_is_named_and_those_before_it_are_written(
    shell: Shell, tmp_path: Path, option: str, given: str, why: str
) -> None:
    (tmp_path / "lines").write_text(given)
    error = shell.error("produce", "t", option, tmp_path / "lines")
    facts = error["facts"]
    assert (facts["file"], facts["line"]) == (str(tmp_path / "lines"), 4)
    assert facts["written"] == 2
    assert why in facts["why"]
    assert shell.values("t") == ["1", "2"]


def test_a_line_without_its_separator_is_named(shell: Shell) -> None:
    error = shell.error("produce", "t", "--key-separator", ":", given="a:1\nb:2\nc\nd:4\n")
    assert (error["facts"]["file"], error["facts"]["line"]) == ("<stdin>", 3)
    assert error["facts"]["written"] == 2
    assert shell.values("t") == ["1", "2"]


def test_a_record_that_the_topic_refuses_is_named_by_its_line(shell: Shell, tmp_path: Path) -> None:
    shell.run("topic", "alter", "t", "--config", "record_bytes_max=10")
    given = "a\nbb\n" + "c" * 11 + "\nd\n"
    error = shell.error("produce", "t", given=given)
    assert (error["code"], error["facts"]["line"]) == ("record_too_large", 3)
    assert error["facts"]["written"] == 2
    assert "row" not in error["facts"]
    assert shell.values("t") == ["a", "bb"]
    error = shell.error("produce", "t", "--json-lines", given='{"value": "e"}\n{"value": null}')
    assert (error["code"], error["facts"]["line"]) == ("schema_mismatch", 2)
    endless = shell.error("produce", "t", given="x" * (5 << 20))
    assert (endless["code"], endless["facts"]["line"]) == ("record_too_large", 1)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"id": "one"}', "value"),
        ('{"id": 1, "name": "x"}', "value.name"),
        ('{"id": 1, "price": "dear"}', "value.price"),
        ('{"id": 1, "price": 123456.7}', "value"),
        ('{"id": 1, "at": "noon"}', "value.at"),
        ('{"id": 1, "at": 1.5}', "value.at"),
        ('{"price": 1}', "value.id"),
        ("7", "value"),
        ("null", "value"),
    ],
)
def test_a_value_that_does_not_fit_its_schema_is_named_by_line_and_field(
    shell: Shell, tmp_path: Path, line: str, why: str
) -> None:
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "price", "type": "decimal(5, 2)"},
        {"name": "at", "type": "timestamp"},
    ]
    (tmp_path / "schema").write_text(json.dumps({"fields": fields}))
    shell.run("topic", "create", "typed", "--schema", tmp_path / "schema")
    error = shell.error("produce", "typed", given='{"id": 5}\n' + line + "\n")
    assert error["code"] == "schema_mismatch"
    assert error["facts"]["line"] in (1, 2)
    assert why in json.dumps(error["facts"])


def test_producing_what_cannot_be_is_an_error_or_a_wrong_call(shell: Shell, tmp_path: Path) -> None:
    assert shell.error("produce", "none", given="x")["code"] == "topic_not_found"
    assert shell.error("produce", "t", "--partition", 9, given="x")["code"] == "partition_not_found"
    assert "exist" in shell.usage("produce", "t", tmp_path / "gone")
    assert "directory" in shell.usage("produce", "t", tmp_path)
    assert "mutually exclusive" in shell.usage(
        "produce", "t", "--json-lines", "--key-separator", ":"
    )
    assert "needs files" in shell.usage("produce", "t", "--whole-files")
    assert "empty" in shell.usage("produce", "t", "--key-separator", "")
    assert "NAME=VALUE" in shell.usage("produce", "t", "--header", "name")
    assert "--batch" in shell.usage("produce", "t", "--batch", 0)
    assert shell.values("t") == []


# Consuming


def filled(shell: Shell, count: int = 10) -> None:
    shell.run("produce", "t", given="".join(f"{n}\n" for n in range(count)))


def test_values_are_lines_and_json_says_where_they_are(shell: Shell) -> None:
    filled(shell, 3)
    assert shell.text("consume", "t") == "0\n1\n2\n"
    records = shell.json("consume", "t")
    assert records == shell.json("consume", "t", "--format", "json")
    first = records[0]
    assert list(first) == [
        "type",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "headers",
        "value",
    ]
    assert (first["type"], first["topic"], first["partition"], first["offset"]) == (
        "record",
        "t",
        0,
        0,
    )
    assert (first["key"], first["headers"], first["value"]) == (None, {}, "0")


def test_it_begins_where_it_is_told_and_ends_after_so_many(shell: Shell) -> None:
    lines = [{"value": n, "timestamp": f"2026-01-0{n + 1}T00:00:00Z"} for n in range(9)]
    shell.run("produce", "t", "--json-lines", given="\n".join(map(json.dumps, lines)))
    assert shell.values("t", "--from", 7) == ["7", "8"]
    assert shell.values("t", "--from", 9) == []
    assert shell.values("t", "--from", "latest") == []
    assert shell.values("t", "--from", "earliest", "--max", 2) == ["0", "1"]
    assert shell.values("t", "--from", "2026-01-08") == ["7", "8"]
    assert shell.values("t", "--from", "2026-01-08T01:00:00+02:00") == ["7", "8"]
    assert shell.values("t", "--from", "2027-01-01T00:00:00Z") == []


def test_partitions_can_be_chosen(shell: Shell) -> None:
    shell.run("topic", "create", "three", "--partitions", 3)
    for partition in range(3):
        shell.run("produce", "three", "--partition", partition, given=f"{partition}\n" * 2)
    assert sorted(shell.values("three")) == ["0", "0", "1", "1", "2", "2"]
    assert sorted(shell.values("three", "--partition", 0, "--partition", 2)) == ["0", "0", "2", "2"]
    assert shell.values("three", "--partition", 1, "--from", 1) == ["1"]
    assert "--partition" in shell.usage("consume", "three", "--from", 1)
    gone = shell.error("consume", "three", "--partition", 3)
    assert gone["code"] == "partition_not_found"


def test_more_than_a_batch_is_read_to_the_end_and_counted_exactly(shell: Shell) -> None:
    filled(shell, 25_000)
    assert shell.text("consume", "t").splitlines() == [str(n) for n in range(25_000)]
    assert len(shell.text("consume", "t", "--max", 10_001).splitlines()) == 10_001
    shell.run("consume", "t", "--group", "g", "--max", 12_345)
    assert shell.text("consume", "t", "--group", "g").splitlines()[0] == "12345"


def test_a_group_reads_named_partitions_and_the_rest_later(shell: Shell) -> None:
    shell.run("topic", "create", "two", "--partitions", 2)
    for partition in (0, 1):
        shell.run("produce", "two", "--partition", partition, given=f"{partition}\n" * 2)
    assert shell.values("two", "--group", "g", "--partition", 1, "--max", 1) == ["1"]
    assert shell.values("two", "--group", "g", "--partition", 1) == ["1"]
    assert shell.values("two", "--group", "g") == ["0", "0"]
    assert shell.values("two", "--group", "late", "--from", "latest") == []
    for partition in (0, 1):
        shell.run("produce", "two", "--partition", partition, given=f"new {partition}\n")
    assert sorted(shell.values("two", "--group", "late")) == ["new 0", "new 1"]
    (group,) = shell.json("group", "describe", "late")
    assert (group["members"], group["lag"]) == ([], 0)


def test_a_group_goes_on_where_it_was(shell: Shell) -> None:
    filled(shell)
    assert shell.values("t", "--group", "g", "--max", 3) == ["0", "1", "2"]
    assert shell.values("t", "--group", "g", "--max", 3) == ["3", "4", "5"]
    assert shell.values("t", "--group", "late", "--from", "latest") == []
    assert shell.values("t") == [str(n) for n in range(10)]
    assert shell.values("t", "--group", "g") == ["6", "7", "8", "9"]
    assert "group reset" in shell.usage("consume", "t", "--group", "g", "--from", 3)


def test_bytes_are_escaped_as_text_and_exact_as_raw(shell: Shell) -> None:
    shell.run("produce", "t", given=b"\xff\x1b[2Ja\nb\xc3\xa4\n")
    shell.run("produce", "t", "--json-lines", given='{"key": "k", "value": null}')
    assert shell.text("consume", "t") == "\\xff\x1b[2Ja\nb\xe4\nnull\n"
    assert shell.run("consume", "t", "--format", "raw").stdout_bytes == b"\xff\x1b[2Jab\xc3\xa4"
    table = shell.text("consume", "t", "--format", "table").splitlines()
    assert table[0].split() == ["partition", "offset", "time", "key", "value"]
    assert table[1].split()[-1] == "\\xff\\x1b[2Ja"
    assert table[3].split()[-2:] == ["k", "null"]


def test_a_table_cuts_long_values(shell: Shell) -> None:
    shell.run("produce", "t", given="x" * 500 + "\n")
    line = shell.text("consume", "t", "--format", "table").splitlines()[1]
    assert line.endswith("x…")
    assert len(line) < 140


def test_consuming_what_cannot_be_is_an_error(shell: Shell) -> None:
    filled(shell)
    assert shell.error("consume", "none")["code"] == "topic_not_found"
    assert shell.error("consume", "t", "--from", 11)["code"] == "offset_out_of_range"
    assert shell.error("consume", "t", "--group", "../g")["code"] == "invalid_name"
    assert "yesterday" in shell.usage("consume", "t", "--from", "yesterday")
    assert "--max" in shell.usage("consume", "t", "--max", 0)
    assert "--format" in shell.usage("consume", "t", "--format", "xml")


# Processes


def test_a_reader_that_stops_reading_ends_it_quietly(shell: Shell) -> None:
    filled(shell, 60_000)
    with shell.start("consume", "t", "--json", "--group", "g") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=600) == 141
    (group,) = shell.json("group", "describe", "g") if shell.json("group", "list") else [None]
    places = [] if group is None else group["partitions"]  # none, if nothing was committed
    committed = places[0]["committed"] if places else 0
    assert committed < 60_000  # nothing is committed that nobody could read


def test_output_that_cannot_be_written_is_a_message(shell: Shell) -> None:
    filled(shell)
    with (
        Path("/dev/full").open("wb") as full,
        shell.start("consume", "t", "--group", "g", stdout=full) as process,
    ):
        assert process.stderr is not None
        message = process.stderr.read()
        assert process.wait(timeout=600) == 1
    assert message.startswith(b"error: the output cannot be written")
    assert b"Traceback" not in message
    assert len(shell.values("t", "--group", "g")) == 10


def test_following_waits_until_it_is_interrupted(shell: Shell) -> None:
    filled(shell, 2)
    with shell.start("consume", "t", "--follow", "--group", "g") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = [process.stdout.readline(), process.stdout.readline()]
        assert shown == [b"0\n", b"1\n"], process.stderr.read() if not shown[0] else b""
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"interrupted\n"
        assert process.wait(timeout=600) == 130
    filled(shell, 1)
    assert shell.values("t", "--group", "g") in (["0"], ["0", "1", "0"])


def test_following_ends_after_so_many(shell: Shell) -> None:
    filled(shell)
    assert shell.values("t", "--follow", "--max", 4) == ["0", "1", "2", "3"]


def test_a_line_of_a_slow_writer_is_durable_before_the_next_one_comes(shell: Shell) -> None:
    """The command does not wait for its batch to fill: a kill finds what was written so far."""
    with shell.start("produce", "t", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        wait_for_growth(shell.folder, b"first")
        process.kill()
    assert shell.values("t") == ["first"]


def wait_for_growth(folder: Path, text: bytes) -> None:
    """Wait until the WAL holds a text, and the entry behind which it stands is acknowledged."""
    deadline = 600
    while not any(text in path.read_bytes() for path in (folder / "wal").glob("*.wal")):
        deadline -= 1
        assert deadline, "it was never written"
        select_for(0.05)


def select_for(seconds: float) -> None:
    """Let the other process run: there is no event to wait for in a file."""
    signal.sigtimedwait([], seconds)


def test_a_kill_in_the_middle_leaves_whole_batches_from_the_beginning(
    shell: Shell, tmp_path: Path
) -> None:
    with (tmp_path / "lines").open("w") as file:
        # Lines and batches divide what is read at a time: no batch is cut short at its end.
        file.writelines(f"{n:08d}{'x' * 55}\n" for n in range(1_500_000))
    with shell.start("produce", "t", tmp_path / "lines", "--batch", 1024) as process:
        wait_for_growth(shell.folder, b"00005000x")
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=600)
    with lakebed.open(shell.folder) as log:
        end = log.offsets("t")[0][1]
        assert 5000 <= end < 1_500_000
        assert end % 1024 == 0
        position = 0
        while position < end:
            values = log.read("t", 0, position).column("value").to_pylist()
            expected = range(position, position + len(values))
            assert [int(value[:8]) for value in values] == list(expected)
            position += len(values)


def test_a_terminal_is_not_commanded_by_records_and_asks_before_removing(shell: Shell) -> None:
    shell.run("produce", "t", given=b"\x1b]0;mine\x07safe\n")
    assert b"\\x1b]0;mine\\x07safe" in on_a_terminal(shell, "consume", "t")
    assert b"Remove the topic t" in on_a_terminal(shell, "topic", "delete", "t", typed=b"n\n")
    assert len(shell.json("topic", "list")) == 1
    on_a_terminal(shell, "topic", "delete", "t", typed=b"y\n")
    assert shell.json("topic", "list") == []


def on_a_terminal(shell: Shell, *arguments: object, typed: bytes = b"") -> bytes:
    ours, theirs = pty.openpty()
    with shell.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the program has ended and closed its side
            pass
        process.wait(timeout=600)
    os.close(ours)
    return shown
