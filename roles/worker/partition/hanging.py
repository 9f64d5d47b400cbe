"""The lead's watch over its group: where no flight is finished for long, it asks all members, and names who hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from adamctl.roles.worker.core.open_flights import FlightWatch, Patience, Standing, who_hangs
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.links import NeighbourError

LOOK_S = 1.0


class Oldest(NamedTuple):
    """The oldest flight that is not finished everywhere, and the partitions that have not finished it."""

    number: int
    left: frozenset[int]


class HangWatcher:
    """See the module. Everything runs on the event loop.

    Attributes:
        watch: is told of flights that begin and are finished.
    """

    def __init__(
        self,
        group: Group,
        patience: Patience,
        oldest: Callable[[], Oldest | None],
        ask: Callable[[int, int], Awaitable[Standing | None]],
    ) -> None:
        """`ask(partition, flight)` returns where it stands there; None if the member does not answer."""
        self._group, self._oldest, self._ask = group, oldest, ask
        self.watch = FlightWatch(patience)
        self._look_s = min(LOOK_S, patience.least_s / 4)

    async def run(self) -> None:
        """Watches until a member hangs.

        Raises:
            NeighbourError: one does; it may be the lead itself.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._look_s)
            oldest = self._oldest()
            if oldest is None or loop.time() < self.watch.deadline_s:
                continue
            silent_s = loop.time() - self.watch.since_s
            told = await asyncio.gather(*(self._ask(one, oldest.number) for one in oldest.left))
            now = self._oldest()
            if now is None or now.number != oldest.number:
                continue  # it was slow alone
            verdict = who_hangs(now.left, dict(zip(oldest.left, told, strict=True)))
            if verdict.partition is None:
                self.watch.excused(loop.time())
                continue
            name = self._group.name(verdict.partition)
            text = f"{name} hangs: no flight has been finished for {silent_s:.0f} s; {verdict.text}"
            raise NeighbourError(text, verdict.partition)
