"""A worker's certificate in wrong hands: what its thief can do is what a worker can, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from adamctl.errors import AdamctlError, HandshakeError, RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.identity import CLAIMS
from adamctl.net.transport import Connection, Request
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.client import ControllerClient
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.wire.constants import ErrorCode, Opcode
from adamctl.wire.messages import MESSAGES, Hello, Message, NodeBeaconRequest, NodeLeaveRequest, NodeRegisterRequest
from adamctl.wire.permissions import KNOWN_ROLES, may_send
from tests.net.tls.certificates import Authority
from tests.wire.any_message import any_message, encodable

WORKER = make_hello("worker", "w-1", 3)
MAY = {
    "MEMORY_REGISTER", "CONFIG_READ", "CONFIG_WATCH", "NODE_REGISTER", "NODE_BEACON", "NODE_LEAVE", "PS_ATTACH",
    "PS_PUSH", "PS_PULL", "PS_ACCUMULATE", "PS_CHECKPOINT_READ", "DATA_OPEN", "DATA_READ", "RUN_JOIN", "RUN_NEXT_TASK",
    "RUN_STEP", "GROUP_WATCH", "GROUP_DROP", "RUN_BUNDLES",
}  # fmt: skip
"""What a worker may send, besides PART_*: attach, push, pull, data, its own tasks and steps."""
MAY_NOT = {
    "STATUS", "SHUTDOWN", "CREDIT", "CONFIG_COMPARE_AND_SET", "CONTROLLER_PEER", "CONTROLLER_REPLACE", "PS_CHECKPOINT",
    "PS_REPLICA_PREPARE", "PS_REPLICA_STATE", "PS_REPLICA_FETCH", "PS_EVALUATE", "PS_ROUND", "PS_COMMIT", "RUN_STATUS",
    "RUN_STOP", "RUN_CHECKPOINT", "BENCH_BLOCK",
}  # fmt: skip
"""What it must not, whatever the table says; later messages are as the table says."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def served(authority: Authority, role: str, seen: list[Message]) -> AsyncIterator[str]:
    """A role's own dispatch with its own certificate, behind which is a handler that notes what it was given."""

    def handle(request: Request) -> None:
        seen.append(request.message)
        raise RemoteError(ErrorCode.UNKNOWN_OPCODE, "it was let through")

    transport = StreamTransport(tls=authority.credentials(role, f"{role}-0"))
    log = logging.getLogger("test")
    context = RoleContext(role, f"{role}-0", {}, transport, None, asyncio.Event(), log, incarnation=3)
    await context.serve(handle, addresses=("tcp://127.0.0.1:0",))
    try:
        yield context.addresses[0]
        assert not context.stopping.is_set(), "somebody made it stop"
    finally:
        await context.close()


async def answer(connection: Connection, message: Message) -> int:
    try:
        await connection.request(message, deadline_s=10)
    except RemoteError as error:
        return error.code
    return 0


def sent(kind: type[Message], random: Random, **about: object) -> Message:
    """Returns a message with content by chance, about the worker itself unless `about` says whom."""
    own = {"node": WORKER.node, "role": "worker", "incarnation": 3, "prefix": "/nodes/", **about}
    while True:
        message = any_message(kind, random)
        fields = {name: value for name, value in own.items() if name in message.__struct_fields__}
        message = msgspec.structs.replace(message, **fields)
        if encodable(message):
            return message


@pytest.mark.parametrize("receiver", ["controller", "ps", "data", "coordinator", "worker"])
async def test_a_thief_is_a_worker_to_everyone_and_nobody_else(authority: Authority, receiver: str) -> None:
    seen: list[Message] = []
    thief = StreamTransport(tls=authority.credentials("worker", "w-1"))
    random = Random(7)
    async with served(authority, receiver, seen) as address:
        for role in sorted({*KNOWN_ROLES, *CLAIMS, "surveyor"} - {"worker"}):
            for node in ("w-1", f"{role}-0", "head"):
                with pytest.raises(HandshakeError, match="its certificate does not allow"):
                    await thief.connect(address, make_hello(role, node, 3), deadline_s=10)
        for node in ("w-2", f"{receiver}-0", "w-10", "w"):
            with pytest.raises(HandshakeError, match="its certificate does not allow"):
                await thief.connect(address, make_hello("worker", node, 3), deadline_s=10)
        connection = await thief.connect(address, WORKER, deadline_s=10)
        for opcode, (kind, _) in MESSAGES.items():
            if opcode in (Opcode.HELLO, Opcode.PROVE):
                continue
            del seen[:]
            code = await answer(connection, sent(kind, random))
            allowed = opcode.name in MAY or opcode.name.startswith("PART_")
            if not allowed and opcode.name not in MAY_NOT:
                allowed = may_send("worker", opcode)
            assert (code != ErrorCode.NOT_ALLOWED) is allowed, opcode.name
            assert bool(seen) is (allowed and opcode != Opcode.MEMORY_REGISTER), opcode.name
        for about_others in (NodeRegisterRequest, NodeBeaconRequest, NodeLeaveRequest):
            assert await answer(connection, sent(about_others, random, node="w-2")) == ErrorCode.NOT_ALLOWED
        register = sent(NodeRegisterRequest, random, role="ps")
        assert await answer(connection, register) == ErrorCode.NOT_ALLOWED
        await connection.close()


async def test_a_thief_can_pass_for_no_server_but_a_worker(authority: Authority) -> None:
    """It listens where a controller, a coordinator or a server is expected, and says that it is one, or who it is."""

    def handle(request: Request) -> None:
        raise AssertionError("it was asked something")

    honest = StreamTransport(tls=authority.credentials("worker", "w-7"))
    hello = make_hello("worker", "w-7", 3)

    async def reach(address: str, expects: tuple[str, str]) -> None:
        connection = await honest.connect(address, hello, deadline_s=10, expects=expects)
        await connection.close()

    async def read(address: str) -> None:
        client = ControllerClient(honest, [address], lambda: hello, deadline_s=1.0)
        try:
            await client.read("/nodes/")
        finally:
            await client.close()

    async def coordinate(address: str) -> None:
        await CoordinatorClient.connect(honest, [address], hello)

    for said in (Hello, None):
        for role, node in (("controller", "head"), ("ps", "ps-0"), ("coordinator", "c"), ("worker", "w-2")):
            thief = StreamTransport(tls=authority.credentials("worker", "w-1"))
            claim = make_hello(role, node) if said else make_hello("worker", "w-1")
            server = await thief.serve(["tcp://127.0.0.1:0"], claim, handle)
            address = server.addresses[0]
            with pytest.raises(AdamctlError, match="adam://nord/worker/w-1") as caught:
                await reach(address, (role, node))
            assert isinstance(caught.value, HandshakeError if said else UnreachableError)
            with pytest.raises(AdamctlError):
                await (coordinate(address) if role == "coordinator" else read(address))
            await server.close()
