"""What deploy/ has is true of the program: commands, options, settings, files."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest

from lakebed.cli import cli
from lakebed.config import LogConfig, ServeConfig, with_environment

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "lakebed.service").read_text(encoding="utf8")
EXAMPLE = (DEPLOY / "lakebed.env.example").read_text(encoding="utf8")
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf8").replace("\\\n", " ")
README = (DEPLOY / "README.md").read_text(encoding="utf8").replace("\\\n", " ")


def given(text: str) -> dict[str, str]:
    """Return the variables that a text sets."""
    return dict(re.findall(r"\b(LAKEBED_[A-Z_]+)=(\S+)", text))


def check_call(words: list[str]) -> None:
    """Refuse a call of the program with a command or an option that it does not have."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    # A command keeps the help option of its first context: without its parent's it lacks `-h`.
    program = click.Context(cli, info_name="lakebed", **cli.context_settings)
    command.make_context(command.name, words, parent=program, resilient_parsing=True)


# systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "lakebed"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "lakebed.service"
    unit.write_text(UNIT.replace("/opt/lakebed/bin/lakebed", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "lakebed" in line]
    assert (ours, done.returncode) == ([], 0)


def test_the_unit_calls_what_there_is() -> None:
    (call,) = re.findall(r"^ExecStart=\S+/lakebed (.*)$", UNIT, re.M)
    check_call(shlex.split(call))
    assert given(UNIT) == {"LAKEBED_DATA": "%S/lakebed"}


def test_the_service_has_time_to_stop() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)
    assert int(seconds) >= 2 * ServeConfig().stop_timeout_ms / 1000


def test_the_unit_keeps_the_service_in_its_place() -> None:
    wanted = {
        "NoNewPrivileges=true",
        "ProtectSystem=strict",
        "ProtectHome=true",
        "PrivateTmp=true",
        "CapabilityBoundingSet=",
        "UMask=0077",
        "StateDirectoryMode=0700",
        "User=lakebed",
    }
    assert wanted <= set(UNIT.splitlines())


def test_the_unit_bounds_what_callers_can_cost() -> None:
    """Memory and threads have a limit, and a service that is killed for one starts again."""
    (memory,) = re.findall(r"^MemoryMax=(\d+)%$", UNIT, re.M)
    assert 0 < int(memory) < 100
    (tasks,) = re.findall(r"^TasksMax=(\d+)$", UNIT, re.M)
    streams_and_calls = 2 * ServeConfig().connections_max
    assert streams_and_calls < int(tasks) <= 2 * streams_and_calls
    assert "Restart=on-failure" in UNIT.splitlines()
    assert "StartLimitIntervalSec=0" in UNIT.splitlines(), "crashes must not become an outage"
    assert "StartLimitBurst" not in UNIT


def test_the_container_is_run_with_the_same_bounds() -> None:
    (tasks,) = re.findall(r"^TasksMax=(\d+)$", UNIT, re.M)
    (run,) = re.findall(r"podman run --detach .*", README)
    assert re.search(r"--memory \d+g", run)
    assert f"--pids-limit {tasks}" in run
    assert "--restart on-failure" in run


def test_the_example_of_settings_is_taken() -> None:
    held = with_environment(LogConfig(), given(EXAMPLE)).serve
    assert (held.host, held.log_format) == ("0.0.0.0", "json")
    assert held.tls_cert
    assert held.tls_key


# The container


def test_the_container_runs_what_there_is() -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", CONTAINER, re.M)
    (call,) = re.findall(r"^CMD (.*)$", CONTAINER, re.M)
    assert json.loads(entry) == ["lakebed"]
    check_call(json.loads(call))
    variables = {name: value for name, value in given(CONTAINER).items() if name != "LAKEBED_DATA"}
    assert with_environment(LogConfig(), variables).serve.host == "0.0.0.0"
    config = ServeConfig()
    assert f"EXPOSE {config.port} {config.http_port}" in CONTAINER
    assert re.search(r"^USER \d+:\d+$", CONTAINER, re.M)
    assert f"VOLUME {given(CONTAINER)['LAKEBED_DATA']}" in CONTAINER


def test_the_container_is_built_of_files_that_are_there() -> None:
    for words in re.findall(r"^COPY (?!--from)(.*)$", CONTAINER, re.M):
        for name in words.split()[:-1]:
            assert (ROOT / name).exists(), name


def health_check() -> list[str]:
    (check,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", CONTAINER, re.M)
    words: list[str] = json.loads(check)
    assert words[:2] == ["python", "-c"]
    return [sys.executable, *words[1:]]


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a log as a program; return it with its port of HTTP."""
    with subprocess.Popen(
        [sys.executable, "-m", "lakebed.cli", "serve", "--port", "0", "--http-port", "0"],
        env={**os.environ, "LAKEBED_DATA": str(folder), "LAKEBED_LAKE_ICEBERG": "false"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            port = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())
            assert port is not None
            yield server, port[1]
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=600)


def test_the_health_check_tells_a_server_that_lives_from_one_that_does_not(
    tmp_path: Path,
) -> None:
    with served(tmp_path / "log") as (server, port):
        env = {**os.environ, "LAKEBED_SERVE_HTTP_PORT": port}
        subprocess.run(health_check(), env=env, check=True, timeout=600)
    assert server.returncode == 0
    done = subprocess.run(health_check(), env=env, check=False, capture_output=True, timeout=600)
    assert done.returncode != 0


# All of it


def test_the_page_shows_commands_that_there_are() -> None:
    calls = re.findall(r"(?:/lakebed|:/var/lib/lakebed lakebed) ([a-z].*)$", README, re.M)
    assert len(calls) >= 3
    for call in calls:
        check_call(shlex.split(call))
    variables = {name: "x" for name in given(README) if not name.endswith("INSECURE")}
    with_environment(LogConfig(), variables)


def test_no_secret_and_no_registry_is_named() -> None:
    everything = UNIT + EXAMPLE + CONTAINER + README
    assert not re.search(r"pypi|pythonhosted|docker\.io|quay\.io|index-url|lkb_", everything)
    for line in EXAMPLE.splitlines():
        assert "SECRET" not in line or line.startswith("#")


# Several machines


def test_the_drop_in_of_a_standby_calls_what_there_is() -> None:
    text = (DEPLOY / "lakebed-standby.conf").read_text(encoding="utf8")
    (call,) = re.findall(r"^ExecStart=\S+/lakebed (.*)$", text, re.M)
    check_call(shlex.split(call))
    assert given(text) == {"LAKEBED_DATA": "s3://bucket/shop"}


def test_the_deployment_of_two_calls_what_there_is() -> None:
    text = (DEPLOY / "kubernetes" / "lakebed.yaml").read_text(encoding="utf8")
    (call,) = re.findall(r"args: \[(.*)\]", text)
    check_call([word.strip() for word in call.split(",")])
    named = dict(re.findall(r'name: (LAKEBED_[A-Z_]+), value: "?([^" }]+)', text))
    assert named.pop("LAKEBED_DATA") == "s3://bucket/shop"
    assert with_environment(LogConfig(), named).serve.host == "0.0.0.0"
    assert "LAKEBED_SERVE_ADVERTISE" in text
    config = ServeConfig()
    assert re.findall(r"containerPort: (\d+)", text) == [str(config.port), str(config.http_port)]
    assert "replicas: 2" in text
    assert "persistentVolumeClaim" not in text
