"""Commands on the vectors of a job: what a coordinator tells parameter servers that hold them (DistBelief 4.2).

A vector has a number for each parameter of the model and is cut like it: every command acts on each server's part of
its vectors alone, and what it finds is combined by the coordinator. All commands are fixed; nobody sends code. Those of
a round are carried out in order, and every server answers a round with one reply.

An operand is one vector, or the difference of two: (a,) or (a, b) for a - b, rounded to float32 as if it were stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite
from typing import Literal, TypeAlias

import msgspec

from adamctl.errors import ConfigurationError

OPERANDS_MAX = 64
"""Most operands of a command."""
COMMANDS_MAX = 256
"""Most commands of a round."""
PARAMETERS = "x"
"""The accepted parameters: what is evaluated, exported and checkpointed."""
ACCUMULATOR = "accumulator"
"""The sum of gradients that workers pushed for the latest evaluation. Only a `Set` reads it; nothing writes it."""

Operand: TypeAlias = tuple[str, ...]
Elementwise: TypeAlias = Literal["multiply", "divide", "sqrt", "abs", "sign", "maximum", "minimum", "where"]
Reduction: TypeAlias = Literal["dot", "sum", "max_abs", "count_nonzero"]
OPERANDS: dict[str, int] = {
    "multiply": 2, "divide": 2, "sqrt": 1, "abs": 1, "sign": 1, "maximum": 2, "minimum": 2, "where": 3,
    "dot": 2, "sum": 1, "max_abs": 1, "count_nonzero": 1,
}  # fmt: skip
"""How many operands an operation has. `where`: the second where the first is above 0, else the third."""


class Set(msgspec.Struct, frozen=True, array_like=True, tag="set", forbid_unknown_fields=True):
    """target = the sum of factor x vector, in order, in float64, rounded once; 0 without terms."""

    target: str
    terms: tuple[tuple[float, str], ...] = ()


class Apply(msgspec.Struct, frozen=True, array_like=True, tag="apply", forbid_unknown_fields=True):
    """target = an operation on operands, element by element, in float32."""

    target: str
    operation: Elementwise
    operands: tuple[Operand, ...]


class Reduce(msgspec.Struct, frozen=True, array_like=True, tag="reduce", forbid_unknown_fields=True):
    """Finds one number. `dot` and `sum` are exact but for the rounding of each tensor row; see the kernels."""

    operation: Reduction
    operands: tuple[Operand, ...]


Command: TypeAlias = Set | Apply | Reduce


class Parts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one server found for one `Reduce`: numbers whose exact sum it is. A maximum is one number."""

    numbers: tuple[float, ...]


def check_commands(
    commands: Sequence[Command], readable: Collection[str], writable: Collection[str], most: int = COMMANDS_MAX
) -> None:
    """Checks the commands of a round before the first of them is carried out.

    Args:
        readable, writable: names of vectors.

    Raises:
        ConfigurationError: one is malformed, or names a vector that is not there.
    """
    if len(commands) > most:
        raise ConfigurationError(f"commands: expected at most {most} in a round; found {len(commands)}")
    for number, command in enumerate(commands):
        where = f"command {number}"
        if isinstance(command, Set):
            read = [name for _, name in command.terms]
            bad = [factor for factor, _ in command.terms if not isfinite(factor)]
            if bad:
                raise ConfigurationError(f"{where}: expected finite factors; found {bad[0]}")
        else:
            read = _names_of(command, where)
        if len(read) > OPERANDS_MAX:
            raise ConfigurationError(f"{where}: expected at most {OPERANDS_MAX} operands; found {len(read)}")
        known = {*readable, ACCUMULATOR} if isinstance(command, Set) else readable
        for name in read:
            _expect(name, known, f"{where} reads")
        if not isinstance(command, Reduce):
            _expect(command.target, writable, f"{where} writes")


def inputs_of(commands: Sequence[Command]) -> frozenset[str]:
    """Returns the vectors that commands read before they write them; perhaps also the accumulator."""
    read: set[str] = set()
    written: set[str] = set()
    for command in commands:
        if isinstance(command, Set):
            names = [name for _, name in command.terms]
        else:
            names = [name for operand in command.operands for name in operand]
        read.update(name for name in names if name not in written)
        if not isinstance(command, Reduce):
            written.add(command.target)
    return frozenset(read)


def _names_of(command: Apply | Reduce, where: str) -> list[str]:
    expected = OPERANDS[command.operation]
    if len(command.operands) != expected:
        found = len(command.operands)
        raise ConfigurationError(f"{where}: expected {expected} operands of {command.operation}; found {found}")
    for operand in command.operands:
        if not 1 <= len(operand) <= 2:
            raise ConfigurationError(f"{where}: expected a vector or a difference of two; found {len(operand)} names")
    return [name for operand in command.operands for name in operand]


def _expect(name: str, known: Collection[str], where: str) -> None:
    if name not in known:
        raise ConfigurationError(f"{where} {name!r}; expected one of {', '.join(sorted(known)) or 'none'}")
