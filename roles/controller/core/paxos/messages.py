"""What the controllers keep on disk and say to each other (docs/decisions/0008-controllers-by-paxos.md). Pure.

All are MessagePack arrays; fields are only ever appended, and tags and kinds are never reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec


class _Part(msgspec.Struct, frozen=True, array_like=True):
    pass


class Member(_Part, frozen=True, order=True):
    """A controller. `identity` belongs to its folder: a controller that has lost its folder is a different member."""

    name: str
    identity: int
    address: str = ""


class Ballot(_Part, frozen=True, order=True):
    """The number of a leadership: higher ones win. No two members use the same one, and none uses one twice."""

    round: int = 0
    identity: int = 0


class Entry(_Part, frozen=True):
    """A value for a slot, proposed under a ballot. Slots count from 1; an empty value changes nothing.

    `members`, if not empty, are the members from the next slot on.
    """

    slot: int
    ballot: Ballot
    value: bytes
    members: tuple[Member, ...] = ()


class Vote(_Part, frozen=True):
    """What a member must never forget: who it is, and the ballot below which it no longer accepts anything.

    Attributes:
        cluster: 0 until this member belongs to one.
        members: of the cluster at slot 0; empty while they are not known.
    """

    name: str
    identity: int
    cluster: int = 0
    promised: Ballot = Ballot()
    members: tuple[Member, ...] = ()


class PaxosSnapshot(_Part, frozen=True):
    """Everything up to a slot: the ballot of its value, the members from the next slot on, and the keys' state."""

    slot: int
    ballot: Ballot
    members: tuple[Member, ...]
    state: bytes


# --- between members ------------------------------------------------------------------------------------------------


class _Peer(msgspec.Struct, frozen=True, array_like=True):
    pass


class Introduce(_Peer, frozen=True, tag=1):
    """Sent by a member that belongs to no cluster yet, and the answer to it. `peers` are all names it was given."""

    name: str
    address: str
    peers: tuple[str, ...]
    members: tuple[Member, ...] = ()


class Probe(_Peer, frozen=True, tag=2):
    """Would you vote for me? Changes nothing, so a member that hears nobody cannot depose a leader."""

    round: int


class ProbeReply(_Peer, frozen=True, tag=3):
    """`promised_round`: the candidate has to go above it."""

    round: int
    granted: bool
    promised_round: int


class Prepare(_Peer, frozen=True, tag=4):
    """Phase 1a, for every slot from the first undecided one on."""

    ballot: Ballot


class Promise(_Peer, frozen=True, tag=5):
    """Phase 1b: nothing below `ballot` will be accepted. `accepted` is the entry accepted for slot `chosen_to` + 1."""

    ballot: Ballot
    chosen_to: int
    accepted: Entry | None = None


class Accept(_Peer, frozen=True, tag=6):
    """Phase 2a. All slots before the entry's are decided, the last of them under ballot `previous`."""

    entry: Entry
    previous: Ballot


class Accepted(_Peer, frozen=True, tag=7):
    """Phase 2b."""

    ballot: Ballot
    slot: int


class Confirm(_Peer, frozen=True, tag=8):
    """Does anyone know of a later leader than me? Also the heartbeat; says up to which slot all is decided."""

    ballot: Ballot
    number: int
    chosen_to: int
    chosen_ballot: Ballot


class Confirmed(_Peer, frozen=True, tag=9):
    """No, as of now. `chosen_to` is how far this member is."""

    ballot: Ballot
    number: int
    chosen_to: int


class Refused(_Peer, frozen=True, tag=10):
    """A request came under a lower ballot than the promised one."""

    promised: Ballot


class Fetch(_Peer, frozen=True, tag=11):
    """Asks for decided values after a slot (-1: a snapshot, whatever there is), or for more of a snapshot."""

    after_slot: int
    snapshot_slot: int = -1
    offset: int = 0


class Learn(_Peer, frozen=True, tag=12):
    """Decided values, in the order of their slots."""

    entries: tuple[Entry, ...]
    chosen_to: int


class SnapshotPart(_Peer, frozen=True, tag=13):
    """Bytes of an encoded `PaxosSnapshot` from an offset on; `total` bytes in all."""

    slot: int
    offset: int
    total: int
    data: bytes


PeerMessage: TypeAlias = (
    Introduce
    | Probe
    | ProbeReply
    | Prepare
    | Promise
    | Accept
    | Accepted
    | Confirm
    | Confirmed
    | Refused
    | Fetch
    | Learn
    | SnapshotPart
)


@dataclass(frozen=True, slots=True)
class Received:
    """Event: a message from another member, which is reached at `address`. `destination` 0: whatever member is here.

    `limits` are the sender's (`adamctl.roles.controller.core.service.limits`); empty: not given. `node` is the name
    that it has proved, or said in HELLO; empty: not known, as in tests of the state machine alone.
    """

    cluster: int
    source: int
    address: str
    destination: int
    message: PeerMessage
    limits: str = ""
    node: str = ""


def encode_peer(message: PeerMessage) -> bytes:
    return msgspec.msgpack.encode(message)


_PEER: msgspec.msgpack.Decoder[PeerMessage] = msgspec.msgpack.Decoder(PeerMessage)
_SNAPSHOT = msgspec.msgpack.Decoder(PaxosSnapshot)


def decode_peer(data: bytes | memoryview) -> PeerMessage:
    """Raises one of UNREADABLE if the data is not such a message."""
    return _PEER.decode(data)


def decode_snapshot(data: bytes | memoryview) -> PaxosSnapshot:
    """Raises one of UNREADABLE if the data is not a snapshot."""
    return _SNAPSHOT.decode(data)
