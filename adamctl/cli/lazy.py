"""Command groups that know their subcommands' names and summaries and import a subcommand only when it is used."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from adamctl.importing import importing


class LazyGroup(click.Group):
    """Subclasses name their subcommands in `sections` and import one in `load`."""

    def sections(self) -> dict[str, dict[str, str]]:
        """Returns heading -> subcommand -> summary, as help shows them."""
        raise NotImplementedError

    def load(self, name: str) -> click.Command | None:
        """Returns a subcommand, importing it, or None if there is no such subcommand."""
        raise NotImplementedError

    @staticmethod
    def imported(place: str) -> click.Command:
        """Returns the command that `module:attribute` names."""
        module, _, attribute = place.partition(":")
        with importing():
            command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in self.sections().values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]}?" if near else f" Try '{ctx.command_path} --help'."
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offers subcommands by the table, without importing any, and then this group's own options."""
        named = {name: text for section in self.sections().values() for name, text in section.items()}
        found = [CompletionItem(name, help=text) for name, text in named.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in self.sections().items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))


class TableGroup(LazyGroup):
    """A group with a table of subcommands: name -> (`module:attribute`, summary)."""

    def __init__(self, *, table: dict[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.table = table

    def sections(self) -> dict[str, dict[str, str]]:
        return {"Commands": {name: summary for name, (_, summary) in self.table.items()}}

    def load(self, name: str) -> click.Command | None:
        return self.imported(self.table[name][0]) if name in self.table else None
