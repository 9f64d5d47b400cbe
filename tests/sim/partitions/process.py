"""Workers of replicas of partitions: the real part of a worker in a group, on event loops of the simulator's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator.client import Joined
from adamctl.roles.coordinator.core.instructions import (
    Admit,
    Answer,
    AnswerStep,
    AnswerWatch,
    Instruction,
    KeepInLobby,
    Refuse,
    TakeSeat,
)
from adamctl.roles.worker.partition.links import NeighbourError
from adamctl.roles.worker.partition.work import GroupEndedError, GroupWork
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    GroupDropRequest,
    GroupMember,
    GroupWatchReply,
    GroupWatchRequest,
    Message,
    NextTaskReply,
    NextTaskRequest,
    RunJoinReply,
    RunJoinRequest,
    RunStepRequest,
)
from tests.sim.engine import ViolationError
from tests.sim.partitions.links import SimRequest
from tests.sim.partitions.member import Seat
from tests.sim.partitions.truth import Task
from tests.sim.processes.process import RunView
from tests.sim.servers.clients.real_worker import ClientLoop

if TYPE_CHECKING:
    from tests.sim.partitions.scenario import PartitionScenario

LOBBY_S, MARGIN_S, AGAIN_S = 1.0, 2.0, 0.1
QUIET = logging.Logger("quiet", logging.CRITICAL + 1)
FOR_EVER_S = 1e9


class CoordinatorLink:
    """A worker's connection to the coordinator. `known`: the coordinator's end is there; `open`: the worker's."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.run, self.scenario = worker, worker.run, worker.scenario
        self.known = self.open = True
        self._waiting: dict[int, asyncio.Future[Instruction]] = {}
        self._there_s = self._back_s = 0.0

    async def ask(self, message: Message, wait_s: float) -> Instruction:
        """Raises UnreachableError, RemoteError."""
        loop, number = self.worker.loop, self.scenario.next_number()
        if not self.open:
            raise UnreachableError("the connection is closed")
        future: asyncio.Future[Instruction] = loop.create_future()
        self._waiting[number] = future
        self._there_s = self._at(
            self._there_s, lambda: self.scenario.coordinator.take(cast(Any, self), number, message)
        )
        timer = loop.call_later(wait_s + MARGIN_S, lambda: self._fail(number))
        try:
            answer = await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        if isinstance(answer, Refuse):
            raise RemoteError(ErrorCode(answer.code), answer.message)
        return answer

    def reply(self, number: int, instruction: Instruction) -> None:
        """The coordinator answers."""
        if not self.known:
            return

        def come() -> None:
            future = self._waiting.get(number)
            if future is not None and not future.done() and self.open:
                self.worker.loop.do(lambda: future.set_result(instruction))

        self._back_s = self._at(self._back_s, lambda: self.worker.gate(self.run, come))

    def close(self, *, noticed: bool = True) -> None:
        """The worker's end is closed; the coordinator hears of it after what was sent before, or never."""
        if not self.open:
            return
        self.open = False
        if noticed:
            self._there_s = self._at(self._there_s, lambda: self.scenario.coordinator.lose_sight(cast(Any, self)))

    def cut(self) -> None:
        """The connection breaks; each end hears of it by itself."""
        self._at(0.0, lambda: self.scenario.coordinator.lose_sight(cast(Any, self)))
        self._at(0.0, lambda: self.worker.gate(self.run, self._broken))

    def _broken(self) -> None:
        self.open = False
        for number in list(self._waiting):
            self._fail(number)

    def _fail(self, number: int) -> None:
        future = self._waiting.get(number)
        if future is not None and not future.done():
            self.worker.loop.do(lambda: future.set_exception(UnreachableError("the coordinator does not answer")))

    def _at(self, after_s: float, action: Callable[[], None]) -> float:
        world = self.scenario.world
        due_s = max(world.now_s + self.scenario.delay_s(), after_s)
        world.after(due_s - world.now_s, action)
        return due_s


class SimCoordinatorClient:
    """In place of `CoordinatorClient`, over one connection."""

    def __init__(self, worker: Worker, link: CoordinatorLink) -> None:
        self._worker, self._link = worker, link

    async def next_tasks(self, request: NextTaskRequest) -> NextTaskReply:
        worker, seat = self._worker, self._worker.seat
        assert seat is not None
        truth = worker.scenario.truth
        with worker.scenario.noting():
            truth.reports(request.reports)
        answer = await self._link.ask(request, request.wait_s)
        assert isinstance(answer, Answer)
        with worker.scenario.noting():
            tasks: list[Task] = [*answer.reply.train, *answer.reply.evaluate]
            for task in tasks:
                truth.given(task, seat.group, worker.scenario.coordinator.is_exclusive(task.id))
        return answer.reply

    async def step(self, request: RunStepRequest) -> int:
        seat, scenario = self._worker.seat, self._worker.scenario
        assert seat is not None
        with scenario.noting():
            scenario.check_told(seat.group, request.done)
        answer = await self._link.ask(request, request.wait_s)
        assert isinstance(answer, AnswerStep)
        return answer.reply.limit

    async def watch(self, request: GroupWatchRequest) -> GroupWatchReply:
        if not request.group_epoch:
            await asyncio.sleep(FOR_EVER_S)
        answer = await self._link.ask(request, request.wait_s)
        assert isinstance(answer, AnswerWatch)
        return answer.reply

    async def drop(
        self, node: str, incarnation: int, group_epoch: int, partition: int, cause: str, fault: str = ""
    ) -> None:
        if group_epoch:
            await self._link.ask(GroupDropRequest(node, incarnation, group_epoch, partition, cause, fault), 0.0)

    async def join(self) -> Joined:
        """Joins, and waits in the lobby."""
        worker, scenario = self._worker, self._worker.scenario
        while True:
            wait_s = scenario.world.random.choice((0.4, LOBBY_S))
            address = (f"memory://{worker.name}",)
            request = RunJoinRequest(worker.name, worker.incarnation, 1, worker.host, address, wait_s, "")
            answer = await self._link.ask(request, wait_s)
            match answer:
                case TakeSeat():
                    seat = answer.group_epoch, answer.partition, answer.members
                case Admit():
                    seat = 0, 0, (GroupMember(*worker.key, worker.host, ()),)
                case _:
                    assert isinstance(answer, KeepInLobby)
                    continue
            epoch, partition, members = seat
            reply = RunJoinReply(
                "sim", "", 1, answer.replica, "", 0, scenario.truth.partitions, epoch, partition, scenario.plan.hash
            )
            return Joined(reply, scenario.setting.experiment, ("d1",), members)


class Worker:
    """One name: process after process.

    Attributes:
        run: counts its processes, so that what is under way of a former one is dropped.
        group: its part in a group, if it is in one; `seat` is what the truth sees of the last one.
        done: it knows that the run is over.
    """

    loop: ClientLoop
    view: RunView

    def __init__(self, scenario: PartitionScenario, name: str, host: str) -> None:
        self.scenario, self.world, self.name, self.host = scenario, scenario.world, name, host
        self.incarnation = self.run = self.sessions = 0
        self.alive = self.gone = self.done = False
        self.stopped_until_s = 0.0
        self.group: GroupWork | None = None
        self.seat: Seat | None = None
        self.link: CoordinatorLink | None = None
        world = self.world
        self.clock = SimpleNamespace(
            now=lambda: world.now_s, true_delay_s=lambda reading_s: max(0.0, reading_s - world.now_s)
        )

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.incarnation

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.alive or self.gone:
            return
        self.alive, self.done = True, False
        self.run += 1
        self.sessions = 0
        self.incarnation = self.scenario.next_number()
        self.view = RunView(cast(Any, self), self.run)
        self.loop = ClientLoop(self.view, self._stepped, self._failed)  # type: ignore[abstract]
        self.loop.do(lambda: self._begin(self._serve()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.create_task(work).add_done_callback(self._served)

    def crash(self, *, noticed: bool) -> None:
        if self.alive:
            self.world.note(self.name, "dies", noticed)
            self.alive, self.group = False, None
            self.run += 1
            if self.seat is not None:
                self.seat.closed = True
            if self.link is not None:
                self.link.close(noticed=noticed)
            self.world.after(0.0, self.loop.bury)

    def gate(self, run: int, action: Callable[[], None]) -> None:
        """Carries out what reaches a process, when it runs again; nothing reaches one that is no more."""
        if run != self.run or not self.alive:
            return
        left_s = self.stopped_until_s - self.world.now_s
        if left_s > 0:
            self.world.after(left_s, lambda: self.gate(run, action))
        else:
            action()

    def handle(self, request: SimRequest) -> None:
        """Serves the other members of a group."""
        if self.group is None:
            request.fail(ErrorCode.NOT_READY, "this worker is in no group now; try again")
        else:
            self.group.handle(cast(Any, request))

    def evaluation_wanted(self) -> int:
        """Returns the evaluation whose parameters are being pulled."""
        assert self.group is not None
        runner, member = self.group.runner, self.group.member
        found = runner._evaluation if runner is not None else member.engine._evaluation  # type: ignore[union-attr]
        assert found is not None
        return found[0]

    # --- work ---------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        context = RoleContext(
            role="worker", node=self.name, options={}, transport=cast(Any, None), controller=None,
            stopping=asyncio.Event(), log=QUIET, incarnation=self.incarnation,
        )  # fmt: skip
        while not self.done:
            self.link = CoordinatorLink(self)
            client = SimCoordinatorClient(self, self.link)
            try:
                joined = await client.join()
                await self._work(context, client, joined)
                self.done = True
            except GroupEndedError as end:
                self.done = end.ended
                self.world.note(self.name, "ends", end)
            except (UnreachableError, RemoteError, NeighbourError) as failure:
                self.world.note(self.name, "fails", failure)
                self.done = isinstance(failure, RemoteError) and failure.code == ErrorCode.RUN_ENDED
            finally:
                self.link.close()
            await asyncio.sleep(AGAIN_S)

    async def _work(self, context: RoleContext, client: SimCoordinatorClient, joined: Joined) -> None:
        self.world.note(self.name, "joins", joined.reply.group_epoch, joined.reply.partition)
        self.group = GroupWork(context, "sim", cast(Any, client), joined)
        self.sessions += 1
        truth, threads = self.scenario.truth, self.scenario.setting.threads
        try:
            await self.group.run(truth.layout, threads, 1, self.sessions, cast(Any, None))
        finally:
            self.group = None

    def _served(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.alive:
            self._failed(error, "it ends")

    def _stepped(self) -> None:
        if self.scenario.truth.violation is not None:
            raise self.scenario.truth.violation

    def _failed(self, error: BaseException, what: str) -> None:
        """The product has let an error out."""
        if isinstance(error, AssertionError):
            self.scenario.truth.note(error)
        elif "never retrieved" not in what:  # a task that was given up had failed already
            violation = ViolationError(f"a member has failed: {self.name}, {what}: {type(error).__name__}: {error}")
            violation.__cause__ = error
            self.scenario.truth.note(violation)
