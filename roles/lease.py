"""A lease as its holder sees it, and the clock that times it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from math import inf

BEACONS_OPEN_MAX = 64
LEASE_SHARE = 0.8
"""D as a share of the silence after which a node is lost, if the controllers do not give D."""


def lease_clock() -> float:
    """Returns seconds since some moment, by a clock that continues while this machine is suspended.

    A laptop that wakes up must not mistake an old lease for a fresh one. `time.monotonic` stops during suspension on
    Linux and macOS; CLOCK_BOOTTIME (Linux) and CLOCK_MONOTONIC_RAW (macOS: mach_continuous_time) continue, as does the
    Windows clock.
    """
    if _CLOCK is None:
        return time.monotonic()
    return time.clock_gettime(_CLOCK)


def _choose_clock() -> int | None:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return int(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return int(time.CLOCK_MONOTONIC_RAW)
    return None


_CLOCK = _choose_clock()


class Lease:
    """Until when a process may consider itself a member: D after it SENT the last beacon that was confirmed.

    Not after the answer came: the grantor may have counted from almost as early as the beacon was sent.

    `until_s` may be read from any thread. All times are readings of `clock`; compare them with no other.

    Attributes:
        lease_s: D; inf where nothing is ever lost.
        clock: times the lease.
        until_s: when it ends; -inf before the first confirmation and after `end`.
        confirmed_s: when the last confirmed beacon was sent; messages sent to this process after that may be lost.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float] = lease_clock) -> None:
        self.lease_s = lease_s
        self.clock = clock
        self.until_s = self.confirmed_s = -inf
        self.ended = False
        self._sent_s: dict[int, float] = {}

    @classmethod
    def endless(cls, clock: Callable[[], float] = lease_clock) -> Lease:
        """Returns a lease that always holds, for a process that nobody watches."""
        lease = cls(inf, clock)
        lease.until_s = lease.confirmed_s = inf
        return lease

    def sent(self, number: int, now: float) -> None:
        """Notes that a beacon is about to be sent; numbers increase. A resent beacon keeps its first time."""
        self._sent_s[number] = now
        while len(self._sent_s) > BEACONS_OPEN_MAX:
            del self._sent_s[next(iter(self._sent_s))]

    def confirmed(self, number: int) -> float:
        """Notes the answer to a beacon; returns until when the lease holds now. An answer never shortens it."""
        sent_s = self._sent_s.pop(number, None)
        if sent_s is not None and not self.ended:
            self.confirmed_s = max(self.confirmed_s, sent_s)
            self.until_s = self.confirmed_s + self.lease_s
            self._sent_s = {one: at_s for one, at_s in self._sent_s.items() if at_s > sent_s}
        return self.until_s

    def valid(self, now: float | None = None) -> bool:
        """Returns whether it holds at `now`, a reading of `clock`; left out: now."""
        return not self.ended and (self.clock() if now is None else now) < self.until_s

    def end(self) -> None:
        """Gives it up for good: the process leaves, or was told that it is no longer a member."""
        self.ended = True
        self.until_s = -inf
