"""What goes into the configuration service's core: events. What comes out is in `core/instructions.py`.

`token` is the shell's handle on a request, `connection` names the requester's connection for as long as it lasts. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from adamctl.roles.controller.core.paxos.messages import Received
from adamctl.wire.messages import ConfigChanges, NodeRegisterRequest


@dataclass(frozen=True, slots=True)
class Read:
    """`role` and `connection` are the sender's, which may see only some keys; an empty role: this process itself."""

    token: int
    prefix: str
    role: str = ""
    connection: int = 0


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """`role` and `node` name the sender, which `permissions` may refuse; an empty role: this process itself."""

    token: int
    session: str
    sequence: int
    changes: ConfigChanges
    known_serial: int = 0
    role: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Watch:
    """`role` as in `Read`."""

    token: int
    connection: int
    prefix: str
    after_revision: int
    wait_s: float
    role: str = ""


@dataclass(frozen=True, slots=True)
class Register:
    """`connection` is None if it has been closed since."""

    token: int
    connection: int | None
    request: NodeRegisterRequest


@dataclass(frozen=True, slots=True)
class Beacon:
    """`connection` as in `Register`."""

    token: int
    connection: int | None
    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Leave:
    token: int
    node: str
    incarnation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Disconnected:
    connection: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing listens any more where this node did: its process has ended. Ignored while the node is connected."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Comes at least every quarter of `lost_after_s` and at every `next_deadline_s`."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Put another member in the place of a lost controller. `identity`: of the lost one; 0: not known."""

    token: int
    old: str
    name: str
    address: str
    identity: int = 0


@dataclass(frozen=True, slots=True)
class TakeBackup:
    token: int


@dataclass(frozen=True, slots=True)
class RestoreBackup:
    """Put a backup in the place of all keys."""

    token: int
    backup: bytes


Event: TypeAlias = (
    Read
    | CompareAndSet
    | Watch
    | Register
    | Beacon
    | Leave
    | Disconnected
    | Gone
    | Tick
    | Replace
    | TakeBackup
    | RestoreBackup
    | Received
)
