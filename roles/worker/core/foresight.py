"""Predicts the servers' weights at the time a gradient reaches them (pure).

Under a rule with momentum, most of the next update is known before its gradient is: the rule continues in its present
direction. So a gradient that will be applied k pushes later is better computed from weights that are k such updates
further on (as for pipelines: Chen et al. 2018, weight prediction). The size of an update follows from the difference of
two fetched sets of weights and the number of pushes between them; k is the age of this replica's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

AGE_WEIGHT = 0.05  # of a new push in the mean age, so that about twenty pushes count


class Way(Enum):
    """What to do with weights that have arrived."""

    AS_THEY_ARE = auto()  # it is not known how they move
    AHEAD = auto()
    KEEP = auto()  # they are the same as before


class Foresight(NamedTuple):
    """With `AHEAD`, `factor` times the change since the last fetch is to be added."""

    way: Way
    factor: float = 0.0


class Momentum:
    """Tracks how far weights move per push and how old gradients get. Used only by the code that installs weights."""

    def __init__(self, kept: float) -> None:
        """`kept`: the share of its velocity that the rule keeps at each update."""
        self._kept = kept
        self._age = 0.0
        self._pushes: NDArray[np.int64] | None = None

    def told(self, ages: Sequence[int]) -> None:
        """Takes the ages of a push's parts."""
        if ages:
            self._age += AGE_WEIGHT * (sum(ages) / len(ages) - self._age)

    def arrived(self, pushes: NDArray[np.int64]) -> Foresight:
        """Says what to do with weights that contain `pushes` pushes per shard."""
        before, self._pushes = self._pushes, pushes
        if before is None:
            return Foresight(Way.AS_THEY_ARE)
        passed = float(np.mean(pushes - before))
        if not passed:
            return Foresight(Way.KEEP)
        if passed < 0:  # servers have lost some pushes
            return Foresight(Way.AS_THEY_ARE)
        return Foresight(Way.AHEAD, self.updates_ahead / max(passed, 1.0))

    @property
    def updates_ahead(self) -> float:
        """How many updates of the present size equal those applied meanwhile, each of which shrinks by `kept`."""
        return (1.0 - math.pow(self._kept, self._age)) / (1 - self._kept)
