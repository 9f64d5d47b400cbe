"""Who may send what: every message and every role, in the table and through the dispatch that all roles share."""

from __future__ import annotations

from random import Random

import pytest

from adamctl.errors import RemoteError
from adamctl.net.handshake import make_hello
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode, Opcode
from adamctl.wire.messages import (
    MESSAGES,
    ConfigReadRequest,
    ConfigWatchRequest,
    GroupDropRequest,
    GroupWatchRequest,
    Hello,
    Message,
    NextTaskRequest,
    NodeBeaconRequest,
    NodeLeaveRequest,
    NodeRegisterRequest,
    RunJoinRequest,
)
from adamctl.wire.permissions import ALL, KNOWN_ROLES, OTHERS, PERMISSIONS, may_send, refusal
from tests.cluster import memory_cluster
from tests.wire.any_message import any_message, encodable

EVERYBODY = {*KNOWN_ROLES, OTHERS}
OPERATOR = {"front", "operator"}
MEMBER = {"ps", "data", "worker", "coordinator", "client", OTHERS}
READER = {"ps", "worker", "coordinator", "client", "controller", OTHERS} | OPERATOR
MAY: dict[str, set[str]] = {
    "HELLO": EVERYBODY,
    "PROVE": EVERYBODY,
    "STATUS": {"controller"} | OPERATOR,
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
        (("worker", "w", 3), ConfigReadRequest("/jobs/"), True),
        (("client", "c", 3), ConfigWatchRequest("/nodes/ps-0", 1, 0.0), True),
        (("client", "c", 3), ConfigReadRequest("/"), False),
        (("worker", "w", 3), ConfigReadRequest("/drains/ps-0"), False),
        (("worker", "w", 3), ConfigWatchRequest("", 1, 0.0), False),
        (("ps", "ps-0", 3), ConfigReadRequest("/retired"), True),
        (("front", "f", 0), ConfigReadRequest("/"), True),
    ],
)
def test_about_whom(peer: tuple[str, str, int], message: Message, allowed: bool) -> None:
    opcode = next(opcode for opcode, pair in MESSAGES.items() if pair[0] is type(message))
    assert (refusal(make_hello(*peer), opcode, message) == "") is allowed


async def test_the_dispatch_of_all_roles_refuses_what_the_table_does_not_allow() -> None:
    """Each message of each role to each role; what is refused has reached no handler."""
    seen: list[Message] = []

    def handle(request: Request) -> None:
        seen.append(request.message)
        raise RemoteError(ErrorCode.UNKNOWN_OPCODE, "it was let through")

    random = Random(5)
    async with memory_cluster() as cluster:
        for receiver in ("ps", "data", "worker", "coordinator", "other"):
            served = await cluster.context(receiver, f"served-{receiver}")
            await served.serve(handle)
            for role in sorted(KNOWN_ROLES | {"greeter"}):
                hello = make_hello(role, f"{role}-9", 3)
                connection = await cluster.network.connect(f"memory://{served.node}", hello, deadline_s=10)
                for opcode, (kind, _) in MESSAGES.items():
                    if opcode not in (Opcode.HELLO, Opcode.PROVE, Opcode.MEMORY_REGISTER, Opcode.SHUTDOWN):
                        message = _sent(kind, hello, random)
                        del seen[:]
                        code = await _answer(connection, message)
                        allowed = (role if role in KNOWN_ROLES else OTHERS) in MAY[opcode.name]
                        assert (code != ErrorCode.NOT_ALLOWED) is allowed, (role, opcode)
                        assert bool(seen) is (allowed and opcode != Opcode.STATUS), (role, opcode)
                await connection.close()


def _sent(kind: type[Message], hello: Hello, random: Random) -> Message:
    import msgspec

    while True:
        message = any_message(kind, random)
        own = {"node": hello.node, "role": hello.role, "incarnation": hello.incarnation, "prefix": "/nodes/"}
        fields = {name: value for name, value in own.items() if name in message.__struct_fields__}
        message = msgspec.structs.replace(message, **fields)
        if encodable(message):
            return message


async def _answer(connection: object, message: Message) -> int:
    try:
        await connection.request(message, deadline_s=10)  # type: ignore[attr-defined]
    except RemoteError as error:
        return error.code
    return 0
