"""`lakebed serve`: a log for other processes and machines."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from lakebed.cli.data import FolderOrStore, FolderType, settings
from lakebed.cli.output import Meter
from lakebed.config import (
    LogConfig,
    ServeConfig,
    setting_names,
    variable_of,
    with_environment,
)
from lakebed.engine.settings import effective_config
from lakebed.errors import InvalidArgumentError
from lakebed.host import OsDisk
from lakebed.host.descriptors import raise_limit
from lakebed.suggest import did_you_mean
from lakebed.wal.folder import Layout, is_log

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.server import Server


_log = logging.getLogger("lakebed.serve")

_OTHER_LOGGERS: Final = ("asyncio", "uvicorn.error")
_FILES_BESIDE_CONNECTIONS: Final = 200
"""Open files that a server may need for the log, its tables and calls to an object store."""
_SWITCH_SECONDS: Final = 0.0005
"""How long a thread keeps the interpreter while others wait for it. An append passes through
several threads: at Python's 5 ms each, one busy call would delay it many times over."""
_FIRST_CALLS_SECONDS: Final = 60.0
"""When what calls need is loaded, after the start."""
_LOOK_SECONDS: Final = 0.2
"""How long a signal may be on record before it is looked at."""


@click.command(short_help="Serve a log over the network.")
@click.option(
    "--data",
    "data",
    metavar="DIR|URL",
    envvar="LAKEBED_DATA",
    show_envvar=True,
    required=True,
    type=FolderOrStore(),
    help="The log's folder, made if there is none, or the URL of its store.",
)
@click.option(
    "--folder",
    metavar="DIR",
    type=FolderType(),
    help="With the URL of a store: this machine's copy; default in the user's cache.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="With a store: follow the log's owner, and take over when it is gone.",
)
@click.option(
    "--replica",
    is_flag=True,
    help="With a store: follow the log's owner and serve reads, never taking over.",
)
@click.option("--host", metavar="HOST", help="Address to listen on; default 127.0.0.1.")
@click.option(
    "--port",
    metavar="N",
    type=int,
    help="Port of Arrow Flight; default 4747, 0 for a free one.",
)
@click.option("--http-port", metavar="N", type=int, help="Port of HTTP; default 4748, -1 for none.")
@click.option(
    "--kafka-port",
    metavar="N",
    type=int,
    help="Port for Kafka clients; default 9092 on a loopback address, -1 for none.",
)
@click.option("--tls-cert", metavar="FILE", help="Server certificate, PEM.")
@click.option("--tls-key", metavar="FILE", help="Its key, PEM.")
@click.option("--tls-client-ca", metavar="FILE", help="CA file for required client certificates.")
@click.option(
    "--insecure", is_flag=True, default=None, help="Allow other addresses without TLS or tokens."
)
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of log lines.")
@click.option(
    "--set",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any other setting of [serve]; may be repeated.",
)
def serve(
    data: Path | str,
    folder: Path | None,
    pairs: tuple[str, ...],
    *,
    standby: bool,
    replica: bool,
    **flags: Any,
) -> None:
    """Serve the log in a folder, or in a store, until SIGTERM or Ctrl-C.

    Options override the environment, which overrides lakebed.toml in the folder.

    The first signal shuts down cleanly: calls in progress finish, a checkpoint is taken, the folder
    is released. A second one ends the process immediately; nothing acknowledged is lost.

    A log in a store is handed over: the store has everything, and a standby continues.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    if replica:
        if standby or not isinstance(data, str):
            raise click.UsageError("--replica needs the URL of a store, and no --standby")
        _serve_replica(data, folder, flags, pairs)
        return
    log_folder, config_of_log = locate_log(data, folder)
    if config_of_log.ships:
        served = _config(config_of_log.serve, flags, pairs)
        _serve_roles(data, log_folder, config_of_log, served, standby=standby)
        return
    if standby:
        raise click.UsageError("--standby needs a log in a store: --data s3://... or [wal] acks")
    _serve_folder(log_folder, flags, pairs)


def locate_log(data: Path | str, folder: Path | None) -> tuple[Path, LogConfig]:
    """Return the folder of a log on this machine, and its settings."""
    from lakebed.engine.by_url import with_store

    log_folder = _log_folder(data, folder)
    config = effective_config(OsDisk(), log_folder, os.environ)
    return log_folder, with_store(config, data) if isinstance(data, str) else config


def _serve_roles(
    data: Path | str, folder: Path, config: LogConfig, serve: ServeConfig, *, standby: bool
) -> None:
    """Serve a log in a store: as a standby, and as its owner."""
    from lakebed.kafka.server import start_kafka
    from lakebed.serve.roles import Roles

    def report(role: str, url: str) -> None:
        _log.info("role: %s", role, extra={"url": url})
        if role == "owner":
            _freeze_loaded()
            click.echo(f"serving {data} at {url}" + _http(roles.server, serve))
            if roles.server is not None:
                _echo_ports(roles.server, serve)
        elif standby:
            click.echo(f"standby for {data} at {url}")

    roles = Roles(folder, config, serve, standby=standby, report=report, protocols=[start_kafka])
    failure: list[BaseException] = []

    def run() -> None:
        try:
            roles.run()
        except BaseException as error:
            failure.append(error)

    with _logging(serve), _signals() as stopping, _hangups(roles.reload):
        _raise_open_files(serve)
        worker = threading.Thread(target=run, name="lakebed-roles", daemon=True)
        worker.start()
        while worker.is_alive() and not stopping.wait(_LOOK_SECONDS / 10):
            pass
        roles.stop()
        worker.join()
    if failure and not stopping.is_set():
        raise failure[0]
    if roles.abandoned:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _serve_replica(
    url: str, folder: Path | None, flags: dict[str, Any], pairs: tuple[str, ...]
) -> None:
    """Serve reads of a log in a store that another process owns."""
    from lakebed.engine.by_url import open_replica

    _, config_of_log = locate_log(url, folder)
    config = _config(config_of_log.serve, flags, pairs)
    with _logging(config):
        log = open_replica(url, config_of_log, folder=folder)
        _log.info("role: replica", extra={"url": url})
    _serve_open(log, config, f"a replica of {url}")


def _serve_folder(folder: Path, flags: dict[str, Any], pairs: tuple[str, ...]) -> None:
    """Serve a log that is on this disk only."""
    import lakebed

    config = _config(effective_config(OsDisk(), folder, os.environ).serve, flags, pairs)
    _check(config, folder)
    with Meter(silent=config.log_format == "json") as meter:
        log = lakebed.Log.open(os.fspath(folder), progress=meter)
    _serve_open(log, config, str(folder))


def _serve_open(log: EmbeddedLog, config: ServeConfig, name: str) -> None:
    """Serve a log until a signal; the log is closed then."""
    from lakebed.kafka.server import start_kafka
    from lakebed.serve.server import Server

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_logging(config))
            _raise_open_files(config)
            stopping = stack.enter_context(_signals())
            server = Server(log, config, protocols=[start_kafka]).start()
        except BaseException:
            log.close()
            raise
        _freeze_loaded()
        stack.enter_context(_hangups(server.reload))
        click.echo(f"serving {name} at {server.url}" + _http(server, config))
        _echo_ports(server, config)
        while not stopping.wait(_LOOK_SECONDS):
            pass  # a signal that another thread was given is handled when this one wakes up
        _log.info("stopping")
        server.stop()
    if server.abandoned:  # the log is closed; Flight would wait for these clients forever
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _echo_ports(server: Server, config: ServeConfig) -> None:
    """Print where clients of further protocols reach the server, if a port was asked for."""
    from lakebed.serve.server import reachable

    if config.kafka_port >= 0:
        for port in server.ports:
            click.echo(f"{port.name} clients: {reachable(config.host)}:{port.port}")


def _log_folder(data: Path | str, folder: Path | None) -> Path:
    """Return the folder that the log has on this machine."""
    if isinstance(data, str):
        from lakebed.engine.ownership import default_folder

        return folder or default_folder(data.rstrip("/"))
    if folder is not None:
        raise click.UsageError("--folder is for a log in a store: --data has the folder")
    return data


def _freeze_loaded() -> None:
    """Exclude what is loaded from garbage collections, now and once the first calls were served.

    Looking at all of it held every thread up for more than 100 ms, every ten seconds under load.
    """
    _freeze()
    later = threading.Timer(_FIRST_CALLS_SECONDS, _freeze)
    later.daemon = True
    later.start()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def _raise_open_files(config: ServeConfig) -> None:
    """Raise the limit on open files; warn if connections alone can reach it."""
    limit, wanted = raise_limit(), config.connections_max + _FILES_BESIDE_CONNECTIONS
    if 0 <= limit < wanted:
        _log.warning(
            "the limit on open files is lower than connections_max needs: limit=%d needed=%d; "
            "raise it (`ulimit -Hn`, LimitNOFILE= of a service) or lower connections_max",
            limit,
            wanted,
        )


def _config(base: ServeConfig, flags: dict[str, Any], pairs: tuple[str, ...]) -> ServeConfig:
    """Return the settings, overridden by the command line."""
    names = setting_names(ServeConfig)
    texts, options = {}, {}
    for name, value in settings(pairs, "--set").items():
        if name not in names:
            meant = did_you_mean(name, names) or f"; known are {', '.join(names)}"
            raise click.BadParameter(f"unknown setting {name!r}{meant}", param_hint="'--set'")
        texts[name], options[name] = str(value), f"--set {name}"
    for name, value in flags.items():
        if value is not None:
            texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
            options[name] = f"--{name.replace('_', '-')}"
    variables = {variable_of("serve", name): name for name in texts}
    try:
        # All at once: a certificate and its key are right only together.
        return with_environment(
            LogConfig(serve=base), {variable: texts[name] for variable, name in variables.items()}
        ).serve
    except InvalidArgumentError as error:
        raise _name_option(error, variables, options) from error


def _name_option(
    error: InvalidArgumentError, variables: dict[str, str], options: dict[str, str]
) -> InvalidArgumentError:
    """Return the error with the option it is about, instead of the variable."""
    facts = dict(error.facts)
    variable = str(facts.pop("variable", ""))
    name = str(facts.pop("setting", variables.get(variable, "")))
    about = {"option": options[name]} if name in options else {"setting": name}
    return InvalidArgumentError(error.message.replace(variable or name, name), **about, **facts)


def _check(config: ServeConfig, folder: Path) -> None:
    """Raise for settings that cannot be served, before a log is created."""
    from lakebed.serve.server import check_exposed, check_startable

    try:
        new = not is_log(OsDisk(), Layout(folder))
    except OSError:
        return  # opening it reports what is wrong with the folder
    if new:
        check_exposed(config, is_open=True)
        check_startable(config)


def _http(server: Any, config: ServeConfig) -> str:
    from lakebed.serve.server import reachable

    if server.http_port < 0:
        return ""
    scheme = "https" if config.tls_cert else "http"
    return f", and {scheme}://{reachable(config.host)}:{server.http_port}"


@contextlib.contextmanager
def _logging(config: ServeConfig) -> Iterator[None]:
    """Write the log lines of Lakebed and its HTTP server to stderr within the block."""
    from lakebed.serve.logs import configure, unconfigure

    handler = configure(config.log_format, "info", sys.stderr)
    for name in _OTHER_LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in _OTHER_LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        unconfigure(handler)


@contextlib.contextmanager
def _hangups(reload: Callable[[], None]) -> Iterator[None]:
    """Make SIGHUP call a function within the block, in a thread, since it may take a while."""

    def handle(_number: int, _: FrameType | None) -> None:
        threading.Thread(target=reload, name="lakebed-reload", daemon=True).start()

    before = signal.signal(signal.SIGHUP, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """Return an event that the first SIGTERM or SIGINT sets; the second ends the process."""
    stopping = threading.Event()

    def handle(signal_number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(128 + signal_number)
        stopping.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(signal_number, handle) for signal_number in numbers]
    try:
        yield stopping
    finally:
        for signal_number, handler in zip(numbers, before, strict=True):
            signal.signal(signal_number, handler)
