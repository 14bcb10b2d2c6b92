"""`lakebed token`: what callers of a server prove with who they are."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection
from dataclasses import asdict
from typing import Any, Final

import click

import lakebed
from lakebed.cli.data import Target, data_option, open_log
from lakebed.cli.output import flush, json_option, moment, write_json, write_line, write_table
from lakebed.errors import LakebedError
from lakebed.reports.access import TokenInfo
from lakebed.state.permissions import ADMIN, BUILT_IN, EVERYTHING, Action

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PREFIX: Final = "lkb_"

force_option = click.option(
    "--force",
    is_flag=True,
    help="Even if that leaves no administrator, or opens the log to all callers.",
)


class Lifetime(click.ParamType[int | str]):
    """How long a token is valid: a number with its unit, or never-ending."""

    name = "lifetime"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return milliseconds, or `never`."""
        if not isinstance(value, str) or value == "never":
            return value  # type: ignore[no-any-return]  # converted before
        match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", value)
        if match is None:
            self.fail(f"{value!r} is neither a number with s, m, h or d, nor never", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


@click.group()
def token() -> None:
    """Create, list and revoke tokens of callers."""


@token.command("create", short_help="Create a token and print it once.")
@click.argument("principal")
@data_option
@click.option(
    "--role",
    "roles",
    metavar="ROLE",
    multiple=True,
    help="Also grant this role: admin, reader, writer or a custom one; may be repeated.",
)
@click.option(
    "--expires",
    metavar="TIME",
    type=Lifetime(),
    default="90d",
    show_default=True,
    help="Lifetime: 90d, 12h, 30m, 60s, or never.",
)
@json_option
def create_command(
    principal: str, folder: Target, *, roles: tuple[str, ...], expires: int | str, as_json: bool
) -> None:
    """Create a token for PRINCIPAL and print it; also creates the log if DIR is new or empty.

    It is printed once, alone on stdout: the log keeps only a digest. Programs take it from
    LAKEBED_TOKEN.
    """
    expires_ms = None if isinstance(expires, str) else expires
    with open_log(folder, make=True, silent=as_json) as log:
        # Asked before: the first token closes an open log to callers without one, as this command.
        hints = [*without_rules(log, roles), *_without_administrator(log, roles)]
        text = log.access.create_token(principal, expires_ms=expires_ms, roles=roles)
        if not as_json:  # whatever happens to the rest, the secret is out
            write_line(text)
            flush()
        made = _describe_token(log, text, principal, expires_ms)
    if as_json:
        values = {**asdict(made), "roles": roles, "token": str(text)}
        write_json("token", with_warning(values, hints))
        return
    until = "without end" if made.expires_us is None else f"until {moment(made.expires_us)}"
    click.echo(f"token {made.id} of {made.principal}, valid {until}", err=True)
    click.echo("it is not shown again: store it as a secret", err=True)
    show_hints(hints)


def _describe_token(
    log: lakebed.Log, text: str, principal: str, expires_ms: int | None
) -> TokenInfo:
    """Return a new token as the log lists it, or as created if the caller may not list it."""
    token_id = text.removeprefix(_PREFIX).partition("_")[0]
    with contextlib.suppress(LakebedError):
        for token in log.access.tokens():
            if token.id == token_id:
                return token
    now_us = time.time_ns() // 1000
    expires_us = None if expires_ms is None else now_us + expires_ms * 1000
    return TokenInfo(token_id, principal, now_us, expires_us, None, valid=True)


def _without_administrator(log: lakebed.Log, new: Collection[str]) -> list[str]:
    """Return a hint if the log has no administrator, also with these roles granted."""
    rules = {(rule.role, rule.action, rule.pattern) for rule in log.access.rules()}
    if any(
        role == ADMIN or (role, Action.ADMIN.value, EVERYTHING) in rules
        for role in (*new, *(grant.role for grant in log.access.grants()))
    ):
        return []
    return [
        "the log has no administrator yet: lakebed token create NAME --role admin, "
        "in the log's folder while no server owns it"
    ]


def without_rules(log: lakebed.Log, roles: Collection[str]) -> list[str]:
    """Return a hint for each role that is neither built in nor named by a rule."""
    own = [role for role in dict.fromkeys(roles) if role not in BUILT_IN]
    roles_with_rules = {rule.role for rule in log.access.rules()} if own else set()
    return [
        f"no rule speaks of the role {role} yet, so it allows nothing"
        for role in own
        if role not in roles_with_rules
    ]


def with_warning(values: dict[str, object], hints: list[str]) -> dict[str, object]:
    """Return the facts of a JSON line with the hints, if there are any."""
    return {**values, "warning": "; ".join(hints)} if hints else values


def show_hints(hints: list[str]) -> None:
    """Write hints for people to stderr."""
    for hint in hints:
        click.echo(f"hint: {hint}", err=True)


@token.command("list", short_help="List the tokens.")
@data_option
@json_option
def list_command(folder: Target, *, as_json: bool) -> None:
    """List the tokens without their secrets; ended ones stay for 90 days."""
    with open_log(folder, silent=as_json) as log:
        tokens = log.access.tokens()
    if as_json:
        for info in tokens:
            write_json("token", asdict(info))
    elif tokens:
        write_table(("token", "principal", "created", "expires", "state"), map(_row, tokens))
    else:
        write_line("no tokens")


def _row(info: TokenInfo) -> tuple[str, ...]:
    expires = "never" if info.expires_us is None else moment(info.expires_us)
    state = "valid" if info.valid else "revoked" if info.revoked_us is not None else "expired"
    return info.id, info.principal, moment(info.created_us), expires, state


@token.command("revoke", short_help="Revoke a token.")
@click.argument("token_id", metavar="ID")
@data_option
@force_option
@json_option
def revoke_command(token_id: str, folder: Target, *, force: bool, as_json: bool) -> None:
    """Revoke the token ID from now on; its principal keeps its roles."""
    with open_log(folder, silent=as_json) as log:
        log.access.revoke_token(token_id, force=force)
    if as_json:
        write_json("revoked", {"token": token_id})
    else:
        write_line(f"revoked {token_id}")
