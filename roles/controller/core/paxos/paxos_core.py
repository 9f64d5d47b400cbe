"""One member of the Paxos cluster as a pure state machine: messages and clock readings in, instructions out.

docs/decisions/0008-controllers-by-paxos.md says why. In short: a member that hears no leader asks whether others would
vote for it (Probe), then for promises (Prepare). Once a majority has promised, and it knows as much as the best
informed of them, it leads: it proposes again what was accepted for the open slot, if anything, then an empty value of
its own, and from then on one value after another. Its heartbeats ask the others to confirm that it leads
(`adamctl.roles.controller.core.paxos.leader`).

The instruction that saves a promise comes before the message that tells of it; the shell keeps that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from adamctl.roles.controller.core.instructions import SaveVote
from adamctl.roles.controller.core.paxos.acceptor import Acceptor, Outbox
from adamctl.roles.controller.core.paxos.catch_up import Giver, Taker
from adamctl.roles.controller.core.paxos.forming import Forming
from adamctl.roles.controller.core.paxos.leader import Leadership, is_majority
from adamctl.roles.controller.core.paxos.member import FOREVER, Leader, PaxosConfig, PaxosMember
from adamctl.roles.controller.core.paxos.messages import (
    Accept,
    Accepted,
    Ballot,
    Confirm,
    Confirmed,
    Entry,
    Member,
    PaxosSnapshot,
    Prepare,
    Probe,
    ProbeReply,
    Promise,
    Received,
    Refused,
    Vote,
)

__all__ = ["PaxosConfig", "PaxosCore"]


class PaxosCore:
    """A whole member. Knows no clock but the `now` it is given, and no chance but `chance`. Not thread-safe."""

    def __init__(
        self, machine: Leader, out: Outbox, config: PaxosConfig, forming: Forming, chance: Callable[[], float]
    ) -> None:
        self._machine = machine
        self._out = out
        self._config = config
        self._member = PaxosMember(machine, out, config, forming, chance, self._knows_more)
        self._grants: set[int] = set()
        self._promises: dict[int, Promise] = {}
        self._member.handlers |= {
            Probe: self._on_probe,
            ProbeReply: self._on_probe_reply,
            Prepare: self._on_prepare,
            Promise: self._on_promise,
            Accepted: self._on_accepted,
            Confirmed: self._on_confirmed,
            Refused: self._on_refused,
        }

    def start(
        self, vote: Vote, fresh: bool, snapshot: PaxosSnapshot | None, entries: Iterable[Entry], now: float
    ) -> None:
        """Restores what was on disk; `fresh`: `vote` is not on disk yet. A member that is alone leads at once."""
        self._member.acceptor = Acceptor(self._machine, self._out, vote, log_bytes_max=self._config.log_bytes_max)
        self._member.giver = Giver(self.acceptor, part_bytes=self._config.part_bytes)
        self._member.taker = Taker(self.acceptor, 2 * self._config.heartbeat_s)
        self.acceptor.recover(snapshot, entries)
        if not vote.cluster and len(self.forming.peers) <= 1:
            address = self.forming.peers.get(vote.name, "")
            self.acceptor.vote = self.forming.alone(vote, address)  # saved with the first promise
            self.acceptor.members = self.acceptor.vote.members
        elif fresh:
            self._out.put(SaveVote(vote))
        if not self.acceptor.vote.cluster:
            self._member.deadline_s = now
            return
        self._member.role = "follower"
        if is_majority((self.identity,), self.acceptor.members):
            if self.acceptor.accepted is not None:
                self.acceptor.choose()
            self._campaign(now)
        else:
            self._member.await_leader(now)

    # --- of the member ------------------------------------------------------------------------------------------------

    @property
    def acceptor(self) -> Acceptor:
        return self._member.acceptor

    @property
    def forming(self) -> Forming:
        return self._member.forming

    @property
    def identity(self) -> int:
        return self._member.identity

    @property
    def role(self) -> str:
        return self._member.role

    @property
    def leader(self) -> int:
        return self._member.leader

    @property
    def leadership(self) -> Leadership | None:
        return self._member.leadership

    def receive(self, event: Received, now: float) -> str:
        """Takes a message; returns why it was refused, or nothing."""
        return self._member.receive(event, now)

    # --- what the others ask for --------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        """Whether this member leads and may answer, as far as it knows."""
        return self.leadership is not None and self.leadership.ready

    @property
    def can_propose(self) -> bool:
        return self.leading and self.leadership is not None and self.leadership.proposal is None

    def hears(self, member: Member, now: float) -> bool:
        """Whether this member leads and the given one has answered it lately (or is this one)."""
        leadership = self.leadership
        if leadership is None or member.identity == self.identity:
            return leadership is not None
        return now - leadership.heard_s.get(member.identity, -FOREVER) < self._config.give_up_s

    @property
    def next_deadline_s(self) -> float:
        return self.leadership.heartbeat_s if self.leadership is not None else self._member.deadline_s

    def propose(self, value: bytes, members: tuple[Member, ...] = ()) -> None:
        """Proposes a value for the open slot. Allowed while `can_propose`."""
        leadership = self.leadership
        assert leadership is not None and leadership.proposal is None
        previous = self.acceptor.chosen_ballot
        entry = Entry(self.acceptor.chosen_to + 1, leadership.ballot, value, members)
        leadership.proposal, leadership.previous = entry, previous
        leadership.acknowledged = {self.identity}
        self.acceptor.accept(entry, previous)
        self._member.broadcast(Accept(entry, previous))

    def confirm(self, token: int, now: float) -> None:
        """Finds out whether this member still leads; the machine is told when it does. Allowed while leading."""
        assert self.leadership is not None
        self.leadership.wait(token)
        if not self.leadership.asking:
            self._begin_round(now)

    def settle(self, now: float) -> None:
        """Counts what this member's own vote decides; to be called after `propose` and `confirm`."""
        if self.leadership is not None:
            self._count_accepted(now)
        if self.leadership is not None:
            self._release(now)

    def tick(self, now: float) -> None:
        """Does what is due."""
        if self.leadership is not None:
            if now >= self.leadership.heartbeat_s:
                self._heartbeat(now)
        elif now >= self._member.deadline_s:
            if self.role == "forming":
                self._member.introduce(now)
            else:
                self._probe(now)

    # --- election ---------------------------------------------------------------------------------------------------

    def _probe(self, now: float) -> None:
        self._member.await_leader(now)
        self._member.leader = 0
        if not self._member.is_member():
            return
        self._member.role = "probing"
        self._grants = {self.identity}
        self._member.broadcast(Probe(self._next_round()))
        if self.acceptor.untouched:
            # Perhaps the others were never in a cluster with this member: then it is a stranger to them.
            self._member.introduce(now)

    def _next_round(self) -> int:
        return self._member.round_known + 1

    def _on_probe(self, message: Probe, event: Received, now: float) -> None:
        member = self._member
        granted = member.leadership is None and now - member.heard_s >= self._config.election_s * member.patience
        promised = self.acceptor.vote.promised.round
        self._member.send(event.source, ProbeReply(message.round, granted, promised))

    def _on_probe_reply(self, message: ProbeReply, event: Received, now: float) -> None:
        self._member.round_seen = max(self._member.round_seen, message.promised_round)
        if self.role == "probing" and message.granted:
            self._grants.add(event.source)
            if is_majority(self._grants, self.acceptor.members):
                self._campaign(now)

    def _campaign(self, now: float) -> None:
        self._member.cease()
        self._member.take_part(now)
        self._member.await_leader(now)
        self._member.role = "candidate"
        self._member.leader = 0
        ballot = Ballot(self._next_round(), self.identity)
        self.acceptor.promise(ballot)
        self._promises = {}
        self._member.broadcast(Prepare(ballot))
        self._count_promises(now)

    def _on_prepare(self, message: Prepare, event: Received, now: float) -> None:
        if message.ballot > self.acceptor.vote.promised:
            self._member.take_part(now)
        if not self.acceptor.promise(message.ballot):
            self._member.send(event.source, Refused(self.acceptor.vote.promised))
            return
        self._member.heard_s = now
        self._member.follow(0, now)
        acceptor = self.acceptor
        self._member.send(event.source, Promise(message.ballot, acceptor.chosen_to, acceptor.accepted))

    def _on_promise(self, message: Promise, event: Received, now: float) -> None:
        if self.role == "candidate" and message.ballot == self.acceptor.vote.promised:
            self._promises[event.source] = message
            self._count_promises(now)

    def _count_promises(self, now: float) -> None:
        """Begins to lead if a majority has promised and this member knows everything that they know to be decided."""
        acceptor = self.acceptor
        ballot = acceptor.vote.promised
        if self.role != "candidate" or not is_majority((self.identity, *self._promises), acceptor.members):
            return
        best = max(self._promises.items(), key=lambda item: item[1].chosen_to, default=None)
        if best is not None and best[1].chosen_to > acceptor.chosen_to:
            self._member.fetch(best[0], now)
            return
        self._member.role = "leader"
        self._member.leader = self.identity
        self._member.leadership = leadership = Leadership(ballot, now)
        self._set_heartbeat(now)
        self._begin_round(now)
        open_slot = acceptor.chosen_to + 1
        found = [promise.accepted for promise in self._promises.values()] + [acceptor.accepted]
        adopted = self._adopted([entry for entry in found if entry is not None and entry.slot == open_slot])
        if adopted is not None:
            leadership.adopting = True
            self.propose(adopted.value, adopted.members)
        elif len(acceptor.members) > 1:
            self.propose(b"")
        else:
            leadership.ready = True
            self._machine.began_to_lead(now)
        self.settle(now)

    def _adopted(self, accepted: list[Entry]) -> Entry | None:
        """Returns the only entry for the open slot that may have been decided: the one with the highest ballot."""
        return max(accepted, key=lambda entry: entry.ballot, default=None)

    # --- leading ----------------------------------------------------------------------------------------------------

    def _begin_round(self, now: float) -> None:
        leadership, acceptor = self.leadership, self.acceptor
        assert leadership is not None
        number = leadership.begin_round(now)
        self._member.broadcast(Confirm(leadership.ballot, number, acceptor.chosen_to, acceptor.chosen_ballot))
        leadership.count(acceptor.members)

    def _set_heartbeat(self, now: float) -> None:
        """Sets the next heartbeat. Other rounds do not delay it: it also resends what may have been lost."""
        assert self.leadership is not None
        self.leadership.heartbeat_s = now + self._config.heartbeat_s if len(self.acceptor.members) > 1 else FOREVER

    def _heartbeat(self, now: float) -> None:
        leadership = self.leadership
        assert leadership is not None
        give_up_s = self._config.give_up_s * self._member.patience
        if now - leadership.confirmed_s > give_up_s and len(self.acceptor.members) > 1:
            self._member.follow(0, now)  # perhaps nobody hears us, or we hear nobody: let another member lead
            return
        self._member.calm_down()
        self._set_heartbeat(now)
        self._begin_round(now)
        if leadership.proposal is not None:
            for member in self.acceptor.members:
                if member.identity not in leadership.acknowledged:
                    self._member.send(member.identity, Accept(leadership.proposal, leadership.previous))
        self._release(now)

    def _on_accepted(self, message: Accepted, event: Received, now: float) -> None:
        leadership = self.leadership
        if leadership is None or leadership.proposal is None or message.ballot != leadership.ballot:
            return
        if message.slot == leadership.proposal.slot:
            leadership.acknowledged.add(event.source)
            self._count_accepted(now)

    def _count_accepted(self, now: float) -> None:
        leadership = self.leadership
        assert leadership is not None
        entry = leadership.proposal
        if entry is None or not is_majority(leadership.acknowledged, self.acceptor.members):
            return
        leadership.proposal = None
        adopted, leadership.adopting = leadership.adopting, False
        first = not (leadership.ready or adopted or entry.members)
        leadership.ready |= first
        self.acceptor.choose()
        if entry.members:
            self._members_changed(now)
        elif adopted:
            self.propose(b"")
            self._count_accepted(now)
        elif first:
            self._machine.began_to_lead(now)
            self._release(now)

    def _members_changed(self, now: float) -> None:
        """The next slot belongs to other members, so their promises are needed first."""
        if self._member.is_member():
            self._campaign(now)
        else:
            self._member.follow(0, now)

    def _on_confirmed(self, message: Confirmed, event: Received, now: float) -> None:
        leadership = self.leadership
        if leadership is None or message.ballot != leadership.ballot:
            return
        leadership.progress[event.source] = message.chosen_to
        leadership.heard_s[event.source] = now
        leadership.answered(event.source, message.number, self.acceptor.members)
        self._release(now)

    def _release(self, now: float) -> None:
        leadership = self.leadership
        assert leadership is not None
        for token in leadership.released():
            self._machine.confirmed(token, now)
        if leadership.waiting and not leadership.asking:
            self._begin_round(now)
            for token in leadership.released():
                self._machine.confirmed(token, now)

    def _on_refused(self, message: Refused, event: Received, now: float) -> None:
        self._member.round_seen = max(self._member.round_seen, message.promised.round)
        if message.promised > self.acceptor.vote.promised and self.role in ("candidate", "leader"):
            self._member.follow(0, now)

    def _knows_more(self, members_changed: bool, now: float) -> None:
        if members_changed:
            self._members_changed(now)
        else:
            self._count_promises(now)
