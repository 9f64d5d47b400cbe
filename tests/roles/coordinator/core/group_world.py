"""Workers of replicas of several partitions around the real core, under one seed: what happens to them, and to links.

The shell does what `roles/coordinator/service.py` does, and stops now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import (
    Admit,
    Answer,
    AnswerStep,
    AnswerWatch,
    Confirm,
    Evaluated,
    Finished,
    Instruction,
    KeepInLobby,
    Refuse,
    TakeSeat,
    WriteCheckpoint,
)
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import (
    GroupDropRequest,
    GroupWatchRequest,
    NextTaskRequest,
    RunJoinRequest,
    RunStepRequest,
)
from tests.roles.coordinator.core.group_ledger import GroupLedger
from tests.roles.coordinator.core.group_member import PLAN_HASH, Connection, Process
from tests.roles.coordinator.simulation import plan
from tests.sim.engine import ViolationError, World

SILENT_AFTER_S, READY_S = 4.0, 8.0


class Coordinator:
    """The real core, and a shell; it stops for a while, and then deals with what has come meanwhile."""

    def __init__(self, group_world: GroupWorld, settings: events.RunPlan, examples: int, evaluated: int) -> None:
        self.group_world, self.world = group_world, group_world.world
        self.core = RunCore(settings, self.world.now_s)
        self.ledger = GroupLedger(settings, examples)
        self.stopped_until_s = 0.0
        self.over_s = inf
        self._examples, self._evaluated = examples, evaluated
        self._requests: dict[int, tuple[Connection, int, WorkerKey, Any]] = {}
        self._connection_of: dict[WorkerKey, Connection] = {}
        self._last_token = 0
        self._timer_s = inf

    def begin(self) -> None:
        self.step(events.Ready(self._examples, self._evaluated))

    def gate(self, action: Callable[[], None]) -> None:
        left_s = self.stopped_until_s - self.world.now_s
        if left_s > 0:
            self.world.after(left_s, lambda: self.gate(action))
        else:
            action()

    # --- what comes -------------------------------------------------------------------------------------------------

    def take(self, connection: Connection, number: int, message: Any) -> None:
        self.gate(lambda: self._take(connection, number, message))

    def _take(self, connection: Connection, number: int, message: Any) -> None:
        if not connection.known:
            return
        key = message.node, message.incarnation
        self._last_token = token = self._last_token + 1
        self._requests[token] = connection, number, key, message
        match message:
            case RunJoinRequest():
                self._connection_of[key] = connection
                joins = 1, message.host, message.addresses, message.wait_s, message.plan_hash
                self.step(events.WorkerJoins(token, *key, *joins))
            case NextTaskRequest():
                if not message.group_epoch:
                    self._connection_of[key] = connection
                if not self.core.run.saves_its_end:
                    for report in message.reports:
                        self.ledger.reports(key, report)
                self.step(events.TasksWanted(token, message))
            case RunStepRequest():
                self.step(events.StepWanted(token, message))
            case GroupWatchRequest():
                self.step(events.GroupWatched(token, message))
            case GroupDropRequest():
                self.step(events.GroupDropWanted(token, message))

    def lose_sight(self, connection: Connection) -> None:
        self.gate(lambda: self._lose_sight(connection))

    def _lose_sight(self, connection: Connection) -> None:
        connection.known = False
        for key in [key for key, used in self._connection_of.items() if used is connection]:
            del self._connection_of[key]
            self.lose(key, "its connection closed")

    def lose(self, key: WorkerKey, cause: str) -> None:
        self.gate(lambda: self._lose(key, cause))

    def _lose(self, key: WorkerKey, cause: str) -> None:
        self.step(events.WorkerLost(*key, cause))
        self.ledger.check_lost(key, self.core.run)

    # --- the core ---------------------------------------------------------------------------------------------------

    def step(self, event: events.Event) -> None:
        run, ledger = self.core.run, self.ledger
        if isinstance(event, events.WorkerJoins) and not self.core._groups.is_former(event):
            ledger.loses(event.node)
        named = event.request.group_epoch if isinstance(event, events.GroupWatched | events.GroupDropWanted) else 0
        ledger.before(self.core, named, self.world.now_s)
        instructions = self.core.step(event, self.world.now_s)
        watched = [one for one in instructions if isinstance(one, AnswerWatch) and one.token in self._requests]
        told = [(self._requests[one.token][2], one.reply.state) for one in watched]
        ledger.check(run)
        ledger.check_groups(run, told, named)
        for instruction in instructions:
            self._carry_out(instruction)
        ledger.check_held(run)
        self._set_timer()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case WriteCheckpoint(number, snapshot):
                self.ledger.check_snapshot(snapshot)
                written = events.CheckpointWritten(number)
                self.world.after(self.world.random.random(), lambda: self.gate(lambda: self.step(written)))
            case Evaluated(result):
                if result.top1 != 1.0:
                    raise ViolationError(f"an evaluation of something else: {result}")
            case Finished():
                self.over_s = self.world.now_s
            case Answer() | AnswerStep() | AnswerWatch() | Admit() | TakeSeat() | KeepInLobby() | Confirm() | Refuse():
                if instruction.token not in self._requests:
                    raise ViolationError(f"an answer to nobody who waits: {instruction}")
                connection, number, key, message = self._requests.pop(instruction.token)
                if isinstance(instruction, TakeSeat):
                    self.ledger.seats(key, instruction)
                elif isinstance(instruction, Answer):
                    self.ledger.answers(key, message.group_epoch, instruction.reply.train, self.core.run)
                self.world.note("k1", type(instruction).__name__, key, instruction)
                connection.reply(number, instruction)

    def _set_timer(self) -> None:
        due_s = self.core.run.wakeup_s()
        if due_s < self._timer_s:
            self._timer_s = due_s
            self.world.after(due_s - self.world.now_s, lambda: self.gate(lambda: self._ring(due_s)))

    def _ring(self, due_s: float) -> None:
        if due_s != self._timer_s:
            return
        self._timer_s = inf
        if self.core.run.wakeup_s() <= self.world.now_s:
            self.step(events.Tick())
            if self.core.run.wakeup_s() <= self.world.now_s:
                raise ViolationError("a tick changes nothing, and is due again at once")
        self._set_timer()

    def check_over(self, key: WorkerKey, epoch: int) -> None:
        """A member hears that its group is no more."""
        if epoch in self.core.run.groups.groups:
            raise ViolationError(f"{key} is told the end of group {epoch}, which is there")


class GroupWorld:
    """One seed. `processes` by name."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.world = world = World(seed, keep_trace=keep_trace)
        random = world.random
        self.partitions, self.replicas = random.randint(1, 9), random.choice((1, 1, 2, 3))
        self._numbers = 0
        world.network.reordering, world.network.late_s_max = random.choice((0.0, 0.1, 0.3)), 1.0
        world.network.delay_s_max = random.choice((0.005, 0.05))
        self.range_s_max = random.choice((0.05, 0.2))
        settings = replace(
            plan(passes=2, batch=4, range_batches=2, workers=self.replicas, partitions=self.partitions),
            evaluate_every=random.choice((0.0, 0.5)),
            checkpoint_every=random.choice((0.0, 0.3)),
            pass_fraction=random.choice((1.0, 1.0, 0.75)),
            silent_after_s=SILENT_AFTER_S,
            group_ready_s=READY_S,
            no_worker_s=1e9,
            finish_wait_s=30.0,
            plan_hash=random.choice(("", PLAN_HASH)),
        )
        examples = round(self.replicas * random.uniform(4.0, 8.0) / self.range_s_max) * 8 + random.randint(0, 7)
        self.coordinator = Coordinator(self, settings, examples, random.choice((0, 1500)))
        hosts, count = random.randint(1, 3), self.partitions * self.replicas + random.randint(0, 2)
        names = [f"w{number}" for number in range(1, count + 1)]
        self.processes = {name: Process(self, name, f"h{random.randint(1, hosts)}") for name in names}
        for process in self.processes.values():
            world.after(random.random(), process.start)
        world.after(random.random(), self.coordinator.begin)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers
