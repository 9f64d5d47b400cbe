"""A group of workers that share one replica, as one of its members has joined it, and who of it may send what. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from adamctl.wire.messages import (
    GroupMember,
    Hello,
    Message,
    PartAttachRequest,
    PartDataRequest,
    PartDoneRequest,
    PartReadyRequest,
)

LEAD: Final = 0
"""The partition that leads."""
OF_EVERY_MEMBER: Final = (PartAttachRequest, PartDataRequest, PartDoneRequest, PartReadyRequest)
"""All other messages within a group come from its lead."""


class Group(NamedTuple):
    """A group as one of its members has joined it.

    Attributes:
        own: this member's partition.
        plan_hash: of the plan that it has derived.
        batch, flights: what memory is laid out for.
    """

    job: str
    epoch: int
    own: int
    members: tuple[GroupMember, ...]
    plan_hash: str
    batch: int
    flights: int

    def name(self, partition: int) -> str:
        """Returns what to call a member in messages."""
        return f"partition {partition} ({self.members[partition].node})"

    def refusal(self, peer: Hello, message: Message) -> str:
        """Returns why a peer with this HELLO may not send a message to this member; empty if it may.

        Members are those that the coordinator has named, each by its node and the incarnation it joined with; a message
        that names a partition speaks for that member.
        """
        who = (peer.node, peer.incarnation)
        found = [one for one, member in enumerate(self.members) if (member.node, member.incarnation) == who]
        if not found:
            return f"{peer.node}, incarnation {peer.incarnation}, is no member of group {self.epoch} of {self.job}"
        named = getattr(message, "partition", found[0])
        if named != found[0]:
            return f"{peer.node} is partition {found[0]} of group {self.epoch} and cannot speak for partition {named}"
        if found[0] != LEAD and not isinstance(message, OF_EVERY_MEMBER):
            return f"{peer.node} does not lead group {self.epoch}"
        return ""
