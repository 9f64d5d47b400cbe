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
from dataclasses import dataclass, field
from math import isclose, prod
from typing import TYPE_CHECKING, Final

import msgspec

from adamctl.config.data import DataConfig
from adamctl.errors import (
    AdamctlError,
    ConfigurationError,
    DamagedDataError,
    DeadlineError,
    ProtocolError,
    RemoteError,
    UnreachableError,
)
from adamctl.net.transport import Connection
from adamctl.roles.data.batches import (
    Batch,
    BatchMemory,
    ReadInto,
    Received,
    check_into,
    new_arrays,
    receiving_views,
)
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.form import DTYPES, ExampleForm
from adamctl.roles.data.link import DataServerLink, connector_of_node, connector_over
from adamctl.roles.data.scaling import Scaling
from adamctl.wire.constants import BODY_ALIGNMENT_BYTES, ErrorCode
from adamctl.wire.messages import DataOpenReply, DataOpenRequest, DataReadRequest

if TYPE_CHECKING:
    from adamctl.roles.context import RoleContext

__all__ = ["FILE_ORDER", "Batch", "DataClient", "DataSet", "Range", "ReadAhead", "ReadInto"]

OPEN_DEADLINE_S: Final = 120.0
OPEN_AGAIN_S: Final = 20.0
READ_DEADLINE_S: Final = 60.0
_OPEN_RETRY_S: Final = 0.25
_ATTEMPT_S: Final = 20.0
_TRY_ELSEWHERE: Final = (ErrorCode.OVER_QUOTA, ErrorCode.SHUTTING_DOWN, ErrorCode.NOT_READY, ErrorCode.DEADLINE_PASSED)


@dataclass(frozen=True)
class DataSet:
    """An open data set.

    Attributes:
        dataset: its name in reads.
        examples: train, validation and test mapped to their counts.
        dtype: of the values that servers send; `scaling` makes of them what a model is trained on.
        class_examples: how many training examples each of `classes` has.
    """

    dataset: str
    examples: dict[str, int]
    classes: tuple[str, ...]
    config: DataConfig
    input_shape: tuple[int, ...]
    seed: int
    dtype: str = "float32"
    scaling: Scaling = field(default_factory=Scaling)
    class_examples: tuple[int, ...] = ()

    @property
    def form(self) -> ExampleForm:
        """How its examples are sent."""
        return ExampleForm(prod(self.input_shape), self.dtype)


class DataClient:
    """Reads from several data servers as if from one. Every server has the same data in the same order.

    Consecutive ranges go to consecutive servers; a range whose server is gone or too busy is read from the next one.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        """Reads over existing connections; a lost one is not replaced. Raises like `from_context`."""
        self._begin([DataServerLink(each.peer_name, connector_over(each)) for each in connections])

    @classmethod
    def from_context(cls, context: RoleContext, nodes: Sequence[str]) -> DataClient:
        """Returns a client of the named nodes, in an order that should be the same for every client.

        Their addresses are looked up for every new connection.

        Raises:
            ConfigurationError: there is no data server.
        """
        client = cls.__new__(cls)
        client._begin([DataServerLink(node, connector_of_node(context, node)) for node in nodes])
        return client

    def _begin(self, servers: list[DataServerLink]) -> None:
        if not servers:
            raise ConfigurationError("no data server is known: start one with `adamctl data start`")
        self._servers = servers
        self._padding = memoryview(bytearray(BODY_ALIGNMENT_BYTES))
        self._memory = BatchMemory()
        self._opened: dict[str, DataSet] = {}

    # --- opening ----------------------------------------------------------------------------------------------------

    async def open(
        self, config: DataConfig, input_shape: Sequence[int], seed: int, *, deadline_s: float = OPEN_DEADLINE_S
    ) -> DataSet:
        """Opens a data set on every reachable server.

        If none can be reached, it keeps trying for a while, since servers may be restarting.

        Raises:
            ConfigurationError, DamagedDataError: a server found an error, or the servers have different data.
            UnreachableError: no server answered, within `deadline_s` and OPEN_AGAIN_S.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + min(OPEN_AGAIN_S, deadline_s)
        while True:
            try:
                return await self._open_once(config, tuple(input_shape), seed, deadline_s)
            except UnreachableError:
                if loop.time() >= give_up_s:
                    raise
                await asyncio.sleep(_OPEN_RETRY_S)

    async def _open_once(self, config: DataConfig, shape: tuple[int, ...], seed: int, deadline_s: float) -> DataSet:
        answers = await asyncio.gather(
            *(self._open_on(server, config, shape, seed, deadline_s) for server in self._servers),
            return_exceptions=True,
        )
        opened: list[tuple[DataServerLink, DataOpenReply]] = []
        for server, answer in zip(self._servers, answers, strict=True):
            if isinstance(answer, DataOpenReply):
                opened.append((server, answer))
            elif not (isinstance(answer, (UnreachableError, ProtocolError)) or _elsewhere(answer)):
                raise answer
        if not opened:
            raise UnreachableError(f"no data server could be reached: {self._reasons()}")
        first, reply = opened[0]
        for server, other in opened[1:]:
            if not _same_data(reply, other):
                raise ConfigurationError(
                    f"expected the same data on all data servers, found {reply.examples} on {first.name} and "
                    f"{other.examples} on {server.name}: give them the same files"
                )
        if reply.dtype not in DTYPES:
            raise ProtocolError(f"{first.name}: expected values of {' or '.join(DTYPES)}, found {reply.dtype!r}")
        scaling = Scaling(reply.factor, reply.shift)
        data = DataSet(
            reply.dataset, reply.examples, reply.classes, config, shape, seed, reply.dtype, scaling,
            reply.class_examples,
        )  # fmt: skip
        self._opened[data.dataset] = data
        return data

    async def _open_on(
        self, server: DataServerLink, config: DataConfig, shape: tuple[int, ...], seed: int, deadline_s: float
    ) -> DataOpenReply:
        body = msgspec.msgpack.encode(config)
        try:
            reply = await server.request(DataOpenRequest(shape, seed, scales=True), (body,), deadline_s=deadline_s)
        except RemoteError as error:
            if _elsewhere(error):
                server.failed(asyncio.get_running_loop().time(), error)
            raise _translated(error, server.name) from error
        except (UnreachableError, ProtocolError) as error:
            server.failed(asyncio.get_running_loop().time(), error)
            raise
        reply.release()
        assert isinstance(reply.message, DataOpenReply)
        return reply.message

    async def _open_again(self, server: DataServerLink, data: DataSet, deadline_s: float) -> None:
        """Opens the data set again on a server that has restarted or needed the memory; it must find the same data."""
        reply = await self._open_on(server, data.config, data.input_shape, data.seed, deadline_s)
        before = DataOpenReply(
            data.dataset, data.examples, data.classes, data.dtype, data.scaling.factor, data.scaling.shift,
            data.class_examples,
        )  # fmt: skip
        if not _same_data(before, reply):
            raise ConfigurationError(
                f"the data on {server.name} has changed during the run: expected {data.examples}, "
                f"found {reply.examples}"
            )

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
        images, labels = into if into is not None else new_arrays(stop - start, data.input_shape)
        check_into(images, labels, stop - start, data.input_shape)
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
        return Batch(images, labels)

    async def _read_part(
        self, data: DataSet, wanted: Range, into: ReadInto | None, number: int, deadline: float
    ) -> Batch:
        """Tries the servers in turn, beginning with `number`, until one answers or the deadline has passed."""
        loop = asyncio.get_running_loop()
        while True:
            for offset in range(len(self._servers)):
                server = self._servers[(number + offset) % len(self._servers)]
                if loop.time() < server.away_until_s:
                    continue
                try:
                    return await self._read_from(server, data, wanted, into, deadline)
                except RemoteError as error:
                    if not _elsewhere(error):
                        raise
                    server.failed(loop.time(), error)
                except (UnreachableError, ProtocolError) as error:
                    server.failed(loop.time(), error)
            now = loop.time()
            if now >= deadline:
                raise DeadlineError(f"no data server gave examples {wanted.start} to {wanted.stop}: {self._reasons()}")
            next_s = min(server.away_until_s for server in self._servers)
            await asyncio.sleep(min(max(next_s - now, 0.001), deadline - now))

    async def _read_from(
        self, server: DataServerLink, data: DataSet, wanted: Range, into: ReadInto | None, deadline: float
    ) -> Batch:
        loop = asyncio.get_running_loop()
        request = DataReadRequest(data.dataset, *wanted)
        views = None if into is None else receiving_views(into, data.form, self._padding)
        for attempt in range(2):
            left_s = min(max(deadline - loop.time(), 0.001), _ATTEMPT_S)
            try:
                reply = await server.request(request, deadline_s=left_s, into=views)
                break
            except RemoteError as error:
                if error.code != ErrorCode.UNKNOWN_DATASET or attempt:
                    raise _translated(error, server.name) from error
                await self._open_again(server, data, max(deadline - loop.time(), 0.001))
        received = Received(reply, data.form, wanted, into, server.name)
        return await received.batch(data.input_shape, data.scaling, into, self._memory)

    def _reasons(self) -> str:
        return "; ".join(f"{server.name}: {server.reason}" for server in self._servers)

    async def close(self) -> None:
        """Closes all connections."""
        await asyncio.gather(*(server.close() for server in self._servers))


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


def _same_data(one: DataOpenReply, other: DataOpenReply) -> bool:
    """Machines of different kinds add up in different orders, so statistics may differ in their last digits."""
    same = msgspec.structs.replace(other, factor=one.factor, shift=one.shift) == one
    return same and isclose(one.factor, other.factor, rel_tol=1e-5) and isclose(one.shift, other.shift, rel_tol=1e-5)


def _elsewhere(error: BaseException) -> bool:
    """Whether a refusal is due to this server's present state, so that another one, or this one later, may answer."""
    return isinstance(error, RemoteError) and error.code in _TRY_ELSEWHERE


def _translated(error: RemoteError, server: str) -> AdamctlError:
    """Turns a server's refusal back into the error raised there, so that a command ends with its exit code."""
    kinds: dict[int, type[AdamctlError]] = {
        ErrorCode.BAD_CONFIGURATION: ConfigurationError,
        ErrorCode.DAMAGED_DATA: DamagedDataError,
    }
    kind = kinds.get(error.code)
    if kind is not None:
        return kind(f"{error} (data server {server})")
    return RemoteError(error.code, f"data server {server}: {error}", error.details)
