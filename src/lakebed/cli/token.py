"""`lakebed token`: what callers of a server prove with who they are."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, Final

import click

import lakebed
from lakebed.cli.data import Target, data_option, opened
from lakebed.cli.output import flush, json_option, moment, write_json, write_line, write_table
from lakebed.engine.access import TokenInfo
from lakebed.state.permissions import ADMIN, EVERYTHING, Action

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PREFIX: Final = "lkb_"

force_option = click.option(
    "--force",
    is_flag=True,
    help="Even if that leaves no administrator, or the log open to everybody.",
)


class Lifetime(click.ParamType[int | str]):
    """How long a token is valid: a number with its unit, or never-ending."""

    name = "lifetime"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Give milliseconds, or `never`."""
        if not isinstance(value, str) or value == "never":
            return value  # type: ignore[no-any-return]  # converted before
        match = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", value)
        if match is None:
            self.fail(f"{value!r} is neither a number with s, m, h or d, nor never", param, ctx)
        return int(match[1]) * _UNITS_MS[match[2]]


@click.group()
def token() -> None:
    """Make tokens, by which a server knows its callers; revoke them."""


@token.command("create", short_help="Make a token and print it, once.")
@click.argument("principal")
@data_option
@click.option(
    "--role",
    "roles",
    metavar="ROLE",
    multiple=True,
    help="Give PRINCIPAL this role too: admin, reader, writer or your own; may be repeated.",
)
@click.option(
    "--expires",
    metavar="TIME",
    type=Lifetime(),
    default="90d",
    show_default=True,
    help="How long it is valid, as 90d, 12h, 30m or 60s; or never, for ever.",
)
@json_option
def create_command(
    principal: str, folder: Target, *, roles: tuple[str, ...], expires: int | str, as_json: bool
) -> None:
    """Make a token for PRINCIPAL and print it; the log is made too if DIR is new or empty.

    It is printed this once, alone on stdout: the log keeps only a digest of it. Give it to a
    program as LAKEBED_TOKEN.
    """
    expires_ms = None if isinstance(expires, str) else expires
    with opened(folder, make=True, silent=as_json) as log:
        text = log.access.create_token(principal, expires_ms=expires_ms, roles=roles)
        number = text.removeprefix(_PREFIX).partition("_")[0]
        made = next(each for each in log.access.tokens() if each.id == number)
        administered = _administered(log)
    if as_json:
        write_json("token", {**asdict(made), "roles": roles, "token": str(text)})
        return
    write_line(text)
    flush()
    until = "for ever" if made.expires_us is None else f"until {moment(made.expires_us)}"
    click.echo(f"token {made.id} of {made.principal}, valid {until}", err=True)
    click.echo("this was the only time it is shown: keep it where secrets are kept", err=True)
    if not administered:
        click.echo(
            "nobody has the role admin yet: rules and tokens can be changed in the log's folder "
            "only, while no server owns it",
            err=True,
        )


def _administered(log: lakebed.Log) -> bool:
    rules = {(rule.role, rule.action, rule.pattern) for rule in log.access.rules()}
    return any(
        each.role == ADMIN or (each.role, Action.ADMIN.value, EVERYTHING) in rules
        for each in log.access.grants()
    )


@token.command("list", short_help="List the tokens.")
@data_option
@json_option
def list_command(folder: Target, *, as_json: bool) -> None:
    """List the tokens, without their secrets; those that ended stay for 90 days."""
    with opened(folder, silent=as_json) as log:
        found = log.access.tokens()
    if as_json:
        for each in found:
            write_json("token", asdict(each))
    elif found:
        write_table(("token", "principal", "created", "expires", "state"), map(_row, found))
    else:
        write_line("no tokens")


def _row(info: TokenInfo) -> tuple[str, ...]:
    expires = "never" if info.expires_us is None else moment(info.expires_us)
    state = "valid" if info.valid else "revoked" if info.revoked_us is not None else "expired"
    return info.id, info.principal, moment(info.created_us), expires, state


@token.command("revoke", short_help="Let a token be valid no more.")
@click.argument("token_id", metavar="ID")
@data_option
@force_option
@json_option
def revoke_command(token_id: str, folder: Target, *, force: bool, as_json: bool) -> None:
    """Let the token ID be valid no more, from now on; its principal keeps its roles."""
    with opened(folder, silent=as_json) as log:
        log.access.revoke_token(token_id, force=force)
    if as_json:
        write_json("revoked", {"token": token_id})
    else:
        write_line(f"revoked {token_id}")
