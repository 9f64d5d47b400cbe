"""Parameter servers that are killed and started again while somebody works with them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from adamctl.bench.failover.cluster import FailoverCluster, wait_whole

COPIES = 3
WHOLE_S = 120.0
STARVED_S = 300.0
QUICK_LEASE_S = 4.0
"""Where a crowded machine is no excuse; the long suites take the shortest that must work, 1 s."""
SHORT_LEASE_S = 1.0


class Work(ABC):
    """What goes on while things happen to the servers of a cluster."""

    def __init__(self, cluster: FailoverCluster, job: str) -> None:
        self.cluster = cluster
        self.store = cluster.connect()
        self._job = job

    @abstractmethod
    async def open(self) -> None:
        """Begins the work."""

    @abstractmethod
    async def progress(self, steps: int = 1) -> None:
        """Returns when so much more is done; raises what the work failed with."""

    @abstractmethod
    async def check(self) -> None:
        """Raises AssertionError if what has been done by now is not right."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the work."""

    def kill(self, node: str) -> None:
        if not self.cluster.has_ended(node):
            self.cluster.kill(node)

    async def start(self, *nodes: str) -> None:
        """Starts servers anew; returns when they serve, so that the configuration knows that the old ones are gone."""
        for node in nodes:
            await asyncio.to_thread(self.cluster.start, node)
        await asyncio.to_thread(self.cluster.wait_serving, *nodes)

    async def whole(self) -> None:
        """Returns when every bucket has all copies on living servers; starts again what has ended, as `train` does.

        On a crowded machine a server may be silent for longer than its lease although nobody has stopped it.
        """
        tending = asyncio.create_task(self._tend())
        try:
            await wait_whole(self.store, self._job, COPIES, WHOLE_S)
        finally:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)

    async def _tend(self) -> None:
        while True:
            for node in self.cluster.servers:
                if await asyncio.to_thread(self.cluster.has_ended, node):
                    await self.start(node)
            await asyncio.sleep(0.2)
