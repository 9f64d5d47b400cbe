"""L-BFGS as a program (DistBelief 4.2 and appendix; Nocedal 1980; Chen, Wang and Zhou 2014).

An iteration is three rounds: measure the new gradient against all that is kept, commit, step along the new direction.
A further trial of the line search is two more. Whoever runs the program gets numbers alone: 4m + 8 of a measurement
with m pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from adamctl.optimizers.descent import evaluate_start, first_step, search_along
from adamctl.optimizers.line_search import LineSearch
from adamctl.optimizers.quasi_newton import Iterate, QuasiNewton, QuasiNewtonSettings, Trial
from adamctl.optimizers.registry import BatchAlgorithm
from adamctl.optimizers.vectors import Requests, State, Vectors, dot, max_abs


class LBFGSSettings(QuasiNewtonSettings, frozen=True, kw_only=True):
    """Settings of L-BFGS."""


@dataclass(frozen=True)
class LBFGSTrial(Trial):
    """What the first round of an iteration finds at a trial, whose gradient is h; d is the direction."""

    h_d: float


def lbfgs(v: Vectors, settings: LBFGSSettings, state: State) -> Requests[str]:
    """Minimises the loss from x. Returns why it stopped.

    Raises:
        NotFiniteError: the loss or the gradient is not finite where it begins.
    """
    return _LBFGS(v, settings).run(settings, state)


class _LBFGS(QuasiNewton[Iterate, LBFGSTrial]):
    def __init__(self, v: Vectors, settings: LBFGSSettings) -> None:
        super().__init__(v, settings.history, Iterate())
        self.settings = settings

    def begin(self) -> Requests[None]:
        loss = yield from evaluate_start(self.v, self.h)
        square, largest = yield self.v.round(dot(self.h, self.h), max_abs(self.h))
        self.at = Iterate(loss, square, largest)
        yield self.commit(self.g.set(self.h))

    def search(self) -> Requests[LBFGSTrial | None]:
        v, d, t = self.v, self.d, self.t
        first = 1.0 if self.pairs else first_step(self.at.gradient_square)
        (slope,) = yield v.round(d.set(self.pairs.direction(self.g)), t.set(v.x + first * d), dot(self.g, d))
        if not -math.inf < slope < 0:
            return None
        search = LineSearch(self.at.loss, slope, first, evaluations_max=self.settings.evaluations_max)
        return (yield from search_along(v, t, d, search, self.measure))

    def measure(self) -> Requests[LBFGSTrial | None]:
        """Evaluates at t into h and measures; None if anything is not finite."""
        h = self.h
        loss = yield self.v.evaluate(at=self.t, into=h)
        if not math.isfinite(loss):
            return None
        numbers = yield self.v.round(dot(h, h), max_abs(h), dot(h, self.d), *self.pairs.reductions(h))
        if not all(map(math.isfinite, numbers)):
            return None
        return LBFGSTrial(loss, self.pairs.measured(numbers[3:]), *numbers[:3])


ALGORITHM = BatchAlgorithm(
    "L-BFGS: quasi-Newton steps from the latest displacements and gradients", lbfgs, LBFGSSettings
)
