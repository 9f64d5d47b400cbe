"""Workers of a simulated run: they join it, train their ranges, report them, and begin anew when something is lost.

They follow `roles/worker/{server,session,pace}.py`: a session asks for ranges ahead of need, beside reports, and ends
with its connection, with an answer that does not come, or with a refusal; the process then joins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from adamctl.roles.coordinator.core.events import RunPlan
from adamctl.roles.coordinator.core.instructions import Refuse
from adamctl.roles.worker.core.batches import Reports
from adamctl.roles.worker.joining import TRY_LATER
from adamctl.roles.worker.server import REJOINS_MAX
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    EvaluateTask,
    Message,
    NextTaskReply,
    NextTaskRequest,
    RunJoinReply,
    RunJoinRequest,
    RunStepReply,
    RunStepRequest,
    TaskReport,
    TrainTask,
)
from tests.sim.runs.coordinator import Call, SimCoordinator
from tests.sim.processes.link import connect
from tests.sim.processes.process import Member, RunView
from tests.sim.servers.clients.push_client import WINDOW, SimPushClient
from tests.sim.servers.clients.worker import CONNECTION_LIVES_ON, SimWorker

Answer = Message | Refuse | None
RANGES = 3
POLL_S = 1.0
MARGIN_S = 2.0
SIGN_OF_LIFE_S = 1.0
JOIN_S = 6.0
AGAIN_S = 0.3
DATA_AGAIN_S = 0.1


class RunPushClient(SimPushClient):
    """Pushes when it is told to, and not by itself.

    Attributes:
        accrues: a step was made that is not pushed.
    """

    accrues = False

    def begin(self) -> None:
        if not self.primary:
            self.reread()
            self.world.after(0.2, self.begin)

    def push(self) -> bool:
        """Pushes what has accrued, and sometimes pulls, unless too many pushes are under way."""
        if not self.primary or len(self.open) >= WINDOW:
            return False
        self._push()
        self.accrues = False
        if self.world.chance(0.2):
            self._pull()
        return True

    @property
    def begun(self) -> int:
        return self._pushes + self.accrues

    @property
    def oldest_unanswered(self) -> int:
        return min(self.open, default=self._pushes + 1)


class Line:
    """A worker's connection to the coordinator: requests, and their answers within a time."""

    def __init__(self, view: RunView, coordinator: SimCoordinator, number: int, broken: Callable[[], None]) -> None:
        self._view, self._waiting = view, dict[int, Callable[[Answer], None]]()
        self._last = 0
        process, run = view.process, view.run
        self.end, other = connect(view.world, number, process.name, coordinator.name)
        self.end.take = lambda call: process.gate(run, partial(self._take, call))
        self.end.broken = lambda: process.gate(run, broken)
        coordinator.accept(other)

    def ask(self, message: Message, answered: Callable[[Answer], None], deadline_s: float) -> None:
        """Calls `answered` with the answer, or with None if there is none in time."""
        self._last = number = self._last + 1
        self._waiting[number] = answered
        self.end.send(Call(number, message))
        self._view.after(deadline_s, lambda: self._take(Call(number, Refuse(0, -1, ""))))

    def _take(self, call: Call) -> None:
        answered = self._waiting.pop(call.number, None)
        if answered is not None and self.end.open:
            late = isinstance(call.message, Refuse) and call.message.code < 0
            answered(None if late else call.message)


class RunSession:
    """What `SessionRunner` does: ranges in, steps and pushes, reports out.

    `lost` is called once if it cannot go on, `ended` when the run is over.
    """

    def __init__(
        self, worker: RunWorker, line: Line, client: RunPushClient, lost: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self._worker, self._line, self._client, self._lost, self._ended = worker, line, client, lost, ended
        self._plan: RunPlan = worker.coordinator.plan
        self._key = worker.name, worker.incarnation
        self._accepted = self._steps = self._pushes = self._told = 0
        self._training = 0
        self._work: deque[TrainTask | EvaluateTask] = deque()
        self._reports = Reports(client if worker.push_every > 1 else None)
        self._asking = self._reporting = self._computing = self._flushing = False
        self._over = False
        client.settled = self._look
        client.world.after(SIGN_OF_LIFE_S, self._give_sign)
        self._look()

    # --- the coordinator --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Asks for ranges when it has room; what it has to report meanwhile goes beside."""
        if self._over:
            return
        if self._client.accrues and not self._training and not self._flushing:
            self._flushing = True
            self._flush()
        wanted = max(RANGES - self._accepted, 0)
        if not self._asking and (wanted or self._reports.due):
            self._asking = True
            self._ask(wanted, POLL_S if wanted else 0.0)
        elif self._reports.due and not self._reporting:
            self._reporting = True
            self._ask(0, 0.0, beside=True)

    def _ask(self, wanted: int, wait_s: float, *, beside: bool = False) -> None:
        reports = self._reports.take()

        def answered(reply: Answer) -> None:
            if beside:
                self._reporting = False
            else:
                self._asking = False
            if not isinstance(reply, NextTaskReply):
                self._lose()
            elif reply.ended:
                self._over = True
                self._ended()
            else:
                self._accept([*reply.train, *reply.evaluate])
                self._look()

        self._line.ask(NextTaskRequest(*self._key, reports, wanted, wait_s), answered, wait_s + MARGIN_S)

    def _flush(self) -> None:
        """Pushes the steps of the last range it has, for which no others follow."""
        if self._over or not self._client.accrues or self._training or self._client.push():
            self._flushing = False
        else:
            self._client.world.after(0.02, self._flush)

    def _give_sign(self) -> None:
        """A worker whose ranges take long lets the coordinator hear that its steps go on."""
        if not self._over:
            if not self._asking and not self._reporting and self._steps > self._told:
                self._told, self._reporting = self._steps, True
                self._ask(0, 0.0, beside=True)
            self._client.world.after(SIGN_OF_LIFE_S, self._give_sign)

    def _lose(self) -> None:
        if not self._over:
            self._over = True
            self._lost()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _accept(self, tasks: list[TrainTask | EvaluateTask]) -> None:
        self._accepted += len(tasks)
        self._training += sum(isinstance(task, TrainTask) for task in tasks)
        self._work.extend(tasks)
        if self._work and not self._computing:
            self._computing = True
            self._begin_task()

    def _begin_task(self) -> None:
        if not self._work:
            self._computing = False
            return
        if not self._worker.has_data():
            self._client.world.after(DATA_AGAIN_S, self._begin_task)
            return
        task = self._work.popleft()
        if isinstance(task, EvaluateTask):
            self._client.world.after(self._worker.step_s(), lambda: self._finish(task, 0))
        else:
            steps = -(-(task.stop - task.start) // self._plan.batch)
            self._may_step(task, steps, steps)

    def _may_step(self, task: TrainTask, left: int, steps: int) -> None:
        """Waits until the step may begin, where replicas must not be far apart."""
        if self._over:
            return
        if not left:
            self._finish(task, steps)
            return
        if self._plan.max_staleness is None:
            self._client.world.after(self._worker.step_s(), lambda: self._step(task, left, steps))
            return

        def answered(reply: Answer) -> None:
            if not isinstance(reply, RunStepReply):
                self._lose()
            elif reply.limit > self._steps:
                self._client.world.after(self._worker.step_s(), lambda: self._step(task, left, steps))
            else:
                self._may_step(task, left, steps)

        request = RunStepRequest(*self._key, self._steps, self._steps + 1, POLL_S)
        self._line.ask(request, answered, POLL_S + MARGIN_S)

    def _step(self, task: TrainTask, left: int, steps: int) -> None:
        """One step; every few of them are pushed, as soon as there is room for that."""
        if self._over:
            return
        pushes = (self._steps + 1) % self._worker.push_every == 0
        if pushes and not self._client.push():
            self._client.world.after(0.02, lambda: self._step(task, left, steps))
            return
        self._client.accrues = not pushes
        self._steps += 1
        self._may_step(task, left - 1, steps)

    def _finish(self, task: TrainTask | EvaluateTask, steps: int) -> None:
        if self._over:
            return
        self._accepted -= 1
        self._training -= isinstance(task, TrainTask)
        count = task.stop - task.start
        correct = count if isinstance(task, EvaluateTask) else 0
        self._reports.add(task, TaskReport(task.id, count, 1.0, correct, steps, 0.1 * steps))
        if not self._work and self._plan.max_staleness is not None:  # all it has done is known before it rests
            told = RunStepRequest(*self._key, self._steps)
            self._line.ask(told, lambda reply: None if isinstance(reply, RunStepReply) else self._lose(), MARGIN_S)
        self._look()
        self._begin_task()


class RunWorker(SimWorker):
    """One name: process after process, each of them session after session in the run.

    Attributes:
        coordinator: where it joins; set before it is started.
        push_every, step_s_max: steps per push; how long a step takes at most.
        joined: how often it was taken into the run.
        has_data: whether examples can be read now; if not, ranges wait.
        sent_away: called if it is told that the run does not want it, and does not ask again.
    """

    coordinator: SimCoordinator
    client_type = RunPushClient
    push_every = 2
    step_s_max = 0.1
    joined = 0
    has_data: Callable[[], bool] = staticmethod(lambda: True)
    sent_away: Callable[[str], None]
    _line: Line | None = None
    _rejoins = 0
    _lines = 0

    def step_s(self) -> float:
        return self.step_s_max * self.world.random.random()

    def stop_pushing(self) -> None:
        """The run tells it when there is nothing left to push."""

    def restart(self) -> None:
        if self.alive and not self.paused and self.client is not None:
            self._join_again()

    def _begin_session(self, member: Member) -> None:
        """First of all it has to be taken into the run, which may have its workers, or be over."""
        line: Line

        def again() -> None:
            if self._line is line:
                line.end.close()
                self._line = None
                member.view.after(AGAIN_S, lambda: self._begin_session(member))

        def answered(reply: Answer) -> None:
            if isinstance(reply, RunJoinReply):
                self._join(member, line)
            elif reply is None or (isinstance(reply, Refuse) and reply.code in TRY_LATER):
                again()
            elif isinstance(reply, Refuse) and reply.code != ErrorCode.RUN_ENDED:
                self.sent_away(reply.message)

        def broken() -> None:
            if self.client is None:
                again()
            elif self._line is line:
                self._join_again()

        self._lines += 1
        number = 1000 * self._lines + int(self.name[1:])
        self._line = line = Line(member.view, self.coordinator, number, broken)
        line.ask(RunJoinRequest(self.name, member.incarnation, 1), answered, JOIN_S)

    def _join(self, member: Member, line: Line) -> None:
        super()._begin_session(member)
        self.joined += 1
        client = self.client
        assert isinstance(client, RunPushClient)

        def lost() -> None:
            if self.client is client and self._line is line:
                self._join_again()

        def ended() -> None:
            """What is under way is still answered; the connection is not needed any more."""
            line.end.close()
            self._line, self._rejoins = None, 0

        RunSession(self, line, client, lost, ended)

    def _join_again(self) -> None:
        """Gives up the session; a process that has to do so too often ends."""
        self._rejoins += 1
        if self._rejoins > REJOINS_MAX:
            self._rejoins = 0
            self.crash()
            return
        self.world.note(self.name, "restart", "joins again")
        self._give_up()
        member = self.member
        member.view.after(AGAIN_S * self.world.random.random(), lambda: self._begin_session(member))

    def _give_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.end.close(tells=self.alive or not self.world.chance(CONNECTION_LIVES_ON))
        super()._give_up()
