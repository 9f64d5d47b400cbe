"""How the first members form a cluster, and what a member does while it belongs to none. Pure.

Every folder gets an identity at its first start. The members named at the start (`--peers`) introduce themselves until
each has heard the identities of all; their list defines the cluster, and its hash is the cluster's number. So a member
that lost its folder, and with it its promises, can never be taken for its former self: it has another identity, and
waits until an operator puts it in the former one's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import msgspec

from adamctl.roles.controller.core.paxos.messages import Introduce, Member, Vote

STRANGERS_MAX = 16
STRANGER_S = 3.0
"""How long an introduction counts; a controller that waits to be taken in introduces itself twice a second."""


def cluster_number(members: tuple[Member, ...]) -> int:
    """Returns a number, never 0, that two clusters share only by chance, because identities are random."""
    names = msgspec.msgpack.encode([(member.name, member.identity) for member in members])
    return crc32(names) << 32 | crc32(names[::-1]) | 1


def cluster_identity(number: int) -> str:
    """Returns a cluster's number as HELLO carries it; empty for 0, which means no cluster."""
    return f"{number:016x}" if number else ""


class Forming:
    """Who has introduced itself.

    Attributes:
        heard: name -> those of the first members that have introduced themselves.
        strangers: (name, address) -> identity of those that introduced themselves and are not members, and when.
    """

    def __init__(self, peers: Mapping[str, str]) -> None:
        """`peers`: name -> address of the first members, this one included; empty: this one alone."""
        self.peers = dict(peers)
        self.strangers: dict[tuple[str, str], tuple[int, float]] = {}
        self.heard: dict[str, Member] = {}

    def alone(self, vote: Vote, address: str) -> Vote:
        """Returns the vote of a cluster of one."""
        members = (Member(vote.name, vote.identity, address),)
        return msgspec.structs.replace(vote, cluster=cluster_number(members), members=members)

    def introduction(self, vote: Vote, members: tuple[Member, ...]) -> Introduce:
        address = self.peers.get(vote.name, "")
        return Introduce(vote.name, address, tuple(sorted(self.peers)), members)

    def hear(self, message: Introduce, identity: int, cluster: int, vote: Vote) -> Vote | None:
        """Takes an introduction while this member belongs to no cluster; returns its vote if it now belongs to one."""
        if message.members:
            mine = Member(vote.name, vote.identity, self.peers.get(vote.name, ""))
            if mine in message.members and cluster_number(message.members) == cluster:
                return msgspec.structs.replace(vote, cluster=cluster, members=message.members)
            return None
        if message.peers != tuple(sorted(self.peers)) or self.peers.get(message.name) != message.address:
            return None
        self.heard[message.name] = Member(message.name, identity, message.address)
        self.heard[vote.name] = Member(vote.name, vote.identity, self.peers[vote.name])
        if len(self.heard) < len(self.peers):
            return None
        members = tuple(sorted(self.heard.values()))
        return msgspec.structs.replace(vote, cluster=cluster_number(members), members=members)

    def forget(self, identities: set[int]) -> None:
        """Forgets strangers that have become members."""
        self.strangers = {key: told for key, told in self.strangers.items() if told[0] not in identities}

    def stranger(self, name: str, address: str, now: float) -> int | None:
        """Returns the identity of the controller that waits there to be taken in; None if none has said so lately."""
        identity, heard_s = self.strangers.get((name, address), (0, 0.0))
        return identity if identity and now - heard_s <= STRANGER_S else None

    def note_stranger(self, message: Introduce, identity: int, members: tuple[Member, ...], now: float) -> None:
        """Remembers a controller that could become a member."""
        if any(member.identity == identity for member in members):
            return
        key = (message.name, message.address)
        self.strangers.pop(key, None)
        self.strangers[key] = (identity, now)
        while len(self.strangers) > STRANGERS_MAX:
            self.strangers.pop(next(iter(self.strangers)))
