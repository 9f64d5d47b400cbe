"""Processes of a simulated run of groups, their connections to the coordinator, and their parts in groups.

Each connection keeps the order of what is sent on it; what is sent on two of them comes in any order. A session follows
what a worker does: it watches its group; the lead works once all members are there, and only while all of them work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from adamctl.roles.coordinator.core.instructions import (
    Admit,
    Answer,
    AnswerWatch,
    Instruction,
    KeepInLobby,
    Refuse,
    TakeSeat,
)
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.roles.worker.joining import TRY_LATER
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    EvaluateTask,
    GroupDropRequest,
    GroupMember,
    GroupWatchRequest,
    NextTaskRequest,
    RunJoinRequest,
    TaskReport,
    TrainTask,
)
from tests.sim.engine import ViolationError

if TYPE_CHECKING:
    from tests.roles.coordinator.core.group_world import GroupWorld

WATCH_S, LOBBY_S, POLL_S, MARGIN_S = 1.0, 2.0, 1.0, 2.0
AGAIN_S = 0.2
LOOK_EVERY_S, ATTACH_S, HANG_S = 0.1, 2.5, 2.5
RANGES = 2
PLAN_HASH = "cut"

Reply = Instruction | None


class Connection:
    """From a process to the coordinator; `open` at the process's end, `known` at the coordinator's."""

    def __init__(self, group_world: GroupWorld, process: Process) -> None:
        self.group_world, self.process, self.run = group_world, process, process.run
        self.number = group_world.next_number()
        self.open = self.known = True
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        self._there_s = self._back_s = 0.0

    def ask(self, message: Any, wait_s: float, answered: Callable[[Reply], None]) -> None:
        """Calls `answered` once with the answer, or with None if the connection breaks or it takes too long."""
        number = self.group_world.next_number()
        self._waiting[number] = answered
        self._there_s = self._arrives_s(self._there_s)
        self._at(self._there_s, partial(self.group_world.coordinator.take, self, number, message))
        self.process.after(wait_s + MARGIN_S, lambda: self._take(number, None))

    def say_again(self, message: Any, delay_s: float) -> None:
        """The same request comes once more; nobody waits for its answer."""
        self._there_s = self._arrives_s(self._there_s + delay_s)
        self._at(self._there_s, partial(self.group_world.coordinator.take, self, 0, message))

    def reply(self, number: int, instruction: Instruction) -> None:
        if number and self.known:
            self._back_s = self._arrives_s(self._back_s)
            run = self.run
            arrives = partial(self.process.gate, run, lambda: self._take(number, instruction))
            self._at(self._back_s, arrives)

    def close(self, *, noticed: bool = True) -> None:
        """The process's end is closed; the coordinator hears of it after all that was sent before, or never."""
        self.open = False
        self._waiting.clear()
        if noticed:
            self._there_s = self._arrives_s(self._there_s)
            self._at(self._there_s, partial(self.group_world.coordinator.lose_sight, self))

    def cut(self) -> None:
        """The link breaks: each end hears of it by itself."""
        self._at(self._arrives_s(0.0), partial(self.group_world.coordinator.lose_sight, self))
        self._at(self._arrives_s(0.0), partial(self.process.gate, self.run, self._broken))

    def _broken(self) -> None:
        if self.open:
            self.open = False
            for number in list(self._waiting):
                self._take(number, None)

    def _take(self, number: int, instruction: Reply) -> None:
        answered = self._waiting.pop(number, None)
        if answered is not None:
            answered(instruction if self.open else None)

    def _arrives_s(self, after_s: float) -> float:
        world = self.group_world.world
        late_s = world.random.random() * world.network.late_s_max if world.chance(world.network.reordering) else 0.0
        return max(after_s, world.now_s + late_s + world.network.delay_s_max * world.random.random())

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        self.group_world.world.after(time_s - self.group_world.world.now_s, action)


class Process:
    """One name: process after process.

    Attributes:
        hung: its compute threads do nothing, while its loop answers; `until_dropped`: until its session ends.
        session: the group that it believes to be in.
        done: it knows that the run is over.
        run: counts its processes, so that what is under way of a former one is dropped.
    """

    def __init__(self, group_world: GroupWorld, name: str, host: str) -> None:
        self.group_world, self.name, self.host = group_world, name, host
        self.incarnation = self.run = 0
        self.alive = self.hung = self.until_dropped = self.done = self.gone = False
        self.stopped_until_s = 0.0
        self.session: Session | None = None
        self.connection: Connection | None = None

    @property
    def key(self) -> WorkerKey:
        return self.name, self.incarnation

    @property
    def stopped(self) -> bool:
        return self.group_world.world.now_s < self.stopped_until_s

    def start(self) -> None:
        if not self.alive and not self.gone:
            self.alive, self.hung, self.until_dropped, self.done = True, False, False, False
            self.run += 1
            self.incarnation = self.group_world.next_number()
            self.join()

    def crash(self, *, noticed: bool) -> None:
        if self.alive:
            self.group_world.world.note(self.name, "dies", noticed)
            self.alive, self.session = False, None
            self.run += 1
            if self.connection is not None:
                self.connection.close(noticed=noticed)

    def gate(self, run: int, action: Callable[[], None]) -> None:
        """Carries out what reaches a process, when it runs again; nothing reaches one that is no more."""
        if run != self.run:
            return
        if self.stopped:
            left_s = self.stopped_until_s - self.group_world.world.now_s
            self.group_world.world.after(left_s, lambda: self.gate(run, action))
        else:
            action()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        run = self.run
        self.group_world.world.after(delay_s, lambda: self.gate(run, action))

    def join(self) -> None:
        """Joins, on a new connection, until it has a group or the run is over."""
        if self.connection is not None:
            self.connection.close()
        self.session, self.connection = None, Connection(self.group_world, self)
        self._ask_to_join()

    def _ask_to_join(self) -> None:
        connection = self.connection
        assert connection is not None
        address = f"memory://{self.name}"
        wait_s = self.group_world.world.random.choice((0.5, LOBBY_S))
        request = RunJoinRequest(self.name, self.incarnation, 1, self.host, (address,), wait_s, PLAN_HASH)
        connection.ask(request, wait_s, self._joined)

    def _joined(self, reply: Reply) -> None:
        connection = self.connection
        assert connection is not None
        match reply:
            case TakeSeat():
                self.session = Session(self, connection, reply)
            case Admit(token, replica):
                alone = (GroupMember(*self.key, self.host, ()),)
                self.session = Session(self, connection, TakeSeat(token, replica, 0, 0, alone))
            case KeepInLobby():
                self._ask_to_join()
            case Refuse(_, ErrorCode.RUN_ENDED):
                self.done = True
            case Refuse(_, code, text) if code not in TRY_LATER:
                raise ViolationError(f"{self.name} is sent away, though no later process has its name: {text}")
            case _:
                self.after(AGAIN_S * self.group_world.world.random.random(), self.join)


class Session:
    """A process's part in one group. The lead works once all members are there, and only while all of them work."""

    def __init__(self, process: Process, connection: Connection, seat: TakeSeat) -> None:
        self.process, self.connection, self.seat = process, connection, seat
        self.world = process.group_world.world
        self.over = False
        self._tasks: deque[TrainTask | EvaluateTask] = deque()
        self._reports: list[TaskReport] = []
        self._asking = self._working = False
        if seat.group_epoch:
            self._watch()
        if seat.partition == 0:
            self._attach(self.world.now_s + ATTACH_S)
        elif self.world.chance(0.1):
            process.after(ATTACH_S * self.world.random.random(), self._look_round)

    @property
    def _named(self) -> tuple[str, int, int]:
        return (*self.process.key, self.seat.group_epoch)

    def end(self) -> None:
        """It is over for this process, which joins again. What it has asked last may come after that."""
        if not self.over:
            self.over = True
            if self.world.chance(0.3):
                late: Any = GroupDropRequest(*self._named, -1, "it cannot be reached")
                if not self.seat.partition:
                    late = NextTaskRequest(*self.process.key, (), 1, POLL_S, group_epoch=self.seat.group_epoch)
                self.connection.say_again(late, self.world.random.random())
            self.process.session = None
            if self.process.until_dropped:
                self.process.hung = self.process.until_dropped = False
            self.process.after(AGAIN_S * self.world.random.random(), self.process.join)

    def absent(self) -> list[int]:
        """Partitions without a process that works in this group now."""
        found = []
        for partition, member in enumerate(self.seat.members):
            other = self.process.group_world.processes[member.node]
            session = other.session
            there = other.alive and not other.stopped and not other.hung and other.incarnation == member.incarnation
            if not there or session is None or session.seat.group_epoch != self.seat.group_epoch:
                found.append(partition)
        return found

    # --- the coordinator --------------------------------------------------------------------------------------------

    def _ask(self, message: Any, wait_s: float, answered: Callable[[Instruction], None]) -> None:
        def take(reply: Reply) -> None:
            if self.over:
                return
            if reply is None or isinstance(reply, Refuse):
                self.end()
            else:
                answered(reply)

        self.connection.ask(message, wait_s, take)

    def _watch(self) -> None:
        def answered(reply: Instruction) -> None:
            assert isinstance(reply, AnswerWatch)
            if reply.reply.state == "alive":
                self._watch()
            elif reply.reply.state == "ended":
                self.over = self.process.done = True
                self.process.session = None
            else:
                self.process.group_world.coordinator.check_over(self.process.key, self.seat.group_epoch)
                self.end()

        self._ask(GroupWatchRequest(*self._named, WATCH_S, PLAN_HASH), WATCH_S, answered)

    def _drop(self, partition: int, fault: str = "") -> None:
        """A replica of one worker is its own cause."""
        if not self.seat.group_epoch:
            self.process.crash(noticed=True)
            return
        request = GroupDropRequest(*self._named, partition, "it hangs", fault)
        self._ask(request, 0.0, lambda reply: None)

    def _look_round(self) -> None:
        """Some other member cannot reach somebody, and says so."""
        if not self.over and (absent := self.absent()):
            self._drop(self.world.random.choice((absent[0], -1)))

    # --- the lead ---------------------------------------------------------------------------------------------------

    def _attach(self, until_s: float) -> None:
        if self.over:
            return
        absent = self.absent()
        if not absent:
            self._look()
        elif self.world.now_s >= until_s and absent != [0]:
            self._drop(next(partition for partition in absent if partition), "unreachable")
        else:
            self.process.after(LOOK_EVERY_S, lambda: self._attach(until_s))

    def _look(self) -> None:
        wanted = max(RANGES - len(self._tasks) - self._working, 0)
        if self.over or self._asking or not (wanted or self._reports):
            return
        self._asking = True
        reports, self._reports = tuple(self._reports), []
        wait_s = POLL_S if wanted else 0.0
        request = NextTaskRequest(*self.process.key, reports, wanted, wait_s, group_epoch=self.seat.group_epoch)
        self._ask(request, wait_s, self._answered)
        if reports and self.world.chance(0.1):
            self.connection.say_again(replace_wanted(request), self.world.random.random())

    def _answered(self, reply: Instruction) -> None:
        assert isinstance(reply, Answer)
        self._asking = False
        if reply.reply.ended:
            self.over = self.process.done = True
            self.process.session = None
            return
        self._tasks.extend((*reply.reply.train, *reply.reply.evaluate))
        self._begin()
        self._look()

    def _begin(self) -> None:
        if self._tasks and not self._working and not self.over:
            self._working = True
            task = self._tasks.popleft()
            took_s = self.world.random.random() * self.process.group_world.range_s_max
            self.process.after(took_s, lambda: self._finish(task, self.world.now_s))

    def _finish(self, task: TrainTask | EvaluateTask, since_s: float) -> None:
        """A range is done when every partition has done its part of it."""
        if self.over:
            return
        absent = self.absent()
        if absent:
            if self.world.now_s - since_s >= HANG_S:
                self._drop(absent[0])
            else:
                self.process.after(LOOK_EVERY_S, lambda: self._finish(task, since_s))
            return
        self._working = False
        count = task.stop - task.start
        correct = count if isinstance(task, EvaluateTask) else 0
        self._reports.append(TaskReport(task.id, count, 1.0, correct, 1, 0.1))
        self._begin()
        self._look()


def replace_wanted(request: NextTaskRequest) -> NextTaskRequest:
    return NextTaskRequest(request.node, request.incarnation, request.reports, 0, 0.0, group_epoch=request.group_epoch)
