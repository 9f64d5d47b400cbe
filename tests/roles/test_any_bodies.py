"""Any message with any body, through the real dispatch of every role: typed errors, nothing kept, no role ends."""

from __future__ import annotations

import asyncio
import os
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
from adamctl.roles.controller.core_paxos_messages import PeerMessage
from adamctl.roles.controller.core_records import record_problem
from adamctl.roles.data import server as data_server
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


async def storm(tmp_path: Path, rounds: int, seed: int) -> None:
    random = Random(seed)
    async with world(tmp_path) as w:
        cluster = w.cluster
        await w.start_servers(parameter=1)
        await add_job(cluster, "job", ["ps-0"], RuleConfig("adagrad"))
        await cluster.start("data", "data-9", data_server.run, {"data_root": (str(tmp_path),)})
        await w.start_run(make_experiment(tmp_path))
        front = await cluster.context("front", "asks")
        receivers = ["controller-0", *(node for node in cluster.tasks if node != "controller-0")]
        kept = set(await keys(cluster))
        pairs = [
            (role, opcode) for opcode, one in PERMISSIONS.items() if opcode not in NOT_SENT for role in one.senders
        ]
        untyped: dict[str, str] = {}
        connections: dict[tuple[str, str], Connection] = {}

        async def one(role: str, opcode: Opcode, receiver: str) -> None:
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
                await send(known, message, any_body(opcode, random)[: body_bytes_max(opcode)], untyped)

        done = 0
        while done < rounds:
            picks = [(*random.choice(pairs), random.choice(receivers)) for _ in range(AT_ONCE)]
            await asyncio.gather(*(one(*pick) for pick in picks))
            done += AT_ONCE
        for connection in connections.values():
            await connection.close()
        assert not untyped
        for receiver in receivers:
            assert not cluster.tasks[receiver].done(), receiver
            connection = await cluster.network.connect(f"memory://{receiver}", front.hello(), deadline_s=30)
            await connection.request(StatusRequest(), deadline_s=30)
            await connection.close()
        _, entries = await cluster.client.read("/")
        assert all(record_problem(entry.key, entry.value) == "" for entry in entries)
        assert kept <= {entry.key for entry in entries}


async def keys(cluster: Any) -> list[str]:
    _, entries = await cluster.client.read("/")
    return [entry.key for entry in entries]


async def test_a_few_thousand_bodies(tmp_path: Path) -> None:
    await storm(tmp_path, QUICK_ROUNDS, 11)


@pytest.mark.slow
async def test_a_million_bodies(tmp_path: Path) -> None:
    await storm(tmp_path, ROUNDS, 12)
