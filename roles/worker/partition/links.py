"""One member's links to the other members of its group: whose memory it maps, what it sends, and how it wakes them.

Each member introduces itself to each other one over a connection of its own. Two that can map each other's memory do;
between all others, on different machines or as different users, blocks go over these connections, into copies. All of
that is settled before a flight begins, and ends with the group: a new group has new memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import (
    AdamctlError,
    HandshakeError,
    NoAddressError,
    ProtocolError,
    RemoteError,
    RunFailedError,
    UnreachableError,
)
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.kernels.segments import Wake
from adamctl.net.shared_memory import SharedMemory as Region
from adamctl.net.transport import Connection, Request
from adamctl.roles.worker.partition.copies import MemoryCopy
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.sending import Outbox, Parcel, Sender, Sent
from adamctl.roles.worker.partition.sleeping import Sleeping, Waker, unique_name
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Empty,
    Message,
    PartAttachReply,
    PartAttachRequest,
    PartDataRequest,
)

ATTACH_S = 30.0
"""How long the members of a new group may take to know each other."""
LATER_S = 5.0
"""How much longer a member waits for one that it has reached itself: who cannot reach another one says it first."""
RETRY_S = 0.1
ANSWER_S = 10.0
TRY_LATER = frozenset({ErrorCode.NOT_READY, ErrorCode.STALE_GROUP})
ADVICE = "check the --bind and --advertise of both, and the network between them"
SHARED = "shared memory"
NAMES = {"tcp": "TCP", "unix": "Unix socket", "shared": "Unix socket"}
"""How blocks travel, for people: by the kind of connection, where memory is not shared both ways."""


class NeighbourError(RunFailedError):
    """A member cannot be reached or used. `partition`: which."""

    def __init__(self, message: str, partition: int) -> None:
        super().__init__(message)
        self.partition = partition


class NotAttachedError(NeighbourError):
    """A member and this one have not found each other, although both are there."""


def ways(transports: Mapping[int, str]) -> str:
    """Returns how blocks travel between a member and the others, for a status: each way once."""
    return ", ".join(sorted(set(transports.values())))


class LostNeighbourError(NeighbourError):
    """The connection to a member was lost after the group had begun."""


class Links:
    """See the module. All of it runs on the event loop.

    Attributes:
        sleeping: how this member's threads sleep.
        transports: partition -> how blocks go to it and come from it, as people call it.
    """

    def __init__(self, group: Group, network: CutNetwork, connect: Callable[[str], Awaitable[Connection]]) -> None:
        """`connect(node)` connects to a member."""
        self._group, self._network, self._connect = group, network, connect
        self._layout = SharedLayout(network, group.own, group.batch, group.flights)
        elements = -(-self._layout.size_bytes // 4)
        self._region = Region(4 * elements)
        self._array: NDArray[np.uint8] = self._region.array(elements).view(np.uint8)
        self._memory = SharedMemory(self._layout, self._array)
        self._memory.begin(group.flights)
        self.sleeping = Sleeping(self._memory.sleepers, unique_name(group.members[group.own].node))
        self.transports: dict[int, str] = {}
        self._mapped: dict[int, tuple[SharedMemory, Waker]] = {}
        self._maps_this: dict[int, bool] = {}  # whether a member has mapped this one's memory
        self._copies: dict[int, MemoryCopy] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._sender: Sender | None = None
        self._connections: dict[int, Connection] = {}
        self._why: dict[int, str] = {}  # it could not be reached the last time; "": it could, and said to try again
        self._attached: dict[int, asyncio.Event] = {one: asyncio.Event() for one in self.others}
        self._partition_of: dict[int, int] = {}  # by the connection on which it has attached
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def others(self) -> list[int]:
        return [one for one in range(len(self._group.members)) if one != self._group.own]

    @property
    def sent(self) -> Sent:
        """What was sent to members that do not map this one's memory."""
        found = [outbox.sent for outbox in self._outboxes.values()]
        return Sent(*(sum(column) for column in zip(*found, strict=True))) if found else Sent()

    # --- attaching ----------------------------------------------------------------------------------------------------

    async def attach(self) -> Neighbours:
        """Returns the neighbours, when each member knows each other one.

        Raises:
            NotAttachedError: one cannot be reached, or refuses this member, or does not reach it.
            NeighbourError: one was not ready in time.
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
                if not tasks[one].done():
                    raise self._not_reached(one)
            await asyncio.wait(waits.values(), timeout=LATER_S)
            for one in self.others:
                if not waits[one].done():
                    raise NotAttachedError(
                        f"{self._group.name(one)} did not attach within {ATTACH_S + LATER_S:g} s: it does not reach "
                        f"{self._group.name(self._group.own)}; {ADVICE}", one,
                    )  # fmt: skip
        finally:
            for waiting in (*tasks.values(), *waits.values()):
                waiting.cancel()
        return self._joined()

    def _not_reached(self, partition: int) -> NeighbourError:
        name, why = self._group.name(partition), self._why.get(partition, "")
        if not why:
            return NeighbourError(f"{name} was not ready within {ATTACH_S:g} s", partition)
        return NotAttachedError(f"{name} was not reached within {ATTACH_S:g} s: {why}; {ADVICE}", partition)

    def _joined(self) -> Neighbours:
        """Decides between memory and frames; both members of a pair know the same, and so decide the same."""
        group = self._group
        memories: dict[int, SharedMemory] = {group.own: self._memory}
        wakes: dict[int, Wake] = {}
        for one in self.others:
            if one in self._mapped and self._maps_this[one]:
                memory, waker = self._mapped[one]
                memories[one], wakes[one] = memory, waker.wake
                self.transports[one] = SHARED
            else:
                memories[one] = self._copy_of(one).memory
                self._outboxes[one] = Outbox(group.epoch, self._connections[one], self._parcels(one))
                kind = self._connections[one].kind
                self.transports[one] = NAMES.get(kind, kind)
        if self._outboxes:
            self._sender = Sender(self._memory, group.flights, list(self._outboxes.values()))
            wakes |= dict.fromkeys(self._outboxes, self._sender.wake)
        return Neighbours(group.own, [memories[one] for one in range(len(group.members))], wakes)

    async def _introduce(self, partition: int) -> None:
        """Shows this member's memory to another one, if that is possible."""
        group, node = self._group, self._group.members[partition].node
        while True:
            try:
                connection = await self._connect(node)
                self._connections[partition] = connection
                place = self._region.find(self._array) if self.sleeping.name else None
                if place is not None and not await connection.share(place.region, deadline_s=ANSWER_S):
                    place = None
                request = PartAttachRequest(
                    group.job, group.epoch, group.own, group.plan_hash, group.batch, group.flights,
                    0 if place is None else place.region.number, self.sleeping.name,
                )  # fmt: skip
                reply = (await connection.request(request, deadline_s=ANSWER_S)).message
                assert isinstance(reply, PartAttachReply)
                self._maps_this[partition] = reply.mapped and place is not None
                return
            except RemoteError as refusal:
                if refusal.code not in TRY_LATER:
                    text = f"{group.name(partition)} refuses this member: {refusal}"
                    raise NotAttachedError(text, partition) from refusal
                self._why[partition] = ""
            except NoAddressError as error:
                raise NotAttachedError(f"{group.name(partition)} has no usable address: {error}", partition) from error
            except UnreachableError as error:
                self._why[partition] = str(error)  # it may be gone: then the coordinator dissolves the group
            except HandshakeError as error:
                text = f"{group.name(partition)} refuses this member: {error}"
                raise NotAttachedError(text, partition) from error
            old = self._connections.pop(partition, None)
            if old is not None:
                await old.close()
            await asyncio.sleep(RETRY_S)

    def attached(self, request: Request) -> None:
        """Answers a member that introduces itself, and maps what it shows, if that is possible."""
        message, group = request.message, self._group
        assert isinstance(message, PartAttachRequest)
        if (message.job, message.group_epoch) != (group.job, group.epoch) or message.partition not in self._attached:
            text = f"expected a member of group {group.epoch} of {group.job}; found group {message.group_epoch}"
            request.fail(ErrorCode.STALE_GROUP, text)
            return
        if refused := group.refusal(request.peer, message):
            request.fail(ErrorCode.NOT_ALLOWED, refused)
            return
        found = message.plan_hash, message.batch, message.flights
        if found != (group.plan_hash, group.batch, group.flights):
            text = f"expected plan {group.plan_hash}, batches of {group.batch}, {group.flights} flights; found {found}"
            advice = "start all workers of a replica with the same version and --threads, or set cluster.flights"
            request.fail(ErrorCode.PLAN_MISMATCH, f"{text}; {advice}")
            return
        mapped = self._map(request, message)
        self._partition_of[request.connection_id] = message.partition
        self._attached[message.partition].set()
        request.reply(PartAttachReply(mapped))

    def _map(self, request: Request, message: PartAttachRequest) -> bool:
        """Maps what a member shows, and finds its threads' socket; returns whether that was possible."""
        if not message.region or not self.sleeping.name:
            return False
        layout = self._layout_of(message.partition)
        try:
            array: NDArray[np.uint8] = np.frombuffer(request.region(message.region), np.uint8)
            if len(array) < layout.size_bytes:
                return False
            memory = SharedMemory(layout, array)
            self._mapped[message.partition] = memory, Waker(memory.sleepers, message.sleeper)
        except (RemoteError, ValueError, OSError):
            return False
        return True

    def _layout_of(self, partition: int, reader: int | None = None) -> SharedLayout:
        return SharedLayout(self._network, partition, self._group.batch, self._group.flights, reader)

    def _copy_of(self, partition: int) -> MemoryCopy:
        """Returns the copy of a member's memory. It may be needed before this member knows that it is."""
        group = self._group
        if partition not in self._copies:
            layout = self._layout_of(partition, group.own)
            self._copies[partition] = MemoryCopy(
                layout, group.flights, group.batch, group.name(partition), self.sleeping.awaken
            )
        return self._copies[partition]

    def _parcels(self, reader: int) -> dict[int, Parcel]:
        copy = self._layout_of(self._group.own, reader)
        numbers = {name: number for number, name in enumerate(copy.places)}
        return {
            line: Parcel(numbers[name], name, self._memory, copy, self._network.backend)
            for line, name in enumerate(self._layout.places)
            if name in numbers
        }

    # --- flights ------------------------------------------------------------------------------------------------------

    def watch(self, failed: Callable[[BaseException], None]) -> None:
        """Sends blocks, and tells of the first lost connection (LostNeighbourError); call it after `attach`."""

        def ended(task: asyncio.Task[None]) -> None:
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                failed(failure)

        works: list[Coroutine[Any, Any, None]] = [self._wait_lost(one) for one in self.others]
        works += [self._run(one, outbox) for one, outbox in self._outboxes.items()]
        for work in works:
            task = asyncio.create_task(work)
            task.add_done_callback(ended)
            self._tasks.append(task)

    async def _wait_lost(self, partition: int) -> None:
        raise self._lost(partition, await self._connections[partition].wait_lost())

    async def _run(self, partition: int, outbox: Outbox) -> None:
        try:
            await outbox.run()
        except AdamctlError as error:
            raise self._lost(partition, str(error)) from error

    def _lost(self, partition: int, why: str) -> LostNeighbourError:
        return LostNeighbourError(f"the connection to {self._group.name(partition)} is lost: {why}", partition)

    def submitted(self, flight: int, examples: int) -> None:
        """Notes how many examples a flight has, before it begins."""
        if self._sender is not None:
            self._sender.submitted(flight, examples)

    def place(self, request: Request) -> memoryview | None:
        """Returns where the body of a PART_DATA frame goes; None: it is of another group, and dropped.

        Raises:
            ProtocolError: the sender is no member, or the frame is wrong.
        """
        message = request.message
        assert isinstance(message, PartDataRequest)
        copy = self._receiving(request, message)
        return None if copy is None else copy.place(message, request.body_bytes)

    def arrived(self, request: Request) -> None:
        """Takes a whole PART_DATA frame. Raises as `place`."""
        message = request.message
        assert isinstance(message, PartDataRequest)
        copy = self._receiving(request, message)
        if copy is not None:
            copy.arrived(message, request.body_bytes)
        request.reply(Empty())

    def _receiving(self, request: Request, message: PartDataRequest) -> MemoryCopy | None:
        if message.group_epoch != self._group.epoch:
            return None
        partition = self._partition_of.get(request.connection_id)
        if partition is None:
            raise ProtocolError(
                f"PART_DATA from {request.peer_name}: expected a member of group {self._group.epoch} that has attached "
                "on this connection"
            )
        return self._copy_of(partition)

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
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections.values():
            await connection.close()
        for _, waker in self._mapped.values():
            waker.close()
        if self._sender is not None:
            self._sender.close()
        self.sleeping.close()
        self._mapped.clear()
        self._region.close()
