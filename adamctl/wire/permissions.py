"""Which role may send which message, and about which node. Anything not listed is refused with NOT_ALLOWED.

A role is what HELLO claims, and anyone with the cluster's token may claim any: the table stops mistakes and effects of
one job on another, not an attacker who has the token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from adamctl.wire.constants import Opcode
from adamctl.wire.messages import ConfigReadRequest, ConfigWatchRequest, Hello, Message, NodeRegisterRequest

About: TypeAlias = Literal["", "itself", "itself, or others by an operator"]

OPERATORS: Final = frozenset({"front", "operator"})
"""The command line, and the run's front."""
METRICS: Final = "metrics"
"""Who shows a cluster's metrics: it may ask and read, and change nothing."""
TRAINERS: Final = frozenset({"worker", "client"})
READ_BY_TRAINERS: Final = ("/nodes/", "/jobs/")
"""Where a worker finds a run, and a pushing client finds which server holds what. Of jobs they see only their own: the
controllers' core leaves out the rest (`adamctl.roles.controller.core.service.permissions.sees`)."""
JOB_OWNERS: Final = frozenset({"coordinator", "client"})
MEMBERS: Final = frozenset({"ps", "data", "worker", "coordinator", "client"})
KNOWN_ROLES: Final = MEMBERS | OPERATORS | {"controller", "bench", "host", METRICS}

OTHERS: Final = "another role"
"""Stands for roles of other packages: they may become members and read everything."""
ALL: Final = KNOWN_ROLES | {OTHERS}


@dataclass(frozen=True)
class Permission:
    """Which roles may send a message.

    Attributes:
        senders: the roles; a role that is not in KNOWN_ROLES counts as OTHERS.
        about: which node the message's `node` (and `role`, and `incarnation` if it follows from HELLO) must name.
    """

    senders: frozenset[str]
    about: About = ""


_OPERATOR: Final = Permission(OPERATORS)
_REPLICA: Final = Permission(frozenset({"ps"}))
_RUN: Final = Permission(frozenset({"worker"}), "itself")
_PARTITION: Final = Permission(frozenset({"worker"}))
_COORDINATOR: Final = Permission(frozenset({"coordinator"}))
"""Of the job that the message is about, which parameter servers check: it commands, and neither pulls nor pushes."""
_AGENT: Final = Permission(frozenset({"host"}), "itself")
_MEMBER: Final = Permission(MEMBERS | {OTHERS}, "itself")

PERMISSIONS: Final[Mapping[Opcode, Permission]] = {
    Opcode.HELLO: Permission(ALL),
    Opcode.PROVE: Permission(ALL),
    Opcode.STATUS: Permission(OPERATORS | {"controller", METRICS}),
    Opcode.CREDIT: Permission(frozenset()),  # a server grants it; it is never requested
    Opcode.SHUTDOWN: _OPERATOR,
    Opcode.MEMORY_REGISTER: Permission(TRAINERS | {"coordinator"}),
    Opcode.CONFIG_READ: Permission(ALL - {"data", "bench", "host"}),
    Opcode.CONFIG_COMPARE_AND_SET: Permission(JOB_OWNERS | OPERATORS | {"ps"}),  # and by key, in the controllers' core
    Opcode.CONFIG_WATCH: Permission(ALL - {"data", "bench", "host"}),
    Opcode.NODE_REGISTER: _MEMBER,
    Opcode.NODE_BEACON: _MEMBER,
    Opcode.NODE_LEAVE: Permission(_MEMBER.senders | OPERATORS, "itself, or others by an operator"),
    Opcode.CONTROLLER_PEER: Permission(frozenset({"controller"})),  # the receiver's core checks `source`
    Opcode.CONTROLLER_REPLACE: _OPERATOR,
    Opcode.CONTROLLER_BACKUP: _OPERATOR,
    Opcode.CONTROLLER_RESTORE: _OPERATOR,
    Opcode.PS_ATTACH: Permission(TRAINERS | {"coordinator"}),
    Opcode.PS_PUSH: Permission(TRAINERS),
    Opcode.PS_PULL: Permission(TRAINERS),
    Opcode.PS_CHECKPOINT: _COORDINATOR,
    Opcode.PS_REPLICA_PREPARE: _REPLICA,
    Opcode.PS_REPLICA_STATE: _REPLICA,
    Opcode.PS_REPLICA_FETCH: _REPLICA,
    Opcode.PS_EVALUATE: _COORDINATOR,
    Opcode.PS_ACCUMULATE: Permission(frozenset({"worker"})),
    Opcode.PS_ROUND: _COORDINATOR,
    Opcode.PS_COMMIT: _COORDINATOR,
    Opcode.PS_CHECKPOINT_PART: _COORDINATOR,
    Opcode.PS_CHECKPOINT_READ: Permission(frozenset({"ps", "worker"})),
    Opcode.DATA_OPEN: Permission(frozenset({"coordinator", "worker"})),
    Opcode.DATA_READ: Permission(frozenset({"worker"})),
    Opcode.RUN_JOIN: _RUN,
    Opcode.RUN_NEXT_TASK: _RUN,
    Opcode.RUN_STATUS: _OPERATOR,
    Opcode.RUN_STOP: _OPERATOR,
    Opcode.RUN_CHECKPOINT: _OPERATOR,
    Opcode.RUN_STEP: _RUN,
    Opcode.GROUP_WATCH: _RUN,
    Opcode.GROUP_DROP: _RUN,
    Opcode.RUN_BUNDLES: _RUN,
    Opcode.PART_ATTACH: _PARTITION,
    Opcode.PART_READY: _PARTITION,
    Opcode.PART_TASK: _PARTITION,
    Opcode.PART_DONE: _PARTITION,
    Opcode.PART_FLUSH: _PARTITION,
    Opcode.PART_END: _PARTITION,
    Opcode.PART_DATA: _PARTITION,  # and over a connection whose peer has attached
    Opcode.PART_STATUS: _PARTITION,
    Opcode.PART_GRANT: _PARTITION,
    Opcode.PART_STEP: _PARTITION,
    Opcode.PART_EXAMPLES: _PARTITION,
    Opcode.PART_PULL: _PARTITION,
    Opcode.PART_PORTIONS: _PARTITION,
    Opcode.PART_BUNDLE: _PARTITION,
    Opcode.BENCH_BLOCK: Permission(frozenset({"bench"})),
    Opcode.HOST_JOIN: _AGENT,
    Opcode.HOST_ORDERS: _AGENT,
    Opcode.HOST_REPORT: _AGENT,
    Opcode.HOST_TAIL: _OPERATOR,
}


AUDITED: Final = frozenset(
    {
        Opcode.SHUTDOWN,
        Opcode.CONTROLLER_REPLACE,
        Opcode.CONTROLLER_BACKUP,
        Opcode.CONTROLLER_RESTORE,
        Opcode.RUN_STOP,
        Opcode.RUN_CHECKPOINT,
    }
)
"""Administrative messages: who sent one, and what came of it, is written down, also if it was refused."""
AUDITED_OF_OPERATORS: Final = frozenset({Opcode.CONFIG_COMPARE_AND_SET, Opcode.NODE_LEAVE})
"""Administrative only if an operator sends them."""


def may_send(role: str, opcode: int) -> bool:
    """Returns whether a role may send a message at all."""
    permission = PERMISSIONS.get(Opcode(opcode))
    return permission is not None and (role if role in KNOWN_ROLES else OTHERS) in permission.senders


def refusal(peer: Hello, opcode: int, message: Message) -> str:
    """Returns why a peer with this HELLO may not send a message; empty if it may."""
    if not may_send(peer.role, opcode):
        return f"a {peer.role} may not send {Opcode(opcode).name}"
    if peer.role in TRAINERS and isinstance(message, ConfigReadRequest | ConfigWatchRequest):
        if not message.prefix.startswith(READ_BY_TRAINERS):
            return f"a {peer.role} may read and watch only keys under {' and '.join(READ_BY_TRAINERS)}"
        if peer.role == "client" and message.prefix == READ_BY_TRAINERS[1]:
            return "a client may read and watch only its own job; expected /jobs/NAME, found /jobs/"
    about = PERMISSIONS[Opcode(opcode)].about
    if not about or (about != "itself" and peer.role in OPERATORS):
        return ""
    named = getattr(message, "node", "")
    if named != peer.node:
        return f"{peer.role} {peer.node} may send {Opcode(opcode).name} only about itself, not about {named!a}"
    if isinstance(message, NodeRegisterRequest) and message.role != peer.role:
        return f"{peer.node} said HELLO as {peer.role} and cannot register as {message.role!a}"
    incarnation = getattr(message, "incarnation", peer.incarnation)
    if Opcode(opcode) in _BY_INCARNATION and incarnation != peer.incarnation:
        return f"{peer.role} {peer.node} is incarnation {peer.incarnation} on this connection, not {incarnation}"
    return ""


_BY_INCARNATION: Final = frozenset(
    {
        Opcode.RUN_JOIN,
        Opcode.RUN_NEXT_TASK,
        Opcode.RUN_STEP,
        Opcode.GROUP_WATCH,
        Opcode.GROUP_DROP,
        Opcode.RUN_BUNDLES,
    }
)
"""Membership assigns the incarnation, so its own messages can come over connections that are older than it."""
