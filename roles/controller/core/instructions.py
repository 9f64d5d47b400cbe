"""What a controller's core tells its shell to do, in order: what is to be on disk, sent, answered, found out.

A `token` is the shell's handle on a request; it comes back in exactly one `Answer` or `Refuse`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from adamctl.config.records import NodeRecord
from adamctl.roles.controller.core.paxos.messages import Entry, PaxosSnapshot, PeerMessage, Vote
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry, Message


class Instruction:
    """Something for the shell to do."""

    __slots__ = ()


# --- of Paxos -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveVote(Instruction):
    """Replace the vote file and sync it before anything that follows is carried out."""

    vote: Vote


@dataclass(frozen=True, slots=True)
class Append(Instruction):
    """Add an entry to the log and sync it before anything that follows is carried out."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class SaveSnapshot(Instruction):
    """Replace log and snapshot with this one and sync before anything that follows is carried out."""

    snapshot: PaxosSnapshot


Persist: TypeAlias = SaveVote | Append | SaveSnapshot


@dataclass(frozen=True, slots=True)
class Send(Instruction):
    """Send to a member at `address`; the message may be lost. `destination` 0: whatever member is there."""

    address: str
    destination: int
    message: PeerMessage


# --- of the service -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer(Instruction):
    """Reply to a request. `entries` is the body, None for a reply without one."""

    token: int
    message: Message
    entries: tuple[ConfigEntry, ...] | None = None


@dataclass(frozen=True, slots=True)
class Refuse(Instruction):
    token: int
    code: ErrorCode
    message: str
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probe(Instruction):
    """Find out at once whether this node's process has certainly ended; if it has, say so with `Gone`."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class Notice(Instruction):
    """Something that people should read in the log."""

    message: str
