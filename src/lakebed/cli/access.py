"""`lakebed access`: who may do what when the log is served."""

from __future__ import annotations

from dataclasses import asdict

import click

from lakebed.cli.data import Target, data_option, open_log
from lakebed.cli.output import json_option, write_json, write_line, write_table
from lakebed.cli.token import force_option, show_hints, with_warning, without_rules
from lakebed.state.permissions import BUILT_IN, EVERYTHING, Action

_role = click.argument("role")
_action = click.argument(
    "action", metavar="ACTION", type=click.Choice([action.value for action in Action])
)
_pattern = click.argument("pattern", default=EVERYTHING)
_close_option = click.option(
    "--force",
    is_flag=True,
    help="Even if that closes an open log without an administrator.",
)


@click.group()
def access() -> None:
    """Manage roles, rules and denials of a served log."""


@access.command("list", short_help="List grants, rules and denials.")
@data_option
@json_option
def list_command(folder: Target, *, as_json: bool) -> None:
    """List the roles of principals, and what each role may do on which topics and groups."""
    with open_log(folder, silent=as_json) as log:
        grants, rules, tokens = log.access.grants(), log.access.rules(), log.access.tokens()
        denials = log.access.denials()
    if as_json:
        for grant in grants:
            write_json("grant", asdict(grant))
        for rule in rules:
            write_json("rule", asdict(rule))
        for denial in denials:
            write_json("denial", asdict(denial))
        return
    if not (grants or rules or tokens or denials):
        write_line(
            "no tokens, rules or grants: every client that reaches the server may do everything"
        )
        return
    if grants:
        write_table(("principal", "role"), [(grant.principal, grant.role) for grant in grants])
        write_line("")
    built_in = [
        (role, action.value, EVERYTHING)
        for role, actions in BUILT_IN.items()
        for action in Action
        if action in actions
    ]
    own = [(rule.role, rule.action, rule.pattern) for rule in rules]
    write_table(("role", "may", "on"), [*built_in, *own])
    if denials:
        write_line("")
        denied = [(denial.role, denial.action, denial.pattern) for denial in denials]
        write_table(("role", "must not", "on"), denied)


@access.command("allow", short_help="Allow a role an action.")
@_role
@_action
@_pattern
@data_option
@_close_option
@json_option
def allow_command(
    role: str, action: str, pattern: str, folder: Target, *, force: bool, as_json: bool
) -> None:
    """Allow ROLE the ACTION on topics or groups whose names match PATTERN; default: all.

    ACTION is read, write, group, manage or admin. In PATTERN, * matches any characters and ? one;
    calls about the log as a whole need the PATTERN *.
    """
    with open_log(folder, silent=as_json) as log:
        log.access.allow(role, action, pattern, force=force)
    _report("allowed", f"{role} may {action} on {pattern}", as_json, role, action, pattern)


@access.command("forbid", short_help="Remove a rule.")
@_role
@_action
@_pattern
@data_option
@force_option
@json_option
def forbid_command(
    role: str, action: str, pattern: str, folder: Target, *, force: bool, as_json: bool
) -> None:
    """Remove the rule that allows ROLE the ACTION on PATTERN; other rules stay."""
    with open_log(folder, silent=as_json) as log:
        log.access.forbid(role, action, pattern, force=force)
    text = f"removed: {role} may {action} on {pattern}"
    _report("forbidden", text, as_json, role, action, pattern)


@access.command("deny", short_help="Deny a role an action, overriding rules.")
@_role
@_action
@_pattern
@data_option
@_close_option
@json_option
def deny_command(
    role: str, action: str, pattern: str, folder: Target, *, force: bool, as_json: bool
) -> None:
    """Deny ROLE the ACTION on topics or groups whose names match PATTERN; default: all.

    A denial overrides rules: principals with ROLE are refused even if another role allows it.
    """
    with open_log(folder, silent=as_json) as log:
        log.access.deny(role, action, pattern, force=force)
    _report("denied", f"{role} must not {action} on {pattern}", as_json, role, action, pattern)


@access.command("lift", short_help="Remove a denial.")
@_role
@_action
@_pattern
@data_option
@force_option
@json_option
def lift_command(
    role: str, action: str, pattern: str, folder: Target, *, force: bool, as_json: bool
) -> None:
    """Remove the denial of ACTION on PATTERN for ROLE; rules then apply again."""
    with open_log(folder, silent=as_json) as log:
        log.access.lift(role, action, pattern, force=force)
    _report("lifted", f"{role} is not denied {action} on {pattern}", as_json, role, action, pattern)


def _report(kind: str, text: str, as_json: bool, role: str, action: str, pattern: str) -> None:
    if as_json:
        write_json(kind, {"role": role, "action": action, "pattern": pattern})
    else:
        write_line(text)


@access.command("grant", short_help="Grant a role to a principal.")
@click.argument("principal")
@_role
@data_option
@_close_option
@json_option
def grant_command(principal: str, role: str, folder: Target, *, force: bool, as_json: bool) -> None:
    """Grant PRINCIPAL the role ROLE: admin, reader, writer, or a custom role."""
    with open_log(folder, silent=as_json) as log:
        hints = without_rules(log, [role])
        log.access.grant(principal, role, force=force)
    if as_json:
        write_json("granted", with_warning({"principal": principal, "role": role}, hints))
    else:
        write_line(f"{principal} has the role {role}")
        show_hints(hints)


@access.command("revoke", short_help="Revoke a role of a principal.")
@click.argument("principal")
@_role
@data_option
@force_option
@json_option
def revoke_command(
    principal: str, role: str, folder: Target, *, force: bool, as_json: bool
) -> None:
    """Revoke the role ROLE of PRINCIPAL; its tokens stay valid for what other roles allow."""
    with open_log(folder, silent=as_json) as log:
        log.access.revoke(principal, role, force=force)
    if as_json:
        write_json("revoked", {"principal": principal, "role": role})
    else:
        write_line(f"revoked {role} from {principal}")
