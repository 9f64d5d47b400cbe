"""Who may send what: every message and every role, in the table and through the dispatch that all roles share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from adamctl.errors import AdamctlError, HandshakeError, RemoteError
from adamctl.net.address import parse_address
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Connection, Request, Transport
from adamctl.roles.context import RoleContext
from adamctl.wire.codec import encode_request
from adamctl.wire.constants import ErrorCode, Opcode
from adamctl.wire.messages import (
    MESSAGES,
    ConfigReadRequest,
    ConfigWatchRequest,
    GroupDropRequest,
    GroupWatchRequest,
    Hello,
    HostOrdersRequest,
    HostReportRequest,
    Message,
    NextTaskRequest,
    NodeBeaconRequest,
    NodeLeaveRequest,
    NodeRegisterRequest,
    ProveRequest,
    RunJoinRequest,
    ShutdownRequest,
    StatusRequest,
)
from adamctl.wire.permissions import ALL, KNOWN_ROLES, OTHERS, PERMISSIONS, may_send, refusal
from tests.net.tls.certificates import Authority, ManyCertificates
from tests.wire.any_message import any_message, encodable

TOKEN = "a-token-of-more-than-32-characters"
EVERYBODY = {*KNOWN_ROLES, OTHERS}
OPERATOR = {"front", "operator"}
MEMBER = {"ps", "data", "worker", "coordinator", "client", OTHERS}
READER = {"ps", "worker", "coordinator", "client", "controller", "metrics", OTHERS} | OPERATOR
MAY: dict[str, set[str]] = {
    "HELLO": EVERYBODY,
    "PROVE": EVERYBODY,
    "STATUS": {"controller", "metrics"} | OPERATOR,
    "CREDIT": set(),
    "SHUTDOWN": OPERATOR,
    "MEMORY_REGISTER": {"worker", "client", "coordinator"},
    "CONFIG_READ": READER,
    "CONFIG_COMPARE_AND_SET": {"ps", "coordinator", "client"} | OPERATOR,
    "CONFIG_WATCH": READER,
    "NODE_REGISTER": MEMBER,
    "NODE_BEACON": MEMBER,
    "NODE_LEAVE": MEMBER | OPERATOR,
    "CONTROLLER_PEER": {"controller"},
    "CONTROLLER_REPLACE": OPERATOR,
    "CONTROLLER_BACKUP": OPERATOR,
    "CONTROLLER_RESTORE": OPERATOR,
    "PS_ATTACH": {"worker", "client", "coordinator"},
    "PS_PUSH": {"worker", "client"},
    "PS_PULL": {"worker", "client"},
    "PS_CHECKPOINT": {"coordinator"},
    "PS_REPLICA_PREPARE": {"ps"},
    "PS_REPLICA_STATE": {"ps"},
    "PS_REPLICA_FETCH": {"ps"},
    "PS_EVALUATE": {"coordinator"},
    "PS_ACCUMULATE": {"worker"},
    "PS_ROUND": {"coordinator"},
    "PS_COMMIT": {"coordinator"},
    "PS_CHECKPOINT_PART": {"coordinator"},
    "PS_CHECKPOINT_READ": {"ps", "worker"},
    "DATA_OPEN": {"coordinator", "worker"},
    "DATA_READ": {"worker"},
    "RUN_JOIN": {"worker"},
    "RUN_NEXT_TASK": {"worker"},
    "RUN_STATUS": OPERATOR,
    "RUN_STOP": OPERATOR,
    "RUN_CHECKPOINT": OPERATOR,
    "RUN_STEP": {"worker"},
    "GROUP_WATCH": {"worker"},
    "GROUP_DROP": {"worker"},
    "RUN_BUNDLES": {"worker"},
    "PART_ATTACH": {"worker"},
    "PART_READY": {"worker"},
    "PART_TASK": {"worker"},
    "PART_DONE": {"worker"},
    "PART_FLUSH": {"worker"},
    "PART_END": {"worker"},
    "PART_DATA": {"worker"},
    "PART_STATUS": {"worker"},
    "PART_GRANT": {"worker"},
    "PART_STEP": {"worker"},
    "PART_EXAMPLES": {"worker"},
    "PART_PULL": {"worker"},
    "PART_PORTIONS": {"worker"},
    "PART_BUNDLE": {"worker"},
    "BENCH_BLOCK": {"bench"},
    "HOST_JOIN": {"host"},
    "HOST_ORDERS": {"host"},
    "HOST_REPORT": {"host"},
    "HOST_TAIL": OPERATOR,
}
"""The contract, written out once more: a message that is not here fails the test below."""


def test_every_message_has_its_row_and_every_role_its_answer() -> None:
    assert {opcode.name for opcode in Opcode} == MAY.keys() == {opcode.name for opcode in PERMISSIONS}
    for opcode in Opcode:
        assert {role for role in EVERYBODY if may_send(role, opcode)} == MAY[opcode.name], opcode.name
        assert may_send("evaluator-of-others", opcode) == (OTHERS in MAY[opcode.name])


def test_the_table_knows_every_role_of_ours() -> None:
    from adamctl.cli.main import BUILT_IN_ROLES

    assert BUILT_IN_ROLES.keys() <= KNOWN_ROLES == ALL - {OTHERS}


@pytest.mark.parametrize(
    ("peer", "message", "allowed"),
    [
        (("ps", "ps-0", 0), NodeRegisterRequest("ps-0", "ps", (), "h", 1), True),
        (("ps", "ps-0", 0), NodeRegisterRequest("ps-1", "ps", (), "h", 1), False),
        (("worker", "w", 0), NodeRegisterRequest("w", "ps", (), "h", 1), False),
        (("ps", "ps-0", 0), NodeBeaconRequest("ps-0", 7), True),  # a connection may be older than the incarnation
        (("ps", "ps-0", 7), NodeBeaconRequest("ps-1", 7), False),
        (("ps", "ps-0", 7), NodeLeaveRequest("ps-0", 7), True),
        (("ps", "ps-0", 7), NodeLeaveRequest("ps-1", 7), False),
        (("front", "front-1", 0), NodeLeaveRequest("ps-1", 7), True),
        (("worker", "w", 3), RunJoinRequest("w", 3, 1), True),
        (("worker", "w", 3), RunJoinRequest("v", 3, 1), False),
        (("worker", "w", 3), RunJoinRequest("w", 4, 1), False),
        (("worker", "w", 3), GroupWatchRequest("w", 3, 1, 5.0), True),
        (("worker", "w", 3), GroupWatchRequest("w", 4, 1, 5.0), False),
        (("worker", "w", 3), GroupDropRequest("w", 3, 1, 0, "it hangs"), True),
        (("worker", "w", 3), GroupDropRequest("v", 3, 1, 0, "it hangs"), False),
        (("worker", "w", 3), NextTaskRequest("w", 2, (), 1, 0.0), False),
        (("host", "h", 0), HostOrdersRequest("h", 9, 0, 1.0), True),
        (("host", "h", 0), HostOrdersRequest("g", 9, 0, 1.0), False),
        (("host", "h", 0), HostReportRequest("g", 9, 1), False),
        (("worker", "w", 3), ConfigReadRequest("/jobs/"), True),
        (("client", "c", 3), ConfigWatchRequest("/nodes/ps-0", 1, 0.0), True),
        (("client", "c", 3), ConfigReadRequest("/"), False),
        (("client", "c", 3), ConfigReadRequest("/jobs/"), False),
        (("client", "c", 3), ConfigWatchRequest("/jobs/a", 1, 0.0), True),
        (("worker", "w", 3), ConfigReadRequest("/drains/ps-0"), False),
        (("worker", "w", 3), ConfigWatchRequest("", 1, 0.0), False),
        (("ps", "ps-0", 3), ConfigReadRequest("/retired"), True),
        (("front", "f", 0), ConfigReadRequest("/"), True),
    ],
)
def test_about_whom(peer: tuple[str, str, int], message: Message, allowed: bool) -> None:
    opcode = next(opcode for opcode, pair in MESSAGES.items() if pair[0] is type(message))
    assert (refusal(make_hello(*peer), opcode, message) == "") is allowed


@pytest.mark.parametrize(
    ("peer", "message", "text"),
    [
        (("ps", "ps-0", 0), NodeRegisterRequest("a\x1b", "ps", (), "h", 1),
         "ps ps-0 may send NODE_REGISTER only about itself, not about 'a\\x1b'"),
        (("worker", "w", 0), NodeRegisterRequest("w", "ps", (), "h", 1),
         "w said HELLO as worker and cannot register as 'ps'"),
        (("ps", "ps-0", 7), NodeLeaveRequest("ps-1", 7),
         "ps ps-0 may send NODE_LEAVE only about itself, not about 'ps-1'"),
        (("worker", "w", 3), RunJoinRequest("w", 4, 1), "worker w is incarnation 3 on this connection, not 4"),
        (("worker", "w", 3), ConfigReadRequest("/"), "a worker may read and watch only keys under /nodes/ and /jobs/"),
        (("client", "c", 3), ConfigReadRequest("/jobs/"),
         "a client may read and watch only its own job; expected /jobs/NAME, found /jobs/"),
    ],
)  # fmt: skip
def test_what_a_refusal_says(peer: tuple[str, str, int], message: Message, text: str) -> None:
    opcode = next(opcode for opcode, pair in MESSAGES.items() if pair[0] is type(message))
    assert refusal(make_hello(*peer), opcode, message) == text


UNPROVEN = (Opcode.HELLO, Opcode.PROVE)
"""Belong to the handshake: a second one ends the connection, whoever sends it."""
LET_THROUGH = "it was let through"


@asynccontextmanager
async def served(
    receiver: str, addresses: tuple[str, ...], seen: list[Message], transport: Transport | None = None
) -> AsyncIterator[RoleContext]:
    """A role's own dispatch at real addresses, behind which is nothing but a handler that notes what it was given."""

    def handle(request: Request) -> None:
        seen.append(request.message)
        raise RemoteError(ErrorCode.UNKNOWN_OPCODE, LET_THROUGH)

    transport = transport or StreamTransport()
    token = TOKEN if isinstance(transport, StreamTransport) else ""  # not, where there are certificates
    context = RoleContext(
        receiver, f"{receiver}-0", {}, transport, None, asyncio.Event(), logging.getLogger("test"), token=token
    )
    await context.serve(handle, addresses=addresses)
    try:
        yield context
    finally:
        await context.close()


@pytest.mark.parametrize(
    ("receiver", "scheme"),
    [
        pytest.param(receiver, scheme, marks=[pytest.mark.slow] if scheme == "tls" and receiver != "ps" else [])
        for receiver in ("controller", "ps", "data", "worker", "coordinator", "other")
        for scheme in ("tcp", "unix", "tls")
    ],
)
async def test_each_role_sends_each_message_over_a_real_connection(receiver: str, scheme: str, tmp_path: Path) -> None:
    """What is refused has reached no handler, and the answer says who may not do what, to whom."""
    seen: list[Message] = []
    random = Random(5)
    address = f"unix://{tmp_path}/s" if scheme == "unix" else "tcp://127.0.0.1:0"
    transport: Any = ManyCertificates(Authority(tmp_path)) if scheme == "tls" else StreamTransport(kind=scheme)
    async with served(receiver, (address,), seen, transport) as context:
        for role in sorted(KNOWN_ROLES | {"greeter"}):
            hello = make_hello(role, f"{role}-9", 3, context.token)
            connection = await transport.connect(context.addresses[0], hello, deadline_s=10)
            for opcode, (kind, _) in MESSAGES.items():
                if opcode in UNPROVEN:
                    continue
                del seen[:]
                code, text = await _answer(connection, _sent(kind, hello, random))
                if (role if role in KNOWN_ROLES else OTHERS) not in MAY[opcode.name]:
                    what = f"a {role} may not send {opcode.name}"
                    more = "" if opcode == Opcode.MEMORY_REGISTER else f" to {receiver} {receiver}-0"
                    assert (code, text, seen) == (ErrorCode.NOT_ALLOWED, what + more, [])
                else:
                    assert code != ErrorCode.NOT_ALLOWED, (role, opcode, text)
                    own = opcode in (Opcode.STATUS, Opcode.SHUTDOWN, Opcode.MEMORY_REGISTER)
                    assert (text == LET_THROUGH and len(seen) == 1) is not own, (role, opcode, text)
            await connection.close()
            assert context.stopping.is_set() is (role in OPERATOR)
            context.stopping.clear()


@pytest.mark.parametrize("stolen", ["worker", "coordinator", "controller"])
async def test_a_stolen_certificate_is_good_for_its_own_role_and_node_alone(stolen: str, tmp_path: Path) -> None:
    """And so for nothing else than what the table lets that role do."""
    authority, seen = Authority(tmp_path), list[Message]()
    thief = StreamTransport(tls=authority.credentials(stolen, "n"))
    async with served("ps", ("tcp://127.0.0.1:0",), seen, ManyCertificates(authority)) as context:  # type: ignore[arg-type]
        for role in sorted(KNOWN_ROLES | {"greeter"}):
            for node in ("n", "other"):
                said = make_hello(role, node, 3)
                if (role, node) == (stolen, "n"):
                    await (await thief.connect(context.addresses[0], said, deadline_s=10)).close()
                    continue
                with pytest.raises(HandshakeError, match=rf"adam://nord/{stolen}/n"):
                    await thief.connect(context.addresses[0], said, deadline_s=10)
    assert not seen


@pytest.mark.parametrize("role", sorted(KNOWN_ROLES | {"greeter"}))
async def test_nobody_says_hello_twice_or_speaks_before_it(role: str) -> None:
    seen: list[Message] = []
    hello = make_hello(role, f"{role}-9", 3, TOKEN)
    async with served("ps", ("tcp://127.0.0.1:0",), seen) as context:
        for again in (hello, ProveRequest(b"proof")):
            connection = await StreamTransport().connect(context.addresses[0], hello, deadline_s=10)
            with pytest.raises(AdamctlError, match="per connection, found a second"):
                await connection.request(msgspec.structs.replace(again), deadline_s=10)
            await connection.close()
        for first in (StatusRequest(), ShutdownRequest("now"), ProveRequest(b"")):
            assert b"first, found" in await raw(context.addresses[0], encode_request(first, 1))
        for token in ("", "another-token-of-32-characters-xx"):
            with pytest.raises(HandshakeError, match="token"):
                await StreamTransport().connect(
                    context.addresses[0], make_hello(role, f"{role}-9", 3, token), deadline_s=10
                )
    assert not seen and not context.stopping.is_set()


async def raw(address: str, data: bytes) -> bytes:
    """Returns what a server answers before it closes the connection."""
    place = parse_address(address)
    reader, writer = await asyncio.open_connection(place.host, place.port)
    writer.write(data)
    found = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return found


def _sent(kind: type[Message], hello: Hello, random: Random) -> Message:
    while True:
        message = any_message(kind, random)
        own = {"node": hello.node, "role": hello.role, "incarnation": hello.incarnation, "prefix": "/nodes/"}
        fields = {name: value for name, value in own.items() if name in message.__struct_fields__}
        message = msgspec.structs.replace(message, **fields)
        if encodable(message):
            return message


async def _answer(connection: Connection, message: Message) -> tuple[int, str]:
    try:
        await connection.request(message, deadline_s=10)
    except RemoteError as error:
        return error.code, str(error)
    return 0, ""
