"""How much the data servers of a run have read of its data set, for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from adamctl.roles.data.client.data_client import DataClient, DataSet

LOOK_EVERY_S: Final = 1.0
LOOK_DEADLINE_S: Final = 5.0


class ReadTotal:
    """Adds up what servers have read of a data set. `total_bytes` is None before any has told.

    They count from when they opened it, for all runs that share it.
    """

    def __init__(self) -> None:
        self.total_bytes: int | None = None
        self._last: dict[str, int] = {}

    def add(self, told: Mapping[str, int]) -> None:
        """Notes what each server tells. One that tells less than before was started again, and counts from 0."""
        for node, read_bytes in told.items():
            before = self._last.get(node, 0)
            new = read_bytes - before if read_bytes >= before else read_bytes
            self.total_bytes = (self.total_bytes or 0) + new
            self._last[node] = read_bytes


class DataReading:
    """Asks the data servers of a run, as long as it lasts."""

    def __init__(self, client: DataClient, data: DataSet) -> None:
        self.total = ReadTotal()
        self._client = client
        self._data = data

    async def follow(self) -> None:
        """Looks every second, until it is cancelled; then closes the client."""
        try:
            while True:
                self.total.add(await self._client.read_bytes(self._data, deadline_s=LOOK_DEADLINE_S))
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await self._client.close()
