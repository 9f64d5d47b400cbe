"""True time, a network that does not keep its promises, clocks that are wrong, and a trace. One seed decides all."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random


class ViolationError(AssertionError):
    """Something that must always hold does not."""


@dataclass
class NetworkFaults:
    """Probabilities per message; seconds."""

    delay_s_min: float = 0.0005
    delay_s_max: float = 0.005
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    late_s_max: float = 0.5


class World:
    """The only source of time and chance.

    Attributes:
        now_s: true time.
        events: how many have been carried out.
        lines: the trace, if it is kept.
    """

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_s = 0.0
        self.events = 0
        self.lines: list[str] = []
        self.keep_trace = keep_trace
        self.names: dict[str, str] = {}  # what stands in the trace -> what is easier to read
        self.network = NetworkFaults()
        self.cut: set[tuple[str, str]] = set()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._number = number = self._number + 1
        heapq.heappush(self._heap, (self.now_s + delay_s if delay_s > 0.0 else self.now_s, number, action))

    def run_until(self, time_s: float) -> None:
        """Carries out everything that is due up to a time."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= time_s:
            self.now_s, _, action = pop(heap)
            self.events += 1
            action()
        self.now_s = time_s

    def note(self, who: str, what: str, *details: object) -> None:
        """Adds a line to the trace."""
        if self.keep_trace:
            told = " ".join(str(detail) for detail in details)
            for number, name in self.names.items():
                told = told.replace(number, name)
            told = re.sub(r"Ballot\(round=(\d+), identity=(\w+)\)", r"\1\2", told)
            self.lines.append(f"{self.now_s:10.4f}  {who:<8} {what:<9} {told}"[:300])

    # --- network ----------------------------------------------------------------------------------------------------

    def send(self, source: str, destination: str, deliver: Callable[[], None]) -> None:
        """Delivers later, perhaps twice, perhaps never. What is under way when a link is cut is lost, too."""
        faults, random = self.network, self.random.random
        link = (source, destination)
        if link in self.cut or random() < faults.loss:
            return
        delay_s = faults.delay_s_min + (faults.delay_s_max - faults.delay_s_min) * random()
        if random() < faults.reordering:
            delay_s += random() * faults.late_s_max

        def arrive() -> None:
            if link not in self.cut:
                deliver()

        self.after(delay_s, arrive)
        if random() < faults.duplication:
            self.after(delay_s + random() * faults.late_s_max, arrive)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


class Clock:
    """A host's clock: runs `rate` times as fast as true time, and may jump forward. Never goes back."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self._base_s = world.random.random() * 1000.0
        self._rate = rate

    def now(self) -> float:
        return self._base_s + self._world.now_s * self._rate

    def true_delay_s(self, reading_s: float) -> float:
        """Returns the true seconds until the clock shows a reading."""
        return max(0.0, (reading_s - self.now()) / self._rate)

    def true_length_s(self, length_s: float) -> float:
        """Returns the true length of what this clock takes for `length_s`."""
        return length_s / self._rate

    def jump(self, seconds: float) -> None:
        self._base_s += seconds
