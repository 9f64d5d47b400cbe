"""The part of carrying out a program that is the same for every driver: checks, weight decay, counts, the budget.

A driver carries out `request` and hands the answer to `answer`, until `stop_reason` is set. It sees three requests of
`adamctl.optimizers.vectors`, made complete: an `Evaluate` is of the loss alone, without the L2 term, and the commands
that follow from it are in the rounds and commits.

Weight decay is an L2 term, w/2 |p|^2, in the loss and, as w p, in the gradient. (Under the rules of Downpour it is
decoupled from both: each update shrinks the parameters, and the loss is reported without it.)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import msgspec

from adamctl.errors import ConfigurationError, ProgramError
from adamctl.model.commands import ACCUMULATOR, COMMANDS_MAX, Command, Reduce, Set, check_commands, inputs_of
from adamctl.optimizers.vectors import Commit, Evaluate, Program, Request, Requests, Round, State, Vectors
from adamctl.wire.unreadable import UNREADABLE

STATE_BYTES_MAX = 1 << 17
"""Most bytes of a program's state, as JSON."""
BUDGET = "budget"
"""The reason of a program that was stopped because its evaluations were used up."""

Answer: TypeAlias = float | Sequence[float] | None


@dataclass(frozen=True)
class Progress:
    """What the last commit said: enough, with the kept vectors, to go on. State {} before the first commit."""

    state: State
    evaluations: int = 0
    further_trials: int = 0


class Execution:
    """One program under way.

    Attributes:
        request: what is to be carried out now; None once the program has stopped.
        stop_reason: why it stopped.
        committed: the last commit that the driver has answered.
        evaluations: all that were answered. A program that asks for more than `budget` of them is stopped.
        rounds: all requests that servers carry out: rounds and commits.
        further_trials: evaluations between two commits other than the first of them.
    """

    def __init__(
        self,
        program: Program,
        settings: Any,
        weight_decay: float = 0.0,
        budget: int | None = None,
        committed: Progress | None = None,
    ) -> None:
        """Starts a program, or makes it again from what was committed.

        Raises:
            ProgramError: its first request is refused.
        """
        self.committed = committed or Progress({})
        self.evaluations, self.further_trials = self.committed.evaluations, self.committed.further_trials
        self.rounds = 0
        self.stop_reason: str | None = None
        self._weight_decay, self._budget = weight_decay, budget
        self._since_commit = 0
        self._vectors = Vectors()
        self._program = program(self._vectors, settings, _plain(self.committed.state))
        if not isinstance(self._program, Generator):
            raise ProgramError(
                f"a program is a generator function; found one that returns {type(self._program).__name__}"
            )
        self._pending: Set | None = None
        self._written: set[str] = set()  # scratch vectors, since the last commit
        self._squares = _Squares()
        self._requests = self._run()
        self.request: Request | None = None
        self._advance(None)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the kept vectors, x first."""
        return self._vectors.kept_names

    @property
    def scratch(self) -> tuple[str, ...]:
        return self._vectors.scratch_names

    def answer(self, value: Answer) -> None:
        """Takes the answer to `request` and makes the next one.

        Args:
            value: a loss, infinite or NaN if it or its gradient is not finite; one number for each `Reduce`; None.

        Raises:
            ProgramError: the next request is refused.
        """
        if isinstance(self.request, Round):
            expected = sum(isinstance(command, Reduce) for command in self.request.commands)
            assert len(cast(Sequence[float], value)) == expected
        self._advance(value)

    def _advance(self, value: Answer) -> None:
        try:
            self.request = self._requests.send(value)
        except StopIteration as stopped:
            self.request, self.stop_reason = None, str(stopped.value)

    def _run(self) -> Requests[str]:
        answer: Any = None
        while True:
            try:
                request = self._program.send(answer)
            except StopIteration as stopped:
                return str(stopped.value)
            self._vectors.close()
            match request:
                case Evaluate():
                    if self._budget is not None and self.evaluations >= self._budget:
                        self._program.close()
                        return BUDGET
                    answer = yield from self._evaluate(request)
                case Round():
                    answer = yield from self._round(request)
                case Commit():
                    yield from self._commit(request)
                    answer = None
                case _:
                    raise ProgramError(f"expected an evaluation, a round or a commit; found {type(request).__name__}")

    def _evaluate(self, request: Evaluate) -> Requests[float]:
        yield from self._set_pending()
        for name in (request.at, request.into):
            if name not in self.kept + self.scratch:
                raise ProgramError(
                    f"an evaluation names {name!r}; expected one of {', '.join(self.kept + self.scratch)}"
                )
        self._check_written("an evaluation", {request.at})
        square = 0.0
        if self._weight_decay:
            square = yield from self._square(request.at)
        loss: float = yield request
        self.evaluations += 1
        self.further_trials += self._since_commit > 0
        self._since_commit = trials = self._since_commit + 1
        total = loss + self._weight_decay / 2 * square
        if not math.isfinite(total):
            return math.inf
        decay = ((self._weight_decay, request.at),) if self._weight_decay else ()
        self._pending = Set(request.into, ((1.0, ACCUMULATOR), *decay))
        if request.into in self.kept:
            yield from self._commit(Commit((), self.committed.state))
            self._since_commit = trials
        return total

    def _set_pending(self) -> Requests[None]:
        if self._pending is not None:
            yield from self._round(Round(()))

    def _round(self, request: Round) -> Requests[list[float]]:
        commands = self._checked(request.commands, self.scratch)
        measured = self._squares.wanted(commands) if self._weight_decay and len(commands) < COMMANDS_MAX else []
        numbers: list[float] = yield Round((*commands, *map(_dot_with_itself, measured)))
        self.rounds += 1
        self._squares.written(commands)
        own = len(numbers) - len(measured)
        self._squares.found(dict(zip(measured, numbers[own:], strict=True)))
        return list(numbers[:own])

    def _square(self, name: str) -> Requests[float]:
        self._squares.names.add(name)
        if name not in self._squares.values:
            (number,) = yield Round((_dot_with_itself(name),))
            self.rounds += 1
            self._squares.found({name: number})
        return self._squares.values[name]

    def _commit(self, request: Commit) -> Requests[None]:
        if self._pending is not None and self._pending.target not in self.kept:
            yield from self._set_pending()
        commands = self._checked(request.commands, self.kept)
        if any(isinstance(command, Reduce) for command in commands):
            raise ProgramError("a commit only sets vectors; ask for numbers in a round")
        state = _plain(request.state)
        yield replace(
            request, commands=commands, state=state, evaluations=self.evaluations, further_trials=self.further_trials
        )
        self.rounds += 1
        self._squares.written(commands)
        self.committed = Progress(state, self.evaluations, self.further_trials)
        self._since_commit = 0
        self._written.clear()

    def _checked(self, own: Sequence[Command], writable: Sequence[str]) -> tuple[Command, ...]:
        """Returns a program's own commands after the one that sets a gradient; raises ProgramError if one cannot be."""
        try:
            own = msgspec.msgpack.decode(msgspec.msgpack.encode(own), type=tuple[Command, ...])
        except (*UNREADABLE, TypeError) as error:
            raise ProgramError(f"expected commands of adamctl.model.commands; {error}") from error
        if any(name == ACCUMULATOR for command in own if isinstance(command, Set) for _, name in command.terms):
            raise ProgramError(
                f"{ACCUMULATOR!r} is read by evaluations alone: name a vector that the gradient goes into"
            )
        commands = own if self._pending is None else (self._pending, *own)
        try:
            check_commands(commands, self.kept + self.scratch, writable)
        except ConfigurationError as error:
            raise ProgramError(str(error)) from error
        for number, command in enumerate(commands, -(self._pending is not None)):  # own ones from 0
            self._check_written(f"command {number}", inputs_of([command]))
            if not isinstance(command, Reduce):
                self._written.add(command.target)
        self._pending = None
        return tuple(commands)

    def _check_written(self, reader: str, names: Collection[str]) -> None:
        """A server that was lost makes again what was written since the last commit, and nothing else."""
        unwritten = sorted(set(names) & set(self.scratch) - self._written)
        if unwritten:
            names = ", ".join(map(repr, unwritten))
            raise ProgramError(f"{reader} reads {names}, not written since the last commit: write it first, or keep it")


class _Squares:
    """|p|^2 of vectors at which losses were evaluated, so that the L2 term costs no round of its own.

    Whatever writes such a vector is asked for its square in the same round.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.values: dict[str, float] = {}

    def wanted(self, commands: Sequence[Command]) -> list[str]:
        targets = [command.target for command in commands if not isinstance(command, Reduce)]
        return sorted(self.names.intersection(targets))[:1]

    def written(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if not isinstance(command, Reduce):
                self.values.pop(command.target, None)

    def found(self, values: dict[str, float]) -> None:
        self.values.update(values)


def _dot_with_itself(name: str) -> Reduce:
    return Reduce("dot", ((name,), (name,)))


def _plain(state: State) -> dict[str, Any]:
    """Returns a state as it comes back from JSON. Raises ProgramError if that changes it, or it is too large."""
    try:
        text = msgspec.json.encode(state)
        plain = msgspec.json.decode(text, type=dict[str, Any])
    except (*UNREADABLE, TypeError) as error:
        raise ProgramError(f"a state is an object of what JSON holds; {error}") from error
    if plain != state:
        changed = sorted(name for name in plain if plain[name] != state.get(name))
        raise ProgramError(
            f"a state is what JSON holds, without NaN, infinities or tuples; found others in {', '.join(changed)}"
        )
    if len(text) > STATE_BYTES_MAX:
        raise ProgramError(f"a state has at most {STATE_BYTES_MAX} bytes as JSON; found {len(text)}")
    return plain
