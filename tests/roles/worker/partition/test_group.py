"""Who of a group may send what: a member for itself, the lead alone for the whole, a stranger nothing."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from adamctl.net.handshake import make_hello
from adamctl.roles.worker.partition.group import LEAD, Group
from adamctl.wire.constants import Opcode
from adamctl.wire.messages import MESSAGES, GroupMember, Message
from tests.wire.any_message import any_message

MEMBERS = tuple(GroupMember(f"w{number}", 10 + number, "host", ()) for number in range(3))
GROUP = Group("job", 7, 1, MEMBERS, "hash", 4, 2)
BY_ANY_MEMBER = {"PART_ATTACH", "PART_READY", "PART_DONE", "PART_DATA"}
BY_THE_LEAD = {
    "PART_TASK", "PART_FLUSH", "PART_END", "PART_STATUS", "PART_GRANT", "PART_STEP", "PART_EXAMPLES", "PART_PULL",
    "PART_PORTIONS", "PART_BUNDLE",
}  # fmt: skip
OPCODES = [opcode for opcode in Opcode if opcode.name.startswith("PART_")]


def sent(opcode: Opcode, partition: int) -> Message:
    message = any_message(MESSAGES[opcode][0], Random(3))
    fields = {"partition": partition} if "partition" in message.__struct_fields__ else {}
    return msgspec.structs.replace(message, **fields)


def refused(opcode: Opcode, node: str, incarnation: int, partition: int) -> str:
    return GROUP.refusal(make_hello("worker", node, incarnation), sent(opcode, partition))


def test_every_message_within_a_group_has_its_sender() -> None:
    assert {opcode.name for opcode in OPCODES} == BY_ANY_MEMBER | BY_THE_LEAD


@pytest.mark.parametrize("opcode", OPCODES, ids=lambda opcode: opcode.name)
def test_who_sends_what(opcode: Opcode) -> None:
    assert refused(opcode, "w0", 10, LEAD) == ""
    expected = "" if opcode.name in BY_ANY_MEMBER else "w2 does not lead group 7"
    assert refused(opcode, "w2", 12, 2) == expected
    assert refused(opcode, "w9", 12, 2) == "w9, incarnation 12, is no member of group 7 of job"
    assert refused(opcode, "w2", 13, 2) == "w2, incarnation 13, is no member of group 7 of job"
    if hasattr(sent(opcode, 0), "partition"):
        assert refused(opcode, "w2", 12, 0) == "w2 is partition 2 of group 7 and cannot speak for partition 0"
