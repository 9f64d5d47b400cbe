"""What algorithms with pairs of displacements and gradients have in common: iterations, and what commits say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec

from adamctl.config.algorithms import HISTORY_MAX
from adamctl.model.commands import Command
from adamctl.optimizers.descent import PRECISION, DescentSettings, relative_change
from adamctl.optimizers.pairs import Measured, Pairs
from adamctl.optimizers.vectors import Commit, Requests, State, Vectors


class QuasiNewtonSettings(DescentSettings, frozen=True, kw_only=True):
    """Settings of algorithms with pairs; `history`: how many are kept, of two vectors each."""

    history: Annotated[int, msgspec.Meta(ge=1, le=HISTORY_MAX)] = 10


@dataclass(frozen=True)
class Trial:
    """What is known at a trial.

    Attributes:
        gradient_square, gradient_max: of its gradient, or pseudo-gradient.
    """

    loss: float
    pairs: Measured
    gradient_square: float
    gradient_max: float


@dataclass
class Iterate:
    """What is known of the accepted point: with the pairs, all that is in the state of its commit.

    Attributes:
        gradient_square, gradient_max: as of a trial.
        change: of the loss in the latest iteration, as a part of max(|loss|, 1).
        step: length of the latest displacement.
        restarts: how often the history was dropped because a search failed.
    """

    loss: float = math.nan
    gradient_square: float = math.nan
    gradient_max: float = math.nan
    iteration: int = 0
    change: float = 1.0
    step: float = 0.0
    restarts: int = 0


IterateT = TypeVar("IterateT", bound=Iterate)
TrialT = TypeVar("TrialT", bound=Trial)


class QuasiNewton(Generic[IterateT, TrialT]):
    """A program whose history is in `pairs`. x and g are where it is, t and h a trial and its gradient.

    Attributes:
        at: what is known of x.
    """

    def __init__(self, v: Vectors, history: int, at: IterateT) -> None:
        self.v, self.at = v, at
        self.g = v.kept("g")
        self.d, self.t, self.h = v.scratch("d"), v.scratch("t"), v.scratch("h")
        self.pairs = Pairs(v, history, sigma=self.t - v.x, eta=self.h - self.g)

    def begin(self) -> Requests[None]:
        """Evaluates at x, and commits g."""
        raise NotImplementedError

    def search(self) -> Requests[TrialT | None]:
        """Leaves in t and h a better point and its gradient, measured; None if there is none along the direction."""
        raise NotImplementedError

    def run(self, settings: DescentSettings, state: State) -> Requests[str]:
        """Minimises the loss from x, or from where a commit with this state was. Returns why it stopped."""
        if state:
            fields = dict(state)
            self.pairs.resume(fields)
            self.at = type(self.at)(**fields)
        else:
            yield from self.begin()
        while True:
            reason = settings.reason_to_stop(self.at.gradient_max, self.at.change)
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

    def accept(self, found: TrialT) -> Commit:
        """Moves to the point that was found."""
        at = self.at
        at.change = relative_change(at.loss, found.loss)
        at.loss, at.gradient_square, at.gradient_max = found.loss, found.gradient_square, found.gradient_max
        at.step = found.pairs.step
        at.iteration += 1
        return self.commit(*self.pairs.accept(found.pairs), self.v.x.set(self.t), self.g.set(self.h))

    def commit(self, *commands: Command) -> Commit:
        return self.v.commit(*commands, state={**vars(self.at), **self.pairs.state()})
