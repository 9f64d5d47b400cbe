"""The configuration service as a pure state machine: an event and a clock reading in, instructions out.

The shell carries out the instructions of a step in order, and sends nothing before the persisting instructions that
precede it are on disk. So no answer and no promise to another controller says anything that a power failure could undo.

Changes become commands, commands become values of the log (`adamctl.roles.controller.core.paxos`), and only decided
values are applied (`commands`). The leader answers a read, a watch or a beacon after a majority has confirmed, since
the request came, that it still leads.

Membership: a registered process has a key `/nodes/{id}` and an incarnation that was never issued before. It is alive
while its beacons arrive; after `lost_after_s` of silence it loses its key. A name whose process is alive is refused to
another process. If the old process has closed its connection, the new one waits until the old one has certainly ended
(its parent has reaped it, or its addresses refuse connections) or has been silent until its lease is over; if it still
runs, its next beacon is refused with STALE_INCARNATION. When a leader begins, it counts every node as heard from at
that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from adamctl.config.records import NodeRecord
from adamctl.roles.controller.core.instructions import Instruction, Notice
from adamctl.roles.controller.core.paxos.forming import Forming
from adamctl.roles.controller.core.paxos.messages import Entry, Member, PaxosSnapshot, Received, Vote
from adamctl.roles.controller.core.paxos.paxos_core import PaxosCore
from adamctl.roles.controller.core.service.commands import carry_out, decode_commands
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.events import (
    Beacon,
    CompareAndSet,
    Disconnected,
    Event,
    Gone,
    Leave,
    Read,
    Register,
    Replace,
    RestoreBackup,
    TakeBackup,
    Tick,
    Watch,
)
from adamctl.roles.controller.core.service.limits import Limits
from adamctl.roles.controller.core.service.requests import Requests
from adamctl.roles.controller.core.service.retiring import Retiring
from adamctl.roles.controller.core.service.shared import Shared
from adamctl.roles.controller.core.service.state import decode_state, snapshot_problem
from adamctl.wire.unreadable import UNREADABLE

__all__ = ["ControllerConfig", "ControllerCore"]

REFUSALS_MAX = 16


class ControllerCore:
    """One member. Not thread-safe; knows no clock but the `now` it is given."""

    def __init__(
        self,
        config: ControllerConfig | None = None,
        *,
        name: str = "controller",
        peers: Mapping[str, str] | None = None,
        identity: int = 1,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """
        Args:
            name: of this controller.
            peers: name -> address of the controllers to form a cluster with, this one included; none: it is alone.
            identity: for its folder, if that is empty; random, greater than 0.
            chance: gives numbers from 0 to 1.
        """
        self.config = config or ControllerConfig()
        self.limits = Limits(self.config)
        self.paxos = PaxosCore(self, self, self.config.paxos, Forming(peers or {}), chance)
        self._shared = Shared(self.config, self.paxos)
        self.state, self.nodes = self._shared.state, self._shared.nodes
        self._fresh = Vote(name, identity)
        self._recovering = False
        self._refusals: dict[str, str] = {}  # address -> why its last message was refused
        self._ticked_s = 0.0
        self._requests = Requests(self._shared)
        self._retiring = Retiring(self._shared, self._requests)

    def recover(
        self, vote: Vote | None, snapshot: PaxosSnapshot | None, entries: Iterable[Entry], now: float
    ) -> list[Instruction]:
        """Restores what the store held, and returns what to do first. If it held nothing, the folder is new."""
        self._shared.now = self._ticked_s = now
        self._recovering = True
        self.paxos.start(vote or self._fresh, vote is None, snapshot, entries, now)
        self._recovering = False
        self._requests.pump(now)
        return self._shared.taken()

    def step(self, event: Event, now: float) -> list[Instruction]:
        """Returns what to do about an event at clock reading `now` (seconds, never going back)."""
        self._shared.now = now
        requests = self._requests
        match event:
            case Received():
                problem = self.limits.accepts(event.address, event.limits)
                if problem is None:
                    problem = self._refused(event.address, self.paxos.receive(event, now))
                if problem:
                    self.put(Notice(problem))
            case Read() | Watch() | Beacon() | TakeBackup():
                requests.confirm(event, now)
            case CompareAndSet():
                requests.change(event)
            case Register():
                requests.register(event)
            case Leave():
                requests.leave(event)
            case Replace():
                requests.replace(event)
            case RestoreBackup():
                requests.restore(event)
            case Disconnected():
                requests.disconnected(event.connection)
            case Gone():
                node = self.nodes.get(event.node)
                if node is not None and node.connection is None and node.record.incarnation == event.incarnation:
                    requests.part(node, "is lost: its process has ended")
            case Tick():
                self._tick(now)
        requests.pump(now)
        return self._shared.taken()

    def snapshot(self) -> tuple[PaxosSnapshot, tuple[Entry, ...]]:
        """Returns what may replace the log: the decided state, and what was accepted after it."""
        accepted = self.paxos.acceptor.accepted
        return self.paxos.acceptor.snapshot(), () if accepted is None else (accepted,)

    @property
    def next_deadline_s(self) -> float:
        """Clock reading at which a Tick is due, or inf."""
        return min(self._requests.watching.next_deadline_s, self.paxos.next_deadline_s)

    @property
    def watchers(self) -> int:
        return len(self._requests.watching)

    @property
    def now(self) -> float:
        """Clock reading of the last event."""
        return self._shared.now

    @property
    def members(self) -> tuple[Member, ...]:
        return self._shared.members

    @property
    def cluster(self) -> str:
        """The identity that nodes know this cluster by; empty while there is none."""
        return self._shared.cluster

    @property
    def leader(self) -> Member | None:
        """The leader, as far as this member knows."""
        return self._shared.leader

    @property
    def outvoted(self) -> str:
        """Why this member cannot take part in the cluster: most of the others have different limits. "" if it can."""
        if not self.limits.differing:
            return ""
        peers = self.paxos.forming.peers
        known = {member.name: member.address for member in self.members} or peers
        own = self.paxos.acceptor.vote.name
        return self.limits.outvoted([address for name, address in known.items() if name != own])

    def own_address(self, name: str) -> str:
        """Returns where the other controllers reach this one; empty if there are none."""
        peers = self.paxos.forming.peers
        return peers[name] if len(peers) > 1 else ""

    def living(self) -> dict[str, NodeRecord]:
        """Returns the registered nodes by name."""
        return {node.record.node: node.record for node in self.nodes}

    def heard_s(self) -> dict[str, float]:
        """Returns the clock reading at which each living node was last heard from; nothing unless this one leads."""
        return {node.record.node: node.heard_s for node in self.nodes} if self.paxos.leading else {}

    def unconnected(self) -> list[NodeRecord]:
        """Returns the nodes whose last connection is closed: perhaps gone, perhaps about to come back."""
        return [node.record for node in self.nodes if node.connection is None] if self.paxos.leading else []

    # --- Outbox -------------------------------------------------------------------------------------------------------

    def put(self, instruction: Instruction) -> None:
        self._shared.put(instruction)

    def _refused(self, address: str, problem: str) -> str:
        """Returns what to log about a refused message; "" if the last refusal of this address had the same reason."""
        if not problem or self._refusals.get(address) == problem:
            return ""
        self._refusals.pop(address, None)
        self._refusals[address] = problem
        while len(self._refusals) > REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]
        return f"a message from the controller at {address} is refused: {problem}"

    # --- Leader: what Paxos tells -------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Applies a decided value. Each request in it is answered by the member that received it."""
        for index, command in enumerate(decode_commands(entry.value)):
            outcome = carry_out(self.state, command)
            if outcome.effect is not None:
                self.nodes.follow(self.state, (*outcome.effect.puts, *outcome.effect.deletes), self.now)
            if outcome.replaced:
                self.nodes.restore(self.state, self.now)
                if not self._recovering:
                    self._retiring.began_to_lead(self.now)  # numbers have leapt: what it has counted is of no use
            if not self._recovering:
                self._requests.carried_out(entry, index, outcome)
        if entry.members and not self._recovering:
            self._requests.members_changed(entry)

    @property
    def state_bytes(self) -> int:
        return self.state.size_bytes

    def encode_state(self) -> bytes:
        return msgspec.msgpack.encode(self.state.snapshot())

    def value_problem(self, value: bytes) -> str:
        try:
            decode_commands(value)
        except UNREADABLE as error:
            return f"expected a value that holds commands: {error}"
        return ""

    def state_problem(self, state: bytes) -> str:
        try:
            return snapshot_problem(decode_state(state))
        except UNREADABLE as error:
            return f"expected a state of keys: {error}"

    def restore_state(self, state: bytes) -> None:
        self.state.restore(decode_state(state))
        self.nodes.restore(self.state, self.now)

    def began_to_lead(self, now: float) -> None:
        """Counts every node as heard from now, since no beacon could reach this member before."""
        self._ticked_s = now
        self.nodes.refresh(now)
        self._retiring.began_to_lead(now)
        if len(self.members) > 1:
            self.put(Notice(f"is the leader of the controllers since slot {self.paxos.acceptor.chosen_to}"))

    def ceased_to_lead(self) -> None:
        """Refuses what can no longer be answered here. What was proposed may still be done, under its session."""
        self._requests.refuse_all()
        if not self._recovering:
            self.put(Notice("is no longer the leader of the controllers"))

    def confirmed(self, token: int, now: float) -> None:
        self._requests.confirmed(token, now)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        self.paxos.tick(now)
        if now - self._ticked_s > self.config.lost_after_s / 2:
            # This process was stopped or stalled; beacons that came meanwhile are still queued behind this event.
            self.nodes.refresh(now, keep_connections=True)
        self._ticked_s = now
        if self.paxos.leading:
            for node in list(self.nodes):
                silent_s = now - node.heard_s
                if silent_s > self.config.lost_after_s:
                    self._requests.part(node, f"is lost: no beacon for {silent_s:.1f} s")
            self._retiring.tick(now)
        self._requests.watching.time_out(now)
