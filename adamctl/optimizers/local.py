"""Programs on numpy vectors and a function of one's own: the reference that the servers' vectors are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.model.commands import ACCUMULATOR, PARAMETERS, Apply, Command, Operand, Reduce, Set
from adamctl.optimizers.execution import Answer, Execution, Progress
from adamctl.optimizers.vectors import Commit, Evaluate, Program, Request, Round

Objective: TypeAlias = Callable[[Array], tuple[float, Array]]
"""Takes parameters, 1-D float32; returns the loss and its gradient, of the same shape and any float type."""


@dataclass(frozen=True)
class Snapshot:
    """What a commit leaves: the kept vectors under their names, and the progress of the program."""

    kept: dict[str, Array]
    progress: Progress


@dataclass(frozen=True)
class Outcome:
    """What a program found.

    Attributes:
        x: the accepted parameters, float32.
        state: that of the last commit.
        stop_reason: the program's own word, or `adamctl.optimizers.execution.BUDGET`.
        rounds: rounds and commits.
        further_trials: evaluations between two commits other than the first of them.
    """

    x: Array
    state: dict[str, Any]
    stop_reason: str
    evaluations: int
    rounds: int
    further_trials: int


class LocalVectors:
    """The vectors of one program, in this process."""

    def __init__(self, objective: Objective, x: Array | Snapshot, weight_decay: float = 0.0) -> None:
        """
        Args:
            x: where to begin, 1-D, or where another run was committed.
            weight_decay: factor of the L2 term (`adamctl.optimizers.execution`).
        """
        start = x if isinstance(x, Snapshot) else Snapshot({PARAMETERS: np.array(x, np.float32)}, Progress({}))
        self._objective, self._weight_decay, self._start = objective, weight_decay, start
        self._vectors: dict[str, Array] = {}

    def run(
        self,
        program: Program,
        settings: Any,
        budget: int | None = None,
        on_commit: Callable[[Snapshot], None] | None = None,
        on_evaluation: Callable[[float], None] | None = None,
    ) -> Outcome:
        """Runs a program to its end.

        Args:
            budget: most evaluations.
            on_commit: is shown what each commit left.
            on_evaluation: is shown each loss, without the L2 term, as the objective gave it.

        Raises:
            ProgramError: the program asks for what cannot be.
        """
        execution = Execution(program, settings, self._weight_decay, budget, self._start.progress)
        size = self._start.kept[PARAMETERS].size
        names = (*execution.kept, *execution.scratch, ACCUMULATOR)
        self._vectors = {name: np.zeros(size, np.float32) for name in names}
        for name, values in self._start.kept.items():
            self._vectors[name] = values.copy()
        while execution.request is not None:
            request = execution.request
            answer = self._carry_out(request)
            execution.answer(answer)
            if isinstance(request, Evaluate) and on_evaluation is not None:
                assert isinstance(answer, float)
                on_evaluation(answer)
            if isinstance(request, Commit) and on_commit is not None:
                kept = {name: self._vectors[name].copy() for name in execution.kept}
                on_commit(Snapshot(kept, execution.committed))
        return Outcome(
            self._vectors[PARAMETERS].copy(), dict(execution.committed.state), execution.stop_reason or "",
            execution.evaluations, execution.rounds, execution.further_trials,
        )  # fmt: skip

    def _carry_out(self, request: Request) -> Answer:
        match request:
            case Evaluate():
                loss, gradient = self._objective(self._vectors[request.at].copy())
                with np.errstate(over="ignore"):
                    self._vectors[ACCUMULATOR][:] = gradient
                return float(loss) if np.isfinite(self._vectors[ACCUMULATOR]).all() else math.inf
            case Round() | Commit():
                numbers = carry_out(request.commands, self._vectors)
                return numbers if isinstance(request, Round) else None


def carry_out(commands: Sequence[Command], vectors: dict[str, Array]) -> list[float]:
    """Carries out checked commands in order on float32 vectors; returns a number for each `Reduce`."""
    numbers = []
    with np.errstate(all="ignore"):
        for command in commands:
            match command:
                case Set():
                    vectors[command.target][:] = _sum_of_terms(command.terms, vectors)
                case Apply():
                    vectors[command.target][:] = _apply(command, vectors)
                case Reduce():
                    numbers.append(_reduce(command, vectors))
    return numbers


def _sum_of_terms(terms: Sequence[tuple[float, str]], vectors: dict[str, Array]) -> Any:
    if not terms:
        return np.float32(0)
    factor, name = terms[0]
    total = factor * vectors[name].astype(np.float64)
    for factor, name in terms[1:]:
        total += factor * vectors[name].astype(np.float64)
    return total


def _read(operand: Operand, vectors: dict[str, Array]) -> Array:
    first = vectors[operand[0]]
    return first if len(operand) == 1 else first - vectors[operand[1]]


def _apply(command: Apply, vectors: dict[str, Array]) -> Array:
    a, *others = (_read(operand, vectors) for operand in command.operands)
    if command.operation == "where":
        return np.where(a > 0, *others)
    function = {
        "multiply": np.multiply, "divide": np.divide, "sqrt": np.sqrt, "abs": np.abs, "sign": np.sign,
        "maximum": np.maximum, "minimum": np.minimum,
    }[command.operation]  # fmt: skip
    result: Array = function(a, *others)
    return result


def _reduce(command: Reduce, vectors: dict[str, Array]) -> float:
    a, *others = (_read(operand, vectors).astype(np.float64) for operand in command.operands)
    match command.operation:
        case "dot":
            return float(np.sum(a * others[0]))
        case "sum":
            return float(np.sum(a))
        case "max_abs":
            return float(np.max(np.abs(a), initial=0.0))
        case "count_nonzero":
            return float(np.count_nonzero(a))
