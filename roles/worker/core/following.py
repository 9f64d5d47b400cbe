"""Whether a thread waits, before it goes on, until its weights contain what it has pushed (pure).

A gradient that is computed while the thread's last push is still on its way is older than it need be: by that push, and
by what others pushed meanwhile. Waiting costs the way there and back. Where that is short beside the steps between two
pushes, as with servers on the same machine, it costs little, and the servers get the core that the thread leaves free.
Weights that have just begun to move lose most by it, so for most rules nobody waits after the first pushes of a job.

A replica that applies its gradients to its own weights itself has them there already. It waits for what others push; if
nobody else does, there is nothing to wait for.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median

SHARE_MAX = 0.25
"""Of the time between two pushes of a thread that it may wait; more than this, and it goes on at once."""
ALONE_AFTER = 8
"""Fetches in a row that bring nothing of others."""
SAMPLES = 15  # the median of so many: one that was held up by something else says nothing about the way


class Following:
    """Compares the way there and back with the time that steps take.

    Attributes:
        is_near: whether the way is short beside the steps.
    """

    def __init__(self, applies_locally: bool = False, first_pushes: float = inf) -> None:
        """`applies_locally`: the weights have the replica's own gradients in them before they are pushed.

        `first_pushes`: nobody waits when so many, of everybody, have been applied.
        """
        self._applies_locally, self._first_pushes = applies_locally, first_pushes
        self._applied = 0.0
        self.is_near = True
        self._without_others = 0
        self._steps_s: deque[float] = deque(maxlen=SAMPLES)
        self._trips_s: deque[float] = deque(maxlen=SAMPLES)

    @property
    def waits(self) -> bool:
        """Whether a thread waits for its push; also before anything was measured."""
        is_alone = self._applies_locally and self._without_others >= ALONE_AFTER
        return self.is_near and self._applied < self._first_pushes and not is_alone

    def fetched(self, others: bool, applied: float = 0.0) -> None:
        """Parameters have arrived that contain so many pushes; `others`: some since the ones before are not our own."""
        self._applied = applied
        self._without_others = 0 if others else self._without_others + 1

    def stepped(self, seconds: float) -> None:
        """A thread has computed what it pushes in so many seconds."""
        self._steps_s.append(seconds)

    def came_back(self, seconds: float) -> None:
        """A push was in a thread's weights so many seconds after the thread had handed it over."""
        self._trips_s.append(seconds)
        if self._steps_s:
            self.is_near = median(self._trips_s) <= SHARE_MAX * median(self._steps_s)
