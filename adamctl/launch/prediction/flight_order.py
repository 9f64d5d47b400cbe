"""Which flights of a prediction are open, and whose outputs come next: pure.

Flight n + F begins when all partitions are done with flight n and its outputs have been taken. So no partition
overwrites what another one still reads, and memory is bounded; outputs come in the order of the examples, whichever
flight is finished first.
"""

from __future__ import annotations


class FlightOrder:
    """The flights of one group of partitions; their numbers go on from one prediction to the next."""

    def __init__(self, partitions: int, flights: int) -> None:
        """`flights`: most that are open."""
        self._partitions, self._flights = partitions, flights
        self._begun = 0
        self._left: dict[int, set[int]] = {}  # of each open flight, the partitions that are not done with it

    @property
    def open(self) -> int:
        """How many flights are open."""
        return len(self._left)

    @property
    def may_begin(self) -> bool:
        """Whether one more may be open."""
        return len(self._left) < self._flights

    @property
    def next(self) -> int | None:
        """The flight whose outputs come next; None if none is open."""
        return next(iter(self._left), None)

    @property
    def is_next_done(self) -> bool:
        """Whether all partitions are done with the flight whose outputs come next."""
        flight = self.next
        return flight is not None and not self._left[flight]

    def begin(self) -> int:
        """Opens a flight and returns its number, from 1. Raises ValueError: too many are open."""
        if not self.may_begin:
            raise ValueError(f"expected at most {self._flights} open flights; found one more")
        self._begun += 1
        self._left[self._begun] = set(range(self._partitions))
        return self._begun

    def done(self, partition: int, flight: int) -> None:
        """Notes that a partition is done with a flight. Raises ValueError: it was before, or the flight is not open."""
        left = self._left.get(flight, set())
        if partition not in left:
            raise ValueError(f"partition {partition}: expected to be done with an open flight once; found {flight}")
        left.remove(partition)

    def take(self) -> int:
        """Closes the flight whose outputs come next, and returns it. Raises ValueError: it is not done."""
        flight = self.next
        if flight is None or self._left[flight]:
            raise ValueError("expected a flight that all partitions are done with; found none")
        del self._left[flight]
        return flight
