"""Faults in the server, its client and access control."""

from __future__ import annotations

from tests.proof.mutation import Mutant, after, always, drop, instead, never, omit, replace

GUARD = "tests/serve/test_guard.py"
ACCESS = "tests/engine/test_access.py"
MATRIX = "tests/serve/test_matrix.py"
BAD_CLIENTS = "tests/serve/test_bad_clients.py"
ACKS = "tests/serve/test_acknowledgements.py"
SERVER_KILLS = "tests/serve/test_kills.py"
ACCESS_LOG = "tests/serve/test_access_log.py"
AUDIT_FILE = "tests/serve/test_audit_file.py"
CERTIFICATES = "tests/serve/test_certificate_names.py"
RENEWAL = "tests/serve/test_renewal.py"
DENIALS = "tests/serve/test_denials.py"
OIDC = "tests/serve/test_oidc.py"
PROCESSES = "tests/serve/test_together_of_processes.py"
FORKS = "tests/serve/test_forks.py"
FROZEN = "tests/serve/test_frozen_server.py"
PRIVATE = "tests/spark/test_private_folder.py"

MUTANTS = (
    Mutant(
        name="forked-transaction-takes-records",
        breaks="a served log cannot be used in a forked process",
        at="lakebed.api.transaction:Transaction._check_open",
        changes=(drop("$X.check_process()"),),
        tests=(f"{FORKS}::test_every_call_of_a_forked_process_is_refused_and_its_parent_goes_on",),
        seconds=30,
    ),
    Mutant(
        name="deadline-without-retry-ms",
        breaks="a call on a frozen server ends after retry_ms",
        at="lakebed.client.connection:Connection._in_time",
        changes=(replace("max(_LEAST_SECONDS, left)", "_QUICK_SECONDS"),),
        tests=(
            f"{FROZEN}::test_a_call_is_given_retry_ms_and_what_the_server_waits_up_to_a_minute",
        ),
        seconds=5,
    ),
    Mutant(
        name="spark-served-by-a-port",
        breaks="a private folder stays private while Spark uses it",
        at="lakebed.serve.server:Server.start",
        changes=(drop("self._socket = OwnSocket()"),),
        tests=(f"{PRIVATE}::test_a_log_is_served_to_spark_without_a_port",),
        seconds=10,
    ),
    Mutant(
        name="put-acknowledged-before-it-is-durable",
        breaks="acknowledged over the wire means on disk",
        at="lakebed.serve.puts:PutStream.take",
        changes=(
            instead(
                "$X.add_done_callback(...)",
                """
$X.add_done_callback(lambda _: stack.close())
self._settle(message_id, [(1, 0, 0, 1, 0)])
""",
            ),
        ),
        tests=(f"{ACKS}::test_nothing_is_acknowledged_over_the_wire_while_its_sync_is_under_way",),
        seconds=5,
    ),
    Mutant(
        name="calls-not-checked",
        breaks="deny by default: whatever no rule allows is refused",
        at="lakebed.serve.flight:FlightServer._call",
        changes=(never("not call.open or $X"),),
        tests=(f"{MATRIX}::test_a_caller_may_do_what_its_roles_allow_and_nothing_else[writer]",),
        seconds=5,
    ),
    Mutant(
        name="puts-not-checked",
        breaks="deny by default: whatever no rule allows is refused",
        at="lakebed.serve.flight:FlightServer.do_put",
        changes=(drop("self._guard.check(...)"),),
        tests=(f"{MATRIX}::test_a_caller_may_do_what_its_roles_allow_and_nothing_else[reader]",),
        seconds=5,
    ),
    Mutant(
        name="heartbeat-of-a-fetch-not-checked",
        breaks="whoever speaks for a member of a group may do so",
        at="lakebed.serve.flight:FlightServer._check_ticket",
        changes=(never("group is not None"),),
        tests=(f"{MATRIX}::test_a_member_of_a_group_needs_the_group_also_to_fetch",),
        seconds=5,
    ),
    Mutant(
        name="batch-not-validated",
        breaks="received data is validated in full",
        at="lakebed.wire.received:Received.check",
        changes=(replace("$X.validate(full=True)", "$X.validate()"),),
        tests=(f"{BAD_CLIENTS}::test_data_that_is_not_what_it_says_is_refused",),
        seconds=15,
    ),
    Mutant(
        name="sent-again-as-something-new",
        breaks="what is sent again is written once",
        at="lakebed.client.puts:ProducerStream._begin",
        changes=(after("self._flying.items()", "self._known = None"),),
        tests=(f"{SERVER_KILLS}::test_what_was_written_and_not_acknowledged_is_not_written_twice",),
        seconds=15,
    ),
    Mutant(
        name="single-records-wait-for-ever",
        breaks="every call on a server that is gone ends in time",
        at="lakebed.client.puts:ProducerStream.expire",
        changes=(drop("self._gathered.refuse(...)"),),
        tests=(f"{SERVER_KILLS}::test_a_client_of_a_server_that_is_gone_is_told_so_in_time",),
        seconds=60,
    ),
    Mutant(
        name="secret-of-a-token-not-compared",
        breaks="nobody comes in without a valid token",
        at="lakebed.engine.access:Access.authenticate",
        changes=(omit("not same"),),
        tests=(f"{MATRIX}::test_a_token_with_another_secret_is_none",),
        seconds=5,
    ),
    Mutant(
        name="producer-of-somebody-else-accepted",
        breaks="a producer belongs to whoever it was given to",
        at="lakebed.serve.calls:check_owner",
        changes=(never("$X.owner != $Y"),),
        tests=(f"{BAD_CLIENTS}::test_somebody_elses_producer_cannot_be_used",),
        seconds=5,
    ),
    Mutant(
        name="answers-pile-up",
        breaks="a client that does not read costs little memory",
        at="lakebed.serve.puts:PutStream._is_full",
        changes=(omit("len($X) >= $Y"),),
        tests=(f"{ACKS}::test_answers_that_nobody_reads_do_not_pile_up",),
        seconds=5,
    ),
    Mutant(
        name="access-check-skipped",
        breaks="deny by default: one choke point checks every call",
        at="lakebed.serve.guard:Guard.check",
        changes=(always("refused is None"),),
        tests=(f"{GUARD}::test_every_action_and_every_built_in_role",),
        seconds=5,
    ),
    Mutant(
        name="only-the-first-name-checked",
        breaks="every name of a call is checked",
        at="lakebed.serve.guard:_refuse",
        changes=(replace("names", "names[:1]", within="for $X in names: ..."),),
        tests=(f"{GUARD}::test_every_name_has_to_be_allowed",),
        seconds=5,
    ),
    Mutant(
        name="no-names-means-allowed",
        breaks="a call that names nothing is one on everything",
        at="lakebed.serve.guard:_refuse",
        changes=(omit("not names"),),
        tests=(f"{GUARD}::test_what_has_no_name_needs_the_pattern_for_everything",),
        seconds=5,
    ),
    Mutant(
        name="audit-topic-like-any-other",
        breaks="the audit is read by administrators and written by nobody",
        at="lakebed.serve.guard:_refuse",
        changes=(never("$X and is_internal($Y)"),),
        tests=(f"{GUARD}::test_the_logs_own_topics_are_for_administrators_and_written_by_nobody",),
        seconds=5,
    ),
    Mutant(
        name="bad-token-falls-back-to-the-certificate",
        breaks="a token that is shown has to be valid",
        at="lakebed.serve.guard:Guard._identify",
        changes=(replace("token is not None", "token"),),
        tests=(
            f"{GUARD}::test_a_token_comes_before_the_certificate_and_a_bad_one_is_not_made_good_by_it",
        ),
        seconds=5,
    ),
    Mutant(
        name="secret-not-compared",
        breaks="a token is more than its id",
        at="lakebed.engine.access:Access.authenticate",
        changes=(omit("not same"),),
        tests=(f"{ACCESS}::test_whatever_is_not_a_token_is_refused_without_being_repeated",),
        seconds=5,
    ),
    Mutant(
        name="digest-without-the-logs-identity",
        breaks="a token of one log does not fit another",
        at="lakebed.engine.access:Access._digest",
        changes=(replace("self._log_id.bytes + $X", "$X"),),
        tests=(f"{ACCESS}::test_a_token_of_another_log_does_not_fit_even_under_the_same_id",),
        seconds=5,
    ),
    Mutant(
        name="revoked-token-accepted",
        breaks="a revoked token is valid no more",
        at="lakebed.engine.access:Access.authenticate",
        changes=(
            drop("$X.revoked_us"),
            replace("not $X.valid_at($NOW)", "$X.expires_us and $NOW >= $X.expires_us"),
        ),
        tests=(f"{GUARD}::test_revocation_and_expiry_count_at_once",),
        seconds=5,
    ),
    Mutant(
        name="rules-remembered",
        breaks="a changed rule counts for the next call",
        at="lakebed.engine.access:Access.permissions",
        changes=(omit("$X != changes"),),
        tests=(f"{ACCESS}::test_a_change_counts_at_once",),
        seconds=5,
    ),
    Mutant(
        name="revoked-tokens-forgotten",
        breaks="revoking the last token does not open the log to everybody",
        at="lakebed.state.decide_access:revoke_token",
        changes=(replace("($S.tokens, $ID, $X)", "($S.tokens, $ID, GONE)"),),
        tests=(f"{ACCESS}::test_a_revoked_token_is_valid_no_more_and_the_log_stays_closed",),
        seconds=5,
    ),
    Mutant(
        name="audit-without-a-limit",
        breaks="refused callers cannot fill the disk by trying",
        at="lakebed.serve.audit:Limiter.admit",
        changes=(omit("$X < REFUSALS_PER_SECOND"),),
        tests=(f"{GUARD}::test_many_refusals_of_one_caller_are_counted",),
        seconds=5,
    ),
    Mutant(
        name="secret-shown-by-repr",
        breaks="secrets redact themselves",
        at="lakebed.types:Secret.__repr__",
        changes=(replace("'<secret>'", "super().__repr__()"),),
        tests=(f"{ACCESS}::test_a_secret_is_shown_to_whoever_asks_and_by_nothing_else",),
        seconds=5,
    ),
    Mutant(
        name="somebody-elses-transaction-committed",
        breaks="a transaction is committed by its owner alone",
        at="lakebed.state.decide_transactions:_find_own",
        changes=(replace("$X.owner != $Y", "$X.owner is None"),),
        tests=(f"{PROCESSES}::test_a_transaction_of_another_principal_is_not_committed",),
        seconds=5,
    ),
    Mutant(
        name="issuers-algorithm-of-the-tokens-choice",
        breaks="a token of an issuer is signed by an algorithm of the settings",
        at="lakebed.serve.oidc:Verifier._claims",
        changes=(never("not isinstance(algorithm, str) or algorithm not in self._algorithms"),),
        tests=(f"{OIDC}::test_an_algorithm_that_is_not_allowed_is_refused_whatever_the_signature",),
        seconds=6,
    ),
    Mutant(
        name="issuers-key-for-any-algorithm",
        breaks="a key of an issuer verifies by the algorithm that it is for",
        at="lakebed.serve.jwks:_key",
        changes=(replace("usable if stated is None else usable & {stated}", "usable"),),
        tests=(f"{OIDC}::test_a_key_verifies_by_its_own_algorithm_alone",),
        seconds=6,
    ),
    Mutant(
        name="issuers-audience-not-checked",
        breaks="a token of an issuer is for this server",
        at="lakebed.serve.oidc:Verifier._claims",
        changes=(
            replace(
                '{"require": ["exp", "iss", "aud"]}',
                '{"require": ["exp", "iss", "aud"], "verify_aud": False}',
            ),
        ),
        tests=(f"{OIDC}::test_tokens_that_are_not_valid_here_and_now",),
        seconds=8,
    ),
    Mutant(
        name="issuers-keys-kept-for-ever",
        breaks="keys that cannot be fetched again are used for a limited time",
        at="lakebed.serve.jwks:KeySet.find",
        changes=(omit("now - self._loaded_at > self._stale_seconds"),),
        tests=(f"{OIDC}::test_keys_outlive_an_issuer_that_is_down_for_as_long_as_they_may",),
        seconds=8,
    ),
    Mutant(
        name="issuers-claims-are-roles",
        breaks="only mapped values of a claim are roles",
        at="lakebed.serve.oidc:Verifier._roles_of",
        changes=(
            replace(
                "{self._roles[text] for text in texts if text in self._roles}",
                "{self._roles.get(text, text) for text in texts}",
            ),
        ),
        tests=(f"{OIDC}::test_only_mapped_values_of_the_claim_are_roles",),
        seconds=6,
    ),
    Mutant(
        name="issuer-leaves-the-log-open",
        breaks="a log with an issuer is not open to callers without a token",
        at="lakebed.serve.guard:Guard.__init__",
        changes=(drop("self._access.callers_known = True"),),
        tests=(f"{OIDC}::test_a_log_without_tokens_is_not_open_once_there_is_an_issuer",),
        seconds=6,
    ),
    Mutant(
        name="denials-lose",
        breaks="a denial wins over every role that allows",
        at="lakebed.state.permissions:Permissions.permits",
        changes=(never("any(_fits(self._denials.get(key, ()), name) for key in keys)"),),
        tests=(f"{DENIALS}::test_a_denial_wins_over_every_role_that_allows",),
        seconds=4,
    ),
    Mutant(
        name="denials-of-patterns-leave-everything-allowed",
        breaks="what names nothing is refused by any denial of its action",
        at="lakebed.state.permissions:Permissions.permits_everywhere",
        changes=(omit("self._denials.keys().isdisjoint(keys)"),),
        tests=(f"{DENIALS}::test_what_names_nothing_is_refused_by_any_denial_of_its_action",),
        seconds=4,
    ),
    Mutant(
        name="names-of-certificates-of-any-kind",
        breaks="a certificate's name is of the kind that the settings say",
        at="lakebed.serve.certificates:CertificateNames.principal",
        changes=(omit("form_of(text) != self._kind"),),
        tests=(f"{CERTIFICATES}::test_a_certificate_has_one_principal_on_both_ports_or_none",),
        seconds=15,
    ),
    Mutant(
        name="names-of-certificates-not-compared-with-their-kind",
        breaks="HTTP refuses a name whose form belies its kind",
        at="lakebed.serve.certificates:name_of_certificate",
        changes=(always("_DECLARED.get(kind) == form_of(text)"),),
        tests=(f"{CERTIFICATES}::test_http_refuses_a_text_whose_form_belies_its_kind",),
        seconds=5,
    ),
    Mutant(
        name="authorities-of-clients-not-renewed",
        breaks="a client authority that was replaced is trusted no more",
        at="lakebed.serve.renewal:LiveContext.replace",
        changes=(drop("self._newest = context"),),
        tests=(f"{RENEWAL}::test_a_handshake_uses_the_newest_context",),
        seconds=5,
    ),
    Mutant(
        name="audit-file-lost-silently",
        breaks="what the audit's file cannot take is counted",
        at="lakebed.serve.audit_file:AuditFile.append",
        changes=(drop("self.lost += len(records)"),),
        tests=(f"{AUDIT_FILE}::test_what_the_file_cannot_take_is_counted_and_the_topic_has_it",),
        seconds=5,
    ),
    Mutant(
        name="tokens-in-the-audit",
        breaks="a token where a name belongs is masked",
        at="lakebed.serve.guard:Guard._record",
        changes=(replace("tuple(map(mask_tokens, shown))", "tuple(shown)"),),
        tests=(f"{AUDIT_FILE}::test_a_token_where_a_topic_belongs_is_masked_in_audit_and_file",),
        seconds=6,
    ),
    Mutant(
        name="tokens-as-names",
        breaks="no name looks like a token",
        at="lakebed.types:Name.__new__",
        changes=(never("_TOKEN.search(text)"),),
        tests=(f"{AUDIT_FILE}::test_a_token_is_no_name",),
        seconds=4,
    ),
    Mutant(
        name="access-log-without-a-limit",
        breaks="the access log has so many lines in a second",
        at="lakebed.serve.access_log:AccessLog._may_write",
        changes=(always("self._written <= self._most"),),
        tests=(f"{ACCESS_LOG}::test_lines_are_bounded_and_the_rest_is_counted",),
        seconds=5,
    ),
)
