"""Which examples of a split have a place in memory, where there is not room for all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adamctl.roles.data.core import Indices


class Places:
    """The first examples that come get places and keep them: each is needed once a pass, so it does not matter which.

    Where several servers share a set out, places of examples that this one does not own any more are given to others
    when there are no free ones left. Pure, and not thread-safe.

    Attributes:
        of: [examples], the place of each, -1 without one.
        turns: [places], how often each has changed hands: what was read from one is another's if that grew meanwhile.
    """

    def __init__(self, examples: int, places: int) -> None:
        self.of: Indices = np.full(examples, -1, np.int64)
        self.turns: Indices = np.zeros(places, np.int64)
        self._holder: Indices = np.full(places, -1, np.int64)
        self._used = 0
        self._owned: NDArray[np.bool_] | None = None
        self._foreign: list[int] = []  # places whose holders are not owned, as far as they have been found

    def own(self, owned: NDArray[np.bool_]) -> None:
        """From now on, only these examples [examples] are this server's; the others keep their places for a while."""
        self._owned = owned
        held = self._holder[: self._used]
        self._foreign = np.flatnonzero(~owned[held]).tolist()

    def claim(self, indices: Indices) -> tuple[Indices, Indices]:
        """Gives places to examples, as far as there are any.

        Returns:
            The place of each of `indices`, -1 without one, and the places that have changed hands: what is there is
            another's.
        """
        new = np.unique(indices[self.of[indices] < 0])
        free = np.arange(self._used, min(self._used + len(new), len(self._holder)))
        self._used += len(free)
        taken = self._take_foreign(len(new) - len(free), new)
        places = np.concatenate((free, taken))
        given = new[: len(places)]
        self.of[given], self._holder[places] = places, given
        return self.of[indices], taken

    def _take_foreign(self, wanted: int, new: Indices) -> Indices:
        """Takes places away from examples that are not owned; one that is not owned itself takes none."""
        if self._owned is None or not self._foreign or wanted <= 0 or not self._owned[new].all():
            return np.empty(0, np.int64)
        taken = np.array([self._foreign.pop() for _ in range(min(wanted, len(self._foreign)))], np.int64)
        self.of[self._holder[taken]] = -1
        self.turns[taken] += 1
        return taken
