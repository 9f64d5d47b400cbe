"""One member's links to the other members of its group: whose memory it maps, and how it wakes them.

Each member shows its memory to each other one over a connection of its own, and maps theirs. All of that is done before
a flight begins, and ends with the group: a new group has new memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import RemoteError, RunFailedError, UnreachableError
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.net.shared_memory import SharedMemory as Region
from adamctl.net.transport import Connection, Request
from adamctl.roles.worker.partition.sleeping import Sleeping, Waker, unique_name
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Empty, GroupMember, Message, PartAttachRequest

ATTACH_S = 30.0
"""How long the members of a new group may take to know each other."""
RETRY_S = 0.1
ANSWER_S = 10.0
TRY_LATER = frozenset({ErrorCode.NOT_READY, ErrorCode.STALE_GROUP})


class Group(NamedTuple):
    """A group as one of its members has joined it.

    Attributes:
        own: this member's partition.
        plan_hash: of the plan that it has derived.
        batch, flights: what memory is laid out for.
    """

    job: str
    epoch: int
    own: int
    members: tuple[GroupMember, ...]
    plan_hash: str
    batch: int
    flights: int

    def name(self, partition: int) -> str:
        """Returns what to call a member in messages."""
        return f"partition {partition} ({self.members[partition].node})"


class NeighbourError(RunFailedError):
    """A member cannot be reached or used. `partition`: which."""

    def __init__(self, message: str, partition: int) -> None:
        super().__init__(message)
        self.partition = partition


class Links:
    """See the module. All of it runs on the event loop.

    Attributes:
        sleeping: how this member's threads sleep.
    """

    def __init__(self, group: Group, network: CutNetwork, connect: Callable[[str], Awaitable[Connection]]) -> None:
        """`connect(node)` connects to a member."""
        self._group, self._network, self._connect = group, network, connect
        layouts = [SharedLayout(network, one, group.batch, group.flights) for one in range(network.partitions)]
        self._layouts = layouts
        size_bytes = -(-layouts[group.own].size_bytes // 4) * 4
        self._region = Region(size_bytes)
        self._array = self._region.array(size_bytes // 4)
        own = SharedMemory(layouts[group.own], self._array.view(np.uint8))
        own.begin(group.flights)
        self._memories: dict[int, SharedMemory] = {group.own: own}
        self.sleeping = Sleeping(own.sleepers, unique_name(group.members[group.own].node))
        self._wakers: dict[int, Waker] = {}
        self._connections: dict[int, Connection] = {}
        self._attached: dict[int, asyncio.Event] = {one: asyncio.Event() for one in self.others}

    @property
    def others(self) -> list[int]:
        return [one for one in range(len(self._group.members)) if one != self._group.own]

    async def attach(self) -> Neighbours:
        """Returns the neighbours, when each member knows each other one.

        Raises:
            NeighbourError: one does not answer, is of another plan, or cannot share memory.
        """
        tasks = {one: asyncio.ensure_future(self._introduce(one)) for one in self.others}
        waits = {one: asyncio.ensure_future(self._attached[one].wait()) for one in self.others}
        try:
            await asyncio.wait(
                {*tasks.values(), *waits.values()}, timeout=ATTACH_S, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in tasks.values():
                if task.done():
                    task.result()
            for one in self.others:
                if not tasks[one].done() or not waits[one].done():
                    raise NeighbourError(f"{self._group.name(one)} did not attach within {ATTACH_S:g} s", one)
        finally:
            for waiting in (*tasks.values(), *waits.values()):
                waiting.cancel()
        memories = [self._memories[one] for one in range(len(self._group.members))]
        wakes = {one: waker.wake for one, waker in self._wakers.items()}
        return Neighbours(self._group.own, memories, wakes)

    async def _introduce(self, partition: int) -> None:
        """Shows this member's memory to another one."""
        group, node = self._group, self._group.members[partition].node
        place = self._region.find(self._array)
        while True:
            try:
                connection = await self._connect(node)
                self._connections[partition] = connection
                if place is None or not await connection.share(place.region, deadline_s=ANSWER_S):
                    raise NeighbourError(
                        f"{group.name(partition)} and {group.name(group.own)} cannot share memory: they run on "
                        "different machines, or as different users; start the workers of a replica on one machine",
                        partition,
                    )
                request = PartAttachRequest(
                    group.job, group.epoch, group.own, group.plan_hash, group.batch, group.flights,
                    place.region.number, self.sleeping.name,
                )  # fmt: skip
                await connection.request(request, deadline_s=ANSWER_S)
                return
            except RemoteError as refusal:
                if refusal.code not in TRY_LATER:
                    raise NeighbourError(
                        f"{group.name(partition)} refuses this member: {refusal}", partition
                    ) from refusal
            except UnreachableError:
                pass  # it may not listen yet, or be gone: then the coordinator dissolves the group
            old = self._connections.pop(partition, None)
            if old is not None:
                await old.close()
            await asyncio.sleep(RETRY_S)

    def attached(self, request: Request) -> None:
        """Answers a member that introduces itself, and maps what it shows."""
        message, group = request.message, self._group
        assert isinstance(message, PartAttachRequest)
        if (message.job, message.group_epoch) != (group.job, group.epoch) or message.partition not in self._attached:
            text = f"expected a member of group {group.epoch} of {group.job}; found group {message.group_epoch}"
            request.fail(ErrorCode.STALE_GROUP, text)
            return
        found = message.plan_hash, message.batch, message.flights
        if found != (group.plan_hash, group.batch, group.flights):
            text = f"expected plan {group.plan_hash}, batches of {group.batch}, {group.flights} flights; found {found}"
            request.fail(ErrorCode.PLAN_MISMATCH, f"{text}; all workers of a replica must run the same version")
            return
        try:
            view = request.region(message.region)
            array: NDArray[np.uint8] = np.frombuffer(view, np.uint8)
            layout = self._layouts[message.partition]
            if len(array) < layout.size_bytes:
                raise ValueError(f"expected {layout.size_bytes} bytes of memory; found {len(array)}")
            memory = SharedMemory(layout, array)
            self._wakers[message.partition] = Waker(memory.sleepers, message.sleeper)
        except (RemoteError, ValueError, OSError) as error:
            request.fail(ErrorCode.NOT_SHAREABLE, str(error))
            return
        self._memories[message.partition] = memory
        self._attached[message.partition].set()
        request.reply(Empty())

    async def tell(self, partition: int, message: Message, deadline_s: float = ANSWER_S) -> None:
        """Sends a request to a member; returns when it is answered.

        Raises:
            NeighbourError: it does not answer.
        """
        await self.ask(partition, message, deadline_s)

    async def ask(self, partition: int, message: Message, deadline_s: float = ANSWER_S) -> Message:
        """As `tell`; returns the answer."""
        try:
            return (await self._connections[partition].request(message, deadline_s=deadline_s)).message
        except (UnreachableError, RemoteError) as error:
            raise NeighbourError(f"{self._group.name(partition)} does not answer: {error}", partition) from error

    async def close(self) -> None:
        """Ends all links. No thread may use the neighbours any more."""
        for connection in self._connections.values():
            await connection.close()
        for waker in self._wakers.values():
            waker.close()
        self.sleeping.close()
        self._memories.clear()
        self._region.close()
