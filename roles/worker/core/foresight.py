"""Where the servers' weights will be when a gradient reaches them (pure).

Under a rule with momentum most of the next update is known before its gradient is: the rule goes on in the direction it
has. So a gradient that will be applied k pushes later is better computed from weights that have gone k such updates
further (as for pipelines: Chen et al. 2018, weight prediction). What an update was, weights tell that were fetched one
after another, and how many pushes lie between them; k is how old this replica's gradients were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AGE_WEIGHT = 0.05  # of a new push in the mean age: some twenty count


class Way(Enum):
    """What becomes of weights that have arrived."""

    AS_THEY_ARE = auto()  # nothing is known of how they move
    AHEAD = auto()
    KEEP = auto()  # they are those that arrived before


class Foresight(NamedTuple):
    """`factor` times the change since the last fetch is to be added, under `AHEAD`."""

    way: Way
    factor: float = 0.0


class Momentum:
    """Follows how far weights move per push, and how old gradients become. Belongs to whoever installs weights."""

    def __init__(self, kept: float) -> None:
        """`kept`: the share of its direction that the rule keeps at each update."""
        self._kept = kept
        self._age = 0.0
        self._pushes: NDArray[np.int64] | None = None

    def told(self, ages: Sequence[int]) -> None:
        """Takes in the ages of a push's parts."""
        if ages:
            self._age += AGE_WEIGHT * (sum(ages) / len(ages) - self._age)

    def arrived(self, pushes: NDArray[np.int64]) -> Foresight:
        """Says what becomes of weights that contain so many pushes, per shard."""
        before, self._pushes = self._pushes, pushes
        if before is None:
            return Foresight(Way.AS_THEY_ARE)
        passed = float(np.mean(pushes - before))
        if not passed:
            return Foresight(Way.KEEP)
        if passed < 0:  # servers have lost some
            return Foresight(Way.AS_THEY_ARE)
        return Foresight(Way.AHEAD, self.updates_ahead / max(passed, 1.0))

    @property
    def updates_ahead(self) -> float:
        """Updates of the present size that make up those which will be applied meanwhile, each smaller by `kept`."""
        return (1.0 - math.pow(self._kept, self._age)) / (1 - self._kept)
