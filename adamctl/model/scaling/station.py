"""What one parameter server does at a time, in fluid: pushes come in, fetches go out, updates are applied (pure).

All flows of one direction share its link equally, as TCP connections about do, and none is faster than its worker's
link lets it be. Receiving and sending take time of the server's event loop, which is one thread, and updates take time
of its apply threads; where the server has fewer cores than these want, all go slower alike. So large pushes and updates
overlap as they do where pieces of a push are applied while others arrive.

Each direction keeps one running sum, of what a single flow has carried since the beginning. A flow ends when the sum
has grown by its size; so an event costs the logarithm of the number of flows, not that number (processor sharing in
virtual time).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import inf
from typing import Final

IN: Final = 0
OUT: Final = 1
APPLY: Final = 2
UNLIMITED_BYTES_PER_S = 1e15


@dataclass(frozen=True)
class StationRates:
    """How fast a server is.

    Attributes:
        link_bytes_per_s: of its network, in each direction.
        in_each_bytes_per_s, out_each_bytes_per_s: most that one worker sends to it, or takes from it.
        receive_s_per_byte, send_s_per_byte: what a byte takes of the loop's thread.
        cores: that the server may use.
        apply_cores: that an update uses while it is applied.
    """

    link_bytes_per_s: float = UNLIMITED_BYTES_PER_S
    in_each_bytes_per_s: float = UNLIMITED_BYTES_PER_S
    out_each_bytes_per_s: float = UNLIMITED_BYTES_PER_S
    receive_s_per_byte: float = 0.0
    send_s_per_byte: float = 0.0
    cores: float = 2.0
    apply_cores: float = 1.0


class _Lane:
    """Flows side by side. `sum`: what each flow that never ended would have carried; `ends`: at which sum, and what."""

    __slots__ = ("ends", "moved", "rate", "sum")

    def __init__(self) -> None:
        self.ends: list[tuple[float, int, int]] = []
        self.sum = self.rate = self.moved = 0.0


class Station:
    """A server between events.

    Attributes:
        next_s: when the next flow ends, if nothing begins before; infinite if there is none.
        busy_s: cores x seconds that were at work.
    """

    def __init__(self, rates: StationRates) -> None:
        self._rates = rates
        self._lanes = (_Lane(), _Lane(), _Lane())
        self._now_s = 0.0
        self._number = 0
        self._speed = 1.0
        self._used = 0.0
        self._next_lane = IN
        self.next_s = inf
        self.busy_s = 0.0

    def add(self, now_s: float, lane: int, size: float, what: int) -> None:
        """Begins a flow of so many bytes, or an update of so many seconds."""
        self._advance(now_s)
        one = self._lanes[lane]
        self._number += 1
        one.moved += size
        heapq.heappush(one.ends, (one.sum + size, self._number, what))
        self._divide()

    def end(self) -> tuple[int, int]:
        """Ends the flow that ends at `next_s`; returns its lane and what it was."""
        self._advance(self.next_s)
        lane = self._next_lane
        one = self._lanes[lane]
        end, _, what = heapq.heappop(one.ends)
        one.sum = end
        self._divide()
        return lane, what

    def stop(self, now_s: float) -> None:
        """Nothing moves until `resume`."""
        self._advance(now_s)
        self._speed = 0.0
        self._divide()

    def resume(self, now_s: float) -> None:
        """Everything goes on where it was."""
        self._advance(now_s)
        self._speed = 1.0
        self._divide()

    def moved(self, lane: int) -> float:
        """Returns the bytes, or seconds, that have begun in a lane."""
        return self._lanes[lane].moved

    def _advance(self, now_s: float) -> None:
        passed_s = now_s - self._now_s
        if passed_s > 0:
            for lane in self._lanes:
                lane.sum += lane.rate * passed_s
            self.busy_s += self._used * passed_s
            self._now_s = now_s

    def _divide(self) -> None:
        """Divides links and cores among what is under way."""
        rates = self._rates
        coming, going, applying = self._lanes
        into = out = loop = 0.0
        if coming.ends:
            count = len(coming.ends)
            into = min(rates.in_each_bytes_per_s, rates.link_bytes_per_s / count)
            loop += count * into * rates.receive_s_per_byte
        if going.ends:
            count = len(going.ends)
            out = min(rates.out_each_bytes_per_s, rates.link_bytes_per_s / count)
            loop += count * out * rates.send_s_per_byte
        if loop > 1.0:
            into, out, loop = into / loop, out / loop, 1.0
        wanted = loop + (rates.apply_cores if applying.ends else 0.0)
        speed = self._speed * (1.0 if wanted <= rates.cores else rates.cores / wanted)
        coming.rate, going.rate, applying.rate = into * speed, out * speed, speed
        self._used = wanted * speed
        self.next_s = inf
        for index, lane in enumerate(self._lanes):
            if lane.ends and lane.rate > 0:
                at_s = self._now_s + max(lane.ends[0][0] - lane.sum, 0.0) / lane.rate
                if at_s < self.next_s:
                    self.next_s, self._next_lane = at_s, index
