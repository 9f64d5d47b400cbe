"""What a batch algorithm is written with: names of vectors that it never holds, and requests about them.

A program is a generator function of (vectors, settings, state). It declares its vectors, then yields requests and is
sent the answers, and returns why it stopped, in a word:

    def gradient_descent(v, settings, state):
        g, t, h = v.kept("g"), v.scratch("t"), v.scratch("h")
        f = yield v.evaluate(at=v.x, into=g)
        while True:
            (gg,) = yield v.round(t.set(v.x - settings.step * g), dot(g, g))
            if gg < settings.tolerance:
                return "gradient"
            f = yield v.evaluate(at=t, into=h)
            yield v.commit(v.x.set(t), g.set(h), state={"loss": f})

*Kept* vectors change in commits alone, all of them together with a small state, and outlive failures. *Scratch* vectors
are written by rounds and may be lost between commits. A program is made again from the state of its last commit ({} if
it never committed), and must go on from there as if it had never stopped: reading a scratch vector that it has not
written since is an error. One that evaluates at a scratch vector and commits `v.x.set(it)`, as above, loses nothing
with a server; one that writes over the vector that it has evaluated may lose its history (docs/decisions/0033). Of a
state, `iteration`, `loss`, `gradient_max` and `step` are shown to people.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from adamctl.errors import ProgramError
from adamctl.model.commands import ACCUMULATOR, PARAMETERS, Apply, Command, Elementwise, Operand, Reduce, Set

NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class Linear:
    """A linear combination of vectors; `+`, `-` and products with numbers make others."""

    @property
    def terms(self) -> tuple[tuple[float, str], ...]:
        """(factor, name of a vector), in the order in which they are added."""
        raise NotImplementedError

    def __add__(self, other: Linear) -> Combination:
        return Combination(self.terms + other.terms)

    def __sub__(self, other: Linear) -> Combination:
        return self + -other

    def __neg__(self) -> Combination:
        return -1.0 * self

    def __mul__(self, factor: float) -> Combination:
        return Combination(tuple((float(factor) * own, name) for own, name in self.terms))

    __rmul__ = __mul__

    def __abs__(self) -> Operation:
        return Operation("abs", (operand(self),))


@dataclass(frozen=True)
class Combination(Linear):
    """A linear combination, as it is added up: in order, in float64, rounded once."""

    terms: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Operation:
    """An operation on operands, element by element in float32."""

    operation: Elementwise
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Vector(Linear):
    """The name of a vector with a number for each parameter."""

    name: str

    @property
    def terms(self) -> tuple[tuple[float, str], ...]:
        return ((1.0, self.name),)

    def set(self, value: Linear | Operation | None = None) -> Set | Apply:
        """Returns the command that sets this vector: to 0 without a value."""
        if isinstance(value, Operation):
            return Apply(self.name, value.operation, value.operands)
        return Set(self.name, value.terms if value is not None else ())


def operand(value: Linear) -> Operand:
    """Returns a vector, or the difference a - b of two, as an operand.

    Raises:
        ProgramError: it is neither; set a scratch vector to it first.
    """
    factors = [factor for factor, _ in value.terms]
    if factors not in ([1.0], [1.0, -1.0]):
        raise ProgramError(f"an operand is a vector or the difference of two; found the factors {factors}")
    return tuple(name for _, name in value.terms)


def multiply(a: Linear, b: Linear) -> Operation:
    return Operation("multiply", (operand(a), operand(b)))


def divide(a: Linear, b: Linear) -> Operation:
    return Operation("divide", (operand(a), operand(b)))


def sqrt(a: Linear) -> Operation:
    return Operation("sqrt", (operand(a),))


def sign(a: Linear) -> Operation:
    """-1, 0 or 1."""
    return Operation("sign", (operand(a),))


def maximum(a: Linear, b: Linear) -> Operation:
    return Operation("maximum", (operand(a), operand(b)))


def minimum(a: Linear, b: Linear) -> Operation:
    return Operation("minimum", (operand(a), operand(b)))


def where(condition: Linear, a: Linear, b: Linear) -> Operation:
    """a where the condition is above 0, else b."""
    return Operation("where", (operand(condition), operand(a), operand(b)))


def dot(a: Linear, b: Linear) -> Reduce:
    return Reduce("dot", (operand(a), operand(b)))


def sum_of(a: Linear) -> Reduce:
    return Reduce("sum", (operand(a),))


def max_abs(a: Linear) -> Reduce:
    return Reduce("max_abs", (operand(a),))


def count_nonzero(a: Linear) -> Reduce:
    return Reduce("count_nonzero", (operand(a),))


State: TypeAlias = Mapping[str, Any]
"""What a program keeps with its kept vectors: numbers, texts, lists and objects that JSON holds."""


@dataclass(frozen=True)
class Evaluate:
    """The loss of a batch and its gradient at a vector. Answer: the loss, infinite if it or the gradient is not finite.

    `into` is set to the gradient by the first command of the next round, or not at all where the loss is infinite.
    """

    at: str
    into: str


@dataclass(frozen=True)
class Round:
    """Commands, carried out in order. Answer: a number for each `Reduce`."""

    commands: tuple[Command, ...]


@dataclass(frozen=True)
class Commit:
    """Sets kept vectors and the state together: all of it or nothing, once. Answer: None.

    `evaluations` and `further_trials` are counted by the execution: those of the whole run, this far.
    """

    commands: tuple[Command, ...]
    state: State
    evaluations: int = 0
    further_trials: int = 0


T = TypeVar("T")
Request: TypeAlias = Evaluate | Round | Commit
Requests: TypeAlias = Generator[Request, Any, T]
"""Requests, and in the end a result."""
Program: TypeAlias = Callable[["Vectors", Any, State], Requests[str]]


class Vectors:
    """The vectors of one program, and the requests it makes about them.

    Attributes:
        x: the accepted parameters, a kept vector.
    """

    def __init__(self) -> None:
        self.x = Vector(PARAMETERS)
        self._kept = [PARAMETERS]
        self._scratch: list[str] = []
        self._closed = False

    @property
    def kept_names(self) -> tuple[str, ...]:
        return tuple(self._kept)

    @property
    def scratch_names(self) -> tuple[str, ...]:
        return tuple(self._scratch)

    def kept(self, name: str) -> Vector:
        """Declares a vector that outlives failures; it is 0 before the first commit.

        Raises:
            ProgramError: the name cannot be used, or the program has made a request already.
        """
        self._kept.append(self._checked(name))
        return Vector(name)

    def scratch(self, name: str) -> Vector:
        """Declares a vector that may be lost between commits. Raises ProgramError as `kept` does."""
        self._scratch.append(self._checked(name))
        return Vector(name)

    def close(self) -> None:
        """Vectors are declared before the first request; drivers call this after it."""
        self._closed = True

    def evaluate(self, at: Vector, into: Vector) -> Evaluate:
        return Evaluate(at.name, into.name)

    def round(self, *commands: Command) -> Round:
        return Round(commands)

    def commit(self, *commands: Command, state: State) -> Commit:
        return Commit(commands, state)

    def _checked(self, name: str) -> str:
        if self._closed:
            raise ProgramError(f"vector {name!r}: expected before the first request; vectors are not added later")
        if not NAME.fullmatch(name) or name == ACCUMULATOR:
            raise ProgramError(
                f"vector {name!r}: expected up to 32 of a-z, 0-9 and _, a letter first, not {ACCUMULATOR!r}"
            )
        if name in self._kept or name in self._scratch:
            raise ProgramError(f"vector {name!r} is declared twice")
        return name
