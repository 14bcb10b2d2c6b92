"""Topics, groups, checkpoints, statistics and settings on the command line."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakebed
from lakebed.cli import cli
from lakebed.cli.schema_file import read_schema
from lakebed.config import SECTIONS, LakeConfig, LogConfig, ServeConfig, TopicConfig, WalConfig
from lakebed.errors import InvalidArgumentError
from lakebed.topic.schema_document import schema_document
from tests.cli.engine import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "data")


SCHEMA = {
    "fields": [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "price", "type": "decimal(10, 2)"},
        {"name": "at", "type": "timestamp"},
        {"name": "local", "type": "timestamp_ntz"},
        {"name": "day", "type": "date"},
        {"name": "note", "type": "binary"},
        {"name": "ratio", "type": "double"},
        {"name": "tags", "type": {"list": "string", "nullable": False}},
        {"name": "counts", "type": {"map": "int32"}},
        {"name": "codes", "type": {"map": "string", "keys": "int64"}},
        {"name": "to", "type": {"struct": [{"name": "city", "type": "string"}]}},
    ]
}


def schema_file(tmp_path: Path, document: object = SCHEMA) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(document))
    return path


# The folder


def test_a_command_without_a_folder_says_how_to_name_one() -> None:
    result = CliRunner(env={"LAKEBED_DATA": None}).invoke(cli, ["topic", "list"])
    assert result.exit_code == 2
    assert "--data" in result.stderr
    assert "LAKEBED_DATA" in result.stderr


LOOKING = [
    ["topic", "list"],
    ["topic", "describe", "t"],
    ["topic", "alter", "t", "--partitions", "2"],
    ["topic", "delete", "t", "--yes"],
    ["topic", "purge", "t", "--yes"],
    ["produce", "t"],
    ["consume", "t"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "reset", "g", "--topic", "t", "--to", "earliest"],
    ["group", "delete", "g", "--yes"],
    ["checkpoint"],
    ["retain"],
    ["stats"],
    ["doctor"],
]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_only_creating_a_topic_makes_a_log(shell: Shell, command: list[str]) -> None:
    assert shell.error(*command)["code"] == "not_a_log"
    assert not shell.folder.exists()


def test_a_folder_in_use_is_an_error_that_names_its_owner(shell: Shell) -> None:
    with lakebed.open(shell.folder):
        error = shell.error("topic", "list")
    assert error["code"] == "locked"
    assert error["facts"]["pid"] > 0


def test_the_option_is_worth_more_than_the_environment(shell: Shell, tmp_path: Path) -> None:
    shell.run("topic", "create", "here")
    Shell(tmp_path / "other").run("topic", "create", "there")
    assert [
        each["topic"] for each in shell.json("topic", "list", "--data", tmp_path / "other")
    ] == ["there"]


# Topics


def test_a_topic_is_made_described_changed_and_removed(shell: Shell) -> None:
    (made,) = shell.json("topic", "create", "a", "--partitions", 2, "--config", "cleanup=compact")
    assert (made["topic"], len(made["partitions"]), made["schema"]) == ("a", 2, None)
    assert made["config"]["cleanup"] == "compact"
    settings = ["--config", "retention_ms=1000", "--config", "cleanup=delete"]
    (changed,) = shell.json("topic", "alter", "a", "--partitions", 3, *settings)
    assert len(changed["partitions"]) == 3
    assert (changed["config"]["retention_ms"], changed["config"]["cleanup"]) == (1000, "delete")
    assert shell.json("topic", "describe", "a") == [changed]
    assert shell.json("topic", "list") == [changed]
    shell.run("topic", "delete", "a", "--yes")
    assert shell.json("topic", "list") == []
    assert shell.text("topic", "list") == "no topics\n"


def test_people_get_tables(shell: Shell) -> None:
    shell.run("topic", "create", "a", "--partitions", 2, "--config", "retention_ms=5")
    shell.run("produce", "a", "--partition", 1, given="x\ny\n")
    listed = shell.text("topic", "list").splitlines()
    assert listed[0].split() == [
        "topic",
        "partitions",
        "records",
        "segments",
        "size",
        "values",
        "cleanup",
    ]
    assert listed[1].split() == ["a", "2", "2", "0", "0", "B", "bytes", "delete"]
    shown = shell.text("topic", "describe", "a").splitlines()
    assert "retention_ms  5" in shown
    assert shown[-1].split() == ["1", "0", "2", "0", "0", "B", "2"]


def test_a_topic_that_exists_is_an_error_unless_that_was_expected(shell: Shell) -> None:
    shell.run("topic", "create", "a", "--partitions", 2)
    assert shell.error("topic", "create", "a")["code"] == "topic_exists"
    (same,) = shell.json("topic", "create", "a", "--if-not-exists", "--partitions", 5)
    assert len(same["partitions"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["describe", "b"], "topic_not_found"),
        (["alter", "b", "--partitions", 2], "topic_not_found"),
        (["delete", "b", "--yes"], "topic_not_found"),
        (["purge", "b", "--yes"], "topic_not_found"),
        (["create", "../b"], "invalid_name"),
        (["create", "b", "--config", "speed=1"], "invalid_argument"),
        (["create", "b", "--config", "cleanup=maybe"], "invalid_argument"),
        (["create", "b", "--config", "retention_ms=soon"], "invalid_argument"),
        (["alter", "a", "--partitions", 1], "invalid_argument"),
        (["alter", "a", "--config", "segment_bytes=1"], "invalid_argument"),
    ],
)
def test_what_cannot_be_is_a_typed_error(shell: Shell, arguments: list[Any], code: str) -> None:
    shell.run("topic", "create", "a", "--partitions", 2)
    assert shell.error("topic", *arguments)["code"] == code
    (a,) = shell.json("topic", "list")
    assert len(a["partitions"]) == 2


def test_wrong_calls_are_exit_code_2(shell: Shell) -> None:
    shell.run("topic", "create", "a")
    assert "nothing to change" in shell.usage("topic", "alter", "a")
    assert "NAME=VALUE" in shell.usage("topic", "create", "b", "--config", "cleanup")
    assert "--partitions" in shell.usage("topic", "create", "b", "--partitions", "none")
    assert "use --yes" in shell.usage("topic", "delete", "a")
    assert "use --yes" in shell.usage("topic", "purge", "a")
    assert "--to" in shell.usage("group", "reset", "g", "--topic", "a")
    assert "2026" in shell.usage("group", "reset", "g", "--topic", "a", "--to", "yesterday")
    assert len(shell.json("topic", "list")) == 1


def test_a_bad_setting_is_refused_before_a_folder_is_made(shell: Shell) -> None:
    shell.error("topic", "create", "a", "--config", "speed=1")
    shell.error("topic", "create", "a", "--schema", "nowhere.json")
    assert not shell.folder.exists()


def test_purging_removes_records_and_offsets_go_on(shell: Shell) -> None:
    shell.run("topic", "create", "a")
    shell.run("produce", "a", given="x\ny\n")
    assert shell.json("topic", "purge", "a", "--yes") == [
        {"type": "purged", "topic": "a", "records": 2}
    ]
    assert shell.values("a") == []
    shell.run("produce", "a", given="z\n")
    (record,) = shell.json("consume", "a")
    assert (record["offset"], record["value"]) == (2, "z")


# Schemas


def test_a_schema_file_says_every_type_and_is_shown_as_it_was_given(
    shell: Shell, tmp_path: Path
) -> None:
    shell.run("topic", "create", "a", "--schema", schema_file(tmp_path))
    (shown,) = shell.json("topic", "describe", "a")
    given = json.loads(json.dumps(SCHEMA))
    for field in [*given["fields"], *given["fields"][-1]["type"]["struct"]]:
        field.setdefault("nullable", True)
    assert shown["schema"] == given
    schema = read_schema(schema_file(tmp_path, shown["schema"]))
    assert schema.field("price").type == pa.decimal128(10, 2)
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert not schema.field("id").nullable
    assert schema_document(schema) == shown["schema"]
    table = shell.text("topic", "describe", "a").splitlines()
    assert table[-1].split()[0] == "to"


def test_a_schema_grows_by_nullable_fields(shell: Shell, tmp_path: Path) -> None:
    first = {"fields": [{"name": "id", "type": "int64"}]}
    shell.run("topic", "create", "a", "--schema", schema_file(tmp_path, first))
    shell.run("produce", "a", given='{"id": 1}\n')
    more = {"fields": [*first["fields"], {"name": "name", "type": "string"}]}
    shell.run("topic", "alter", "a", "--schema", schema_file(tmp_path, more))
    shell.run("produce", "a", given='{"id": 2, "name": "n"}\n')
    assert shell.values("a") == [{"id": 1, "name": None}, {"id": 2, "name": "n"}]
    back = shell.error("topic", "alter", "a", "--schema", schema_file(tmp_path, first))
    assert back["code"] == "schema_change"


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "value"),
        ({"fields": {}}, "value"),
        ({"fields": [{"type": "int64"}]}, "[0]"),
        ({"fields": [{"name": "a"}]}, "a"),
        ({"fields": [{"name": "a", "type": "int65"}]}, "a"),
        ({"fields": [{"name": "a", "type": "decimal(40, 2)"}]}, "a"),
        ({"fields": [{"name": "a", "type": "int64", "nullable": 1}]}, "a"),
        ({"fields": [{"name": "a", "type": "int64", "default": 1}]}, "a"),
        ({"fields": [{"name": "a", "type": {"set": "int64"}}]}, "a"),
        ({"fields": [{"name": "a", "type": {"list": {"map": "x"}}}]}, "a"),
        ({"fields": [{"name": "a", "type": {"struct": [{"name": "b", "type": 7}]}}]}, "a.b"),
        ({"fields": [{"name": "a", "type": "bool"}, {"name": "A", "type": "bool"}]}, "A"),
    ],
)
def test_a_bad_schema_is_told_with_file_and_field(
    tmp_path: Path, document: object, field: str
) -> None:
    path = schema_file(tmp_path, document)
    with pytest.raises(InvalidArgumentError) as caught:
        read_schema(path)
    assert caught.value.facts["file"] == path
    assert caught.value.facts["field"] == field


def test_a_schema_file_that_is_no_json_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{")
    for path in (tmp_path / "bad", tmp_path / "gone", tmp_path):
        with pytest.raises(InvalidArgumentError) as caught:
            read_schema(path)
        assert caught.value.facts["file"] == path


def test_a_schema_nested_without_end_is_refused(tmp_path: Path) -> None:
    kind: object = "int64"
    for _ in range(40):
        kind = {"list": kind}
    with pytest.raises(InvalidArgumentError, match="nested too deeply"):
        read_schema(schema_file(tmp_path, {"fields": [{"name": "a", "type": kind}]}))
    (tmp_path / "deep").write_text('{"fields":' * 100_000)
    with pytest.raises(InvalidArgumentError, match="not JSON"):
        read_schema(tmp_path / "deep")


# Groups


def grouped(shell: Shell) -> None:
    shell.run("topic", "create", "a", "--partitions", 2)
    for partition in (0, 1):
        shell.run("produce", "a", "--partition", partition, given="w\nx\ny\nz\n")
    shell.run("consume", "a", "--group", "g", "--max", 3)


def test_a_group_shows_how_far_it_has_come(shell: Shell) -> None:
    grouped(shell)
    (found,) = shell.json("group", "describe", "g")
    assert found["lag"] == sum(each["lag"] for each in found["partitions"])
    assert sum(each["committed"] or 0 for each in found["partitions"]) == 3
    assert shell.json("group", "list") == [found]
    assert shell.text("group", "list").splitlines()[1].split()[:2] == ["g", "a"]
    assert shell.text("group", "describe", "g").splitlines()[0].split() == ["group", "g"]


def test_a_group_goes_on_from_where_it_was_reset_to(shell: Shell) -> None:
    grouped(shell)
    moved = shell.json("group", "reset", "g", "--topic", "a", "--to", "latest")
    assert [(each["partition"], each["after"]) for each in moved] == [(0, 4), (1, 4)]
    assert shell.values("a", "--group", "g") == []
    shell.run("group", "reset", "g", "--topic", "a", "--to", "earliest")
    assert len(shell.values("a", "--group", "g")) == 8
    (one,) = shell.json("group", "reset", "g", "--topic", "a", "--to", 3, "--partition", 1)
    assert (one["before"], one["after"]) == (4, 3)
    assert shell.values("a", "--group", "g") == ["z"]
    shell.run("group", "reset", "g", "--topic", "a", "--to", "2001-01-01T00:00:00+02:00")
    assert len(shell.values("a", "--group", "g")) == 8
    future = shell.json("group", "reset", "g", "--topic", "a", "--to", "2999-01-01")
    assert {each["after"] for each in future} == {4}


def test_a_group_that_nobody_made_yet_can_be_given_its_beginning(shell: Shell) -> None:
    grouped(shell)
    shown = shell.text("group", "reset", "new", "--topic", "a", "--to", "latest").splitlines()
    assert shown[1].split() == ["a", "0", "-", "4"]
    assert shell.values("a", "--group", "new") == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["describe", "none"], "group_not_found"),
        (["delete", "none", "--yes"], "group_not_found"),
        (["describe", "../g"], "invalid_name"),
        (["reset", "g", "--topic", "none", "--to", "latest"], "topic_not_found"),
        (["reset", "g", "--topic", "a", "--to", 5, "--partition", 0], "offset_out_of_range"),
        (["reset", "g", "--topic", "a", "--to", 1, "--partition", 7], "partition_not_found"),
    ],
)
def test_a_group_command_that_cannot_be_is_an_error(
    shell: Shell, arguments: list[Any], code: str
) -> None:
    grouped(shell)
    before = shell.json("group", "list")
    assert shell.error("group", *arguments)["code"] == code
    assert shell.json("group", "list") == before


def test_one_offset_for_two_partitions_must_be_meant(shell: Shell) -> None:
    grouped(shell)
    assert "--partition" in shell.usage("group", "reset", "g", "--topic", "a", "--to", 1)
    named = ["--partition", 0, "--partition", 1]
    moved = shell.json("group", "reset", "g", "--topic", "a", "--to", 1, *named)
    assert [each["after"] for each in moved] == [1, 1]


def test_a_deleted_group_is_forgotten_and_the_records_stay(shell: Shell) -> None:
    grouped(shell)
    assert "use --yes" in shell.usage("group", "delete", "g")
    shell.run("group", "delete", "g", "--yes")
    assert shell.text("group", "list") == "no groups\n"
    assert len(shell.values("a", "--group", "g")) == 8


# Looking after it


def test_a_checkpoint_says_what_it_did(shell: Shell) -> None:
    shell.run("topic", "create", "a")
    shell.run("produce", "a", given="x\ny\n")
    (report,) = shell.json("checkpoint")
    assert (report["type"], report["records"], report["segments"]) == ("checkpoint", 2, 1)
    assert "flushed   0 records into 0 segments" in shell.text("checkpoint")
    (described,) = shell.json("topic", "describe", "a")
    assert described["partitions"][0]["segments"] == 1


def test_retention_is_applied_when_asked_for(shell: Shell) -> None:
    shell.run("topic", "create", "a", "--config", "retention_ms=0")
    shell.run("topic", "create", "b")
    old = json.dumps({"value": "old", "timestamp": "2001-02-03T04:05:06Z"})
    for topic in ("a", "b"):
        shell.run("produce", topic, "--json-lines", given=old)
    shell.run("checkpoint")
    assert shell.json("retain", "b")[0]["records_removed"] == 0
    (report,) = shell.json("retain")
    (left,) = [each["records"] for each in shell.json("topic", "list") if each["topic"] == "a"]
    assert (report["records_removed"], left) in ((1, 0), (0, 0))  # the log may have been quicker
    assert shell.values("b") == ["old"]
    assert shell.error("retain", "none")["code"] == "topic_not_found"
    assert "retention " in shell.text("retain")


def test_statistics_are_groups_of_facts(shell: Shell) -> None:
    shell.run("topic", "create", "a", "--partitions", 3)
    shell.run("produce", "a", given="x\ny\n")
    (found,) = shell.json("stats")
    assert (found["topics"], found["partitions"], found["memtable_records"]) == (1, 3, 2)
    assert found["wal"]["sync"] == "always"
    assert (found["lake"]["iceberg"], found["lake"]["lag_records"]) == (True, 2)
    shown = shell.text("stats").splitlines()
    assert [line for line in shown if line and line[0] != " "] == [
        "log",
        "data",
        "memory",
        "WAL",
        "lake",
        "opening",
    ]


# Settings


def test_every_setting_is_listed_with_default_bounds_and_meaning(shell: Shell) -> None:
    found = shell.json("config")
    kinds: list[tuple[str, Any]] = [
        ("topic", TopicConfig),
        ("log", LogConfig),
        ("wal", WalConfig),
        ("lake", LakeConfig),
        ("serve", ServeConfig),
    ]
    for section, kind in kinds:
        listed = {each["name"]: each for each in found if each["section"] == section}
        names = [field.name for field in fields(kind) if field.name not in SECTIONS]
        assert list(listed) == names
        for each in listed.values():
            told = [each[name] for name in ("bounds", "choices", "kind")]
            assert told.count(None) == 2
            assert each["meaning"].endswith(".")
    shown = shell.text("config", "topic")
    assert "  retention_ms = -1    (-1 to " in shown
    assert "(delete | compact | compact,delete)" in shown
    assert "sync_interval_ms" not in shown
    assert "  sync = always    (always | interval | os)" in shell.text("config", "wal")
    lake = shell.text("config", "lake")
    assert "  iceberg = true    (true | false)" in lake
    assert '  store = ""    (a URL)' in lake
    assert "lakebed.toml" in lake
    assert "LogConfig(lake=LakeConfig(" in lake


# Completion


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell: Shell, name: str) -> None:
    script = shell.text("completion", name)
    assert "_LAKEBED_COMPLETE" in script
    assert name in script


def completed(shell: Shell, words: str) -> list[str]:
    env = {
        "_LAKEBED_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "LAKEBED_DATA": str(shell.folder),
    }
    result = CliRunner(env=env).invoke(cli, [], prog_name="lakebed")
    return [line.split(",")[1] for line in result.stdout.split()]


def test_commands_topics_and_groups_are_completed(shell: Shell) -> None:
    grouped(shell)
    shell.run("topic", "create", "ab")
    assert completed(shell, "lakebed topic des") == ["describe"]
    assert completed(shell, "lakebed consume a") == []
    shell.run("checkpoint")
    assert completed(shell, "lakebed consume a") == ["a", "ab"]
    assert completed(shell, "lakebed group describe ") == ["g"]
    with lakebed.open(shell.folder):
        assert completed(shell, "lakebed topic describe ab") == ["ab"]
    assert completed(Shell(shell.folder / "none"), "lakebed consume a") == []
