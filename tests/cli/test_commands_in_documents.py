"""Every command in our documents and examples is one: its real click command takes its arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import click
import pytest

from adamctl.cli.main import application
from tests.documents import DOCUMENTS, EXAMPLES, blocks, commands_in, said_in_examples, spans

NUMBER = re.compile(r"[A-Z]")
"""A capital letter by itself stands for a number."""


def commands() -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yields where a command stands, its arguments, and whether it is whole: prose and lists may say less."""
    for document in DOCUMENTS:
        for line in blocks(document):
            found = [tuple(words) for words in commands_in(line)]
            yield from ((document, words, len(found) == 1 or "&&" in line) for words in found)
        yield from ((document, tuple(words), False) for line in spans(document) for words in commands_in(line))
    for example in EXAMPLES:
        yield from ((example, tuple(words), True) for line in said_in_examples(example) for words in commands_in(line))


def parse(words: tuple[str, ...], *, whole: bool) -> None:
    """Has the command that the words name take them as its arguments; carries nothing out.

    Raises:
        click.ClickException: what is wrong with them.
    """
    command: click.Command = application
    context = click.Context(command, info_name="adamctl")
    rest = ["1" if NUMBER.fullmatch(word) else word for word in words]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"{context.command_path} has no command {rest[0]!r}", context)
        command, context = found, click.Context(found, parent=context, info_name=rest.pop(0))
    if isinstance(command, click.Group) and not rest:
        if whole:
            raise click.UsageError(f"{context.command_path} needs a command", context)
        return
    try:
        with patch.dict(os.environ):  # --insecure and --tls-dir set variables
            command.make_context(context.info_name, rest, parent=context.parent)
    except click.exceptions.Exit:  # --help, --version
        return
    except (click.MissingParameter, click.BadOptionUsage):
        if whole:
            raise


FOUND = sorted(set(commands()))


@pytest.fixture(autouse=True)
def plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that an option of a document puts into the environment is left there. The folder of the data exists."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    Path("DIR").mkdir()
    for name in ("ADAMCTL_CONTROLLER", "ADAMCTL_CONFIG_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("where", sorted({where for where, _, _ in FOUND}))
def test_commands_are_taken_by_what_they_name(where: str) -> None:
    for document, words, whole in FOUND:
        if document == where:
            try:
                parse(words, whole=whole)
            except click.ClickException as error:
                pytest.fail(f"{where}: adamctl {' '.join(words)}: {error.format_message()}")


def test_many_commands_are_found() -> None:
    assert len(FOUND) > 60
    assert {"README.md", "examples/by_hand.md", "examples/digits.toml", "docs/etcd.md"} <= {
        where for where, *_ in FOUND
    }
    assert ("README.md", ("export", "runs/mnist/001", "FILE", "--to", "npz"), False) in FOUND


@pytest.mark.parametrize(
    "line",
    [
        "adamctl nonsense",
        "adamctl ckpt",
        "adamctl ckpt nonsense",
        "adamctl train --nonsense examples/digits.toml",
        "adamctl train",
        "adamctl train a.toml b.toml",
        "adamctl train a.toml --passes many",
        "adamctl ps start --nam ps-1 --nonsense",
    ],
)
def test_what_is_none_is_refused(line: str) -> None:
    for words in commands_in(line):
        with pytest.raises(click.ClickException):
            parse(tuple(words), whole=True)
