"""Reads ranges that several servers share out: each is asked for its part, and for parts of those who fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DeadlineError, ProtocolError, RemoteError, UnreachableError
from adamctl.roles.data.client.batches import (
    Batch,
    BatchMemory,
    PartOfRange,
    ReadInto,
    batch_over,
    in_thread_if_long,
    nothing,
)
from adamctl.roles.data.client.data_set import DataSet, elsewhere, request_range
from adamctl.roles.data.client.servers import DataServers
from adamctl.roles.data.client.sharing import Ask, RangeReading
from adamctl.roles.data.core import Range
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import DataReadRequest

PATIENCE_S: Final = 3.0
"""After this long without an answer a server's part is asked of the others, too; the first answer counts."""
_BUSY_FIRST_S: Final = 0.005  # before a server that is too busy is asked again, doubled up to the next constant
_BUSY_MAX_S: Final = 0.2


class SharedReads:
    """The reads of one client. `twice`: examples that came from two servers, and were used once."""

    def __init__(self, servers: DataServers, memory: BatchMemory) -> None:
        self.twice = 0
        self._servers = servers
        self._memory = memory

    async def read(self, data: DataSet, wanted: Range, into: ReadInto | None, deadline: float) -> Batch:
        """Returns a range, in `into` if that is given, once every example of it is there.

        Raises:
            DamagedDataError: a file cannot be decoded. RemoteError: BAD_RANGE.
            ProtocolError: the servers disagree on who owns what.
            DeadlineError: some examples were not given by any server in time.
        """
        assembly = _Assembly(data, wanted, into, self._memory)
        reading = assembly.reading
        asks: dict[asyncio.Task[None], Ask] = {}
        loop = asyncio.get_running_loop()
        try:
            while not reading.complete:
                if reading.round_over:
                    if alive := self._servers.alive(data):
                        for ask in reading.begin(alive):
                            asks[asyncio.create_task(self._ask(data, wanted, ask, assembly, deadline))] = ask
                        patience = loop.time() + PATIENCE_S
                    elif not asks:
                        if loop.time() >= deadline:
                            raise DeadlineError(self._too_late(wanted))
                        await self._servers.wait_for_any(deadline)
                        continue
                ended, _ = await asyncio.wait(
                    asks, timeout=max(min(patience, deadline) - loop.time(), 0), return_when=asyncio.FIRST_COMPLETED
                )
                for task in ended:
                    del asks[task]
                    task.result()
                if loop.time() >= deadline and not reading.complete:
                    raise DeadlineError(self._too_late(wanted))
                if not ended:
                    patience = loop.time() + PATIENCE_S
                    self._give_up(data, reading, asks)
        except BaseException:
            await _end(asks)
            assembly.release()
            raise
        await _end(asks)
        self.twice += reading.twice
        return await assembly.batch()

    def _give_up(self, data: DataSet, reading: RangeReading, asks: dict[asyncio.Task[None], Ask]) -> None:
        """Gives up those that let the round wait, if there are others to ask.

        They are asked for other ranges again when they have answered in the background.
        """
        late = [ask for ask in asks.values() if reading.waits_for(ask)]
        if not set(self._servers.alive(data)).difference(ask.server for ask in late):
            return
        error = DeadlineError(f"no answer within {PATIENCE_S:g} s")
        for ask in late:
            self._servers.failed(ask.server, data, error)
            reading.failed(ask)

    async def _ask(self, data: DataSet, wanted: Range, ask: Ask, assembly: _Assembly, deadline: float) -> None:
        """Asks one server until it answers, or it is plain that it will not."""
        link = self._servers.links.get(ask.server)
        if link is None:  # it has left
            assembly.reading.failed(ask)
            return
        request = DataReadRequest(data.dataset, *wanted, ask.servers, ask.receiver)
        body = () if ask.rows is None else (ask.rows.tobytes(),)
        pause_s = _BUSY_FIRST_S
        while True:
            try:
                reply = await request_range(link, data, request, deadline, body)
                break
            except RemoteError as error:
                if not elsewhere(error):
                    raise
                if error.code != ErrorCode.OVER_QUOTA:
                    self._lost(data, ask, assembly, error)
                    return
                if not assembly.reading.waits_for(ask):
                    return  # it was given up
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _BUSY_MAX_S)
            except (UnreachableError, ProtocolError) as error:
                self._lost(data, ask, assembly, error)
                return
        await assembly.take(ask, PartOfRange(reply, data.form, ask.server))

    def _lost(self, data: DataSet, ask: Ask, assembly: _Assembly, error: Exception) -> None:
        self._servers.failed(ask.server, data, error)
        assembly.reading.failed(ask)

    def _too_late(self, wanted: Range) -> str:
        reasons = "; ".join(f"{link.name}: {link.reason}" for link in self._servers.links.values())
        return f"no data server gave all of examples {wanted.start} to {wanted.stop}: {reasons}"


class _Assembly:
    """A range being put together from its parts, as they are sent; it is scaled once it is complete."""

    def __init__(self, data: DataSet, wanted: Range, into: ReadInto | None, memory: BatchMemory) -> None:
        examples = wanted.stop - wanted.start
        self.reading = RangeReading(examples)
        self._data = data
        self._arrays, self._release = (into, nothing) if into is not None else memory.take(examples, data)
        self._values: NDArray[Any] = self._arrays[0].reshape(examples, data.form.elements)
        self._values_release: Callable[[], None] = nothing
        if data.form.numpy_dtype != np.float32:
            self._values, self._values_release = memory.take_values(examples, data.form)

    async def take(self, ask: Ask, part: PartOfRange) -> None:
        """Copies what is new of a server's answer to its place."""
        try:
            new = self.reading.answered(ask, part.positions)
            rows = part.positions[new]
            await in_thread_if_long(len(new) * self._data.form.elements, lambda: self._copy(part, new, rows))
        finally:
            part.reply.release()

    def _copy(self, part: PartOfRange, new: NDArray[np.int64], rows: NDArray[np.int32]) -> None:
        whole = len(new) == len(part.positions)
        self._values[rows] = part.values if whole else part.values[new]
        self._arrays[1][rows] = part.labels if whole else part.labels[new]

    async def batch(self) -> Batch:
        """Returns the whole range as it is trained on."""
        scaling, images = self._data.scaling, self._arrays[0].reshape(self._values.shape)
        in_place = self._data.form.numpy_dtype == np.float32
        scale = partial(scaling.apply, images) if in_place else partial(scaling.write, self._values, images)
        try:
            await in_thread_if_long(images.size, scale)
        except BaseException:
            self.release()
            raise
        self._values_release()
        return batch_over(self._arrays, self._data.form, self._release)

    def release(self) -> None:
        """Gives the memory back; nothing of it was returned."""
        self._release()
        self._values_release()


async def _end(asks: dict[asyncio.Task[None], Ask]) -> None:
    """Ends what is still asked; nothing is written into arrays afterwards."""
    for task in asks:
        task.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
