"""What every member of the Paxos cluster does, whether it leads or not: join, follow, catch up. Pure.

`adamctl.roles.controller.core.paxos.paxos_core` uses it, and adds elections and leading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from adamctl.roles.controller.core.instructions import Send
from adamctl.roles.controller.core.paxos.acceptor import LOG_BYTES_MAX, Acceptor, Machine, Outbox
from adamctl.roles.controller.core.paxos.catch_up import PART_BYTES, Giver, Taker
from adamctl.roles.controller.core.paxos.forming import Forming
from adamctl.roles.controller.core.paxos.leader import Leadership
from adamctl.roles.controller.core.paxos.messages import (
    Accept,
    Accepted,
    Ballot,
    Confirm,
    Confirmed,
    Fetch,
    Introduce,
    Learn,
    PeerMessage,
    Probe,
    ProbeReply,
    Received,
    Refused,
    SnapshotPart,
    Vote,
)
from adamctl.roles.controller.core.paxos.validate import entries_of, message_problem

FOREVER = float("inf")
ADDRESSES_MAX = 64
PATIENCE_MAX = 5.0
PATIENCE_GROWTH = 1.5
PATIENCE_DECAY = 0.98
SETTLED_ELECTIONS = 2
"""An election that follows another within this many times `election_s` came too soon: everything is slow."""


@dataclass(frozen=True)
class PaxosConfig:
    """Times in seconds, limits in bytes. A member that hears no leader for one to two times `election_s` stands for
    election; a leader that no majority has confirmed for `give_up_s` becomes a follower. These affect only how soon
    things happen, never what happens.
    """

    heartbeat_s: float = 0.15
    election_s: float = 0.6
    give_up_s: float = 1.2
    log_bytes_max: int = LOG_BYTES_MAX
    part_bytes: int = PART_BYTES


class Leader(Machine, Protocol):
    """A state machine that is also told when this member begins and ceases to lead."""

    def began_to_lead(self, now: float) -> None: ...

    def ceased_to_lead(self) -> None:
        """All calls of `confirm` and `propose` since then are void, although a proposal may still be decided."""
        ...

    def confirmed(self, token: int, now: float) -> None:
        """This member still led after `confirm` was called."""
        ...


class PaxosMember:
    """The part of a member that needs no leadership.

    Attributes:
        handlers: what is called for each type of message; `PaxosCore` adds the types of elections and of leading.
        knows_more: called when a candidate has learnt decided values; told whether the members have changed.
        role: forming (belongs to no cluster yet), follower, probing, candidate or leader.
        leader: identity of the leader this member last heard from, 0 if it knows none.
        leadership: what a leader keeps while it leads, None while it does not.
        round_seen: the highest round that another member has told of.
        heard_s: when this member last heard a leader, or a candidate that has its vote.
        deadline_s: when to stand for election, or to introduce itself.
        patience: the factor by which all waits for leaders are longer; it grows where disks or machines are slow.
    """

    acceptor: Acceptor
    giver: Giver
    taker: Taker

    def __init__(
        self,
        machine: Leader,
        out: Outbox,
        config: PaxosConfig,
        forming: Forming,
        chance: Callable[[], float],
        knows_more: Callable[[bool, float], None],
    ) -> None:
        self.config = config
        self.forming = forming
        self.role = "forming"
        self.leader = 0
        self.leadership: Leadership | None = None
        self._machine = machine
        self._out = out
        self.knows_more = knows_more
        self.round_seen = 0
        self._chance = chance
        self._addresses: dict[int, str] = {}
        self.heard_s = -FOREVER
        self.deadline_s = FOREVER
        self.patience = 1.0
        self._elected_s = -FOREVER  # when this member last took part in an election
        self.handlers: dict[type, Callable[..., None]] = {
            Introduce: self._on_introduce,
            Accept: self._on_accept,
            Confirm: self._on_confirm,
            Fetch: self._on_fetch,
            Learn: self._on_decided,
            SnapshotPart: self._on_decided,
        }

    @property
    def identity(self) -> int:
        return self.acceptor.vote.identity

    @property
    def round_known(self) -> int:
        """The highest round that was promised or heard of here."""
        return max(self.acceptor.vote.promised.round, self.round_seen)

    def receive(self, event: Received, now: float) -> str:
        """Takes a message. Returns why it was refused, if it makes no sense or its sender is not a member.

        A refused message changes nothing. Messages for another cluster, or for another identity at this address, are
        ignored.
        """
        vote = self.acceptor.vote
        if event.source == self.identity:
            return ""
        problem = message_problem(event.message, self.round_known) or self._values_problem(event.message)
        problem = problem or self._impostor(event)
        if problem:
            return problem
        if not isinstance(event.message, Introduce):
            if event.destination != self.identity:
                return ""
            if event.cluster != vote.cluster:
                # A member that has promised nothing may leave: old introductions may have led it into a wrong one.
                if not event.cluster or not self.acceptor.untouched or isinstance(event.message, Probe | ProbeReply):
                    return ""
                self._join(event.cluster, now)
            elif not self.acceptor.may_be_member(event.source):
                self._heard_a_stranger(event.message, now)
                return "its sender is not one of the controllers known here"
        self._addresses.pop(event.source, None)
        self._addresses[event.source] = event.address
        if len(self._addresses) > ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        self.handlers[type(event.message)](event.message, event, now)
        return ""

    def _values_problem(self, message: PeerMessage) -> str:
        problems = (self._machine.value_problem(entry.value) for entry in entries_of(message))
        return next(filter(None, problems), "")

    def _impostor(self, event: Received) -> str:
        """Says whose name a sender uses that is not its own: a controller speaks for itself only."""
        named = {member.name for member in self.acceptor.members if member.identity == event.source}
        if isinstance(event.message, Introduce):
            named.add(event.message.name)
        others = sorted(named - {event.node}) if event.node else []
        return f"controller {event.node} speaks for {others[0]}" if others else ""

    def _heard_a_stranger(self, message: PeerMessage, now: float) -> None:
        """Asks the known members for news: perhaps the members have changed, and the stranger leads."""
        match message:
            case Accept(entry=entry):
                told = entry.slot - 1
            case Confirm(chosen_to=told):
                pass
            case _:
                return
        question = self.taker.question(now) if told > self.acceptor.chosen_to else None
        if question is not None:
            self.broadcast(question)

    # --- belonging --------------------------------------------------------------------------------------------------

    def introduce(self, now: float) -> None:
        self.deadline_s = now + self.config.election_s * (0.5 + 0.5 * self._chance())
        message = self.forming.introduction(self.acceptor.vote, ())
        for name, address in self.forming.peers.items():
            if name != self.acceptor.vote.name:
                self._out.put(Send(address, 0, message))

    def _on_introduce(self, message: Introduce, event: Received, now: float) -> None:
        vote = self.acceptor.vote
        if vote.cluster:
            if not message.members:
                self.forming.note_stranger(message, event.source, self.acceptor.members, now)
                if vote.members:
                    self.send(event.source, self.forming.introduction(vote, vote.members))
            return
        known = len(self.forming.heard)
        formed = self.forming.hear(message, event.source, event.cluster, vote)
        if len(self.forming.heard) > known and not message.members:
            self._out.put(Send(message.address, 0, self.forming.introduction(vote, ())))  # it may not know us yet
        if formed is not None:
            self.acceptor.save(formed)
            self.acceptor.members = formed.members
            self.role = "follower"
            self.await_leader(now)
            if self.identity == min(member.identity for member in formed.members):
                self.deadline_s = now + self.config.heartbeat_s  # somebody has to be the first

    def _join(self, cluster: int, now: float) -> None:
        """A leader knows this member's identity, so it was taken in; a snapshot will say who the members are."""
        vote = self.acceptor.vote
        self.acceptor.save(Vote(vote.name, vote.identity, cluster, vote.promised, ()))
        self.acceptor.members = ()
        self.role = "follower"
        self.await_leader(now)

    # --- leaders' times -----------------------------------------------------------------------------------------------

    def await_leader(self, now: float) -> None:
        self.deadline_s = now + self.config.election_s * (1.0 + self._chance()) * self.patience

    def take_part(self, now: float) -> None:
        """Notes that an election has begun. If the last one was very recent, it had too little time to succeed."""
        if now - self._elected_s < SETTLED_ELECTIONS * self.config.election_s * self.patience:
            self.patience = min(self.patience * PATIENCE_GROWTH, PATIENCE_MAX)
        self._elected_s = now

    def calm_down(self) -> None:
        """A leader was heard, or this one was confirmed."""
        self.patience = max(self.patience * PATIENCE_DECAY, 1.0)

    def is_member(self) -> bool:
        return any(member.identity == self.identity for member in self.acceptor.members)

    def follow(self, leader: int, now: float) -> None:
        self.cease()
        self.role = "follower"
        self.leader = leader
        self.await_leader(now)

    def cease(self) -> None:
        if self.leadership is not None:
            self.leadership = None
            self._machine.ceased_to_lead()

    # --- following --------------------------------------------------------------------------------------------------

    def _obeys(self, ballot: Ballot, event: Received, now: float) -> bool:
        """Follows the leader of a ballot, unless a higher one was promised; returns whether it does."""
        if not self.acceptor.promise(ballot):
            self.send(event.source, Refused(self.acceptor.vote.promised))
            return False
        self.heard_s = now
        self.calm_down()
        self.follow(event.source, now)
        return True

    def _on_accept(self, message: Accept, event: Received, now: float) -> None:
        if not self._obeys(message.entry.ballot, event, now):
            return
        if self.acceptor.accept(message.entry, message.previous):
            self.send(event.source, Accepted(message.entry.ballot, message.entry.slot))
        else:
            self.fetch(event.source, now)

    def _on_confirm(self, message: Confirm, event: Received, now: float) -> None:
        if not self._obeys(message.ballot, event, now):
            return
        self.acceptor.know_chosen(message.chosen_to, message.chosen_ballot)
        self.send(event.source, Confirmed(message.ballot, message.number, self.acceptor.chosen_to))
        if self.acceptor.chosen_to < message.chosen_to or not self.acceptor.members:
            self.fetch(event.source, now)

    # --- catching up ------------------------------------------------------------------------------------------------

    def fetch(self, source: int, now: float) -> None:
        question = self.taker.question(now)
        if question is not None:
            self.send(source, question)

    def _on_fetch(self, message: Fetch, event: Received, now: float) -> None:
        answer = self.giver.answer(message)
        if answer is not None:
            self.send(event.source, answer)

    def _on_decided(self, message: Learn | SnapshotPart, event: Received, now: float) -> None:
        before, members = self.acceptor.chosen_to, self.acceptor.members
        useful = self.taker.take(message)
        if self.acceptor.chosen_to != before and self.leadership is not None:
            self.follow(0, now)  # somebody else has decided our open slot
        if self.role == "candidate":
            self.knows_more(self.acceptor.members != members, now)
        elif useful and (isinstance(message, SnapshotPart) or self.acceptor.chosen_to < message.chosen_to):
            self.fetch(event.source, now)

    # --- sending ----------------------------------------------------------------------------------------------------

    def broadcast(self, message: PeerMessage) -> None:
        for member in self.acceptor.members:
            if member.identity != self.identity:
                self._out.put(Send(member.address, member.identity, message))

    def send(self, identity: int, message: PeerMessage) -> None:
        """Sends to a member at its best known address."""
        for member in self.acceptor.members:
            if member.identity == identity:
                self._out.put(Send(member.address, identity, message))
                return
        if identity in self._addresses:
            self._out.put(Send(self._addresses[identity], identity, message))
