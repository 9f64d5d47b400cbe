"""Three real parameter servers with three copies of everything, clients that count, and somebody who looks.

Every push adds 1 to every parameter, so each value is the number of pushes that it contains, exactly below 2^24. At a
quiet point, when everything is acknowledged, each value is the number of acknowledged pushes, and all copies of a shard
are the same bytes at the same version.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from adamctl.bench.failover.cluster import FailoverCluster, buckets_of
from adamctl.bench.role_processes import role_hello
from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, NodeRecord
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.net.address import prefer
from adamctl.net.stream import StreamTransport
from adamctl.roles.configuration import nodes_of, read_record
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.coordinator.job import job_changes
from adamctl.roles.ps.client.parameter_client import ParameterClient, Pulled, PushSet
from adamctl.roles.ps.core.shard_message import decode_body
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Hello, ReplicaFetchReply, ReplicaFetchRequest
from tests.faults.tended_servers import COPIES, QUICK_LEASE_S, STARVED_S, WHOLE_S, Work
from tests.roles.ps.ps_cluster import make_tensors

JOB = "counted"
SHAPES = ((4096, 500), (64,), (32, 100))  # each server gets bodies that it applies while they arrive
PAUSE_S = 0.002
MOVES_MAX = 5


def push_of_ones(layout: ParameterLayout) -> PushSet:
    push = PushSet(layout, 1.0)
    for index, tensor in enumerate(layout.tensors):
        push.delta(index, np.ones(tensor.size, np.float32))
    return push


def hello(name: str, number: int, role: str = "worker") -> Callable[[], Hello]:
    return lambda: role_hello(role, f"{name}-{number}", number)


class MovedError(AssertionError):
    """Somebody knows a later epoch of a bucket than was read from its record."""


class Fire(Work):
    """See the module; made by `under_fire`.

    Attributes:
        acknowledged: pushes of all clients so far.
    """

    def __init__(self, cluster: FailoverCluster, clients: int) -> None:
        super().__init__(cluster, JOB)
        self.acknowledged = 0
        self.layout: ParameterLayout
        self._transport = StreamTransport()
        self.clients = [
            ParameterClient(self._transport, hello("w", number), self.store, JOB) for number in range(1, clients + 2)
        ]
        self._reader = self.clients[0]
        self._pushing = asyncio.Event()
        self._busy = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, acks: str = "replicated") -> None:
        """Makes the job, all values zero, and begins to push."""
        record = LayoutRecord(make_tensors(SHAPES, "zeros"), COPIES)
        self.layout = record.layout()
        _, entries = await self.store.read("/nodes/")
        job = JobRecord("running", self.layout.hash, RuleConfig("add"), 1, acks=acks, replication=COPIES, min_in_sync=2)  # type: ignore[arg-type]
        changes = job_changes(JOB, job, self.layout, COPIES, nodes_of(entries, "ps"))
        maker = self.store  # an operator, who may make no job; etcd asks nobody
        if isinstance(maker, ControllerClient):
            maker = ControllerClient(self._transport, maker.addresses, hello("maker", 0, "client"))
        assert not (await maker.compare_and_set(changes)).conflicts
        if maker is not self.store:
            await maker.close()
        for client in self.clients:
            await client.attach(deadline_s=WHOLE_S)
        self._pushing.set()
        self._tasks = [asyncio.create_task(self._push(client)) for client in self.clients[1:]]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self.clients:
            await client.close()
        await self.store.close()

    async def _push(self, client: ParameterClient) -> None:
        """One push after the other while it may."""
        push = push_of_ones(self.layout)
        while True:
            await self._pushing.wait()
            self._busy += 1
            outcome = await client.push(push, deadline_s=STARVED_S)
            assert not outcome.refused, outcome
            self.acknowledged += 1
            self._busy -= 1
            await asyncio.sleep(PAUSE_S)

    def check_clients(self) -> None:
        """Raises what a client failed with."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def progress(self, steps: int = 1) -> None:
        """Returns when so many more pushes are acknowledged."""
        wanted = self.acknowledged + steps
        async with asyncio.timeout(STARVED_S):
            while self.acknowledged < wanted:
                self.check_clients()
                await asyncio.sleep(0.01)

    # --- quiet points -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """While inside, nothing is on its way."""
        self._pushing.clear()
        try:
            async with asyncio.timeout(STARVED_S):
                while self._busy:
                    self.check_clients()
                    await asyncio.sleep(0.01)
            yield
        finally:
            self._pushing.set()

    async def check(self) -> None:
        """At a quiet point: each push once, on each copy, byte by byte.

        Begins anew where a bucket has changed hands meanwhile: that goes on for a while after all copies are there.
        """
        async with self.quiet():
            for _ in range(MOVES_MAX):
                before = await buckets_of(self.store, JOB)
                try:
                    return await self._check()
                except MovedError:
                    if await buckets_of(self.store, JOB) == before:
                        raise
            await self._check()

    async def _check(self) -> None:
        flat = np.zeros(self.layout.flat_size, np.float32)
        pulled, records = await self._pull(flat)
        for index, record in records.items():
            bucket = self.layout.buckets[index]
            shards = tuple(range(bucket.shard_start, bucket.shard_stop))
            for node in record.in_sync:
                if node == record.primary:
                    continue
                for copy, arrays in await self._copies(node, index, record.epoch, shards):
                    described = self.layout.shards[copy.shard]
                    ours = flat[described.offset : described.offset + described.size]
                    assert arrays[0].tobytes() == ours.tobytes(), f"shard {copy.shard} differs on {node}"
                    version = (int(pulled.epochs[copy.shard]), int(pulled.versions[copy.shard]))
                    where = f"shard {copy.shard} on {node}: {copy.epoch, copy.counter} of {version}, {record}"
                    assert copy.epoch <= version[0] and copy.counter == version[1], where

    async def _pull(self, flat: np.ndarray) -> tuple[Pulled, dict[int, BucketRecord]]:
        """Each value once for each push, in every pull; returns one that is of the epochs that the records have.

        A bucket may change hands after a pull: then its copies are of a later epoch than what was pulled.
        """
        async with asyncio.timeout(WHOLE_S):
            while True:
                pulled = await self._reader.pull(flat, deadline_s=WHOLE_S)
                for shard in self.layout.shards:
                    found = set(flat[shard.offset : shard.offset + shard.size].tolist())
                    assert found == {float(self.acknowledged)}, (
                        f"shard {shard.index}: {self.acknowledged} pushes were acknowledged; found {sorted(found)[:3]}"
                    )
                records = await buckets_of(self.store, JOB)
                if all(
                    records[index].epoch == epoch
                    for index, bucket in enumerate(self.layout.buckets)
                    for epoch in pulled.epochs[bucket.shard_start : bucket.shard_stop].tolist()
                ):
                    return pulled, records

    async def _copies(self, node: str, bucket: int, epoch: int, shards: tuple[int, ...]) -> list:
        """Returns what a secondary holds of a bucket."""
        found = await read_record(self.store, f"/nodes/{node}", NodeRecord)
        born = next(e.revision for e in (await self.store.read(f"/jobs/{JOB}/layout"))[1])
        assert found is not None
        address = prefer(found[0].addresses_for("replication"), found[0].host)
        connection = await self._transport.connect(address, hello("looker", 99, "ps")(), deadline_s=10)
        try:
            message = ReplicaFetchRequest(JOB, born, found[0].incarnation, bucket, epoch, shards)
            reply = await connection.request(message, deadline_s=10)
            assert isinstance(reply.message, ReplicaFetchReply)
            if reply.message.code == ErrorCode.STALE_EPOCH:
                raise MovedError(f"{node} has a later epoch of bucket {bucket} than {epoch}")
            assert reply.message.code == ErrorCode.OK, (node, bucket, ErrorCode(reply.message.code))
            records = decode_body(reply.body)
            assert [record.copy.shard for record in records] == list(shards)
            copies = [(record.copy, [np.array(array) for array in record.arrays]) for record in records]
            reply.release()
            return copies
        finally:
            await connection.close()


@asynccontextmanager
async def under_fire(
    lease_s: float = QUICK_LEASE_S, clients: int = 2, acks: str = "replicated", config_store: str = ""
) -> AsyncIterator[Fire]:
    """A cluster, its job and its clients, until the block is left; with a controller, or the etcd of `config_store`."""
    with FailoverCluster(COPIES, lease_s, config_store=config_store) as cluster:
        fire = Fire(cluster, clients)
        try:
            await fire.open(acks)
            await fire.progress(5)
            yield fire
        finally:
            await fire.close()


class Progress:
    """How far a long test has come, in the file named by a variable of the environment, if that is set."""

    def __init__(self, variable: str, kind: str = "") -> None:
        name = os.environ.get(variable)
        self._file = Path(f"{name}-{kind}" if kind else name) if name else None
        self.done = int(self._file.read_text()) if self._file is not None and self._file.exists() else 0

    def reached(self, done: int) -> None:
        self.done = done
        if self._file is not None:
            self._file.write_text(str(done))
