"""How far ahead of the slowest replica the others may run: a bound on staleness, kept by the coordinator (pure).

A replica counts its steps. All counts are compared on one clock: a replica that begins, or goes on after it had
nothing to do, sets out beside the slowest of those at work, whatever its own count is. A replica may begin a step if
that takes it at most `bound` steps ahead of what every other replica at work is known to have done; so what comes late
makes others wait longer, never less. Who has no range to work on, has left or has died holds nobody up.
"""

from __future__ import annotations

from dataclasses import dataclass

from adamctl.roles.coordinator.core_work import WorkerKey

ALONE_AHEAD = 8
"""Steps that a replica may begin beyond those it is known to have done, and the bound, while it works alone."""


@dataclass(slots=True)
class ReplicaClock:
    """One replica. `done` and `granted` count its own steps; `offset` more is where they stand on the common clock.

    `granted` is the last step that it was told it may begin.
    """

    done: int = 0
    granted: int = 0
    offset: int = 0
    active: bool = False

    @property
    def time(self) -> int:
        return self.done + self.offset


class Pace:
    """The clocks of all replicas.

    Invariant, with a bound: of two replicas at work, neither is granted a step more than `bound` beyond what the other
    has done.

    Attributes:
        lead_max: the most steps that a replica was seen ahead of the slowest other one at work.
    """

    def __init__(self, bound: int | None = None) -> None:
        self.bound = bound
        self.lead_max = 0
        self._clocks: dict[WorkerKey, ReplicaClock] = {}

    def clock(self, replica: WorkerKey) -> ReplicaClock:
        return self._clocks.setdefault(replica, ReplicaClock())

    def leave(self, replica: WorkerKey) -> None:
        self._clocks.pop(replica, None)

    def enter(self, replica: WorkerKey) -> None:
        """The replica has something to do: it sets out beside the slowest, and with nobody too far ahead of it."""
        clock = self.clock(replica)
        if clock.active:
            return
        others = self._others(replica)
        clock.active, clock.granted = True, clock.done
        if others:
            start = min(other.time for other in others)
            if self.bound is not None:
                start = max(start, max(other.granted + other.offset for other in others) - self.bound)
            clock.offset = max(clock.offset, start - clock.done)

    def rest(self, replica: WorkerKey) -> None:
        """The replica has nothing to do; it asks again before its next step."""
        self.clock(replica).active = False

    def tell(self, replica: WorkerKey, done: int) -> None:
        """The replica has done so many steps in all."""
        clock = self.clock(replica)
        clock.done = max(clock.done, done)
        others = self._others(replica)
        if clock.active and others:
            self.lead_max = max(self.lead_max, clock.time - min(other.time for other in others))

    def limit(self, replica: WorkerKey) -> int:
        """Returns the last of its steps that the replica may begin now. Only with a bound."""
        assert self.bound is not None
        clock = self.clock(replica)
        if not clock.active:
            return clock.done
        others = self._others(replica)
        if others:
            limit = min(other.time for other in others) + self.bound - clock.offset
        else:
            limit = clock.done + self.bound + ALONE_AHEAD
        clock.granted = max(clock.granted, limit)
        return clock.granted

    def _others(self, replica: WorkerKey) -> list[ReplicaClock]:
        return [clock for key, clock in self._clocks.items() if clock.active and key != replica]
