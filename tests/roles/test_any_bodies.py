"""Any header and body of every message through the real dispatch of every role: typed errors, none kept, none ends."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest

from adamctl.config.records import JobRecord
from adamctl.errors import BackpressureError, DeadlineError, ProtocolError, RemoteError, UnreachableError
from adamctl.model.rule import RuleConfig
from adamctl.net.handshake import make_hello
from adamctl.net.transport import Connection
from adamctl.roles.controller.core.paxos.messages import PeerMessage
from adamctl.roles.controller.core.service.validate import record_problem
from adamctl.roles.data import server as data_server
from adamctl.roles.worker import server as worker_server
from adamctl.wire import codec
from adamctl.wire.constants import ErrorCode, Opcode, body_bytes_max
from adamctl.wire.messages import (
    MESSAGES,
    ConfigChanges,
    Message,
    NodeLeaveRequest,
    RunStopRequest,
    ShutdownRequest,
    StatusRequest,
)
from adamctl.wire.permissions import PERMISSIONS
from tests.roles.coordinator.played_run import make_experiment, world
from tests.roles.ps.ps_cluster import add_job
from tests.wire.any_message import any_message, any_value, encodable, mutated

ROUNDS = int(os.environ.get("ADAMCTL_FUZZ_ROUNDS", "1000000"))
QUICK_ROUNDS = 3000
AT_ONCE = 256
MUTATED = 0.3
"""So many typed headers are not what they were."""
ANSWER_S = 0.25
"""A long poll is not waited for."""
NOT_SENT = {Opcode.HELLO, Opcode.CREDIT, Opcode.SHUTDOWN, Opcode.RUN_STOP, Opcode.MEMORY_REGISTER, Opcode.STATUS}
"""Those that end a role or a run as they should, and those that the network answers itself."""
KEYS = (
    "/nodes/x",
    "/jobs/x",
    "/jobs/x/layout",
    "/jobs/x/buckets/000000",
    "/jobs/x/served/x",
    "/drains/x",
    "/y",
    "",
    "/",
)


def any_body(opcode: Opcode, random: Random) -> bytes:
    """Returns a body that a message may have, or nearly; or bytes of no meaning."""
    kind = random.randrange(4)
    if kind == 0:
        return b""
    if kind == 1:
        return random.randbytes(random.choice((1, 7, 8, 16, 100, 4096)))
    match opcode:
        case Opcode.CONTROLLER_PEER:
            value: Any = any_message(random.choice(get_args(PeerMessage)), random)
        case Opcode.CONFIG_COMPARE_AND_SET:
            puts = {random.choice(KEYS): _record(random) for _ in range(random.randrange(3))}
            value = ConfigChanges({random.choice(KEYS): random.randrange(3)}, puts, (random.choice(KEYS),))
        case _:
            value = any_value(random)
    try:
        encoded = msgspec.msgpack.encode(value)
    except OverflowError:
        return b"\xc1"
    return encoded if kind == 2 else mutated(encoded, random)


def _record(random: Random) -> bytes:
    """Returns what could stand under a key: fields of the right types, seldom in their bounds."""
    fields = [any_value(random) for _ in range(random.randrange(0, 8))]
    good = msgspec.msgpack.encode(JobRecord("running", "h", RuleConfig("sgd"), 1))
    try:
        return random.choice((msgspec.msgpack.encode(fields), mutated(good, random), b"", b"\xc1"))
    except OverflowError:
        return b"\xc1"


async def send(connection: Connection, message: Message, body: bytes, untyped: dict[str, str]) -> None:
    try:
        reply = await connection.request(message, (body,) if body else (), deadline_s=ANSWER_S)
        if len(reply.body):
            reply.release()
    except RemoteError as error:
        if error.code == ErrorCode.INTERNAL:
            untyped[str(error)] = f"{connection.peer_name} {message} {body!r}"  # type: ignore[attr-defined]
    except (DeadlineError, BackpressureError, UnreachableError, ProtocolError):
        pass  # a long poll, or a connection that the receiver has ended


class Mutating:
    """Changes the typed headers of messages that it was told of, as they are encoded."""

    def __init__(self, random: Random) -> None:
        self._random, self._encode = random, codec.encode_message
        self._told: dict[int, Message] = {}
        self.changed = 0

    def tell(self, message: Message) -> None:
        self._told[id(message)] = message

    def __call__(self, message: Message) -> bytes:
        encoded = self._encode(message)
        if self._told.pop(id(message), None) is None:
            return encoded
        self.changed += 1
        return mutated(encoded, self._random)


async def storm(tmp_path: Path, rounds: int, seed: int, patch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    mutating = Mutating(random)
    patch.setattr(codec, "encode_message", mutating)
    async with world(tmp_path) as w:
        cluster = w.cluster
        await w.start_servers(parameter=1)
        await add_job(cluster, "job", ["ps-0"], RuleConfig("adagrad"))
        await cluster.start("data", "data-9", data_server.run, {"data_root": (str(tmp_path),)})
        await w.start_run(make_experiment(tmp_path))
        await cluster.start("worker", "worker-9", worker_server.run, {"threads": 1, "job": "another"})
        front = await cluster.context("front", "asks")
        receivers = ["controller-0", *(node for node in cluster.tasks if node != "controller-0")]
        kept = set(await keys(cluster))
        pairs = [
            (role, opcode) for opcode, one in PERMISSIONS.items() if opcode not in NOT_SENT for role in one.senders
        ]
        pairs = [pair for pair in pairs if pair[1] != Opcode.PROVE]
        pairs.append(("operator", Opcode.PROVE))  # a second one ends its connection
        opening: dict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        untyped: dict[str, str] = {}
        connections: dict[tuple[str, str], Connection] = {}

        async def one(role: str, opcode: Opcode, receiver: str) -> None:
            async with opening[role, receiver]:
                known = connections.get((role, receiver))
                if known is None or known.closed:
                    hello = make_hello(role.replace(" ", "-"), f"storm-{role.replace(' ', '-')}", 77)
                    known = await cluster.network.connect(f"memory://{receiver}", hello, deadline_s=10)
                    connections[role, receiver] = known
            message = any_message(MESSAGES[opcode][0], random)
            own = {"node": f"storm-{role.replace(' ', '-')}", "role": role.replace(" ", "-"), "incarnation": 77}
            if random.random() < 0.9:
                fields = {name: value for name, value in own.items() if name in message.__struct_fields__}
                message = msgspec.structs.replace(message, **fields)
            if encodable(message) and not isinstance(message, (NodeLeaveRequest, ShutdownRequest, RunStopRequest)):
                if random.random() < MUTATED:
                    mutating.tell(message)
                await send(known, message, any_body(opcode, random)[: body_bytes_max(opcode)], untyped)

        left = rounds

        async def some() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await one(*random.choice(pairs), random.choice(receivers))

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        for connection in connections.values():
            await connection.close()
        assert not untyped
        assert mutating.changed > MUTATED / 2 * rounds, "they were sent, and changed"
        for receiver in receivers:
            assert not cluster.tasks[receiver].done(), f"{receiver}: {cluster.tasks[receiver]!r}"
            connection = await cluster.network.connect(f"memory://{receiver}", front.hello(), deadline_s=30)
            await connection.request(StatusRequest(), deadline_s=30)
            await connection.close()
        _, entries = await cluster.client.read("/")
        assert all(record_problem(entry.key, entry.value) == "" for entry in entries)
        assert kept <= {entry.key for entry in entries}


async def keys(cluster: Any) -> list[str]:
    _, entries = await cluster.client.read("/")
    return [entry.key for entry in entries]


async def test_a_few_thousand_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await storm(tmp_path, QUICK_ROUNDS, 11, monkeypatch)


def storm_in_process(folder: Path, rounds: int, seed: int) -> None:
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(storm(folder, rounds, seed, patch))


@pytest.mark.slow
def test_a_million_bodies(tmp_path: Path) -> None:
    """On all cores: what each process hears does not hang on the others."""
    count = worker_server.available_cores()
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        parts = [
            pool.submit(storm_in_process, tmp_path / str(number), ROUNDS // count + 1, 12 + number)
            for number in range(count)
        ]
        for part in parts:
            part.result()
