"""A batch run that nothing disturbs, on plain numpy: what every simulated run must find again, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

import numpy as np

from adamctl.kernels.numeric.accumulate import Accumulator, accumulate
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.kernels.numeric.exact_sums import combined
from adamctl.model.commands import PARAMETERS, Reduce
from adamctl.optimizers.execution import Answer, Execution, Progress
from adamctl.optimizers.local import FRACTION_BITS, LocalVectors
from adamctl.optimizers.registry import find
from adamctl.optimizers.vectors import Evaluate, Request, Round
from adamctl.roles.coordinator.core.bundles import Bundle
from tests.sim.sandblaster.program import ALGORITHMS

FloatArray = np.ndarray[Any, Any]


class Piece(NamedTuple):
    """A shard in a vector of all parameters, without padding: elements [start, stop), in rows of `row_size`."""

    start: int
    stop: int
    row_size: int


class Problem:
    """What one seed trains: a sum over examples of squared errors of a tanh, which is not convex.

    Attributes:
        portion: examples of a whole portion; the last one of the batch is shorter.
        cliff: where a parameter is larger than this, gradients are NaN.
    """

    def __init__(self, random: Random, pieces: Sequence[Piece]) -> None:
        """`pieces`: the shards; a dot product is rounded row by row."""
        self.pieces, size = pieces, pieces[-1].stop
        generator = np.random.default_rng(random.getrandbits(32))
        self.size, self.portion = size, random.randint(2, 4)
        self.examples = self.portion * random.randint(4, 9) + random.choice((0, 1))
        self.rows = generator.standard_normal((self.examples, size))
        self.targets = np.tanh(self.rows @ generator.standard_normal(size) / math.sqrt(size))
        self.start = (0.5 * generator.random(size) - 0.25).astype(np.float32)
        self.cliff = random.choice((math.inf, math.inf, 1.0, 0.8))
        portions = -(-self.examples // self.portion)
        count = random.randint(2, min(6, portions))
        edges = [portions * n // count * self.portion for n in range(count)] + [self.examples]
        self.bundles = [Bundle(n, edges[n], edges[n + 1]) for n in range(count)]
        self.name = random.choice(("lbfgs", "lbfgs", "cg", "owlqn", "descent", "averaged", "averaged"))
        self.algorithm = ALGORITHMS.get(self.name) or find(self.name)
        tries = random.choice((1, 2, 20))
        keys: dict[str, Any] = {"evaluations_max": tries, "change_tolerance": 0.0}
        keys = {} if self.name in ALGORITHMS else keys if self.name == "cg" else {**keys, "history": 3}
        self.settings = self.algorithm.settings_of(keys)
        self.weight_decay, self.budget = random.choice((0.0, 0.0, 0.01)), random.randint(5, 10)

    def portion_gradient(self, x: FloatArray, start: int, stop: int) -> tuple[float, FloatArray]:
        """Returns the summed loss of examples, and the gradient of their mean, float32 [size]."""
        rows = self.rows[start:stop]
        found = np.tanh(rows @ x.astype(np.float64))
        errors = found - self.targets[start:stop]
        gradient = ((errors * (1.0 - found * found)) @ rows / len(rows)).astype(np.float32)
        if np.abs(x).max() > self.cliff:
            gradient[:] = np.nan
        return float(np.dot(errors, errors)) / 2, gradient

    def bundle_gradient(self, x: FloatArray, bundle: Bundle) -> tuple[float, FloatArray, float]:
        """Returns a bundle's loss, gradient and weight, written down from their definition."""
        loss, total = 0.0, np.zeros(self.size, np.float32)
        for start in range(bundle.start, bundle.stop, self.portion):
            stop = min(start + self.portion, bundle.stop)
            found, gradient = self.portion_gradient(x, start, stop)
            loss += found
            total += np.float32((stop - start) / self.portion) * gradient
        weight = bundle.examples / self.examples * self.portion / bundle.examples
        return loss, total, weight

    def execution(self, progress: Progress | None, kind: type[Execution] = Execution) -> Execution:
        return kind(self.algorithm.program, self.settings, self.weight_decay, self.budget, progress)


@dataclass
class Truth:
    """What the undisturbed run found. `losses`: of its evaluations; `points`: where they were, as bytes."""

    losses: list[float] = field(default_factory=list)
    points: list[bytes] = field(default_factory=list)
    x: bytes = b""
    state: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


class _Undisturbed(LocalVectors):
    """Gradients of bundles are added one after the other, as they are numbered."""

    def __init__(self, problem: Problem, truth: Truth) -> None:
        super().__init__(lambda x: (0.0, x), problem.start, problem.weight_decay)
        self._problem, self._truth = problem, truth

    def _carry_out(self, request: Request) -> Answer:
        if not isinstance(request, Evaluate):
            prepared = PreparedRound(request.commands)
            totals = prepared.new_totals()
            for start, stop, row_size in self._problem.pieces:
                vectors = {name: values[start:stop] for name, values in self.vectors.items()}
                sums = self._accumulator
                part = None if sums is None else Accumulator(sums.values[start:stop], sums.fraction_bits)
                prepared.run(vectors, row_size, totals, part)
            operations = [one.operation for one in request.commands if isinstance(one, Reduce)]
            found = [combined(operation, [parts]) for operation, parts in zip(operations, totals.parts(), strict=True)]
            return found if isinstance(request, Round) else None
        x, problem = self.vectors[request.at].copy(), self._problem
        parts = [problem.bundle_gradient(x, bundle) for bundle in problem.bundles]
        loss = math.inf
        for bits in FRACTION_BITS:
            self._accumulator = Accumulator(np.zeros(x.size, np.int64), bits)
            refused = [accumulate(self._accumulator, part, weight, len(parts)) for _, part, weight in parts]
            if not any(one is not None for one in refused):
                loss = math.fsum(part[0] for part in parts) / problem.examples
                break
        self._truth.losses.append(loss)
        self._truth.points.append(x.tobytes())
        return loss


def undisturbed(problem: Problem) -> Truth:
    truth = Truth()
    run = _Undisturbed(problem, truth)
    found = run.run(problem.algorithm.program, problem.settings, problem.budget)
    truth.x, truth.state, truth.reason = run.vectors[PARAMETERS].tobytes(), found.state, found.stop_reason
    return truth
