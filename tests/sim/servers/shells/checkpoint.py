"""Checkpoints in the simulator: ordered at any moment from the servers' real `Saver`, and looked at instead of kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from adamctl.roles.ps import checkpoint_writer as saving
from adamctl.roles.ps.checkpoint_files import FileDescriptor, ShardImage
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.wire.messages import CheckpointFile, CheckpointReply, CheckpointRequest, Hello, Message
from tests.sim.engine import ViolationError
from tests.sim.servers.ledger import Done, done_of
from tests.sim.servers.shells.requests import SimRequest

if TYPE_CHECKING:
    from tests.sim.servers.cluster import ServerCluster
    from tests.sim.servers.shells.server import SimServer

PAUSE_S_MAX = 0.6
COORDINATOR = Hello(1, 1, (), "coordinator", "coordinator", 1)


class SimRoots:
    """Stands for the folders of checkpoints."""

    def open_folder(self, path: str, *, create: bool = False) -> int:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def check(self, path: str) -> None:
        """Any will do."""


class SimCheckpoints:
    """Orders checkpoints of all servers from time to time; each shard in one is a state that there was.

    What was acknowledged when it was ordered is in it: who writes it is the primary, and had its lease all the time.
    """

    def __init__(self, cluster: ServerCluster, job: str) -> None:
        self._cluster, self._job, self._world = cluster, job, cluster.world
        self._random = Random(f"{cluster.world.seed} checkpoints")
        self._saved: dict[str, dict[int, Done]] = {}
        self._runs: dict[str, int] = {}
        self.written = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Nothing is written to real folders meanwhile."""
        original = saving.CheckpointWriter
        saving.CheckpointWriter = lambda folder, name, descriptor: _Writer(self, descriptor)  # type: ignore[assignment,misc]
        try:
            yield
        finally:
            saving.CheckpointWriter = original  # type: ignore[misc]

    def begin(self) -> None:
        """Orders one, and another one later."""
        for server in self._cluster.servers.values():
            if server.ready and self._runs.get(server.name) != server.run:
                self._order(server)
        self._world.after(self._random.random() * PAUSE_S_MAX, self.begin)

    def _order(self, server: SimServer) -> None:
        must = {shard: dict(numbers) for shard, numbers in self._cluster.ledger.must.items()}
        self._runs[server.name] = run = server.run
        self._saved[server.name] = {}

        def over() -> None:
            if self._runs.get(server.name) == run:
                del self._runs[server.name]

        def sent(reply: Message, pieces: list[Any]) -> None:
            assert isinstance(reply, CheckpointReply)
            over()
            server.holds_good(lambda: self._check(server.name, must, reply))

        def failed(code: int, text: str, details: Mapping[str, object]) -> None:
            over()

        request = SimRequest(server, COORDINATOR, 0, CheckpointRequest(self._job, "/"), bytearray(), sent, failed)
        server.gate(run, lambda: server.loop.do(lambda: server._serve(request)))

    def take(self, node: str, image: ShardImage) -> None:
        """A shard is written."""
        record, done = image.record, done_of(image.record.memory)
        server = self._cluster.servers[node]
        version = (record.epoch, record.counter)
        arrays = (image.values, *image.state)
        server.holds_good(
            lambda: self._cluster.ledger.holds(
                f"a checkpoint of {node}", record.shard, version, arrays, done, image=True
            )
        )
        self._saved[node][record.shard] = done

    def _check(self, node: str, must: Mapping[int, Mapping[ClientKey, int]], reply: CheckpointReply) -> None:
        ledger, saved = self._cluster.ledger, self._saved[node]
        self.written += 1
        if ledger.stale_reads or ledger.acks == "applied":
            return
        for shard in (shard for file in reply.files for shard in file.shards):
            done = ledger.numbers(shard, saved[shard])
            for client, number in must.get(shard, {}).items():
                least = min(number, ledger.known(client, shard))
                if done.get(client, 0) < least:
                    found = f"shard {shard} of {node} with the pushes of {client[0]} up to {done.get(client, 0)}"
                    raise ViolationError(f"a checkpoint without what was acknowledged: {found}, not {least}")


class _Writer:
    """Stands for `CheckpointWriter`."""

    def __init__(self, checkpoints: SimCheckpoints, descriptor: FileDescriptor) -> None:
        self._checkpoints, self._node = checkpoints, descriptor.node
        self._shards: list[int] = []

    def add(self, image: ShardImage) -> None:
        self._checkpoints.take(self._node, image)
        self._shards.append(image.record.shard)

    def finish(self) -> CheckpointFile:
        return CheckpointFile(self._node, "", 0, "", tuple(self._shards))

    def abandon(self) -> None:
        """Nothing was kept."""
