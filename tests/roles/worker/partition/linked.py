"""All members of a group in one process, each with real links, sockets and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors
from adamctl.net.address import TransportKind
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.server import StreamServer
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Connection, Request
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.links import Links
from adamctl.roles.worker.partition.threads import Flight, FlightDone, FlightThreads
from adamctl.wire.messages import GroupMember, PartDataRequest
from tests.kernels.partition.test_member import BATCH

WAIT_S = 60.0
EPOCH = 7
Kinds = Callable[[int, int], TransportKind]
"""How one member connects to another: `tcp`, `unix` or `shared`."""


class LinkedMember:
    """One member. `failures`: what its links have told."""

    def __init__(self, group: Group, network: CutNetwork, folder: Path, kinds: Kinds) -> None:
        self.group, self.network, self._folder, self._kinds = group, network, folder, kinds
        self.peers: list[LinkedMember] = []
        self.links = Links(group, network, self._connect)
        self.server: StreamServer
        self.member: Member
        self.neighbours: Neighbours
        self.threads: FlightThreads | None = None
        self.done: dict[int, FlightDone] = {}
        self.finished = threading.Semaphore(0)
        self.failures: list[BaseException] = []

    async def serve(self, limits: ServerLimits | None) -> None:
        addresses = ["tcp://127.0.0.1:0", f"unix://{self._folder}/{self.group.own}.sock"]
        hello = make_hello("worker", self.group.members[self.group.own].node, 1)
        self.server = await StreamTransport().serve(
            addresses, hello, self._handle, placing=self._place, limits=limits or ServerLimits()
        )

    def _handle(self, request: Request) -> None:
        if isinstance(request.message, PartDataRequest):
            self.links.arrived(request)
        else:
            self.links.attached(request)

    def _place(self, request: Request) -> memoryview | None:
        return self.links.place(request)

    async def _connect(self, node: str) -> Connection:
        other = next(one for one in self.peers if one.group.members[one.group.own].node == node)
        kind = self._kinds(self.group.own, other.group.own)
        address = other.server.addresses[0 if kind == "tcp" else 1]
        hello = make_hello("worker", self.group.members[self.group.own].node, 1)
        return await StreamTransport(kind=kind).connect(address, hello, deadline_s=5)

    async def attach(self, weights: list[Array], threads: int) -> None:
        self.neighbours = await self.links.attach()
        self.links.watch(self.failures.append)
        tensors = MemberTensors(self.network, self.group.own)
        flat = np.zeros(tensors.flat_size, np.float32)
        for view, (tensor, (start, stop)) in zip(tensors.views(flat), tensors.held, strict=True):
            view[...] = weights[tensor][start:stop]
        flights = self.group.flights
        self.member = await asyncio.to_thread(Member, self.network, self.neighbours, self.group.batch, flights, flat)
        self.threads = FlightThreads(self.member, flights, threads, self.links.sleeping, self._finished)
        self.threads.start()

    def _finished(self, done: FlightDone) -> None:
        self.done[done.flight.number] = done
        self.finished.release()

    def submit(self, flight: Flight) -> None:
        assert self.threads is not None
        self.links.submitted(flight.number, len(flight.batch.labels))
        self.threads.submit(flight)

    async def all_done(self, flights: int) -> None:
        for _ in range(flights):
            assert await asyncio.to_thread(self.finished.acquire, timeout=WAIT_S), "a flight does not end"

    async def close(self) -> None:
        if self.threads is not None:
            self.threads.stop()
            await asyncio.to_thread(self.threads.join, WAIT_S)
        await self.links.close()
        await self.server.close()


@asynccontextmanager
async def linked(
    network: CutNetwork, flights: int, weights: list[Array], folder: Path, kinds: Kinds, *, threads: int = 1,
    batch: int = BATCH, limits: dict[int, ServerLimits] | None = None,
) -> AsyncIterator[list[LinkedMember]]:  # fmt: skip
    """Yields the members of a group, attached and ready. `limits`: of members' servers."""
    count = network.partitions
    members = tuple(GroupMember(f"w{one}", 1, "host", ()) for one in range(count))
    made = [
        LinkedMember(Group("job", EPOCH, own, members, "hash", batch, flights), network, folder, kinds)
        for own in range(count)
    ]
    try:
        for own, one in enumerate(made):
            one.peers = made
            await one.serve((limits or {}).get(own))
        await asyncio.gather(*(one.attach(weights, threads) for one in made))
        yield made
    finally:
        for one in made:
            await one.close()
