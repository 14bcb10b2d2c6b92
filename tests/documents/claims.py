"""Which test checks which block, where it is not the rule for its language that does.

The rules (`tests/documents/test_blocks.py`):

| block | what is done with it |
|---|---|
| `python`, with a block of text right below | run alone in an empty folder; it prints just that |
| `python` without | run alone; it ends well and says nothing on stderr |
| `console` | typed in, the commands of a chapter in one folder; compared, with masks |
| `toml` | read by the parser of pipelines or of settings, without a complaint |
| `json` | parsed |
| anything else | has to be claimed here |
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.documents.pages import blocks_of

WALKED = {
    "docs/getting-started.md": (
        "tests/spark/test_getting_started.py::test_the_page_works_as_printed"
    ),
}
"""Pages whose blocks are run one after another in one folder, and by which test."""


@dataclass(frozen=True)
class Claim:
    """The blocks of a language in a section, or in a chapter with all its sections."""

    page: str
    section: str
    """Its heading; `*` for the whole page."""
    language: str
    by: str
    """The test that checks them: file::function."""
    containing: str = ""
    """What sets them apart from other blocks of the section, if it does."""


@dataclass(frozen=True)
class Shown:
    """A block of text in a section that is no program and no output of one."""

    page: str
    section: str
    reason: str


_CLI = "tests/cli/test_docs.py"
_DOCUMENTS = "tests/test_documents.py"
_HTTP = "tests/serve/test_http_page.py"
_KAFKA = "tests/kafka/test_page.py"
_PIPELINES = "tests/spark/test_pipeline_file.py"
_PROTOCOL = "tests/serve/test_protocol_docs.py"
_SERVED = "tests/documents/test_served_pages.py"
_SPARK = "tests/spark/test_spark_pages.py"
_WAL = "tests/documents/test_wal_commands.py"


def _live_chapters() -> list[str]:
    """Return the chapters of the command line whose examples are run in the order of the page."""
    chapters = dict.fromkeys(each.chapter for each in blocks_of("docs/cli.md"))
    names = list(chapters)
    return names[: names.index("`lakebed wal`")]


_README = [
    Claim(
        "docs/cli.md",
        "`lakebed owner`",
        "console",
        "tests/serve/test_failover.py::test_an_operator_moves_a_log_to_the_standby",
    ),
    Claim(
        "docs/kafka.md",
        "Start",
        "python",
        f"{_KAFKA}::test_the_program_of_the_page_writes_a_record",
    ),
    Claim(
        "docs/kafka.md",
        "Start",
        "console",
        f"{_KAFKA}::test_the_command_of_the_page_says_where_it_serves",
    ),
    Claim(
        "README.md",
        "Lakebed",
        "python",
        f"{_DOCUMENTS}"
        "::test_the_readme_shows_five_lines_of_python_and_of_duckdb_on_the_same_records",
    ),
    Claim(
        "docs/getting-started.md",
        "The demo",
        "text",
        "tests/demo/test_demo.py::test_the_demo_does_what_it_says",
    ),
]

_COMMAND_LINE = [
    *(
        Claim("docs/cli.md", chapter, "console", f"{_CLI}::test_the_examples_show_what_happens")
        for chapter in _live_chapters()
    ),
    *(
        Claim("docs/cli.md", "`lakebed wal`", language, f"{_WAL}::test_the_page_shows_what_happens")
        for language in ("console", "python")
    ),
    Claim(
        "docs/cli.md", "`lakebed job`", "console", f"{_SPARK}::test_the_jobs_of_the_command_line"
    ),
    Claim(
        "docs/cli.md",
        "`lakebed pipeline`",
        "console",
        f"{_SPARK}::test_the_pipelines_of_the_command_line",
    ),
]

_SERVERS = [
    *(
        Claim(
            "docs/http.md",
            section,
            "console",
            f"{_HTTP}::test_every_command_answers_what_the_page_shows",
        )
        for section in ("A first walk", "Statuses")
    ),
    Claim(
        "docs/http.md",
        "Many small writers: WebSocket",
        "python",
        f"{_HTTP}::test_the_websocket_of_the_page_answers_what_it_says",
    ),
    *(
        Claim(
            "docs/protocol.md",
            "The protocol",
            language,
            f"{_PROTOCOL}::test_the_client_of_the_page_works",
        )
        for language in ("python", "text")
    ),
    Claim(
        "docs/protocol.md", "Predicates", "text", f"{_SERVED}::test_the_predicate_of_the_protocol"
    ),
    Claim(
        "docs/server.md",
        "Tokens and TLS, step by step",
        "sh",
        f"{_DOCUMENTS}::test_the_certificates_of_the_server_page_serve",
    ),
    Claim(
        "docs/server.md",
        "Tokens and TLS, step by step",
        "python",
        f"{_DOCUMENTS}::test_the_certificates_of_the_server_page_serve",
    ),
    *(
        Claim(
            "docs/security.md",
            section,
            "console",
            f"{_SERVED}::test_the_commands_of_the_security_page",
        )
        for section in ("Tokens", "Roles and rules", "The audit")
    ),
    *(
        Claim(
            "docs/security.md",
            section,
            "toml",
            f"{_DOCUMENTS}::test_the_settings_of_the_security_page_can_be_read",
        )
        for section in ("OpenID Connect", "TLS")
    ),
    *(
        Claim(
            "deploy/README.md",
            section,
            "sh",
            "tests/test_deploy.py::test_the_page_shows_commands_that_there_are",
        )
        for section in ("systemd", "A container")
    ),
]

_SPARK_PAGES = [
    Claim("docs/spark.md", "*", "python", f"{_SPARK}::test_the_programs_of_the_spark_page"),
    Claim("docs/jobs.md", "*", "python", f"{_SPARK}::test_the_programs_of_the_jobs_page"),
    Claim(
        "docs/tables.md",
        "Derived tables",
        "python",
        f"{_SPARK}::test_the_programs_of_the_tables_page",
    ),
    *(
        Claim(
            "docs/pipelines.md",
            section,
            language,
            f"{_PIPELINES}::test_the_pages_example_is_the_one_that_is_tested",
        )
        for section, language in (
            ("Pipelines", "toml"),
            ("Pipelines", "console"),
            ("Restarts", "toml"),
            ("Mistakes", "console"),
        )
    ),
    Claim(
        "docs/pipelines.md", "Steps", "python", f"{_SPARK}::test_the_programs_of_the_pipelines_page"
    ),
    Claim(
        "docs/pipelines.md",
        "In Python",
        "python",
        f"{_SPARK}::test_the_programs_of_the_pipelines_page",
    ),
]

_TABLES = [
    Claim(
        "docs/tables.md",
        "With other engines",
        "python",
        "tests/documents/test_tables_page.py::test_other_engines_read_what_the_page_says",
    ),
    Claim(
        "docs/tables.md",
        "With other engines",
        "sql",
        f"{_DOCUMENTS}::test_the_query_of_the_current_state_gives_what_latest_gives",
    ),
    Claim(
        "docs/tables.md",
        "With other engines",
        "text",
        f"{_DOCUMENTS}::test_four_readers_see_every_record_once_of_a_log_that_is_written_and_was_killed",
        containing="examples/readers.py",
    ),
]

_SETTINGS = [
    Claim(
        "docs/settings.md",
        "The file `lakebed.toml`",
        "toml",
        f"{_DOCUMENTS}::test_the_files_of_the_settings_page_can_be_read",
    ),
    Claim(
        "docs/settings.md",
        "Settings",
        "python",
        f"{_DOCUMENTS}::test_the_example_of_the_settings_page_runs",
    ),
]

_CONCEPTS = [
    Claim(
        "docs/concepts.md",
        "What is removed",
        "text",
        "tests/documents/test_concepts.py::test_a_compaction_leaves_what_is_drawn",
    ),
]

CLAIMS = [*_CONCEPTS, *_README, *_COMMAND_LINE, *_SERVERS, *_SPARK_PAGES, *_TABLES, *_SETTINGS]

_MAKE = f"{_DOCUMENTS}::test_the_makefile_lists_its_targets"
CLAIMS.append(Claim("docs/getting-started.md", "Install", "sh", _MAKE))
_EXAMPLE = "tests/test_generated.py::test_the_example_of_an_operation_is_in_the_code"
CLAIMS.append(Claim("CONTRIBUTING.md", "Adding an operation", "python", _EXAMPLE))

SHOWN = [
    Shown("README.md", "Lakebed", "a drawing"),
    *(
        Shown("docs/concepts.md", section, "a drawing")
        for section in (
            "The path of a record",
            "Topics, partitions, offsets",
            "Groups",
            "Transactions",
            "Embedded or served",
        )
    ),
    Shown(
        "docs/operations.md", "Logs of the server", "log lines; tests/serve/test_logs.py has them"
    ),
    Shown("docs/cli.md", "`lakebed lake tables`", "a list of tables that Spark has made"),
]

PREPARED: dict[tuple[str, str], list[str]] = {}
"""What is typed in before the commands of a chapter, which its page takes for granted."""
