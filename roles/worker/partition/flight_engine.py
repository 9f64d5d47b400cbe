"""One partition's threads and links: flights go in, in the order of their numbers, and come back done.

What flights leave behind, and where their parameters come from, is the engine's that is built on this one.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adamctl.config.experiment import Experiment
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.model.layout import ParameterLayout
from adamctl.roles.worker.core.open_flights import SERVERS, Standing
from adamctl.roles.worker.core.waiting import Waiting
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.links import Links
from adamctl.roles.worker.partition.threads import Flight, FlightDone, FlightThreads, Slots, laid_out

ALL_FLIGHTS = sys.maxsize
JOIN_S = 30.0
"""How long a thread's call may take, before and after it is told to stop: until its flight waits, or is done."""


@dataclass(frozen=True)
class Parts:
    """What an engine is made of.

    Attributes:
        threads: compute threads.
        spins: see `adamctl.roles.worker.partition.threads.SPINS`.
    """

    group: Group
    network: CutNetwork
    layout: ParameterLayout
    experiment: Experiment
    threads: int
    spins: int
    log: logging.Logger


@dataclass
class Counts:
    """What was pushed since it was taken: pushes that servers have applied, how stale they were, and their ages."""

    updates: int = 0
    staleness: tuple[int, ...] = ()
    ages: tuple[int, ...] = ()


class FlightEngine(ABC):
    """See the module. Everything runs on the event loop except what `FlightThreads` does.

    Attributes:
        local_factor, local_rate: learning rates of local updates, see `adamctl.roles.worker.partition.taking.Rates`.
        flights_done: flights that this partition has finished.
    """

    local_factor: float | None = None
    local_rate: float = 0.0

    def __init__(
        self,
        parts: Parts,
        links: Links,
        done: Callable[[FlightDone], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`done` is called on the event loop for each flight, in the order in which they finish here."""
        self._parts, self._links, self._done, self._failed = parts, links, done, failed
        self._threads: FlightThreads | None = None
        self._held: deque[Flight] = deque()
        self._granted = ALL_FLIGHTS
        self._loop = asyncio.get_running_loop()
        self._evaluation: tuple[int, asyncio.Task[None]] | None = None
        self._halting: asyncio.Future[None] | None = None
        self.flights_done = 0

    # --- what is built on it ------------------------------------------------------------------------------------------

    @abstractmethod
    async def start(self) -> None:
        """Attaches to the other members, gets ready, compiles, and starts the threads.

        Raises:
            NeighbourError: a member cannot be reached or used.
            RunFailedError: flights do not fit in memory.
        """

    @abstractmethod
    def _finished(self, done: FlightDone) -> None:
        """Counts a flight; called by its thread."""

    @abstractmethod
    async def flush(self) -> None:
        """Pushes what is accrued, while no flight trains, and waits until all pushes are answered."""

    @abstractmethod
    async def pull_snapshot(self) -> None:
        """Pulls the parameters of an evaluation that does not train."""

    @abstractmethod
    def take_counts(self) -> Counts:
        """Returns what was pushed since the last call."""

    @property
    @abstractmethod
    def pushes(self) -> int:
        """How many pushes were answered."""

    async def _attach(self) -> Neighbours:
        neighbours = await self._links.attach()
        self._links.watch(self._failed)
        group = self._parts.group
        for one, how in sorted(self._links.transports.items()):
            self._parts.log.info("run %s: blocks to and from %s go by %s", group.job, group.name(one), how)
        return neighbours

    async def _run(self, make: Callable[[], Member], slots: Slots) -> None:
        """Starts the threads. Raises RunFailedError: there is not enough memory for flights."""
        parts = self._parts
        member = await asyncio.to_thread(lambda: laid_out(make, parts.group.batch))
        self._threads = FlightThreads(
            member, parts.group.flights, parts.threads, self._links.sleeping, self._finished, slots, spins=parts.spins
        )
        self._threads.start()

    def _look(self) -> None:
        """A slot may be free again."""
        if self._threads is not None:
            self._threads.look()

    # --- flights ------------------------------------------------------------------------------------------------------

    def submit(self, flight: Flight) -> None:
        """Takes the next flight, in the order of their numbers; it begins when it is granted."""
        self._held.append(flight)
        self._submit_granted()

    def grant(self, flight: int) -> None:
        """Says that flights up to this one may begin, where replicas may be only so many steps apart."""
        self._granted = max(self._granted, flight)
        self._submit_granted()

    def _submit_granted(self) -> None:
        assert self._threads is not None
        while self._held and self._held[0].number <= self._granted:
            flight = self._held.popleft()
            self._links.submitted(flight.number, len(flight.batch.labels))
            self._threads.submit(flight)

    @property
    def open_flights(self) -> dict[int, tuple[int, int]]:
        return {} if self._threads is None else self._threads.open_flights

    def standing(self, number: int) -> Standing:
        """Returns where a flight stands here."""
        return Standing(SERVERS) if self._threads is None else self._threads.standing(number)

    def told(self) -> dict[str, Any]:
        """Returns what is told of this member: how many flights are open, how much threads wait, and for whom."""
        waiting = Waiting(0.0, {}) if self._threads is None else self._threads.waiting
        own = {"partition": self._parts.group.own, "flights": len(self.open_flights)}
        return own | waiting.for_status()

    async def snapshot(self, evaluation: int) -> None:
        """Pulls the parameters of an evaluation, once."""
        if self._evaluation is None or self._evaluation[0] != evaluation:
            self._evaluation = evaluation, asyncio.create_task(self.pull_snapshot())
        await asyncio.shield(self._evaluation[1])

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def hangs(self) -> bool:
        """Whether a thread has not ended, though it was stopped and waited for."""
        return self._threads is not None and self._threads.running

    def stop(self) -> None:
        """Stops the threads after their current work."""
        if self._threads is not None:
            self._threads.stop()

    async def halt(self) -> None:
        """Stops the threads, and waits until they have ended, or their time is over: then `hangs` is true."""
        self.stop()
        if self._threads is not None:
            if self._halting is None:
                left_s = max(JOIN_S - self._threads.held_s, 1.0)  # what has hung for long has been waited for
                self._halting = asyncio.get_running_loop().run_in_executor(None, self._threads.join, left_s)
            await asyncio.shield(self._halting)

    async def close(self) -> None:
        """Stops everything; the links may then be closed, unless it `hangs`."""
        await self.halt()
        if self._evaluation is not None:
            self._evaluation[1].cancel()
