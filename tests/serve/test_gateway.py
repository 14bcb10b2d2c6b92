"""The HTTP gateway: bad input first, then what it does, then everything its document promises."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from lakebed import Log, TopicConfig, limits
from lakebed.cli.formats import format_of
from lakebed.operations.routes import ROUTES
from lakebed.serve.http_body import parse
from tests.engine.support import any_time
from tests.serve.over_http import Answer, Served, served
from tests.waiting import until

JSON = {"Content-Type": "application/json"}
RECORDS = "/v1/topics/a/records"


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("gateway") / "log") as server:
        yield server


@pytest.fixture
def here(module_server: Served) -> Iterator[Served]:
    """A server whose log is empty."""
    log = module_server.log
    log.create_topic("a", 2)
    yield module_server
    for group in log.groups():
        log.delete_group(group)
    for topic in log.topics():
        log.delete_topic(topic)


def ends(log: Log, topic: str = "a") -> list[int]:
    return [end for _, end in log.offsets(topic).values()]


def refused(answer: Answer, code: str = "invalid_argument", status: int = 400) -> dict[str, Any]:
    assert (answer.status, answer.code) == (status, code), answer
    facts: dict[str, Any] = answer.json["facts"]
    return facts


# Bodies that are no JSON, or not the call's


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"records": [{"value": NaN}]}',
        b'{"records": [{"value": Infinity}]}',
        b'{"records": [{"value": "x", "partition": 1e999}]}',
        b'{"records": [{"value": "x", "timestamp": ' + b"9" * 5000 + b"}]}",
        b'{"records": [{"value": "x", "value": "y"}]}',
        b'{"records": [{"value": {"a": 1, "a": 2}}]}',
        b'{"records": [{"value": "\\ud800"}]}',
        b'{"records": [{"value": "x", "headers": {"\\udfff": "y"}}]}',
        b'{"records": [{"value": "x\x01"}]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"records": [{"value": "x"}]} {}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_is_no_json_is_refused(here: Served, body: bytes) -> None:
    refused(here.send("POST", RECORDS, body, JSON))
    assert ends(here.log) == [0, 0]


def test_numbers_mean_what_they_say() -> None:
    assert parse(b"[1.0, -1.5, 1e2, 0.0, 2.5e-3]") == [1, -1.5, 100, 0, 0.0025]
    assert [type(each) for each in parse(b"[1.0, 1e2, 0.0, -0.0, 1.5]")] == [
        int,
        int,
        int,
        float,
        float,
    ]
    assert parse(b'"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "text",
        {},
        {"records": []},
        {"records": {}},
        {"records": [5]},
        {"records": [{}]},
        {"records": [{"key": "k"}]},
        {"records": [{"value": "x"}], "more": 1},
        {"records": [{"value": "x", "colour": "red"}]},
        {"records": [{"value": 5}]},
        {"records": [{"value": True}]},
        {"records": [{"value": ["x"]}]},
        {"records": [{"value": "x", "key": 5}]},
        {"records": [{"value": "x", "key": {"base64": 5}}]},
        {"records": [{"value": "x", "key": {"base64": "eA==", "more": 1}}]},
        {"records": [{"value": "x", "key": {"base64": "not base64!"}}]},
        {"records": [{"value": "x", "key": {"base64": "eA="}}]},
        {"records": [{"value": "x", "headers": []}]},
        {"records": [{"value": "x", "headers": {"a": 1}}]},
        {"records": [{"value": "x", "timestamp": True}]},
        {"records": [{"value": "x", "timestamp": 253_402_300_800_000_000}]},
        {"records": [{"value": "x", "timestamp": -(2**63)}]},
        {"records": [{"value": "x", "partition": -1}]},
        {"records": [{"value": "x", "partition": "0"}]},
        {"records": [{"value": "x", "partition": 0.5}]},
        {"records": [{"value": "x"}] * (limits.JSON_RECORDS_MAX + 1)},
    ],
    ids=lambda body: repr(body)[:60],
)
def test_records_of_another_form_are_refused(here: Served, body: Any) -> None:
    text = json.dumps(body).encode()
    facts = refused(here.send("POST", RECORDS, text, JSON))
    assert facts["at"]
    assert ends(here.log) == [0, 0]


@pytest.mark.parametrize(
    "record",
    [
        {"value": {"a": 1}},
        {"value": {"base64": "not base64!"}},
        {"value": {"base64": 5}},
        {"value": None},
        {"value": "x", "timestamp": "yesterday"},
    ],
    ids=repr,
)
def test_records_that_do_not_fit_their_topic_are_refused_with_the_good_ones(
    here: Served, record: dict[str, Any]
) -> None:
    body = {"records": [{"value": "good"}, record]}
    assert refused(here.call("POST", RECORDS, body), "schema_mismatch")["row"] == 1
    body = {"records": [{"value": "good", "partition": 1}, {**record, "partition": 0}]}
    refused(here.call("POST", RECORDS, body), "schema_mismatch")
    assert ends(here.log) == [0, 0]


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", 253402300800000000, 2**80])
def test_times_outside_the_years_1_to_9999_are_refused(here: Served, time: Any) -> None:
    body = {"records": [{"value": "good"}, {"value": "x", "timestamp": time}]}
    refused(here.call("POST", RECORDS, body))
    assert ends(here.log) == [0, 0]


def test_times_that_an_older_version_wrote_are_shown_with_longer_years(
    here: Served,
) -> None:
    with any_time():
        here.log.append_batch("a", [{"value": b"x", "timestamp": 2**62}], partition=0)
    (record,) = here.get(f"{RECORDS}?partition=0").json["records"]
    assert record["timestamp"] == "148108-07-06T14:00:27.387904Z"


def test_partitions_and_topics_that_there_are_none_of(here: Served) -> None:
    for records in (
        [{"value": "x", "partition": 2}],
        [{"value": "x", "partition": 0}, {"value": "x", "partition": 2}],
    ):
        refused(here.call("POST", RECORDS, {"records": records}), "partition_not_found", 404)
    assert ends(here.log) == [0, 0]
    body = {"records": [{"value": "x"}]}
    refused(here.call("POST", "/v1/topics/none/records", body), "topic_not_found", 404)
    refused(here.get("/v1/topics/none/records"), "topic_not_found", 404)
    refused(here.get(f"{RECORDS}?partition=2"), "partition_not_found", 404)
    refused(here.get(f"{RECORDS}?offset=1"), "offset_out_of_range", 416)
    for path in ("/v1/topics/none", "/v1/topics/none/offsets"):
        refused(here.get(path), "topic_not_found", 404)
    refused(here.call("DELETE", "/v1/topics/none"), "topic_not_found", 404)
    for method in ("GET", "DELETE"):
        refused(here.call(method, "/v1/groups/none"), "group_not_found", 404)


def test_records_over_the_topics_limit_are_refused(here: Served) -> None:
    here.log.alter_topic("a", {"record_bytes_max": 10})
    body = {"records": [{"value": "x" * 11}]}
    refused(here.call("POST", RECORDS, body), "record_too_large", 413)


@pytest.mark.parametrize(
    "query",
    [
        "partition=x",
        "partition=-1",
        "partition=01",
        "partition=1.0",
        "partition=%201",
        "partition=",
        "partition=0&partition=1",
        f"partition={limits.PARTITIONS_MAX}",
        "offset=",
        "offset=-1",
        "offset=first",
        "offset=99999999999999999999",
        "max_records=0",
        f"max_records={limits.JSON_RECORDS_MAX + 1}",
        "wait_ms=60001",
        "wait_ms=1e3",
        "colour=red",
        "%00=1",
    ],
)
def test_parameters_that_are_not_allowed_are_named(here: Served, query: str) -> None:
    facts = refused(here.get(f"{RECORDS}?{query}"))
    assert facts["parameter"] == query.partition("=")[0].replace("%00", "\0")


@pytest.mark.parametrize("name", ["-", ".", "..", "%20", "a%0A", "a" * 129, "__other", "%C3%A4"])
def test_names_that_are_none_are_refused(here: Served, name: str) -> None:
    for path in (f"/v1/topics/{name}", f"/v1/topics/{name}/records", f"/v1/groups/{name}"):
        assert here.get(path).status == 400
    refused(here.call("POST", "/v1/topics", {"topic": name}))


def test_an_administrator_reads_the_audit_and_others_do_not(tmp_path: Path) -> None:
    with served(tmp_path / "log") as here:
        root = here.log.access.create_token("root", roles=["admin"])
        eyes = here.log.access.create_token("eyes", roles=["reader", "writer"])
        refused(here.get(RECORDS), "unauthenticated", 401)  # which is on record
        here.token = root
        read = "/v1/topics/__audit/records"

        def outcomes() -> list[str]:
            answer = here.get(read)
            records = answer.json["records"] if answer.status == 200 else []
            return [record["value"]["outcome"] for record in records]

        until(lambda: "unauthenticated" in outcomes())
        assert here.get("/v1/topics/__audit").json["topic"] == "__audit"
        assert here.get("/v1/topics/__audit/offsets").status == 200
        refused(here.call("POST", read, {"records": [{"value": {}}]}), "access_denied", 403)
        refused(here.call("DELETE", "/v1/topics/__audit"), "access_denied", 403)
        refused(here.call("POST", "/v1/topics", {"topic": "__audit"}))
        here.token = eyes
        for path in (read, "/v1/topics/__audit", "/v1/topics/__audit/offsets"):
            refused(here.get(path), "access_denied", 403)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topic": 5},
        {"topic": "b", "partitions": 0},
        {"topic": "b", "partitions": limits.PARTITIONS_MAX + 1},
        {"topic": "b", "partitions": True},
        {"topic": "b", "config": {"colour": "red"}},
        {"topic": "b", "config": {"retention_ms": -2}},
        {"topic": "b", "config": {"retention_ms": "5"}},
        {"topic": "b", "config": {"cleanup": "sometimes"}},
        {"topic": "b", "config": [1]},
        {"topic": "b", "schema": {}},
        {"topic": "b", "schema": {"fields": []}},
        {"topic": "b", "schema": {"fields": [{"name": "x", "type": "int7"}]}},
        {"topic": "b", "schema": {"fields": [{"name": "x", "type": "decimal(2, 3)"}]}},
        {"topic": "b", "schema": {"fields": [{"name": "x", "type": {"list": "int8"}}]}},
        {"topic": "b", "schema": {"fields": [{"name": "x", "type": "bool"}] * 2}},
        {"topic": "b", "schema": {"fields": [{"name": "x", "type": "bool", "size": 1}]}},
    ],
    ids=lambda body: repr(body)[:80],
)
def test_topics_that_cannot_be_made_are_refused(here: Served, body: dict[str, Any]) -> None:
    refused(here.call("POST", "/v1/topics", body))
    assert here.log.topics() == ["a"]


def test_schemas_that_are_nested_too_deeply_are_refused(here: Served) -> None:
    for depth in (limits.SCHEMA_DEPTH_MAX + 1, 300, 5_000):
        nested = '{"list": ' * depth + '"int64"' + "}" * depth
        body = f'{{"topic": "b", "schema": {{"fields": [{{"name": "x", "type": {nested}}}]}}}}'
        refused(here.send("POST", "/v1/topics", body.encode(), JSON))


def test_changes_that_cannot_be_made_are_refused(here: Served) -> None:
    refused(here.call("POST", "/v1/topics", {"topic": "a"}), "topic_exists", 409)
    for body in ({"colour": 1}, {"topic": "b"}, {"config": {"retention_ms": None}}):
        refused(here.call("PATCH", "/v1/topics/a", body))
    refused(here.call("PATCH", "/v1/topics/a", {"partitions": 1}))
    schema = {"fields": [{"name": "x", "type": "int64"}]}
    refused(here.call("PATCH", "/v1/topics/a", {"schema": schema}), "schema_change", 409)


@pytest.mark.parametrize(
    "offsets",
    [
        [],
        {},
        [{"topic": "a", "partition": 0}],
        [{"topic": "a", "partition": 0, "offset": -1}],
        [{"topic": "a", "partition": 0, "offset": 2**63}],
        [{"topic": "a", "partition": 0, "offset": 1, "member": "m"}],
        [{"topic": "a", "partition": 0, "offset": 1}, {"topic": "a", "partition": 0, "offset": 2}],
    ],
    ids=repr,
)
def test_commits_of_another_form_are_refused(here: Served, offsets: Any) -> None:
    refused(here.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets}))
    assert here.log.groups() == []


def test_a_group_with_members_is_not_forgotten(here: Served) -> None:
    with here.log.consumer("g", ["a"]) as consumer:
        consumer.poll(wait_ms=0)
        refused(here.call("DELETE", "/v1/groups/g"), "group_not_empty", 409)
        assert here.get("/v1/groups/g").json["members"] == [consumer.member]


# What it does


def test_a_record_comes_back_as_it_was_written_and_as_the_command_line_shows_it(
    here: Served,
) -> None:
    binary = {"base64": base64.b64encode(b"\xff\x00").decode()}
    given: list[dict[str, Any]] = [
        {
            "value": "grün \N{GRINNING FACE} \0",
            "key": "k",
            "headers": {"a": "1", "b": binary, "c": None},
            "timestamp": "2026-01-31T12:00:00.000001+02:00",
        },
        {"value": binary, "key": binary, "timestamp": 1_000_001},
        {"value": None, "key": "k", "headers": None},
        {"value": "", "key": None},
    ]
    for record in given:
        record["partition"] = 1
    answer = here.call("POST", RECORDS, {"records": given})
    assert answer.status == 200
    assert answer.json == {
        "topic": "a",
        "records": [{"partition": 1, "offset": number} for number in range(4)],
    }
    answer = here.get(f"{RECORDS}?partition=1")
    found = answer.json["records"]
    assert [each["value"] for each in found] == [each["value"] for each in given]
    assert [each["key"] for each in found] == ["k", binary, "k", None]
    assert found[0]["headers"] == given[0]["headers"]
    assert found[0]["timestamp"] == "2026-01-31T10:00:00.000001Z"
    assert found[1]["timestamp"] == "1970-01-01T00:00:01.000001Z"
    lines = format_of("json", pa.binary(), terminal=False)(here.log.read("a", 1)).splitlines()
    assert found == [json.loads(line) for line in lines]
    again = here.call("POST", RECORDS, {"records": found})
    assert [each["offset"] for each in again.json["records"]] == [4, 5, 6, 7]


def test_typed_values_are_objects_with_the_fields(here: Served) -> None:
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "int64", "nullable": False},
        {"name": "price", "type": "decimal(10, 2)"},
        {"name": "at", "type": "timestamp"},
        {"name": "tags", "type": {"list": "string"}},
        {"name": "blob", "type": "binary"},
    ]
    made = here.call("POST", "/v1/topics", {"topic": "t", "schema": {"fields": fields}})
    assert made.status == 201
    assert made.json["schema_version"] == 1
    shown = [{"nullable": True, **each} for each in fields]
    assert made.json["schema"] == {"fields": shown}
    value = {
        "id": 2**62,
        "price": "12.50",
        "at": "2026-01-31T12:00:00.000000Z",
        "tags": ["a", None],
        "blob": {"base64": "/w=="},
    }
    path = "/v1/topics/t/records"
    written = here.call("POST", path, {"records": [{"value": value}, {"value": {"id": 1}}]})
    assert written.status == 200
    found = here.get(path).json["records"]
    assert found[0]["value"] == value
    assert found[1]["value"] == dict.fromkeys(value) | {"id": 1}
    for wrong in (
        "text",
        {"id": "x"},
        {"id": 1.5},
        {"id": True},
        {"id": 2**64},
        {"id": 10**39},
        {"id": 1, "colour": "red"},
        {},
        {"id": 1, "price": "1.234"},
        {"id": 1, "at": "never"},
        {"id": 1, "tags": "a"},
        {"id": 1, "blob": {"base64": "?"}},
    ):
        refused(here.call("POST", path, {"records": [{"value": wrong}]}), "schema_mismatch")
    more = [*fields, {"name": "note", "type": "string"}]
    altered = here.call("PATCH", "/v1/topics/t", {"schema": {"fields": more}})
    assert altered.json["schema_version"] == 2
    back = here.call("PATCH", "/v1/topics/t", {"schema": {"fields": fields}})
    refused(back, "schema_change", 409)


def test_records_that_name_different_partitions_are_written_together(here: Served) -> None:
    given: list[dict[str, Any]] = [
        {"value": "a", "partition": 1},
        {"value": "b", "partition": 0},
        {"value": "c", "key": "k"},
        {"value": "d", "partition": 1},
    ]
    places = here.call("POST", RECORDS, {"records": given}).json["records"]
    for place, record in zip(places, given, strict=True):
        query = f"partition={place['partition']}&offset={place['offset']}&max_records=1"
        (found,) = here.get(f"{RECORDS}?{query}").json["records"]
        assert found["value"] == record["value"]
    assert [places[0], places[1], places[3]["partition"]] == [
        {"partition": 1, "offset": 0},
        {"partition": 0, "offset": 0},
        1,
    ]
    assert here.log.stats().open_transactions == 0


def test_a_partition_is_read_on_from_next_offset(here: Served) -> None:
    here.log.append_batch("a", [b"%d" % number for number in range(25)], partition=0)
    found: list[str] = []
    offset: Any = "earliest"
    while True:
        answer = here.get(f"{RECORDS}?offset={offset}&max_records=10").json
        if not answer["records"]:
            break
        found += [each["value"] for each in answer["records"]]
        offset = answer["next_offset"]
    assert found == [str(number) for number in range(25)]
    assert here.get(f"{RECORDS}?offset=latest").json == {
        "topic": "a",
        "partition": 0,
        "next_offset": 25,
        "records": [],
    }


def test_topics_are_made_changed_listed_and_deleted(here: Served) -> None:
    body = {"topic": "b", "partitions": 3, "config": {"cleanup": "compact"}}
    made = here.call("POST", "/v1/topics", body)
    assert (made.status, made.json["topic"], len(made.json["partitions"])) == (201, "b", 3)
    assert set(made.json["config"]) == set(TopicConfig.__dataclass_fields__)
    assert made.json["config"]["cleanup"] == "compact"
    assert here.get("/v1/topics").json == {"topics": ["a", "b"]}
    changed = here.call(
        "PATCH", "/v1/topics/b", {"partitions": 4, "config": {"retention_ms": 1000}}
    )
    assert changed.json["config"]["retention_ms"] == 1000
    assert changed.json["config"]["cleanup"] == "compact"
    assert here.get("/v1/topics/b").json == changed.json
    assert len(here.get("/v1/topics/b/offsets").json["partitions"]) == 4
    gone = here.call("DELETE", "/v1/topics/b")
    assert (gone.status, gone.body) == (204, b"")
    assert here.log.topics() == ["a"]


def test_groups_are_committed_described_and_forgotten(here: Served) -> None:
    here.log.append_batch("a", [b"x", b"y"], partition=1)
    commit = {"offsets": [{"topic": "a", "partition": 1, "offset": 1}]}
    answer = here.call("PUT", "/v1/groups/g/offsets", commit)
    assert (answer.status, answer.body) == (204, b"")
    assert here.get("/v1/groups").json == {"groups": ["g"]}
    found = here.get("/v1/groups/g").json
    assert (found["group"], found["lag"], found["members"]) == ("g", 1, [])
    assert found["partitions"][1] == {
        "topic": "a",
        "partition": 1,
        "committed": 1,
        "earliest": 0,
        "end": 2,
        "lag": 1,
        "member": None,
    }
    assert here.call("DELETE", "/v1/groups/g").status == 204
    assert here.log.groups() == []


# The document

FIELDS = pa.schema({"id": pa.int64(), "name": pa.string()})
EXAMPLES = 8
"""For each operation, each way of making requests, and each set of names."""

CHOOSY = ("create_topic", "alter_topic", "put", "read", "commit_offsets")
"""Operations that may refuse what the document allows: it does not know a topic's own schema."""


@pytest.fixture
def known(here: Served) -> Served:
    """A server with something in it."""
    here.log.create_topic("typed", schema=FIELDS)
    here.log.append_batch("a", [b"x", b"\xff"], partition=0)
    here.log.append("typed", {"id": 1, "name": "n"})
    here.log.commit_offsets("g", {"a": {0: 1}})
    return here


def tried(case: Any) -> None:
    """Make a request, and check the answer in every respect that the document speaks of."""
    _tame(case)
    choosy = case.operation.definition.raw["operationId"] in CHOOSY
    accepted = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")
    case.call_and_validate(excluded_checks=[accepted] if choosy else [])


def _tame(case: Any) -> None:
    """Keep requests quick: no long waits, no hundred thousand partitions."""
    query, body = case.query, case.body
    wait = str(query.get("wait_ms", "")) if isinstance(query, dict) else ""
    if wait.isdigit() and int(wait) <= 60_000:
        query["wait_ms"] = 1
    partitions = body.get("partitions") if isinstance(body, dict) else None
    if isinstance(partitions, int | float) and 3 < partitions <= limits.PARTITIONS_MAX:
        body["partitions"] = 3


def run(strategy: Any) -> None:
    check: Callable[[], None] = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(case=strategy)(tried))
    check()


@pytest.mark.parametrize("name", ROUTES)
def test_every_answer_to_any_request_is_as_the_document_says(known: Served, name: str) -> None:
    document = schemathesis.openapi.from_url(
        f"{known.url}/openapi.json", config=SchemathesisConfig()
    )
    operation = document.find_operation_by_id(name)
    parameters = {each.name for each in operation.path_parameters}
    run(operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    if parameters or operation.query or operation.body:
        run(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    for names in ({"topic": "a"}, {"topic": "typed"}, {"group": "g"}):
        if set(names) == parameters and not name.startswith("delete"):
            run(operation.as_strategy(path_parameters=names))
            if operation.query or operation.body:
                negative = GenerationMode.NEGATIVE
                run(operation.as_strategy(generation_mode=negative, path_parameters=names))


def test_the_document_has_every_route_and_every_status(here: Served) -> None:
    document = here.get("/openapi.json").json
    assert document["openapi"].startswith("3.1")
    found = {
        given["operationId"]: given
        for methods in document["paths"].values()
        for given in methods.values()
    }
    assert set(found) == set(ROUTES)
    bounds = {
        each["name"]: [each["schema"].get(name) for name in ("minimum", "maximum")]
        for each in found["read"]["parameters"]
        if each["schema"]["type"] == "integer"
    }
    assert bounds == {
        "partition": [0, None],
        "max_records": [1, limits.JSON_RECORDS_MAX],
        "wait_ms": [0, 60_000],
    }
    for name, operation in found.items():
        assert "422" not in operation["responses"]
        for status, response in operation["responses"].items():
            content = list(response.get("content", ()))
            if status == "204":
                assert content == []
            elif int(status) >= 400 and name != "ready":
                assert content == ["application/problem+json"]


def test_a_group_does_not_tell_of_topics_that_its_caller_may_not_read(tmp_path: Path) -> None:
    with served(tmp_path / "log") as here:
        for topic in ("mine", "theirs"):
            here.log.create_topic(topic)
            here.log.commit_offsets("g", {(topic, 0): 0})
        here.log.access.create_token("root", roles=["admin"])
        here.log.access.allow("clerk", "group")
        here.log.access.allow("clerk", "read", "mine")
        here.token = str(here.log.access.create_token("ann", roles=["clerk"]))
        shown = here.get("/v1/groups/g").json["partitions"]
        assert [each["topic"] for each in shown] == ["mine"]
