"""The part of a simulated coordinator that follows its servers: the real core of losses, and what must hold of it.

It does what `roles/coordinator/losses.py` does. The run's own client is not simulated: it attaches after a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Protocol

from adamctl.config.records import NodeRecord, decode
from adamctl.roles.configuration import nodes_of
from adamctl.roles.coordinator.core import events, losses
from adamctl.roles.coordinator.core.instructions import (
    AttachAgain,
    FailRun,
    Instruction,
    LoseWorker,
    ReadKeys,
    Say,
    WatchServer,
)
from adamctl.roles.coordinator.core.losses import LossCore, LossPlan
from adamctl.roles.coordinator.core.membership import Membership
from adamctl.wire.changes import Changes
from tests.sim.engine import ViolationError, World
from tests.sim.processes.process import Member

LOOK_EVERY_S = 0.25
UNHEARD = 0.3
"""How often a host whose process is gone does not say so when it is asked."""
ATTACH_S_MAX = 0.5
ROUNDING_S = 1e-6


class Process(Protocol):
    """A parameter server or a data server, in truth."""

    @property
    def incarnation(self) -> int: ...

    alive: bool
    paused: bool


class SimLosses:
    """Attributes:
    core: the real one.
    cause: of the failure that the core asked for.
    for_good: nobody whose death should end the run comes back any more, so that it has to.
    """

    def __init__(
        self,
        world: World,
        member: Member,
        plan: LossPlan,
        servers: Sequence[NodeRecord],
        data: Sequence[NodeRecord],
        processes: Mapping[str, Process],
        incarnation: Callable[[str], int],
        step_run: Callable[[events.Event], None],
    ) -> None:
        """`incarnation(node)`: which process is a member in truth, 0 if none."""
        self.world, self.member, self.plan, self.processes = world, member, plan, processes
        self.core = LossCore(plan, servers, data)
        self.cause, self.for_good = "", False
        self._first = [*servers, *data]
        self._nodes = [record.node for record in servers]
        self._attached = {record.node: record.incarnation for record in servers}
        self._members = Membership({record.node: record.incarnation for record in self._first})
        self._incarnation, self._step_run = incarnation, step_run
        self._latest: dict[str, NodeRecord] = {}
        self._now_s, self._timer_s = 0.0, inf

    @property
    def part_lost(self) -> bool:
        """Whether a part of the model is lost for good, in truth, however short the time since."""
        return not (self.plan.copies or self.plan.kept) and any(
            not self._is_member(record) for record in self._first if record.node in self._nodes
        )

    def _is_there(self, record: NodeRecord) -> bool:
        process = self.processes[record.node]
        return process.alive and process.incarnation == record.incarnation

    def _is_member(self, record: NodeRecord) -> bool:
        return self._is_there(record) and self._incarnation(record.node) == record.incarnation

    # --- the shell --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for instruction in self.core.begin():
            self._carry_out(instruction)
        self.member.follow("/nodes/", self._look_at_nodes)

    def _look_at_nodes(self, changes: Changes) -> None:
        """As `watch_nodes` does: tells of processes that are no longer members."""
        found = {record.node: record.incarnation for record in nodes_of(changes.entries)}
        deleted = {key.removeprefix("/nodes/") for key in changes.deleted}
        for node, incarnation in self._members.take(found, deleted, changes.reset, changes.revision):
            self._step(losses.NodeGone(node, incarnation))

    def _step(self, event: losses.Event, due_s: float = 0.0) -> None:
        self._now_s = max(self._now_s, self.member.clock.now(), due_s)
        for instruction in self.core.step(event, self._now_s):
            self._carry_out(instruction)
        if isinstance(event, losses.ServerLost | losses.NodeGone):
            self._check_goes_on(event.node)
        self._set_timer()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Say(text):
                self.world.note(self.member.name, "says", text)
            case LoseWorker(node, incarnation, cause):
                self._step_run(events.WorkerLost(node, incarnation, cause))
            case FailRun(cause):
                self._check_failure(cause)
                self.cause = self.cause or cause
                self._step_run(events.Failed(cause))
            case WatchServer(server):
                self._check_is_new(server)
                self._latest[server.node] = server
                self.member.view.after(0.0, lambda: self._look(server))
            case ReadKeys(wait, nodes):
                self.member.read(f"wait {wait}", "/nodes/", partial(self._read, wait, nodes))
            case AttachAgain(node):
                later_s = ATTACH_S_MAX * self.world.random.random()
                self._attached[node] = max(each for name, each in self.core.servers if name == node)
                self.member.view.after(later_s, lambda: self._step(losses.Attached(node)))

    def _look(self, server: NodeRecord) -> None:
        """What a connection tells, if anything comes through."""
        pair = (self.member.name, server.node)
        cut = pair in self.world.cut or pair[::-1] in self.world.cut
        process = self.processes[server.node]
        busy = process.paused or (process.alive and not process.incarnation)  # it does not know its number yet
        if cut or busy or self._is_there(server) or self.world.chance(UNHEARD):
            self.member.view.after(LOOK_EVERY_S, lambda: self._look(server))
        else:
            self._step(losses.ServerLost(server.node, server.incarnation, "it refuses"))

    def _read(self, wait: int, nodes: Sequence[str], changes: Changes | None) -> None:
        records: list[NodeRecord] = []
        for entry in changes.entries if changes is not None else ():
            record = decode(entry.value, NodeRecord)
            if record.node in nodes:
                records.append(record)
                self._members.found(record.node, record.incarnation, entry.revision)
        self._step(losses.KeysRead(wait, tuple(records)))

    def _set_timer(self) -> None:
        due_s = self.core.wakeup_s()
        if due_s < self._timer_s:
            self._timer_s = due_s
            self.member.view.after(self.member.clock.true_delay_s(due_s), partial(self._ring, due_s))

    def _ring(self, due_s: float) -> None:
        if due_s != self._timer_s:
            return
        self._timer_s = inf
        wakeup_s = self.core.wakeup_s()
        if wakeup_s <= self.member.clock.now() + ROUNDING_S:
            self._step(events.Tick(), wakeup_s)
        else:
            self._set_timer()

    # --- what must hold ---------------------------------------------------------------------------------------------

    def _check_is_new(self, server: NodeRecord) -> None:
        """Who is taken for one that came back is a later process than the one before."""
        before = self._latest.get(server.node)
        if before is not None and server.incarnation <= before.incarnation:
            raise ViolationError(f"a process that was lost counts as back: {server.node} {server.incarnation}")

    def _check_failure(self, cause: str) -> None:
        """A run fails only where what it cannot do without does not come back."""
        none_left = self.plan.copies and not any(self._is_member(record) for record in self._latest.values())
        if not self.for_good and not self.part_lost and not none_left:
            raise ViolationError(f"the run fails although servers come back: {cause}")

    def _check_goes_on(self, node: str) -> None:
        """A run that has been told of a loss goes on only if it may."""
        if node in self._nodes and not (self.plan.copies or self.plan.kept or self.cause):
            raise ViolationError(f"the run goes on without a part of its model: {node} had it")

    def check_known(self) -> None:
        """Everything has worked for a while: those who are taken to be there are there, and nobody is waited for."""
        core, there = self.core, {name: process.incarnation for name, process in self.processes.items()}
        servers = {(name, there[name]) for name in self._nodes}
        if core.servers.keys() != servers:
            raise ViolationError(f"servers are not as the coordinator believes: {sorted(core.servers)}, not {servers}")
        if not core.data or not core.data <= set(there.items()):
            raise ViolationError(f"data servers are not as the coordinator believes: {core.data}, not {there}")
        if core.waiting:
            raise ViolationError("somebody is waited for who is there")
        if not self.plan.copies and self._attached.items() != dict(servers).items():
            raise ViolationError(f"the run's client is attached to others: {self._attached}, not {servers}")
