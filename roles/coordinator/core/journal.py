"""What a batch algorithm had its servers do since its last commit, and what of it a server that lost all that needs.

Scratch vectors and the accumulator are lost with the process that holds them. All of them come from kept vectors, by
rounds and evaluations since the last commit; after a commit nobody reads what was written before it. So a server that
took shards over has the same things done again, without what has been overwritten since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from adamctl.model.commands import ACCUMULATOR, Command, Reduce, Set, inputs_of


@dataclass(frozen=True)
class RoundEntry:
    """A round. Commands that are done again leave out what finds numbers."""

    commands: tuple[Command, ...]


@dataclass(frozen=True)
class EvaluationEntry:
    """The gradient at a vector, in the accumulator."""

    at: str


Entry: TypeAlias = RoundEntry | EvaluationEntry


def needed_again(entries: Sequence[Entry], wanted: Collection[str]) -> list[tuple[int, Entry]]:
    """Returns the entries, and their places, that a server without scratch needs in order to have `wanted`.

    Args:
        wanted: vectors, and perhaps the accumulator. Kept ones are there.
    """
    live = set(wanted)
    found: list[tuple[int, Entry]] = []
    for place in reversed(range(len(entries))):
        entry = entries[place]
        if isinstance(entry, EvaluationEntry):
            if ACCUMULATOR in live:
                live.discard(ACCUMULATOR)
                live.add(entry.at)
                found.append((place, entry))
            continue
        commands: list[Command] = []
        for command in reversed(entry.commands):
            if not isinstance(command, Reduce) and command.target in live:
                live.discard(command.target)
                live |= inputs_of([command])
                commands.append(command)
        if commands:
            found.append((place, RoundEntry(tuple(reversed(commands)))))
    return found[::-1]


def where_left(name: str, commit: Sequence[Command], kept: Collection[str]) -> str:
    """Returns the kept vector that has the numbers of `name` where a commit is done; "" if none has.

    L-BFGS commits x = t, so that x is the point t. Where a vector was evaluated and then written over, as x is by
    x = x - 0.1 h, its numbers are nowhere.
    """
    last = {command.target: command for command in commit if not isinstance(command, Reduce)}
    if name in kept:
        return "" if name in last else name
    copies = [target for target, command in last.items() if command == Set(target, ((1.0, name),))]
    return copies[0] if copies else ""


def written(entries: Sequence[Entry]) -> set[str]:
    """Returns the scratch vectors that entries have written."""
    rounds = [entry for entry in entries if isinstance(entry, RoundEntry)]
    return {one.target for entry in rounds for one in entry.commands if not isinstance(one, Reduce)}
