"""`lakebed serve`: a log for other processes and machines."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click

from lakebed.cli.data import Folder, settings
from lakebed.cli.output import Meter
from lakebed.config import (
    LogConfig,
    ServeConfig,
    setting_names,
    variable_of,
    with_environment,
)

_log = logging.getLogger("lakebed.serve")

_LOOK_SECONDS: Final = 0.2
"""How long a signal may be on record before it is looked at."""


@click.command(short_help="Serve a log over the network.")
@click.option(
    "--data",
    "folder",
    metavar="DIR",
    envvar="LAKEBED_DATA",
    show_envvar=True,
    required=True,
    type=Folder(),
    help="The log's folder; it is made if there is none.",
)
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port", type=int, help="The port of Arrow Flight; 0 for a free one.  [default: 4747]"
)
@click.option("--http-port", type=int, help="The port of HTTP; -1 for none.  [default: 4748]")
@click.option("--tls-cert", metavar="FILE", help="The certificate to show, PEM.")
@click.option("--tls-key", metavar="FILE", help="Its key, PEM.")
@click.option("--tls-client-ca", metavar="FILE", help="Ask clients for a certificate of these.")
@click.option("--insecure", is_flag=True, default=None, help="Serve others without TLS or tokens.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How log lines look.")
@click.option(
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any other setting of [serve]; may be repeated.",
)
def serve(folder: Path, given: tuple[str, ...], **flags: Any) -> None:
    """Serve the log in a folder until SIGTERM or Ctrl-C.

    What the flags leave open comes from the environment, then from lakebed.toml in the folder.

    The first signal stops in good order: what is under way is finished, a checkpoint is taken, the
    folder is released. A second one ends the process at once; nothing acknowledged is lost.
    """
    import lakebed
    from lakebed.serve.server import Server

    with Meter(silent=False) as meter:
        log = lakebed.Log.open(os.fspath(folder), progress=meter)
    with contextlib.ExitStack() as stack:
        try:
            config = _config(log.config.serve, flags, given)
            stack.enter_context(_logging(config))
            stopping = stack.enter_context(_signals())
            server = Server(log, config).start()
        except BaseException:
            log.close()
            raise
        click.echo(f"serving {folder} at {server.url}" + _http(server, config))
        while not stopping.wait(_LOOK_SECONDS):
            pass  # a signal that another thread was given is handled when this one wakes up
        _log.info("stopping")
        server.stop()
    if server.abandoned:  # the log is closed; Flight would wait for these clients for ever
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _config(base: ServeConfig, flags: dict[str, Any], given: tuple[str, ...]) -> ServeConfig:
    """Give the settings with what the command line says, which has the last word."""
    chosen = {name: value for name, value in flags.items() if value is not None}
    for name, value in settings(given).items():
        if name not in setting_names(ServeConfig):
            raise click.BadParameter(f"there is no setting {name!r}", param_hint="'--set'")
        as_variable = {variable_of("serve", name): str(value)}
        base = with_environment(LogConfig(serve=base), as_variable).serve
    return replace(base, **chosen)


def _http(server: Any, config: ServeConfig) -> str:
    from lakebed.serve.server import reachable

    if server.http_port < 0:
        return ""
    scheme = "https" if config.tls_cert else "http"
    return f", and {scheme}://{reachable(config.host)}:{server.http_port}"


@contextlib.contextmanager
def _logging(config: ServeConfig) -> Iterator[None]:
    """Have what Lakebed logs written to stderr within the block."""
    from lakebed.serve.logs import configure, unconfigure

    handler = configure(config.log_format, "info", sys.stderr)
    try:
        yield
    finally:
        unconfigure(handler)


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """Give an event that the first SIGTERM or SIGINT sets; the second ends the process."""
    stopping = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield stopping
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
