"""A coordinator: the real core of a run, and as its shell what `roles/coordinator/service.py` does.

Its servers are followed by `losses.py`. It does not crash: a coordinator that is started again begins another job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from adamctl.config.records import NodeRecord, decode
from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import (
    Admit,
    Answer,
    AnswerStep,
    Evaluated,
    Finished,
    Instruction,
    Refuse,
    Saved,
    Say,
    WriteCheckpoint,
)
from adamctl.roles.coordinator.core.losses import LossPlan
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.roles.lease import Lease
from adamctl.wire.changes import Changes
from adamctl.wire.messages import Message, NextTaskReply, NextTaskRequest, RunJoinReply, RunJoinRequest, RunStepRequest
from tests.sim.controllers.controller import SimController
from tests.sim.engine import Clock, ViolationError, World
from tests.sim.runs.ledger import RunLedger
from tests.sim.processes.link import End
from tests.sim.runs.losses import Process, SimLosses
from tests.sim.processes.process import Member, RunView, SimProcess

NAME = "k1"
CONNECTION = 20_000_000
ROUNDING_S = 1e-6
FIND_EVERY_S = 0.1
FAILS = 0.2
"""How often a checkpoint before the last one cannot be written."""


@dataclass(frozen=True)
class Call:
    """A request on a connection, and its answer, which has the same number."""

    number: int
    message: Message | Refuse


@dataclass(frozen=True)
class Parked:
    """A request for which the core has a token."""

    end: End
    number: int
    worker: WorkerKey


class SimCoordinator(SimProcess):
    """Attributes:
    core: of the run.
    ledger: what it gives out and hears.
    evaluation_examples: of the split that is evaluated.
    ready_s: how long until servers and data are there.
    losses: what follows from lost servers; None until all servers have been found.
    loss_plan, processes: how parts are kept; parameter servers and data servers that the run begins with.
    incarnation: tells which process of a name is a member in truth.
    slow_s_max: how long it takes over a message at most.
    over_s: true time at which the run was over.
    """

    def __init__(
        self,
        world: World,
        clock: Clock,
        hosts: Mapping[str, SimController],
        plan: events.RunPlan,
        examples: int,
        loss_plan: LossPlan,
        processes: Mapping[str, Process],
        incarnation: Callable[[str], int],
    ) -> None:
        super().__init__(world, NAME, clock)
        self.hosts, self.plan, self.examples = hosts, plan, examples
        self.loss_plan, self.processes, self.incarnation = loss_plan, processes, incarnation
        self.losses: SimLosses | None = None
        self.evaluation_examples, self.ready_s = 0, 1.0
        self.ledger = RunLedger(plan, examples)
        self.slow_s_max = self.over_s = 0.0
        self.core: RunCore
        self._view: RunView
        self._parked: dict[int, Parked] = {}
        self._connection_of: dict[WorkerKey, int] = {}
        self._last_token = 0
        self._busy_until_s = 0.0
        self._timer_s = inf

    def start(self) -> None:
        """Begins the run; servers are looked for, and data are there a little later."""
        self._view = view = self.begin()
        self.core = RunCore(self.plan, self.clock.now())
        member = Member(
            view,
            self.hosts,
            Lease(1.0, self.clock.now),
            role="coordinator",
            registered=lambda: None,
            renewed=lambda _: None,
            lost=lambda: None,
        )
        member.connection = CONNECTION
        self._find_servers(member)

    def _find_servers(self, member: Member) -> None:
        """Waits until all are there, and follows them from then on."""

        def found(changes: Changes | None) -> None:
            records = [decode(entry.value, NodeRecord) for entry in changes.entries] if changes is not None else []
            used = [record for record in records if record.node in self.processes]
            if len(used) < len(self.processes):
                self._view.after(FIND_EVERY_S, lambda: self._find_servers(member))
                return
            servers, data = ([record for record in used if record.role == role] for role in ("ps", "data"))
            self.losses = SimLosses(
                self.world, member, self.loss_plan, servers, data, self.processes, self.incarnation, self.step
            )
            self.losses.begin()
            ready = events.Ready(self.examples, self.evaluation_examples)
            self._view.after(self.ready_s, lambda: self.step(ready))

        member.read("servers", "/nodes/", found)

    # --- what comes -------------------------------------------------------------------------------------------------

    def accept(self, end: End) -> None:
        """A connection is made. Messages and its end are dealt with one after another."""
        run = self.run
        end.take = lambda message: self.gate(run, lambda: self._queue(partial(self._handle, end, message)))
        end.broken = lambda: self.gate(run, lambda: self._queue(partial(self._disconnected, end.number)))

    def _queue(self, action: Callable[[], None]) -> None:
        now_s = self.world.now_s
        self._busy_until_s = max(self._busy_until_s, now_s) + self.slow_s_max * self.world.random.random()
        self._view.after(self._busy_until_s - now_s, action)

    def _handle(self, end: End, call: Call) -> None:
        match call.message:
            case NextTaskRequest(node=node, incarnation=incarnation) as message:
                self._connection_of[node, incarnation] = end.number
                self._wants_tasks(end, call.number, message)
                if message.reports and self.world.chance(self.world.network.duplication):
                    again = NextTaskRequest(node, incarnation, message.reports, 0, 0.0)
                    self._view.after(self.world.random.random(), partial(self._wants_tasks, end, 0, again))
            case RunJoinRequest(node=node, incarnation=incarnation, threads=threads):
                self._connection_of[node, incarnation] = end.number
                token = self._park(end, call.number, (node, incarnation))
                self.step(events.WorkerJoins(token, node, incarnation, threads))
            case RunStepRequest(node=node, incarnation=incarnation) as message:
                self.step(events.StepWanted(self._park(end, call.number, (node, incarnation)), message))
            case other:
                raise TypeError(other)

    def _wants_tasks(self, end: End, number: int, request: NextTaskRequest) -> None:
        key = request.node, request.incarnation
        for report in () if self.core.run.saves_its_end else request.reports:
            self.ledger.reports(key, report)
        self.step(events.TasksWanted(self._park(end, number, key), request))

    def _park(self, end: End, number: int, worker: WorkerKey) -> int:
        self._last_token += 1
        self._parked[self._last_token] = Parked(end, number, worker)
        return self._last_token

    def _disconnected(self, connection: int) -> None:
        for key in [key for key, used in self._connection_of.items() if used == connection]:
            del self._connection_of[key]
            self.step(events.WorkerLost(*key, "its connection closed"))

    # --- the core ---------------------------------------------------------------------------------------------------

    def step(self, event: events.Event, due_s: float = 0.0) -> None:
        """Steps the core and carries out what follows. `due_s`: what the clock shows, but for rounding."""
        core, run, ledger = self.core, self.core.run, self.ledger
        state = run.state
        if isinstance(event, events.WorkerJoins):
            ledger.loses(event.node)
        instructions = core.step(event, max(self.clock.now(), run.now_s, due_s))
        ledger.check(run)
        for instruction in instructions:
            self._carry_out(instruction)
        ledger.check_held(run)
        if run.state != state:
            self.world.note(self.name, "state", run.state, run.cause)
        self._set_timer()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Answer(token, reply):
                for task in reply.train:
                    self.ledger.gave(self._parked[token].worker, task)
                self._reply(token, reply)
            case AnswerStep(token, step):
                self._reply(token, step)
            case Refuse(token):
                self._reply(token, instruction)
            case Admit(token, replica):
                self._reply(token, RunJoinReply("j", "h", 1, replica, "d", 10))
            case Say(text):
                self.world.note(self.name, "says", text)
            case Evaluated(result):
                if result.top1 != 1.0:
                    raise ViolationError(f"an evaluation of something else: {result}")
            case WriteCheckpoint(number, snapshot):
                self.ledger.check_snapshot(snapshot)
                self._write(number)
            case Finished():
                self.over_s = self.world.now_s
            case Saved():
                raise ViolationError("a checkpoint that nobody asked for")

    def _reply(self, token: int, message: Any) -> None:
        parked = self._parked.pop(token)
        if isinstance(message, NextTaskReply) and (message.train or message.ended):
            tasks = " ".join(f"{task.id}:{task.pass_number}.{task.start}-{task.stop}" for task in message.train)
            self.world.note(self.name, "gives", parked.worker, tasks or message.reason or "the end")
        if parked.number:
            parked.end.send(Call(parked.number, message))

    def _write(self, number: int) -> None:
        """Servers write their parts; the last checkpoint of a run must not fail."""
        ending = self.core.run.ending
        last = ending is not None and not ending.checkpoint
        event: events.Event = events.CheckpointWritten(number)
        if not last and self.world.chance(FAILS):
            event = events.CheckpointFailed(number, "the disk is full")
        self._view.after(self.world.random.random(), lambda: self._written(event))

    def _written(self, event: Any) -> None:
        ending = self.core.run.ending
        if isinstance(event, events.CheckpointFailed) and ending is not None and ending.checkpoint == event.number:
            event = events.CheckpointWritten(event.number)
        self.step(event)

    def _set_timer(self) -> None:
        """One timer, which is moved only when it has to ring earlier."""
        due_s = self.core.run.wakeup_s()
        if due_s < self._timer_s:
            self._timer_s = due_s
            self._view.after(self.clock.true_delay_s(due_s), partial(self._ring, due_s))

    def _ring(self, due_s: float) -> None:
        if due_s != self._timer_s:
            return
        self._timer_s = inf
        wakeup_s = self.core.run.wakeup_s()
        if wakeup_s <= self.clock.now() + ROUNDING_S:
            self.step(events.Tick(), wakeup_s)
        else:
            self._set_timer()
