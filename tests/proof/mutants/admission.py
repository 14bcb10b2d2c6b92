"""Faults in what a caller may do before it is known, and in the limits of one caller."""

from __future__ import annotations

from tests.proof.mutation import Mutant, always, before, drop, instead, never, omit, replace

UNKNOWN = "tests/serve/test_before_authentication.py"
STREAMS_OF_ONE = "tests/serve/test_streams_of_one.py"
CANCELLED = "tests/serve/test_cancelled.py"
NOT_TAKEN = "tests/serve/test_answers_not_taken.py"
REQUESTS = "tests/serve/test_requests.py"
ROOM = "tests/serve/test_room.py"
CONNECTIONS = "tests/serve/test_connections.py"

MUTANTS = (
    Mutant(
        name="put-streams-authenticated-with-their-first-message",
        breaks="a stream without a token holds no thread",
        at="lakebed.serve.flight:FlightServer._begin",
        changes=(drop("self._guard.authenticate(...)"),),
        tests=(f"{UNKNOWN}::test_a_stream_without_a_token_holds_no_thread",),
        seconds=15,
    ),
    Mutant(
        name="methods-that-are-not-offered-pass",
        breaks="a method that is not offered is refused by an error that says so",
        at="lakebed.serve.flight:FlightServer._begin",
        changes=(drop("raise ProtocolError(...)"),),
        tests=(
            f"{UNKNOWN}::test_a_method_that_is_not_offered_is_refused_by_an_error_that_says_so",
        ),
        seconds=15,
    ),
    Mutant(
        name="two-tokens-taken-for-the-first",
        breaks="a call has one token",
        at="lakebed.serve.callers:_token",
        changes=(omit("len(values) == 1"),),
        tests=(f"{UNKNOWN}::test_two_tokens_are_none",),
        seconds=15,
    ),
    Mutant(
        name="unknown-connections-send-what-they-like",
        breaks="a caller that is not known may send few bytes",
        at="lakebed.serve.connections:Connections._offences",
        changes=(never("$X.received > config.flight_unauthenticated_bytes_max"),),
        tests=(f"{UNKNOWN}::test_a_caller_that_is_not_known_may_send_few_bytes",),
        seconds=60,
    ),
    Mutant(
        name="silent-connections-kept",
        breaks="a connection without a known caller is closed in time",
        at="lakebed.serve.connections:Connections._offences",
        changes=(never("now - $X.since > patience"),),
        tests=(
            f"{UNKNOWN}::test_a_connection_that_says_nothing_is_closed_and_that_of_a_known_caller_is_kept",
        ),
        seconds=60,
    ),
    Mutant(
        name="known-connections-closed-too",
        breaks="the connection of a known caller is kept",
        at="lakebed.serve.connections:Connections.look",
        changes=(instead("$X.known, $X.base = True, $Y", "$X.base = $Y"),),
        tests=(
            f"{UNKNOWN}::test_a_connection_that_says_nothing_is_closed_and_that_of_a_known_caller_is_kept",
        ),
        seconds=15,
    ),
    Mutant(
        name="connections-of-an-address-not-limited",
        breaks="connections of one address are limited",
        at="lakebed.serve.connections:Connections._shed_crowds",
        changes=(never("$X >= config.flight_address_connections_max"),),
        tests=(f"{UNKNOWN}::test_connections_of_one_address_are_limited",),
        seconds=60,
    ),
    Mutant(
        name="another-connection-shut-down",
        breaks="a descriptor that belongs to another connection by now is left alone",
        at="lakebed.serve.sockets:Sockets.shut_down",
        changes=(always("_peer_of(...) == seen.peer"),),
        tests=(f"{CONNECTIONS}::test_a_descriptor_of_another_connection_is_left_alone",),
        seconds=5,
    ),
    Mutant(
        name="large-requests-of-known-callers-taken",
        breaks="a known caller may not send a request of any size",
        at="lakebed.serve.connections:Connections._offences",
        changes=(never("$X > self._limit_of(...)"),),
        tests=(f"{CONNECTIONS}::test_a_known_connection_may_send_what_its_streams_may",),
        seconds=5,
    ),
    Mutant(
        name="unknown-connections-not-limited-together",
        breaks="connections without a known caller have a limit together",
        at="lakebed.serve.connections:Connections._shed",
        changes=(always("total <= most"),),
        tests=(f"{CONNECTIONS}::test_connections_that_are_not_known_have_a_limit_together",),
        seconds=5,
    ),
    Mutant(
        name="streams-of-a-principal-not-limited",
        breaks="one principal leaves the others their streams",
        at="lakebed.serve.slots:Slots._check_principal",
        changes=(never("$X >= self._principal_most"),),
        tests=(f"{STREAMS_OF_ONE}::test_a_principal_has_so_many_streams_and_the_others_theirs",),
        seconds=15,
    ),
    Mutant(
        name="streams-of-an-address-not-limited",
        breaks="one address leaves the others their streams",
        at="lakebed.serve.slots:Slots.locate",
        changes=(never("$X >= self._address_most"),),
        tests=(f"{STREAMS_OF_ONE}::test_an_open_log_limits_addresses",),
        seconds=15,
    ),
    Mutant(
        name="no-reserve-of-streams",
        breaks="administrators have streams that others cannot use up",
        at="lakebed.serve.slots:Slots.take",
        changes=(replace("$X - self._reserved", "$X"),),
        tests=(f"{STREAMS_OF_ONE}::test_administrators_have_a_reserve",),
        seconds=15,
    ),
    Mutant(
        name="quota-told-as-a-server-that-is-gone",
        breaks="a refusal for want of streams is told as such",
        at="lakebed.client.puts:ProducerStream.expire",
        changes=(omit("self._over_quota"),),
        tests=(f"{STREAMS_OF_ONE}::test_a_refusal_for_want_of_streams_is_told_as_such[append]",),
        seconds=15,
    ),
    Mutant(
        name="cancellations-asked-without-a-limit",
        breaks="asking whether calls were cancelled takes a small share of the time",
        at="lakebed.serve.cancelled:Cancellations.is_cancelled",
        changes=(never("began < self._next"),),
        tests=(f"{CANCELLED}::test_asking_takes_a_small_share_of_the_time",),
        seconds=15,
    ),
    Mutant(
        name="answers-not-counted",
        breaks="the bytes of an answer count until it is sent",
        at="lakebed.serve.flight:FlightServer._answer",
        changes=(drop("self._quotas.hold($X, size)"),),
        tests=(f"{NOT_TAKEN}::test_an_answer_counts_until_it_is_sent[read]",),
        seconds=60,
    ),
    Mutant(
        name="stalled-clients-kept",
        breaks="a client that takes nothing is disconnected",
        at="lakebed.serve.flight:FlightServer._end_stalled",
        changes=(never("$X.progress < late"),),
        tests=(f"{NOT_TAKEN}::test_a_client_that_takes_nothing_is_disconnected",),
        seconds=60,
    ),
    Mutant(
        name="slow-readers-of-streams-disconnected",
        breaks="a stream of batches may be read slowly",
        at="lakebed.serve.flight:FlightServer.do_get",
        changes=(before("isinstance(answer, pa.Table)", "self._is_sending(caller, principal)"),),
        tests=(f"{NOT_TAKEN}::test_a_stream_of_batches_may_be_read_slowly",),
        seconds=15,
    ),
    Mutant(
        name="large-requests-taken-apart-first",
        breaks="who may do nothing of a kind has no large request taken apart",
        at="lakebed.serve.requests:check_unread",
        changes=(drop("guard.check_somewhere(...)"),),
        tests=(f"{REQUESTS}::test_who_may_do_nothing_of_a_kind_has_no_large_request_taken_apart",),
        seconds=5,
    ),
    Mutant(
        name="bodies-of-calls-that-take-nothing",
        breaks="a call that takes nothing refuses a body",
        at="lakebed.serve.requests:check_unread",
        changes=(never("size > len(_NOTHING)"),),
        tests=(f"{REQUESTS}::test_a_call_that_takes_nothing_refuses_a_body[hello]",),
        seconds=5,
    ),
    Mutant(
        name="large-tickets-taken-apart-first",
        breaks="a large ticket is taken apart for readers alone",
        at="lakebed.serve.flight:FlightServer._ticket",
        changes=(drop("self._guard.check_somewhere(...)"),),
        tests=(f"{REQUESTS}::test_a_large_ticket_is_taken_apart_for_readers_alone",),
        seconds=5,
    ),
    Mutant(
        name="lists-of-any-length",
        breaks="a list or map of a request has so many items",
        at="lakebed.wire.protocol:unpack_request",
        changes=(replace("_unpack($X, $Y, $Z, items_max)", "_unpack($X, $Y, $Z)"),),
        tests=(f"{REQUESTS}::test_a_list_or_map_has_so_many_items",),
        seconds=5,
    ),
    Mutant(
        name="one-principal-fills-the-state",
        breaks="one caller leaves room for the others",
        at="lakebed.serve.room:StateQuota._check_own",
        changes=(never("count >= most"),),
        tests=(f"{ROOM}::test_one_caller_leaves_room_for_the_others",),
        seconds=15,
    ),
    Mutant(
        name="markers-of-old-forgotten-late",
        breaks="markers whose time is over are forgotten with the next commit",
        at="lakebed.state.owned:Markers.over",
        changes=(replace("($X, 2 * index + 2)", "($X,)"),),
        tests=("tests/state/test_owned.py::test_markers_know_whose_time_is_over",),
        seconds=5,
    ),
)
