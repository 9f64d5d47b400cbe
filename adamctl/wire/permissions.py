"""Which role may send which message, and about whom. Whatever is not said here is refused, with NOT_ALLOWED.

A role is what HELLO says, which whoever has the cluster's token may claim: the table stops mistakes, and what reaches
from one job into another, not somebody who has the token and means harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from adamctl.wire.constants import Opcode
from adamctl.wire.messages import Hello, Message, NodeRegisterRequest

About: TypeAlias = Literal["", "itself", "itself, or others by an operator"]

OPERATORS: Final = frozenset({"front", "operator"})
"""The command line, and the run's front."""
TRAINERS: Final = frozenset({"worker", "client"})
READ_BY_TRAINERS: Final = ("/nodes/", "/jobs/")
"""Where a worker finds a run, and whoever pushes finds who holds what."""
JOB_OWNERS: Final = frozenset({"coordinator", "client"})
MEMBERS: Final = frozenset({"ps", "data", "worker", "coordinator", "client"})
KNOWN_ROLES: Final = MEMBERS | OPERATORS | {"controller", "bench"}

OTHERS: Final = "another role"
"""Stands for the roles of other packages: they may become members and read what there is."""
ALL: Final = KNOWN_ROLES | {OTHERS}


@dataclass(frozen=True)
class Permission:
    """Who may send a message.

    Attributes:
        senders: their roles; a role that is not among KNOWN_ROLES counts as OTHERS.
        about: whom the message's `node` (and `role`, and `incarnation` where it follows from HELLO) has to name.
    """

    senders: frozenset[str]
    about: About = ""


_OPERATOR: Final = Permission(OPERATORS)
_REPLICA: Final = Permission(frozenset({"ps"}))
_RUN: Final = Permission(frozenset({"worker"}), "itself")
_MEMBER: Final = Permission(MEMBERS | {OTHERS}, "itself")

PERMISSIONS: Final[Mapping[Opcode, Permission]] = {
    Opcode.HELLO: Permission(ALL),
    Opcode.PROVE: Permission(ALL),
    Opcode.STATUS: Permission(OPERATORS | {"controller"}),
    Opcode.CREDIT: Permission(frozenset()),  # a server grants it; nobody asks for it
    Opcode.SHUTDOWN: _OPERATOR,
    Opcode.MEMORY_REGISTER: Permission(TRAINERS | {"coordinator"}),
    Opcode.CONFIG_READ: Permission(ALL - {"data", "bench"}),
    Opcode.CONFIG_COMPARE_AND_SET: Permission(JOB_OWNERS | OPERATORS | {"ps"}),  # and by key: `core_permissions`
    Opcode.CONFIG_WATCH: Permission(ALL - {"data", "bench"}),
    Opcode.NODE_REGISTER: _MEMBER,
    Opcode.NODE_BEACON: _MEMBER,
    Opcode.NODE_LEAVE: Permission(_MEMBER.senders | OPERATORS, "itself, or others by an operator"),
    Opcode.CONTROLLER_PEER: Permission(frozenset({"controller"})),  # `source` is looked at by the receiver's core
    Opcode.CONTROLLER_REPLACE: _OPERATOR,
    Opcode.PS_ATTACH: Permission(TRAINERS | {"coordinator"}),
    Opcode.PS_PUSH: Permission(TRAINERS),
    Opcode.PS_PULL: Permission(TRAINERS),
    Opcode.PS_CHECKPOINT: Permission(frozenset({"coordinator"})),  # of the job that it is named as coordinator of
    Opcode.PS_REPLICA_PREPARE: _REPLICA,
    Opcode.PS_REPLICA_STATE: _REPLICA,
    Opcode.PS_REPLICA_FETCH: _REPLICA,
    Opcode.DATA_OPEN: Permission(frozenset({"coordinator", "worker"})),
    Opcode.DATA_READ: Permission(frozenset({"worker"})),
    Opcode.RUN_JOIN: _RUN,
    Opcode.RUN_NEXT_TASK: _RUN,
    Opcode.RUN_STATUS: _OPERATOR,
    Opcode.RUN_STOP: _OPERATOR,
    Opcode.RUN_CHECKPOINT: _OPERATOR,
    Opcode.RUN_STEP: _RUN,
    Opcode.BENCH_BLOCK: Permission(frozenset({"bench"})),
}


def may_send(role: str, opcode: int) -> bool:
    """Says whether a role may send a message at all."""
    permission = PERMISSIONS.get(Opcode(opcode))
    return permission is not None and (role if role in KNOWN_ROLES else OTHERS) in permission.senders


def refusal(peer: Hello, opcode: int, message: Message) -> str:
    """Returns why whoever said this HELLO may not send a message; empty: it may."""
    if not may_send(peer.role, opcode):
        return f"a {peer.role} may not send {Opcode(opcode).name}"
    if peer.role in TRAINERS and not getattr(message, "prefix", READ_BY_TRAINERS[0]).startswith(READ_BY_TRAINERS):
        return f"a {peer.role} may read and watch what is under {' and '.join(READ_BY_TRAINERS)} only"
    about = PERMISSIONS[Opcode(opcode)].about
    if not about or (about != "itself" and peer.role in OPERATORS):
        return ""
    named = getattr(message, "node", "")
    if named != peer.node:
        return f"{peer.role} {peer.node} may send {Opcode(opcode).name} about itself only, not about {named!a}"
    if isinstance(message, NodeRegisterRequest) and message.role != peer.role:
        return f"{peer.node} said HELLO as {peer.role} and cannot register as {message.role!a}"
    incarnation = getattr(message, "incarnation", peer.incarnation)
    if Opcode(opcode) in _BY_INCARNATION and incarnation != peer.incarnation:
        return f"{peer.role} {peer.node} is incarnation {peer.incarnation} on this connection, not {incarnation}"
    return ""


_BY_INCARNATION: Final = frozenset({Opcode.RUN_JOIN, Opcode.RUN_NEXT_TASK, Opcode.RUN_STEP})
"""Membership gives the incarnation, so its own messages can come over connections that are older than it."""
