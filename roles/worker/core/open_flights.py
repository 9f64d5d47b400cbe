"""What holds up a replica of several partitions: which member hangs, if one does (pure).

Flights are not finished for long. Then the lead asks every member where the oldest unfinished flight stands with it. In
one flight nobody waits for anybody in a circle, so of those that have not finished it somebody waits for no other
partition. If that member does not wait for servers, it hangs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

DONE: Final = "done"
"""The flight is finished here."""
SERVERS: Final = "servers"
"""It waits for servers: for its examples, for parameters, or for answers to pushes."""
WAITS: Final = "waits"
"""It waits for other partitions."""
WORKS: Final = "works"
"""A thread works on it, or should."""


class Patience(NamedTuple):
    """How long a group may go without a finished flight, in seconds.

    Attributes:
        least_s: at least this long.
        first_s: before the first flight: it may have to wait for much that later ones find.
        longest: or so many times as long as it took at most so far.
    """

    least_s: float = 60.0
    first_s: float = 300.0
    longest: float = 5.0


class Standing(NamedTuple):
    """Where a flight stands with a member.

    Attributes:
        state: DONE, SERVERS, WAITS or WORKS.
        waits_for: the partitions that it waits for.
        still_s: for how long none of the member's flights has gone on.
    """

    state: str
    waits_for: tuple[int, ...] = ()
    still_s: float = 0.0


class Verdict(NamedTuple):
    """Which partition hangs, and what is known of it; None: nobody does, as far as is known."""

    partition: int | None
    text: str


@dataclass(slots=True)
class FlightWatch:
    """Notices that no flight is finished. Times are of one clock, in seconds.

    `since_s`: when the last flight was finished, or the first of those that are open began; inf while none is open.
    """

    patience: Patience
    since_s: float = inf
    longest_s: float = 0.0
    finished_one: bool = False

    def begins(self, now_s: float) -> None:
        """A flight begins."""
        self.since_s = min(self.since_s, now_s)

    def finished(self, now_s: float, left: int) -> None:
        """All members have finished a flight; so many are still open."""
        self.longest_s = max(self.longest_s, now_s - self.since_s)
        self.finished_one = True
        self.since_s = now_s if left else inf

    def excused(self, now_s: float) -> None:
        """What was waited for is no member's fault: it does not count, and the time begins anew."""
        if self.since_s < inf:
            self.since_s = now_s

    @property
    def deadline_s(self) -> float:
        """When members are to be asked; inf for never."""
        least_s = self.patience.least_s if self.finished_one else self.patience.first_s
        return self.since_s + max(least_s, self.patience.longest * self.longest_s)


def who_hangs(left: Collection[int], told: Mapping[int, Standing | None]) -> Verdict:
    """Returns the member that holds a flight up.

    Args:
        left: the partitions that have not finished it.
        told: of each of them, where it stands; None where a member does not answer.
    """
    silent = [one for one in sorted(left) if told[one] is None]
    if silent:
        return Verdict(silent[0], "it does not answer")
    standings = {one: found for one in sorted(left) if (found := told[one]) is not None}
    works = [one for one, found in standings.items() if found.state == WORKS]
    if works:
        slowest = max(works, key=lambda one: standings[one].still_s)
        waiting = [str(one) for one, found in standings.items() if found.state == WAITS]
        others = f", and {', '.join(waiting)} wait{'s' * (len(waiting) == 1)}" if waiting else ""
        return Verdict(slowest, f"it has not gone on for {standings[slowest].still_s:.0f} s{others}")
    servers = [str(one) for one, found in standings.items() if found.state == SERVERS]
    return Verdict(None, f"partition {', '.join(servers)} waits for servers" if servers else "the flight is done")
