"""One partition of a replica in a process of its own, which trains on synthetic examples when it is told to.

It does everything that a flight of `adamctl train` does: waits, gathers, forward, loss, backward, sums of what is
shared, clipping, accruing, applying to its weights; its links to the other members are those of a worker, on an event
loop in a thread. It omits the rest: nothing is read, pushed or fetched; a push counts as acknowledged at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from adamctl.bench import namespaces
from adamctl.bench.child import Pipe
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.kernels.backend import choose
from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors, cut_network, cuts_of
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.model.protocol import choose_protocol
from adamctl.net.address import TransportKind
from adamctl.net.handshake import make_hello
from adamctl.net.loop import new_event_loop
from adamctl.net.server import StreamServer
from adamctl.net.stream import StreamTransport
from adamctl.net.token_file import environment_token
from adamctl.net.transport import Connection, Request
from adamctl.roles.worker.partition.engine import slots_per_flight
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.links import Links, ways
from adamctl.roles.worker.partition.sending import Sent
from adamctl.roles.worker.partition.threads import Flight, FlightDone, FlightThreads
from adamctl.roles.worker.replica import Replica
from adamctl.wire.messages import GroupMember, Hello, PartDataRequest

LEARNING_RATE = 1e-3  # low: learning from noise must not diverge; the cost is the same
BATCHES_BYTES_MAX = 64 << 20
JOIN_S = 60.0
CONNECT_S = 10.0
SENT = "sent"
ATTACH_S = 60.0

Result = TypeVar("Result")


class Spec(NamedTuple):
    """What a member is told.

    Attributes:
        own: its partition.
        transport: how members reach each other.
        folder: for their Unix sockets.
        spins: see `adamctl.roles.worker.partition.threads.SPINS`.
        place: its machine's own network, if it has one: a process within it, and the machine's address.
    """

    experiment: Experiment
    partitions: int
    own: int
    batch: int
    flights: int
    threads: int
    spins: int
    transport: TransportKind
    folder: str
    place: tuple[int, str] | None = None


class MemberRound(NamedTuple):
    """A member's round: seconds that its threads computed and slept, together; the summed loss."""

    compute_s: float
    wait_s: float
    loss_sum: float


class _Slots:
    """See `adamctl.roles.worker.partition.threads.Slots`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def begin(self, context: int, flight: Flight) -> SlotPlace | None:
        return self._replica.try_step(context, flight.rate)


def network_of(experiment: Experiment, partitions: int) -> CutNetwork:
    """Returns the network as the experiment cuts it over so many partitions."""
    return cut_network(experiment.model, cuts_of(plan_of(experiment, partitions)), choose())


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Result], timeout_s: float = ATTACH_S) -> Result:
        """Runs a coroutine there and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_S)


class MemberLinks:
    """A member's links and the server to which the others connect, on an event loop.

    Attributes:
        address: where it listens.
    """

    def __init__(self, spec: Spec, network: CutNetwork, failed: Callable[[BaseException], None]) -> None:
        self._spec, self._network, self._failed = spec, network, failed
        self._loop = LoopThread()
        self._addresses: tuple[str, ...] = ()
        self.address = self._loop.do(self._serve())

    async def _serve(self) -> str:
        spec = self._spec
        members = tuple(GroupMember(str(one), 1, "", ()) for one in range(spec.partitions))
        group = Group("bench", 1, spec.own, members, "", spec.batch, spec.flights)
        self.links = Links(group, self._network, self._connect)
        tcp = spec.transport == "tcp"
        host = "127.0.0.1" if spec.place is None else spec.place[1]
        address = f"tcp://{host}:0" if tcp else f"unix://{spec.folder}/{spec.own}.sock"
        self._server: StreamServer = await StreamTransport().serve(
            [address], self._hello(), self._handle, placing=self.links.place
        )
        return self._server.addresses[0]

    def _handle(self, request: Request) -> None:
        if isinstance(request.message, PartDataRequest):
            self.links.arrived(request)
        else:
            self.links.attached(request)

    async def _connect(self, node: str) -> Connection:
        transport = StreamTransport(kind=self._spec.transport)
        return await transport.connect(self._addresses[int(node)], self._hello(), deadline_s=CONNECT_S)

    def _hello(self) -> Hello:
        return make_hello("worker", str(self._spec.own), 1, environment_token(os.environ))

    def attach(self, addresses: tuple[str, ...]) -> Neighbours:
        """Returns the neighbours; `addresses`: of all members."""
        self._addresses = addresses

        async def attach() -> Neighbours:
            neighbours = await self.links.attach()
            self.links.watch(self._failed)
            return neighbours

        return self._loop.do(attach())

    def submitted(self, flights: range, examples: int) -> None:
        """Notes the examples of flights that will be submitted."""

        async def note() -> None:
            for flight in flights:
                self.links.submitted(flight, examples)

        self._loop.do(note())

    def sent(self) -> tuple[str, Sent]:
        """Returns how blocks went to the others, and how many bytes."""

        async def sent() -> Sent:
            return self.links.sent

        return ways(self.links.transports), self._loop.do(sent())

    def close(self) -> None:
        async def close() -> None:
            await self.links.close()
            await self._server.close()

        self._loop.do(close())
        self._loop.close()


class BenchMember:
    """A member between rounds. `links`: to the others."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._network = network_of(spec.experiment, spec.partitions)
        self.links = MemberLinks(spec, self._network, self._lost)
        self._done = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._round = MemberRound(0.0, 0.0, 0.0)
        self._next, self._any_done = 1, False

    def begin(self, addresses: tuple[str, ...]) -> None:
        """Attaches to the others, compiles, and starts the threads; `addresses`: of all members."""
        spec, network = self._spec, self._network
        neighbours = self.links.attach(addresses)
        tensors, train = MemberTensors(network, spec.own), spec.experiment.train
        local = spec.experiment.local_learning_rate_factor() != 0.0
        layout = build_layout(spec.experiment.model, 1)
        examples = spec.batch * train.steps_per_push
        factors = [
            held.tensor
            for held, shape in zip(tensors.held, tensors.shapes, strict=True)
            if choose_protocol(msgspec.structs.replace(network.tensors[held.tensor], shape=shape), examples, 1)
            == "factors"
        ]
        self._replica = Replica(
            network, layout, spec.flights, spec.batch, train.steps_per_push, train.steps_per_fetch, factors, local,
            slots_per_flight(spec.threads, spec.flights), ranges=tensors.ranges,
            rows={held.tensor: held.rows for held in tensors.held}, skips=bool(factors) and not local,
        )  # fmt: skip
        for view, (index, (start, stop)) in zip(tensors.views(self._replica.weights), tensors.held, strict=True):
            view[...] = initial_rows(network.tensors[index], index, start, stop, spec.experiment.seed).reshape(
                view.shape
            )
        accruing = [self._replica.accruing_of(context) for context in range(spec.flights)]
        member = Member(
            network, neighbours, spec.batch, spec.flights, self._replica.weights, accruing=accruing,
            clip_norm=spec.experiment.optimizer.clip_norm,
        )  # fmt: skip
        self._batches = self._made_up()
        self._threads = FlightThreads(
            member,
            spec.flights,
            spec.threads,
            self.links.links.sleeping,
            self._finished,
            _Slots(self._replica),
            spins=spec.spins,
        )
        self._threads.start()

    def run(self, flights: int) -> MemberRound:
        """Runs so many flights."""
        self._round = MemberRound(0.0, 0.0, 0.0)
        self._any_done = False
        self.links.submitted(range(self._next, self._next + flights), self._spec.batch)
        for number in range(self._next, self._next + flights):
            batch = self._batches[number % len(self._batches)]
            self._threads.submit(Flight(number, batch, True, LEARNING_RATE, LEARNING_RATE))
        self._next += flights
        for _ in range(flights):
            self._done.acquire()
            if self._failure is not None:
                raise self._failure
        return self._round

    def close(self) -> None:
        self._threads.stop()
        self._threads.join(JOIN_S)
        self.links.close()
        self._replica.memory.close()

    def _lost(self, failure: BaseException) -> None:
        self._failure = failure
        self._done.release()

    def _finished(self, done: FlightDone) -> None:
        flight, spec = done.flight, self._spec
        if done.failure is not None:
            self._failure = done.failure
        else:
            actions = self._replica.end_native_steps(
                flight.number % spec.flights, 1, spec.batch, LEARNING_RATE, LEARNING_RATE
            )
            if actions.push is not None:
                self._replica.acknowledged(actions.push)
            with self._lock:
                before = self._round
                wait_s = done.wait_s if self._any_done else 0.0  # before the first one, nothing was to be done
                self._any_done = True
                self._round = MemberRound(
                    before.compute_s + done.compute_s, before.wait_s + wait_s, before.loss_sum + done.found.loss
                )
        self._done.release()

    def _made_up(self) -> list[Batch]:
        """Returns the same batches in every member."""
        spec, shape = self._spec, (self._spec.batch, *self._spec.experiment.model.input)
        generator = np.random.default_rng(spec.experiment.seed)
        count = max(2, min(64, BATCHES_BYTES_MAX // (4 * int(np.prod(shape)))))
        units = self._network.stages[-1].layers[-1].operation.output_shape[0]
        batches = []
        for number in range(count):
            images = generator.standard_normal(shape, np.float32)
            labels = generator.integers(0, units, spec.batch).astype(np.int32)
            batches.append(Batch(images, labels, step_key(spec.experiment.seed, 0, number * spec.batch)))
        return batches


def member_program(spec: Spec, pipe: Pipe) -> None:
    """A child process: tells its address, begins when it knows all, then runs rounds until told None.

    On SENT it tells what it has sent.
    """
    if spec.place is not None:
        namespaces.enter(spec.place[0])
    member = BenchMember(spec)
    pipe.send(member.links.address)
    member.begin(pipe.recv())
    pipe.send("ready")
    while (flights := pipe.recv()) is not None:
        if flights == SENT:
            pipe.send(member.links.sent())
            continue
        began = time.perf_counter(), time.process_time()
        made = member.run(flights)
        pipe.send((made, time.perf_counter() - began[0], time.process_time() - began[1], os.getpid()))
    member.close()
