"""`lakebed completion`: the script that lets a shell complete commands, topics and groups."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from lakebed.cli.output import write_line
from lakebed.errors import LakebedError
from lakebed.host import OsDisk
from lakebed.state.image import State, decode_state
from lakebed.state.snapshot_files import SnapshotFolder


@click.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    It completes commands, options, and names of topics and groups as of the last checkpoint.

    \b
    bash:  eval "$(lakebed completion bash)"                  in ~/.bashrc
    zsh:   eval "$(lakebed completion zsh)"                   in ~/.zshrc
    fish:  lakebed completion fish >~/.config/fish/completions/lakebed.fish
    """  # noqa: D301  # click needs that character: it keeps the lines below it as they are
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for the shell {shell!r}")
    source = kind(ctx.find_root().command, {}, "lakebed", "_LAKEBED_COMPLETE").source()
    write_line(source.rstrip())


def complete_topic(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer topics of the newest snapshot: reading it neither takes the lock nor changes a byte."""
    del param
    return _offer(_newest(ctx).names, incomplete)


def complete_group(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer groups of the newest snapshot."""
    del param
    return _offer(_newest(ctx).groups, incomplete)


def _offer(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def _newest(ctx: click.Context) -> State:
    folder = ctx.params.get("folder")
    if not isinstance(folder, Path):
        return State()
    snapshots = SnapshotFolder(OsDisk(), folder)
    try:
        index = max(snapshots.indexes(), default=None)
        return State() if index is None else decode_state(snapshots.load(index), folder)
    except LakebedError:
        return State()
