"""The client that reads examples from one or several data servers, for workers and coordinators.

client = DataClient.from_context(context, joined.data_servers)
data = await client.open(experiment.data, experiment.model.input, experiment.seed)
batch = await client.read(data, "train", pass_number=0, start=0, stop=256)
...
batch.release()
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DeadlineError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.transport import Connection
from adamctl.roles.data.client.batches import (
    Batch,
    BatchMemory,
    ReadInto,
    Received,
    batch_over,
    check_into,
    new_arrays,
    receiving_views,
)
from adamctl.roles.data.client.data_set import (
    DataSet,
    being_opened,
    difference,
    elsewhere,
    open_on,
    opening,
    request_range,
)
from adamctl.roles.data.client.link import DataServerLink, connector_of_node, connector_over
from adamctl.roles.data.client.servers import DataServers
from adamctl.roles.data.client.shared_reads import SharedReads
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.readers.targets import check_answers
from adamctl.wire.constants import BODY_ALIGNMENT_BYTES
from adamctl.wire.messages import DataOpenReply, DataReadRequest

if TYPE_CHECKING:
    from adamctl.roles.context import RoleContext

__all__ = [
    "FILE_ORDER",
    "Batch",
    "DataClient",
    "DataSet",
    "Range",
    "ReadAhead",
    "ReadInto",
    "check_answers",
    "new_arrays",
]

OPEN_DEADLINE_S: Final = 120.0
OPEN_AGAIN_S: Final = 20.0
READ_DEADLINE_S: Final = 60.0
_OPEN_RETRY_S: Final = 0.25


class _StillOpeningError(UnreachableError):
    """No server has opened the data yet, and one says that it is about to."""


class DataClient:
    """Reads from several data servers as if from one. Every server has the same data in the same order.

    Consecutive ranges go to consecutive servers; a range whose server is gone or too busy is read from the next one.
    Of a set that must be decoded, each server gives the blocks that it owns, and caches add up (`SharedReads`).

    Attributes:
        servers: which of them are alive.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        """Reads over existing connections; a lost one is not replaced. Raises like `from_context`."""
        self._begin([DataServerLink(each.peer_name, connector_over(each)) for each in connections])

    @classmethod
    def over(cls, links: Sequence[DataServerLink]) -> DataClient:
        """Reads over these links. Raises like `from_context`."""
        client = cls.__new__(cls)
        client._begin(list(links))
        return client

    @classmethod
    def from_context(cls, context: RoleContext, nodes: Sequence[str]) -> DataClient:
        """Returns a client of the named nodes, in an order that should be the same for every client.

        Their addresses are looked up for every new connection.

        Raises:
            ConfigurationError: there is no data server.
        """
        client = cls.__new__(cls)
        client._begin([DataServerLink(node, connector_of_node(context, node)) for node in nodes], context)
        return client

    def _begin(self, servers: list[DataServerLink], context: RoleContext | None = None) -> None:
        if not servers:
            raise ConfigurationError("no data server is known: start one with `adamctl data start`")
        self._links = servers
        self.servers = DataServers(servers, context)
        self._padding = memoryview(bytearray(BODY_ALIGNMENT_BYTES))
        self._memory = BatchMemory()
        self._shared = SharedReads(self.servers, self._memory)
        self._opened: dict[str, DataSet] = {}

    @property
    def twice(self) -> int:
        """How many examples came from two servers, because one was slow; each was used once."""
        return self._shared.twice

    def status(self) -> dict[str, object]:
        """Returns plain values for the status of a reader: nothing unless it reads a set that servers share out."""
        shared = [data for data in self._opened.values() if data.by_block]
        if not shared:
            return {}
        return {"data_servers": self.servers.alive(shared[-1]), "examples_twice": self.twice}

    # --- opening ----------------------------------------------------------------------------------------------------

    async def open(
        self, config: DataConfig, input_shape: Sequence[int], seed: int, *, deadline_s: float = OPEN_DEADLINE_S
    ) -> DataSet:
        """Opens a data set on every reachable server.

        If none can be reached, it keeps trying for a while, since servers may be restarting, and tries those of the
        cluster that it was not told of. As long as a server says that it is opening the data, it waits.

        Args:
            deadline_s: for each attempt.

        Raises:
            ConfigurationError, DamagedDataError: a server found an error, or the servers have different data.
            UnreachableError: no server answered, within `deadline_s` and OPEN_AGAIN_S.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + min(OPEN_AGAIN_S, deadline_s)
        while True:
            try:
                return await self._open_once(config, tuple(input_shape), seed, deadline_s)
            except _StillOpeningError:
                give_up_s = loop.time() + min(OPEN_AGAIN_S, deadline_s)
                await asyncio.sleep(_OPEN_RETRY_S)
            except UnreachableError:
                if loop.time() >= give_up_s:
                    raise
                self._links += await self.servers.others()
                await asyncio.sleep(_OPEN_RETRY_S)

    async def _open_once(self, config: DataConfig, shape: tuple[int, ...], seed: int, deadline_s: float) -> DataSet:
        answers = await asyncio.gather(
            *(open_on(server, config, shape, seed, deadline_s) for server in self._links), return_exceptions=True
        )
        opened: list[tuple[DataServerLink, DataSet]] = []
        for server, answer in zip(self._links, answers, strict=True):
            if isinstance(answer, DataSet):
                opened.append((server, answer))
            elif not (isinstance(answer, (UnreachableError, ProtocolError)) or elsewhere(answer)):
                raise answer
        if not opened and any(isinstance(answer, BaseException) and being_opened(answer) for answer in answers):
            raise _StillOpeningError("the data servers are opening the data")
        if not opened:
            raise UnreachableError(f"no data server could be reached: {self._reasons()}")
        first, data = opened[0]
        for server, other in opened[1:]:
            if differing := difference(data, other):
                raise ConfigurationError(
                    f"expected the same data on all data servers, found {differing[0]} on {first.name} and "
                    f"{differing[1]} on {server.name}: give them the same files"
                )
        self._opened[data.dataset] = data
        if data.by_block:
            self.servers.share(data, [server.name for server, _ in opened])
        return data

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(
        self,
        data: DataSet | str,
        split: str,
        pass_number: int,
        start: int,
        stop: int,
        into: ReadInto | None = None,
        *,
        deadline_s: float = READ_DEADLINE_S,
    ) -> Batch:
        """Reads examples [start, stop) of a split in the order of a pass (FILE_ORDER: of the files).

        `data` is the result of `open`, or its name. With `into`, examples are written into these arrays. A range too
        long for one reply is read in parts.

        Raises:
            DamagedDataError: a file cannot be decoded; the message names it.
            RemoteError: BAD_RANGE.
            ValueError: `into` has other shapes. KeyError: this client has not opened `data`.
            UnreachableError: no server answered within `deadline_s`.
        """
        if isinstance(data, str):
            data = self._opened[data]
        deadline = asyncio.get_running_loop().time() + deadline_s
        most = max(1, data.form.examples_per_read_max)
        whole = Range(split, pass_number, start, stop)
        if into is None and stop - start <= most:
            return await self._read_part(data, whole, None, start // max(1, stop - start), deadline)
        images, labels = into if into is not None else new_arrays(stop - start, data.input_shape, data.form)
        check_into(images, labels, stop - start, data.input_shape, data.form)
        reads = []
        for at in range(start, stop, most):
            part = whole._replace(start=at, stop=min(at + most, stop))
            rows = slice(at - start, part.stop - start)
            number = at // min(most, stop - start)
            reads.append(
                asyncio.ensure_future(self._read_part(data, part, (images[rows], labels[rows]), number, deadline))
            )
        try:
            await asyncio.gather(*reads)
        finally:  # after an error nothing may write into the caller's arrays
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        return batch_over((images, labels), data.form)

    async def _read_part(
        self, data: DataSet, wanted: Range, into: ReadInto | None, number: int, deadline: float
    ) -> Batch:
        """Tries the servers in turn, beginning with `number`, until one answers or the deadline has passed.

        Of a set that several servers share out, each gives its part: also where others come while this one is tried.
        """
        loop = asyncio.get_running_loop()
        while True:
            if data.by_block and self.servers.several:
                return await self._shared.read(data, wanted, into, deadline)
            for offset in range(len(self._links)):
                server = self._links[(number + offset) % len(self._links)]
                if loop.time() < server.away_until_s:
                    continue
                try:
                    return await self._read_from(server, data, wanted, into, deadline)
                except RemoteError as error:
                    if not elsewhere(error):
                        raise
                    server.failed(loop.time(), error)
                except (UnreachableError, ProtocolError) as error:
                    server.failed(loop.time(), error)
            now = loop.time()
            if now >= deadline:
                raise DeadlineError(f"no data server gave examples {wanted.start} to {wanted.stop}: {self._reasons()}")
            next_s = min(server.away_until_s for server in self._links)
            await asyncio.sleep(min(max(next_s - now, 0.001), deadline - now))

    async def _read_from(
        self, server: DataServerLink, data: DataSet, wanted: Range, into: ReadInto | None, deadline: float
    ) -> Batch:
        views = None if into is None else receiving_views(into, data.form, self._padding)
        reply = await request_range(server, data, DataReadRequest(data.dataset, *wanted), deadline, into=views)
        received = Received(reply, data.form, wanted, into, server.name)
        return await received.batch(data, into, self._memory)

    def _reasons(self) -> str:
        return "; ".join(f"{server.name}: {server.reason}" for server in self._links)

    async def read_bytes(self, data: DataSet, *, deadline_s: float) -> dict[str, int]:
        """Returns how many bytes each server has read of a data set's files; those that do not answer are left out."""
        request, body = opening(data.config, data.input_shape, data.seed, again=True)
        asked = [server.request(request, (body,), deadline_s=deadline_s) for server in self._links]
        found: dict[str, int] = {}
        for server, reply in zip(self._links, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if not isinstance(reply, BaseException):
                assert isinstance(reply.message, DataOpenReply)
                found[server.name] = reply.message.read_bytes
                reply.release()
        return found

    async def close(self) -> None:
        """Closes all connections."""
        await self.servers.close()


class ReadAhead:
    """Reads ranges in the background, a bounded number at a time, and returns them in the order of the requests.

        ahead = ReadAhead(client, data, ranges_in_flight=4)
        await ahead.ask(Range("train", 0, 0, 256))     # waits while 4 are requested and not taken
        batch = await ahead.take()                     # waits until the first of them has arrived

    `waited_s` is the total time that `take` has waited: time in which compute was idle.
    """

    def __init__(self, client: DataClient, data: DataSet | str, *, ranges_in_flight: int = 4) -> None:
        self.waited_s = 0.0
        self._client = client
        self._data = data
        self._room = asyncio.Semaphore(ranges_in_flight)
        self._reads: deque[asyncio.Task[Batch]] = deque()
        self._asked = asyncio.Event()

    def __len__(self) -> int:
        """Ranges that were requested and not taken."""
        return len(self._reads)

    async def ask(self, wanted: Range, into: ReadInto | None = None) -> None:
        """Begins to read a range, after waiting for a free place."""
        await self._room.acquire()
        self._reads.append(asyncio.create_task(self._client.read(self._data, *wanted, into)))
        self._asked.set()

    async def take(self) -> Batch:
        """Returns the next batch; the caller releases it. Raises like `DataClient.read`. One caller at a time."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            while not self._reads:
                self._asked.clear()
                await self._asked.wait()
            read = self._reads[0]
            await asyncio.wait([read])
        finally:
            self.waited_s += loop.time() - began_s
        if self._reads and self._reads[0] is read:
            self._reads.popleft()
            self._room.release()
        return read.result()

    async def close(self) -> None:
        """Discards everything that was not taken."""
        reads = list(self._reads)
        self._reads.clear()
        for read in reads:
            read.cancel()
            self._room.release()
        for result in await asyncio.gather(*reads, return_exceptions=True):
            if isinstance(result, Batch):
                result.release()
