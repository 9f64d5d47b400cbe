"""Workers that hold a run up although they are heard from: a thread hangs while the event loop goes on (pure).

Where replicas go in step, or at most so far apart, one that stops making steps would stop all of them for good. So it
is taken for dead when others have waited long enough for it. Time counts only while a worker has something that
others may be waiting for, and begins anew with every step or range that it finishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from adamctl.roles.coordinator.core.work import WorkerKey

LONGEST_STEPS = 5
"""A worker may take so many times as long as the longest step it has shown."""
FIRST_STEP = 5
"""Before it has finished a step of its own it may take so many times `patience_s`: how slow it is, nobody knows."""


@dataclass(slots=True)
class Holding:
    """`since_s`: since when others may be waiting for its next step, inf while they need not; `steps` as for `look`."""

    since_s: float = inf
    longest_s: float = 0.0
    shown: bool = False
    steps: float = 1.0


class HangWatch:
    """Who makes no progress, and since when."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._workers: dict[WorkerKey, Holding] = {}
        self._others_wait = False

    def moved(self, worker: WorkerKey, now_s: float, *, step: bool = True, own: bool = True) -> None:
        """It has finished a step or a range. `step`: of training; `own`: certainly a part that it had itself."""
        found = self._workers.setdefault(worker, Holding())
        if step and found.since_s < inf:
            found.longest_s = max(found.longest_s, now_s - found.since_s)
        found.shown = found.shown or (step and own)
        if found.since_s < inf:
            found.since_s = now_s

    def leave(self, worker: WorkerKey) -> None:
        self._workers.pop(worker, None)

    def look(self, holding: Mapping[WorkerKey, float], others_wait: bool, now_s: float) -> None:
        """Takes how things stand.

        Args:
            holding: who has something that others may be waiting for, and how many steps that is at most.
            others_wait: whether there is a worker that is not among them. If all are, the cause is none of them.
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
        """Returns who is to be taken for dead, and for how many seconds others have waited for it."""
        return {
            worker: now_s - found.since_s
            for worker, found in self._workers.items()
            if self._others_wait and now_s >= self._deadline_s(found)
        }

    def wakeup_s(self) -> float:
        """Returns when somebody will have to be taken for dead, inf for never."""
        return min((self._deadline_s(found) for found in self._workers.values() if self._others_wait), default=inf)

    def _deadline_s(self, found: Holding) -> float:
        least_s = self._patience_s * (1 if found.shown else FIRST_STEP)
        return found.since_s + max(least_s, LONGEST_STEPS * found.longest_s * found.steps)
