"""Workers that block a run although they send messages: a thread hangs while the event loop runs (pure).

With replicas in step or bounded staleness, a replica that makes no steps would stop all of them for ever. So it is
declared dead when others have waited long enough for it. Time counts only while a worker has something that others may
be waiting for, and restarts with every step or range that it finishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from adamctl.roles.coordinator.core.work import WorkerKey

LONGEST_STEPS = 5
"""A worker may take this many times as long as its longest step so far."""
FIRST_STEP = 5
"""Before its first finished step, a worker may take this many times `patience_s`: its speed is not known yet."""


@dataclass(slots=True)
class Holding:
    """`since_s`: since when others may be waiting for its next step, inf while none do; `steps` as for `look`."""

    since_s: float = inf
    longest_s: float = 0.0
    shown: bool = False
    steps: float = 1.0


class HangWatch:
    """Which workers make no progress, and since when."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._workers: dict[WorkerKey, Holding] = {}
        self._others_wait = False

    def moved(self, worker: WorkerKey, now_s: float, *, step: bool = True, own: bool = True) -> None:
        """A worker has finished a step or a range. `step`: of training; `own`: certainly a part of its own."""
        found = self._workers.setdefault(worker, Holding())
        if step and found.since_s < inf:
            found.longest_s = max(found.longest_s, now_s - found.since_s)
        found.shown = found.shown or (step and own)
        if found.since_s < inf:
            found.since_s = now_s

    def leave(self, worker: WorkerKey) -> None:
        self._workers.pop(worker, None)

    def look(self, holding: Mapping[WorkerKey, float], others_wait: bool, now_s: float) -> None:
        """Takes the present situation.

        Args:
            holding: the workers that have something others may be waiting for, and how many steps that is at most.
            others_wait: whether there are workers outside `holding`. If there are none, none of them is the cause.
        """
        self._others_wait = others_wait
        for worker, found in self._workers.items():
            if worker not in holding and found.since_s < inf:
                found.longest_s = max(found.longest_s, (now_s - found.since_s) / found.steps)
                found.since_s = inf
        for worker, steps in holding.items():
            found = self._workers.setdefault(worker, Holding())
            found.since_s, found.steps = min(found.since_s, now_s), steps

    def hanging(self, now_s: float) -> dict[WorkerKey, float]:
        """Returns the workers to be declared dead, and for how many seconds others have waited for each."""
        return {
            worker: now_s - found.since_s
            for worker, found in self._workers.items()
            if self._others_wait and now_s >= self._deadline_s(found)
        }

    def wakeup_s(self) -> float:
        """Returns when a worker will have to be declared dead, inf for never."""
        return min((self._deadline_s(found) for found in self._workers.values() if self._others_wait), default=inf)

    def _deadline_s(self, found: Holding) -> float:
        least_s = self._patience_s * (1 if found.shown else FIRST_STEP)
        return found.since_s + max(least_s, LONGEST_STEPS * found.longest_s * found.steps)
