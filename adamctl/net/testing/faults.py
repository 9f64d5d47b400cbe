"""Faults of the in-memory network: drawn from one seeded generator, decided frame by frame. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

Link = tuple[str, str]
"""One direction: (from node, to node)."""


@dataclass(frozen=True)
class LinkFaults:
    """Behaviour of one direction of a link. Probabilities are per frame; delays in seconds.

    Attributes:
        delay_s_min, delay_s_max: every frame takes a time between them; this alone never reorders frames.
        loss: the frame vanishes.
        duplication: the frame arrives twice, the second time later.
        reordering: the frame may overtake others and be overtaken.
        reordering_s_max: largest extra delay of such a frame.
    """

    delay_s_min: float = 0.0001
    delay_s_max: float = 0.001
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    reordering_s_max: float = 0.01


@dataclass(frozen=True)
class Arrival:
    """When one copy of a frame arrives, and whether it keeps its place in the order."""

    delay_s: float
    in_order: bool


class FaultPlan:
    """Draws every frame's fate. The same generator state and the same calls give the same fates."""

    def __init__(self, random: Random, faults: LinkFaults) -> None:
        self._random = random
        self._faults = faults
        self._of_link: dict[Link, LinkFaults] = {}
        self._partitioned: set[Link] = set()

    def set_faults(self, faults: LinkFaults, link: Link | None = None) -> None:
        """Changes the behaviour of one link, or of all links without their own."""
        if link is None:
            self._faults = faults
        else:
            self._of_link[link] = faults

    def partition(self, link: Link) -> None:
        self._partitioned.add(link)

    def heal(self, link: Link | None = None) -> None:
        """Ends one partition, or all."""
        if link is None:
            self._partitioned.clear()
        else:
            self._partitioned.discard(link)

    def is_partitioned(self, link: Link) -> bool:
        return link in self._partitioned

    def delay(self, link: Link) -> float:
        """Returns how many seconds a small frame sent now takes."""
        faults = self._of_link.get(link, self._faults)
        return self._random.uniform(faults.delay_s_min, faults.delay_s_max)

    def fate(self, link: Link, *, reliable: bool = False) -> list[Arrival]:
        """Returns the arrivals of a frame sent now: none if it is lost, two if it is duplicated.

        A reliable frame is only delayed, in order; but nothing gets through a partition.
        """
        faults = self._of_link.get(link, self._faults)
        # Always the same number of draws, so that one more fault does not change everything after it.
        lost, doubled, reordered, late, again = (self._random.random() for _ in range(5))
        delay = self._random.uniform(faults.delay_s_min, faults.delay_s_max)
        if link in self._partitioned:
            return []
        if reliable:
            return [Arrival(delay, True)]
        if lost < faults.loss:
            return []
        in_order = reordered >= faults.reordering
        arrivals = [Arrival(delay if in_order else delay + late * faults.reordering_s_max, in_order)]
        if doubled < faults.duplication:
            arrivals.append(Arrival(delay + again * faults.reordering_s_max, False))
        return arrivals
