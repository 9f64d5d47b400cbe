"""What the members of simulated groups have in place of links and clients: none of it decides anything.

Between two members blocks lie in shared memory, or are sent: in any order, but a word never before its block. Requests
between members keep their order on each connection; one that was sent before a group ended may come after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from adamctl.errors import RemoteError, UnreachableError
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.stages import CutNetwork
from adamctl.net.handshake import make_hello
from adamctl.roles.data.client.data_client import DataSet
from adamctl.roles.ps.client.outcomes import PendingPush, PushOutcome
from adamctl.roles.ps.client.push_set import PushSet
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.hanging import LOOK_S, HangWatcher
from adamctl.roles.worker.partition.links import ANSWER_S, NeighbourError
from adamctl.wire.messages import Hello, Message
from tests.sim.engine import ViolationError
from tests.sim.partitions.blocks import Blocks, Source, address
from tests.sim.partitions.member import Seat
from tests.sim.partitions.truth import GroupTruth

if TYPE_CHECKING:
    from tests.sim.partitions.process import Worker

ATTACH_S = 2.0


class SimRequest:
    """A request as a member's handler gets it."""

    def __init__(self, peer: Hello, message: Message, answer: Callable[[Message | RemoteError], None]) -> None:
        self.peer, self.message, self._answer = peer, message, answer

    def reply(self, message: Message) -> None:
        self._answer(message)

    def fail(self, code: int, text: str) -> None:
        self._answer(RemoteError(code, text))


class SimSleeping:
    """How a member's threads are woken."""

    def __init__(self) -> None:
        self.awake: Callable[[], None] = lambda: None

    def awaken(self) -> None:
        self.awake()


class SimHangWatcher(HangWatcher):
    """Threads do not hang here: where no flight is finished for as long as that, something else is wrong."""

    def __init__(self, *of_lead: Any) -> None:
        super().__init__(*of_lead)
        self._seat = worker_at_work().seat

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._oldest() is None or loop.time() < self.watch.deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        truth = self._seat.group.truth
        truth.note(ViolationError(f"no flight is finished for {loop.time() - self.watch.since_s:.0f} s"))


class SimLinks:
    """In place of `adamctl.roles.worker.partition.links.Links`; of the process that is at work."""

    def __init__(self, group: Group, network: CutNetwork, connect: Any) -> None:
        self._group, self._worker = group, worker_at_work()
        worker = self._worker
        self.sleeping = SimSleeping()
        self.transports: dict[int, str] = {}
        self._loop = worker.loop
        self._truth = worker.scenario.group_truth(group, network, worker)
        self._seat = worker.seat = Seat(self._truth, group.own, worker.view, group.flights)
        self._seat.send = self._send
        lead = group.members[0]
        self._seat.check_begin = lambda of: worker.scenario.check_pace((lead.node, lead.incarnation), of)
        self._blocks: Blocks = self._truth.blocks
        self._last_s: dict[tuple[object, ...], float] = {}

    @property
    def others(self) -> list[int]:
        return [one for one in range(len(self._group.members)) if one != self._group.own]

    def _peer(self, partition: int) -> Worker:
        return self._worker.scenario.workers[self._group.members[partition].node]

    # --- attaching ----------------------------------------------------------------------------------------------------

    async def attach(self) -> Neighbours:
        """Returns when each member has begun to attach; each needs its session to answer the others."""
        world, until_s = self._worker.world, self._loop.time() + ATTACH_S
        self._truth.attached.add(self._group.own)
        while len(self._truth.attached) < len(self._group.members):
            if self._loop.time() >= until_s:
                absent = next(one for one in self.others if one not in self._truth.attached)
                raise NeighbourError(f"{self._group.name(absent)} did not attach", absent)
            await asyncio.sleep(0.05)
        if not self._group.own:
            self._worker.scenario.group_begins([self._peer(one) for one in range(len(self._group.members))])
        await asyncio.sleep(world.random.random() * 0.02)
        return self._seat.neighbours()

    def watch(self, failed: Callable[[BaseException], None]) -> None:
        """A connection that is lost fails what is asked on it; the coordinator hears of the rest."""

    # --- blocks -------------------------------------------------------------------------------------------------------

    def submitted(self, flight: int, examples: int) -> None:
        """A seat knows how many examples its flights have."""

    def _send(self, source: Source, context: int, flight: int, value: int, reader: int, examples: int) -> None:
        """Shows a reader a block, or sends it, and wakes it."""
        peer, seat, blocks, world = self._peer(reader), self._seat, self._blocks, self._worker.world
        run, theirs = peer.run, self._truth
        if not blocks.copies(self._group.own, reader):
            peer.gate(run, lambda: _wake(peer, theirs))
            return

        def copy() -> None:
            if seat.alive:  # a process that has ended sends nothing more
                blocks.leaves(source, context, flight, value, reader, examples)
                later((source, context), 0.3, word)

        def word() -> None:
            blocks.arrived(source, context, flight, reader)
            _wake(peer, theirs)

        def later(key: tuple[object, ...], share: float, action: Callable[[], None]) -> None:
            delay_s = share * self._worker.scenario.block_delay_s()
            due_s = max(world.now_s + delay_s, self._last_s.get((reader, *key), 0.0))
            self._last_s[(reader, *key)] = due_s
            world.after(due_s - world.now_s, lambda: peer.gate(run, action))

        later((source, context), 1.0, copy)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def tell(self, partition: int, message: Message, deadline_s: float = ANSWER_S) -> None:
        """Raises NeighbourError, as the real one."""
        peer, loop, own = self._peer(partition), self._loop, self._worker
        run, own_run = peer.run, own.run
        if not own.alive or own.view.run != own_run:
            raise NeighbourError("this process has ended", partition)
        incarnation = self._group.members[partition].incarnation
        future: asyncio.Future[Message] = loop.create_future()
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
        hello = make_hello("worker", *own.key)

        def settle(answer: Message | Exception) -> None:
            def done() -> None:
                if future.done():
                    return
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

            own.gate(own_run, lambda: loop.do(done))

        def answers(answer: Message | RemoteError) -> None:
            self._after(("back", partition), lambda: settle(answer))

        def come() -> None:
            if peer.alive and peer.run == run and peer.incarnation == incarnation:
                peer.gate(run, lambda: peer.loop.do(lambda: peer.handle(SimRequest(hello, sent, answers))))
            else:
                self._after(("back", partition), lambda: settle(UnreachableError(f"{peer.name} has ended")))

        self._after(("there", partition), come, own.scenario.stalled_until_s())
        timer = loop.call_later(deadline_s, lambda: settle(UnreachableError("no answer in time")))
        try:
            await future
        except (UnreachableError, RemoteError) as error:
            raise NeighbourError(f"{self._group.name(partition)} does not answer: {error}", partition) from error
        finally:
            timer.cancel()

    def _after(self, key: tuple[object, ...], action: Callable[[], None], least_s: float = 0.0) -> None:
        world = self._worker.world
        due_s = max(world.now_s + self._worker.scenario.delay_s(), self._last_s.get(key, 0.0), least_s)
        self._last_s[key] = due_s
        world.after(due_s - world.now_s, action)

    async def close(self) -> None:
        self._seat.closed = True


def _wake(peer: Worker, truth: GroupTruth) -> None:
    if peer.seat is not None and peer.seat.group is truth and peer.seat.alive and hasattr(peer.seat, "threads"):
        peer.seat.threads.wake()


def worker_at_work() -> Worker:
    """Returns the process whose loop is running."""
    loop = asyncio.get_running_loop()
    return loop.view.process  # type: ignore[attr-defined,no-any-return]


# --- parameters -------------------------------------------------------------------------------------------------------


class SimParameters:
    """In place of `ParameterClient`: pushes come in order, pulls whenever they do."""

    def __init__(self, worker: Worker, session: int | str, shards: Any) -> None:
        self._worker, self._server = worker, worker.scenario.server
        self.layout = worker.scenario.truth.layout
        self._shards = np.array(sorted(shards(self.layout)), np.int64)
        self.key = worker.name, worker.incarnation, session
        self.shared: set[object] = set()
        self.servers: tuple[str, ...] = ()
        self._issued = np.zeros(len(self.layout.shards), np.int64)
        self._pushes, self._last_s = 0, 0.0
        self._server.sequences[self.key] = np.zeros_like(self._issued)

    @classmethod
    def from_context(cls, context: Any, job: str, *, session: int, choose: Any, **of_wire: Any) -> SimParameters:
        return cls(worker_at_work(), session, choose)

    async def attach(self, deadline_s: float = 0.0) -> None:
        await asyncio.sleep(self._worker.scenario.delay_s())

    def sibling(self, number: int) -> SimParameters:
        """Returns a client whose pushes wait for no other's."""
        shards = self._shards.tolist()
        return SimParameters(self._worker, f"{self.key[2]}, part {number}", lambda layout: shards)

    def transports(self) -> dict[str, str]:
        return {}

    def servers_of_tensors(self) -> tuple[int, ...]:
        return (1,) * len(self.layout.tensors)

    async def close(self) -> None:
        """Nothing is kept."""

    async def pull(self, into: Array, exact: bool = False) -> Any:
        """Takes the values as they are at one time, and has them later."""
        worker, server = self._worker, self._server
        await asyncio.sleep(worker.scenario.delay_s())
        if exact:
            seat = worker.seat
            assert seat is not None
            wanted = worker.evaluation_wanted()
            try:
                server.check_snapshot(seat.group, wanted, self._shards.tolist())
            except AssertionError as violation:
                server.truth.note(violation)
                raise
        chosen = [self.layout.shards[index] for index in self._shards]
        values = server.values.copy()
        pushes, sequences = np.zeros_like(self._issued), np.zeros_like(self._issued)
        pushes[self._shards] = server.pushes[self._shards]
        sequences[self._shards] = server.sequences[self.key][self._shards]
        await asyncio.sleep(worker.scenario.delay_s())
        for shard in chosen:
            into[shard.offset : shard.offset + shard.size] = values[shard.offset : shard.offset + shard.size]
        return SimpleNamespace(pushes=pushes, sequences=sequences)

    def start_push(self, push: PushSet, *, only: Any = None) -> PendingPush:
        """What is pushed is read when it comes: a slot must not change before that."""
        worker, server, world = self._worker, self._server, self._worker.world
        seat, run, loop = worker.seat, worker.run, worker.loop
        assert seat is not None and only is not None
        touched = np.array(sorted(only), np.int64)
        self._issued[touched] += 1
        sequences = np.zeros_like(self._issued)
        sequences[touched] = self._issued[touched]
        self._pushes += 1
        future: asyncio.Future[PushOutcome] = loop.create_future()
        gradient, flights = self._slot_of(seat, push)
        outcome = PushOutcome((), (), int(touched.size))

        def come() -> None:
            if not worker.alive or worker.run != run:
                return
            try:
                if push.place is not None:
                    self._push_part(seat, flights, touched.tolist(), gradient, push, answered)
                elif worker.scenario.in_step:
                    raise ViolationError(f"a push that is no part of a step, of flights {flights}")
                else:
                    server.push(seat.group, seat.partition, flights, touched.tolist(), gradient, push.learning_rate)
            except AssertionError as violation:
                server.truth.note(violation)
                raise
            server.sequences[self.key][touched] = sequences[touched]
            if push.place is None or not touched.size:
                world.after(worker.scenario.delay_s(), lambda: worker.gate(run, lambda: loop.do(answer)))

        left = int(touched.size)

        def answered() -> None:
            nonlocal left
            left -= 1
            if not left:
                world.after(worker.scenario.delay_s(), lambda: worker.gate(run, lambda: loop.do(answer)))

        def answer() -> None:
            if not future.done():
                future.set_result(outcome)

        self._last_s = max(self._last_s, world.now_s + worker.scenario.delay_s())
        world.after(self._last_s - world.now_s, come)
        return PendingPush(self._pushes, push, sequences, future)

    def _push_part(
        self, seat: Seat, flights: list[int], shards: list[int], gradient: Array, push: PushSet,
        answered: Callable[[], None],
    ) -> None:  # fmt: skip
        assert push.place is not None
        held = self._shards.tolist()
        self._worker.scenario.steps.push(
            seat.group, seat.partition, flights, held, shards, gradient, push.learning_rate, push.place, answered
        )

    def _slot_of(self, seat: Seat, push: PushSet) -> tuple[Array, list[int]]:
        """Returns the memory that a push is read from, and the flights in it."""
        for tensor, update in push.updates.items():
            start = address(update.values) - self.layout.tensors[tensor].offset * update.values.itemsize
            place = seat.member.slot_addresses[start]
            return seat.member.slot_arrays[place], seat.slots.pop(place)
        return seat.member.flat, []  # it owns nothing


# --- examples ---------------------------------------------------------------------------------------------------------


class SimExamples:
    """A range that was read. What is released is not there any more."""

    def __init__(self, images: NDArray[np.float32], labels: NDArray[np.int32]) -> None:
        self.images, self.answers = images, labels

    def release(self) -> None:
        self.images[...] = np.nan
        self.answers[...] = -1


class SimData:
    """In place of `DataClient`: ranges come in any order."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @classmethod
    def from_context(cls, context: Any, nodes: Any) -> SimData:
        return cls(worker_at_work())

    async def open(self, config: Any, input_shape: Any, seed: int) -> DataSet:
        await asyncio.sleep(self._worker.scenario.delay_s())
        return DataSet("data", {}, (), config, tuple(input_shape), seed)

    async def read(self, dataset: DataSet, split: str, pass_number: int, start: int, stop: int) -> SimExamples:
        await asyncio.sleep(self._worker.scenario.delay_s())
        return SimExamples(*self._worker.scenario.truth.examples.read(split, pass_number, start, stop))

    def status(self) -> dict[str, object]:
        return {}

    async def close(self) -> None:
        """Nothing is kept."""
