"""Programs on numpy vectors and a function of one's own: the reference that the servers' vectors are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from adamctl.kernels.array import Array
from adamctl.kernels.numeric.accumulate import Accumulator, accumulate
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.kernels.numeric.exact_sums import combined
from adamctl.model.commands import PARAMETERS, Command, Reduce
from adamctl.optimizers.execution import Answer, Execution, Progress
from adamctl.optimizers.vectors import Commit, Evaluate, Program, Request, Round

FRACTION_BITS = (40, 20)
"""Of the accumulator: the second where a gradient is too large for the first."""

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
    """The vectors of one program, in this process.

    Attributes:
        vectors: all of them under their names, while a program runs and after it. A scratch vector that has not been
            written is NaN.
    """

    def __init__(
        self, objective: Objective, x: Array | Snapshot, weight_decay: float = 0.0, backend: str = "numpy"
    ) -> None:
        """
        Args:
            x: where to begin, 1-D, or where another run was committed.
            weight_decay: factor of the L2 term (`adamctl.optimizers.execution`).
            backend: what carries out commands (`adamctl.kernels.backend`); all give the same bits.
        """
        start = x if isinstance(x, Snapshot) else Snapshot({PARAMETERS: np.array(x, np.float32)}, Progress({}))
        self._objective, self._weight_decay, self._start = objective, weight_decay, start
        self._backend = backend
        self.vectors: dict[str, Array] = {}
        self._accumulator: Accumulator | None = None

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
        self.vectors = {name: np.zeros(size, np.float32) for name in execution.kept}
        self.vectors |= {name: np.full(size, math.nan, np.float32) for name in execution.scratch}
        self.vectors |= {name: values.copy() for name, values in self._start.kept.items()}
        while execution.request is not None:
            request = execution.request
            answer = self._carry_out(request)
            execution.answer(answer)
            if isinstance(request, Evaluate) and on_evaluation is not None:
                assert isinstance(answer, float)
                on_evaluation(answer)
            if isinstance(request, Commit) and on_commit is not None:
                kept = {name: self.vectors[name].copy() for name in execution.kept}
                on_commit(Snapshot(kept, execution.committed))
        return Outcome(
            self.vectors[PARAMETERS].copy(), dict(execution.committed.state), execution.stop_reason or "",
            execution.evaluations, execution.rounds, execution.further_trials,
        )  # fmt: skip

    def _carry_out(self, request: Request) -> Answer:
        match request:
            case Evaluate():
                loss, gradient = self._objective(self.vectors[request.at].copy())
                return float(loss) if self._accumulate(gradient) else math.inf
            case Round():
                return carry_out(request.commands, self.vectors, self._accumulator, self._backend)
            case Commit():
                carry_out(request.commands, self.vectors, self._accumulator, self._backend)
                return None

    def _accumulate(self, gradient: Array) -> bool:
        """Sets the accumulator, in fixed point as on servers; returns False if the gradient is out of range."""
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.asarray(gradient, np.float32)
        for fraction_bits in FRACTION_BITS:
            self._accumulator = Accumulator(np.zeros(part.size, np.int64), fraction_bits)
            if accumulate(self._accumulator, part, 1.0, parts_max=1, backend=self._backend) is None:
                return True
        return False


def carry_out(
    commands: Sequence[Command],
    vectors: Mapping[str, Array],
    accumulator: Accumulator | None = None,
    backend: str = "numpy",
) -> list[float]:
    """Carries out checked commands in order on float32 vectors; returns a number for each `Reduce`."""
    prepared = PreparedRound(commands, backend)
    totals = prepared.new_totals()
    prepared.run(vectors, max(1, next(iter(vectors.values())).size), totals, accumulator)
    operations = [command.operation for command in commands if isinstance(command, Reduce)]
    return [combined(operation, [parts]) for operation, parts in zip(operations, totals.parts(), strict=True)]
