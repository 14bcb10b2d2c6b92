"""Faults in the limits of HTTP connections, bodies and answers."""

from __future__ import annotations

from tests.proof.mutation import Mutant, drop, never, replace

SLOW = "tests/serve/test_http_slow_clients.py"
CROWDS = "tests/serve/test_http_crowds.py"
PRIVATE = "tests/serve/test_private_paths.py"
GATEWAY = "tests/serve/test_gateway.py"

MUTANTS = (
    Mutant(
        name="groups-by-http-not-limited",
        breaks="one caller cannot fill the state with groups",
        at="lakebed.serve.gateway:_add_groups",
        changes=(drop("caller.room.check_groups(...)"),),
        tests=("tests/serve/test_room.py::test_groups_of_commits_by_http_are_limited_too",),
        seconds=5,
    ),
    Mutant(
        name="no-reserve-of-http-waits",
        breaks="administrators have a reserve of requests that wait",
        at="lakebed.serve.http_door:RequestPipeline.waiting",
        changes=(replace("self.quotas.stream(...)", "self.quotas.stream(caller.principal)"),),
        tests=(
            "tests/serve/test_streams_of_one.py"
            "::test_administrators_have_a_reserve_of_http_requests_that_wait",
        ),
        seconds=10,
    ),
    Mutant(
        name="answer-not-held",
        breaks="bytes of an HTTP answer count until it is sent",
        at="lakebed.serve.http_door:RequestPipeline.answer",
        changes=(drop("caller.hold(...)"),),
        tests=(f"{SLOW}::test_answers_count_until_they_are_sent",),
        seconds=15,
    ),
    Mutant(
        name="body-deadline-begun-again",
        breaks="the body of an HTTP request has one deadline",
        at="lakebed.serve.http_body:read_body",
        changes=(replace("began + allowed - time.monotonic()", "allowed"),),
        tests=(f"{SLOW}::test_a_body_that_comes_byte_by_byte_has_one_deadline",),
        seconds=200,
    ),
    Mutant(
        name="places-not-by-principal",
        breaks="slow requests of one principal leave places for others",
        at="lakebed.serve.http_places:Places.check",
        changes=(replace("self._principals.get(...)", "self._all"),),
        tests=(f"{SLOW}::test_slow_bodies_of_one_principal_leave_places_for_others",),
        seconds=15,
    ),
    Mutant(
        name="body-read-before-the-permission",
        breaks="the body of a caller that may manage nothing is not read",
        at="lakebed.serve.gateway:_add_topics",
        changes=(drop("caller.check_somewhere()"),),
        tests=(f"{SLOW}::test_who_may_manage_nothing_does_not_get_a_body_read",),
        seconds=15,
    ),
    Mutant(
        name="one-json-limit-for-all-calls",
        breaks="only records may be long",
        at="lakebed.serve.http_door:HttpCaller.body",
        changes=(replace("min(bytes_max, $X)", "$X"),),
        tests=(f"{SLOW}::test_a_large_body_is_for_records_alone",),
        seconds=15,
    ),
    Mutant(
        name="json-values-not-counted",
        breaks="JSON of too many values is refused before it is built",
        at="lakebed.serve.http_body:parse",
        changes=(drop("check_values(...)"),),
        tests=(f"{SLOW}::test_json_of_too_many_values_is_refused_before_it_is_built",),
        seconds=15,
    ),
    Mutant(
        name="values-counted-in-texts",
        breaks="commas in texts are no values",
        at="lakebed.serve.http_body:_count_values",
        changes=(replace("before & ~inside", "before"),),
        tests=(f"{SLOW}::test_json_of_too_many_values_is_refused_before_it_is_built",),
        seconds=15,
    ),
    Mutant(
        name="bad-chunk-answered-twice",
        breaks="a bad chunk does not fill the log",
        at="lakebed.serve.http_protocol:HttpConnection.send_400_response",
        changes=(drop("cycle.disconnected = True"),),
        tests=(f"{CROWDS}::test_bad_chunks_are_answered_and_do_not_fill_the_log",),
        seconds=15,
    ),
    Mutant(
        name="known-callers-evicted-first",
        breaks="connections without a known caller make room first",
        at="lakebed.serve.http_connections:HttpConnections.evict_idle",
        changes=(replace("(self.idle_unknown, $X)", "($X, self.idle_unknown)"),),
        tests=(f"{CROWDS}::test_idle_connections_make_room_for_the_next_one",),
        seconds=15,
    ),
    Mutant(
        name="no-reserve-of-connections",
        breaks="health probes are served when every connection is busy",
        at="lakebed.serve.http_connections:HttpConnections._make_spare_room",
        changes=(never("self._spares < $X"),),
        tests=(
            f"{CROWDS}::test_health_probes_and_administrators_are_served_when_every_connection_is_busy",
        ),
        seconds=15,
    ),
    Mutant(
        name="handshake-not-counted",
        breaks="a connection counts during its handshake",
        at="lakebed.serve.http_listener:Listener._begin",
        changes=(drop("seat.prepare(...)"),),
        tests=(f"{CROWDS}::test_a_handshake_that_does_not_come_is_ended_and_counted",),
        seconds=15,
    ),
    Mutant(
        name="two-tokens-taken",
        breaks="an ambiguous head is refused",
        at="lakebed.serve.http_head:head_fault",
        changes=(never("headers.count($X) > 1"),),
        tests=(f"{CROWDS}::test_an_ambiguous_head_is_refused_and_its_connection_closed",),
        seconds=15,
    ),
    Mutant(
        name="length-and-chunks-taken",
        breaks="an ambiguous head is refused",
        at="lakebed.serve.http_head:head_fault",
        changes=(never("$X in headers and $Y in headers"),),
        tests=(f"{CROWDS}::test_an_ambiguous_head_is_refused_and_its_connection_closed",),
        seconds=15,
    ),
    Mutant(
        name="websocket-records-unchecked",
        breaks="a WebSocket refuses what HTTP refuses",
        at="lakebed.serve.record_socket:RecordSocket._record",
        changes=(drop("check_record(...)"),),
        tests=(f"{CROWDS}::test_a_record_that_http_refuses_a_websocket_refuses",),
        seconds=15,
    ),
    Mutant(
        name="paths-told",
        breaks="errors that are sent do not tell where the log is",
        at="lakebed.serve.server:Server.start",
        changes=(drop("hide_folders(...)"),),
        tests=(f"{PRIVATE}::test_an_error_of_the_disk_does_not_tell_where_the_log_is",),
        seconds=15,
    ),
    Mutant(
        name="connection-lines-without-a-limit",
        breaks="HTTP connections have one log line a second",
        at="lakebed.serve.refusals:OncePerSecond.filter",
        changes=(never("second == now"),),
        tests=(f"{CROWDS}::test_lines_about_connections_are_written_once_a_second",),
        seconds=15,
    ),
    Mutant(
        name="faults-hidden-by-bad-requests",
        breaks="a fault of the server is logged beside any number of bad requests",
        at="lakebed.serve.refusals:_reason",
        changes=(replace("(record.levelno, $X, kind, line)", "None"),),
        tests=(f"{CROWDS}::test_bad_requests_do_not_hide_a_fault",),
        seconds=15,
    ),
    Mutant(
        name="audit-hidden-from-administrators",
        breaks="administrators read the audit over HTTP",
        at="lakebed.serve.gateway",
        changes=(replace("TOPIC_PATTERN", "NAME_PATTERN", within="TopicPath = $X"),),
        tests=(f"{GATEWAY}::test_an_administrator_reads_the_audit_and_others_do_not",),
        seconds=15,
    ),
)
