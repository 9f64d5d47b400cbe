"""Whether a thread waits, before it continues, until its weights contain what it has pushed (pure).

A gradient that is computed while the thread's last push is still under way is older than necessary: by that push, and
by what others pushed meanwhile. Waiting costs the round trip. If that is short compared to the steps between two
pushes, as with servers on the same machine, it costs little, and the servers get the core that the thread leaves idle.
Weights that have just begun to move suffer most from old gradients, so for most rules no thread waits after the first
pushes of a job.

A replica that applies its own gradients to its weights has them there already. It waits for what others push; if no
other replica pushes, there is nothing to wait for.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median

SHARE_MAX = 0.25
"""The share of the time between two pushes that a thread may wait; if the wait is longer, it does not wait."""
ALONE_AFTER = 8
"""Fetches in a row that bring no pushes of others, after which nobody waits."""
SAMPLES = 15  # for the median: a sample delayed by something else says nothing about the round trip


class Following:
    """Compares the round trip with the time that steps take.

    Attributes:
        is_near: whether the round trip is short compared to the steps.
    """

    def __init__(self, applies_locally: bool = False, first_pushes: float = inf) -> None:
        """`applies_locally`: the weights contain the replica's own gradients before they are pushed.

        `first_pushes`: no thread waits after this many pushes, of all replicas, have been applied.
        """
        self._applies_locally, self._first_pushes = applies_locally, first_pushes
        self._applied = 0.0
        self.is_near = True
        self._without_others = 0
        self._steps_s: deque[float] = deque(maxlen=SAMPLES)
        self._trips_s: deque[float] = deque(maxlen=SAMPLES)

    @property
    def waits(self) -> bool:
        """Whether a thread waits for its push; also valid before anything was measured."""
        is_alone = self._applies_locally and self._without_others >= ALONE_AFTER
        return self.is_near and self._applied < self._first_pushes and not is_alone

    def fetched(self, others: bool, applied: float = 0.0) -> None:
        """Parameters with `applied` pushes have arrived; `others`: some new pushes are from other replicas."""
        self._applied = applied
        self._without_others = 0 if others else self._without_others + 1

    def stepped(self, seconds: float) -> None:
        """Notes how long a thread took to compute what it pushes."""
        self._steps_s.append(seconds)

    def came_back(self, seconds: float) -> None:
        """Notes how long it took until a push was in its thread's weights."""
        self._trips_s.append(seconds)
        if self._steps_s:
            self.is_near = median(self._trips_s) <= SHARE_MAX * median(self._steps_s)
