"""`adamctl completion SHELL`: the script with which a shell completes commands, flags and names when Tab is pressed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click
from click.shell_completion import get_completion_class

from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError

PROGRAM = "adamctl"
VARIABLE = "_ADAMCTL_COMPLETE"
"""Set by the script when it asks this program; click looks for it under this name."""


class Place(NamedTuple):
    """Where a shell finds a script: `path` below the folder that `variable` names, or below `default` at home.

    `advice` is what to do if the shell does not look there by itself; `{folder}` stands for the script's folder.
    """

    variable: str
    default: str
    path: str
    advice: str


PLACES = {
    "bash": Place(
        "XDG_DATA_HOME",
        ".local/share",
        "bash-completion/completions/adamctl",
        "the package bash-completion loads it in a new shell; without that package, add to ~/.bashrc: . {path}",
    ),
    "zsh": Place(
        "XDG_DATA_HOME",
        ".local/share",
        "zsh/site-functions/_adamctl",
        "add to ~/.zshrc, if it is not there yet: fpath+=({folder}); autoload -U compinit; compinit",
    ),
    "fish": Place("XDG_CONFIG_HOME", ".config", "fish/completions/adamctl.fish", "fish loads it in a new shell"),
}


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(PLACES)))
@click.option("--install", is_flag=True, help="Write the script to where the shell looks for it.")
def command(shell: str, install: bool) -> None:
    """Print the script with which SHELL completes commands, flags, runs, formats and names of data.

    To try it, read it into a shell: source <(adamctl completion bash). With --install it is written for new shells.
    """
    script = source(shell)
    if not install:
        echo(script)
        return
    path = place(shell, os.environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    echo(f"wrote {path}")
    echo(PLACES[shell].advice.format(folder=path.parent, path=path))


def source(shell: str) -> str:
    """Returns the script for a shell, as click writes it."""
    from adamctl.cli.main import application

    found = get_completion_class(shell)
    assert found is not None, shell
    completion = found(application, {}, PROGRAM, VARIABLE)
    return str(completion.source_template % completion.source_vars()).strip()


def place(shell: str, environment: Mapping[str, str]) -> Path:
    """Returns the file in which a shell looks for the script, of this user."""
    where = PLACES[shell]
    named = environment.get(where.variable)
    folder = Path(named) if named else Path(environment.get("HOME") or Path.home()) / where.default
    return folder.absolute() / where.path
