"""How far ahead of the slowest replica the others may run: the bound on staleness, kept by the coordinator (pure).

A replica counts its steps. All counts are compared on one clock: a replica that begins, or continues after it had
nothing to do, starts level with the slowest of those at work, whatever its own count is. A replica may begin a step if
that takes it at most `bound` steps ahead of what every replica at work, including itself, is known to have done; so a
late report makes others wait longer, never less. A replica that has no range to work on, has left or has died delays no
other.
"""

from __future__ import annotations

from dataclasses import dataclass

from adamctl.roles.coordinator.core.work import WorkerKey


@dataclass(slots=True)
class ReplicaClock:
    """One replica. `done` counts its own steps; `done + offset` is its position on the common clock."""

    done: int = 0
    offset: int = 0
    active: bool = False

    @property
    def time(self) -> int:
        return self.done + self.offset


class Pace:
    """The clocks of all replicas.

    Invariant, with a bound: no replica at work is granted a step more than `bound` beyond what any other has done. It
    holds because the slowest clock at work never goes back: a replica that starts level with it cannot be behind it.

    Attributes:
        lead_max: the largest number of steps that a replica was seen ahead of the slowest other one at work.
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
        """The replica has something to do: it starts level with the slowest."""
        clock = self.clock(replica)
        slowest = self._slowest()
        if not clock.active and slowest is not None:
            clock.offset = max(clock.offset, slowest - clock.done)
        clock.active = True

    def rest(self, replica: WorkerKey) -> None:
        """The replica has nothing to do; it asks again before its next step."""
        self.clock(replica).active = False

    def tell(self, replica: WorkerKey, done: int) -> None:
        """The replica has done this many steps in all."""
        clock = self.clock(replica)
        clock.done = max(clock.done, done)
        slowest = self._slowest()
        if clock.active and slowest is not None:
            self.lead_max = max(self.lead_max, clock.time - slowest)

    def limit(self, replica: WorkerKey) -> int:
        """Returns the last step that the replica may begin now. Requires a bound."""
        assert self.bound is not None
        clock = self.clock(replica)
        slowest = self._slowest()
        if not clock.active or slowest is None:
            return clock.done
        return slowest + self.bound - clock.offset

    def is_slowest(self, replica: WorkerKey) -> bool:
        """Whether the replica is at work and no other one at work has done less: then it never waits for others."""
        clock = self.clock(replica)
        return clock.active and clock.time == self._slowest()

    def _slowest(self) -> int | None:
        """Returns the clock of the slowest replica at work, None if none is at work."""
        return min((clock.time for clock in self._clocks.values() if clock.active), default=None)
