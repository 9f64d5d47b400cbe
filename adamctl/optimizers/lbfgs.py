"""L-BFGS as a program (DistBelief 4.2 and appendix; Nocedal 1980; Chen, Wang and Zhou 2014).

An iteration is three rounds: measure the new gradient against all that is kept, commit, step along the new direction.
A further trial of the line search is two more. Whoever runs the program gets numbers alone: 4m + 8 of a measurement
with m pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec

from adamctl.model.commands import Command
from adamctl.optimizers.descent import (
    PRECISION,
    DescentSettings,
    evaluate_start,
    first_step,
    relative_change,
    search_along,
)
from adamctl.optimizers.line_search import LineSearch
from adamctl.optimizers.pairs import LENGTH_MAX, Measured, Pairs
from adamctl.optimizers.registry import BatchAlgorithm
from adamctl.optimizers.vectors import Commit, Requests, State, Vectors, dot, max_abs


class LBFGSSettings(DescentSettings, frozen=True, kw_only=True):
    """Settings of L-BFGS; `history`: pairs that are kept, of two vectors each."""

    history: Annotated[int, msgspec.Meta(ge=1, le=LENGTH_MAX)] = 10


@dataclass(frozen=True)
class Trial:
    """What the first round of an iteration finds at a trial, whose gradient is h; d is the direction."""

    loss: float
    pairs: Measured
    h_d: float
    h_h: float
    h_max: float


@dataclass
class Iterate:
    """What is known of the accepted point: with the pairs, all that is in the state of its commit.

    Attributes:
        change: of the loss in the latest iteration, as a part of max(|loss|, 1).
        step: length of the latest displacement.
        restarts: how often the history was dropped because a search failed.
    """

    loss: float
    gradient_square: float
    gradient_max: float
    iteration: int = 0
    change: float = 1.0
    step: float = 0.0
    restarts: int = 0


def lbfgs(v: Vectors, settings: LBFGSSettings, state: State) -> Requests[str]:
    """Minimises the loss from x. Returns why it stopped.

    Raises:
        NotFiniteError: the loss or the gradient is not finite where it begins.
    """
    program = _LBFGS(v, settings)
    if state:
        program.resume(state)
    else:
        yield from program.begin()
    return (yield from program.iterate())


class _LBFGS:
    def __init__(self, v: Vectors, settings: LBFGSSettings) -> None:
        self.v, self.settings = v, settings
        self.g = v.kept("g")
        self.d, self.t, self.h = v.scratch("d"), v.scratch("t"), v.scratch("h")
        self.pairs = Pairs(v, settings.history, sigma=self.t - v.x, eta=self.h - self.g)
        self.at = Iterate(math.nan, math.nan, math.nan)

    def resume(self, state: State) -> None:
        fields = dict(state)
        self.pairs.resume(fields)
        self.at = Iterate(**fields)

    def begin(self) -> Requests[None]:
        loss = yield from evaluate_start(self.v, self.h)
        square, largest = yield self.v.round(dot(self.h, self.h), max_abs(self.h))
        self.at = Iterate(loss, square, largest)
        yield self.commit(self.g.set(self.h))

    def iterate(self) -> Requests[str]:
        while True:
            reason = self.settings.reason_to_stop(self.at.gradient_max, self.at.change)
            if reason is not None:
                return reason
            found = yield from self.search()
            if found is None and self.pairs:
                self.pairs.drop()
                self.at.restarts += 1
                found = yield from self.search()
            if found is None:
                return PRECISION
            yield self.accept(found)

    def search(self) -> Requests[Trial | None]:
        """Leaves in t and h a better point and its gradient, measured; None if there is none along the direction."""
        v, d, t = self.v, self.d, self.t
        first = 1.0 if self.pairs else first_step(self.at.gradient_square)
        (slope,) = yield v.round(d.set(self.pairs.direction(self.g)), t.set(v.x + first * d), dot(self.g, d))
        if not -math.inf < slope < 0:
            return None
        search = LineSearch(self.at.loss, slope, first, evaluations_max=self.settings.evaluations_max)
        return (yield from search_along(v, t, d, search, self.measure))

    def measure(self) -> Requests[Trial | None]:
        """Evaluates at t into h and measures; None if anything is not finite."""
        h = self.h
        loss = yield self.v.evaluate(at=self.t, into=h)
        if not math.isfinite(loss):
            return None
        numbers = yield self.v.round(dot(h, self.d), dot(h, h), max_abs(h), *self.pairs.reductions(h))
        if not all(map(math.isfinite, numbers)):
            return None
        return Trial(loss, self.pairs.measured(numbers[3:]), *numbers[:3])

    def accept(self, found: Trial) -> Commit:
        """Moves to the point that was found."""
        self.at.change = relative_change(self.at.loss, found.loss)
        self.at.loss, self.at.gradient_square, self.at.gradient_max = found.loss, found.h_h, found.h_max
        self.at.step = found.pairs.step
        self.at.iteration += 1
        return self.commit(*self.pairs.accept(found.pairs), self.v.x.set(self.t), self.g.set(self.h))

    def commit(self, *commands: Command) -> Commit:
        return self.v.commit(*commands, state={**vars(self.at), **self.pairs.state()})


ALGORITHM = BatchAlgorithm(
    "L-BFGS: quasi-Newton steps from the latest displacements and gradients", lbfgs, LBFGSSettings
)
