"""Data servers that hold no files, for the client's tests in memory: what they own, they answer; when, is drawn."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from adamctl.config.data import DataConfig
from adamctl.config.records import NodeRecord, encode, node_key
from adamctl.net.testing.memory import MemoryNetwork
from adamctl.net.transport import Request, Server
from adamctl.roles.controller.testing.memory import MemoryConfigurationStore
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.data.core import pass_order
from adamctl.roles.data.form import ExampleForm
from adamctl.roles.data.order.ownership import Ownership
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, DataOpenReply, DataOpenRequest, DataReadReply, DataReadRequest, Hello

EXAMPLES = 500
SHAPE = (2,)
FORM = ExampleForm(2, "uint8")
CONFIG = DataConfig(format="idx", source="simulated", scale="none")


def identity(node: str, role: str) -> Hello:
    return Hello(1, 1, (), role, node, 1)


class SimulatedServer:
    """Serves examples whose two bytes are their number, in blocks of four."""

    def __init__(self, node: str, chance: Random, busy: float = 0.0, slow_s: float = 0.0) -> None:
        """`busy`: the share of reads that are refused; `slow_s`: how long one in ten reads takes."""
        self.node = node
        self._chance, self._busy, self._slow_s = chance, busy, slow_s
        self._open = False
        self.reads = 0

    def handle(self, request: Request) -> None:
        if isinstance(request.message, DataOpenRequest):
            self._open = True
            request.reply(DataOpenReply("set", {"train": EXAMPLES}, ("0",), "uint8", by_block=True))
        elif not self._open:
            request.fail(ErrorCode.UNKNOWN_DATASET, "it is not open here")
        elif self._chance.random() < self._busy:
            request.fail(ErrorCode.OVER_QUOTA, "too busy")
        else:
            assert isinstance(request.message, DataReadRequest)
            self.reads += 1
            answer = self._answer(request.message, bytes(request.body))
            delay_s = self._slow_s * (self._chance.random() < 0.1) + 0.01 * self._chance.random()
            asyncio.get_running_loop().call_later(delay_s, self._reply, request, *answer)

    def _reply(self, request: Request, message: DataReadReply, body: bytes) -> None:
        request.reply(message, (body,))

    def _answer(self, asked: DataReadRequest, rows: bytes) -> tuple[DataReadReply, bytes]:
        indices = pass_order(EXAMPLES, 7, asked.pass_number)[asked.start : asked.stop]
        positions = np.frombuffer(rows, np.int32) if rows else np.arange(len(indices), dtype=np.int32)
        if asked.servers:
            owned = Ownership(asked.dataset, asked.servers).part(indices[positions] // 4, asked.servers[asked.receiver])
            positions = positions[owned]
        chosen = indices[positions]
        layout = FORM.body(len(chosen), len(chosen) if asked.servers else 0)
        body = bytearray(layout.size_bytes)
        body[: 2 * len(chosen)] = chosen.astype("<u2").tobytes()
        labels = (chosen % 10).astype(np.int32).tobytes()
        body[layout.labels_offset : layout.labels_offset + len(labels)] = labels
        if asked.servers:
            body[layout.positions_offset or len(body) :] = positions.astype(np.int32).tobytes()
        return DataReadReply(len(chosen), layout.labels_offset, layout.positions_offset), bytes(body)


class SimulatedFarm:
    """Servers that come, die and come back, known to a configuration service, and clients of them."""

    def __init__(self, seed: int, **character: float) -> None:
        self.chance = Random(seed)
        self.network = MemoryNetwork(self.chance)
        self.configuration = MemoryConfigurationStore()
        self.servers: dict[str, SimulatedServer] = {}
        self._listening: list[Server] = []
        self._character = character
        self._revisions: dict[str, int] = {}
        self._lives = 0

    async def start(self, node: str) -> None:
        self._lives += 1
        server = self.servers[node] = SimulatedServer(node, self.chance, **self._character)
        address = f"memory://{node}-{self._lives}"
        self._listening.append(await self.network.serve([address], identity(node, "data"), server.handle))
        record = NodeRecord(node, "data", self._lives, (address,), "host", 1)
        await self._set(node, encode(record))

    async def kill(self, node: str, *, silent: bool = False, forgotten: bool = False) -> None:
        """`silent`: nobody is told; `forgotten`: the cluster has noticed, and its registration is gone."""
        self.network.crash(node, silent=silent)
        del self.servers[node]
        if forgotten:
            await self._set(node, None)

    async def _set(self, node: str, value: bytes | None) -> None:
        key = node_key(node)
        puts, deletes = ({}, (key,)) if value is None else ({key: value}, ())
        changes = ConfigChanges({key: self._revisions.get(node, 0)}, puts, deletes)
        reply = await self.configuration.compare_and_set(changes)
        assert not reply.conflicts
        self._revisions[node] = 0 if value is None else reply.revision

    def client(self, *nodes: str) -> DataClient:
        context: Any = SimpleNamespace(
            transport=self.network, controller=self.configuration, hello=lambda: identity("worker-0", "worker")
        )
        return DataClient.from_context(context, nodes)

    async def close(self) -> None:
        for listening in self._listening:
            await listening.close()
