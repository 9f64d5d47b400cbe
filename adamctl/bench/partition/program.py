"""One partition of a replica in a process of its own, which trains on synthetic examples when it is told to.

It does everything that a flight of `adamctl train` does: waits, gathers, forward, loss, backward, sums of what is
shared, clipping, accruing, applying to its weights. It omits what is not compute: nothing is read, pushed or fetched; a
push counts as acknowledged at once.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import NamedTuple

import msgspec
import numpy as np

from adamctl.bench.child import Pipe
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.kernels.backend import choose
from adamctl.kernels.numeric.mix import step_key
from adamctl.kernels.partition.accruing import SlotPlace
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.member import Member
from adamctl.kernels.partition.memory import SharedLayout, SharedMemory
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors, cut_network, cuts_of
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.model.protocol import choose_protocol
from adamctl.roles.worker.partition.engine import slots_per_flight
from adamctl.roles.worker.partition.sleeping import Sleeping, Waker
from adamctl.roles.worker.partition.threads import Flight, FlightDone, FlightThreads
from adamctl.roles.worker.replica import Replica

LEARNING_RATE = 1e-3  # low: learning from noise must not diverge; the cost is the same
BATCHES_BYTES_MAX = 64 << 20
JOIN_S = 60.0


class Spec(NamedTuple):
    """What a member is told.

    Attributes:
        own: its partition.
        memories: files of all members' memory.
        names: of the sockets that wake them.
        spins: see `adamctl.roles.worker.partition.threads.SPINS`.
    """

    experiment: Experiment
    partitions: int
    own: int
    batch: int
    flights: int
    threads: int
    spins: int
    memories: tuple[str, ...]
    names: tuple[str, ...]


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


class BenchMember:
    """A member between rounds."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        network = network_of(spec.experiment, spec.partitions)
        memories = []
        for number, file in enumerate(spec.memories):
            layout = SharedLayout(network, number, spec.batch, spec.flights)
            with open(file, "r+b") as opened:
                mapped = mmap.mmap(opened.fileno(), 0)
            memories.append(SharedMemory(layout, np.frombuffer(mapped, np.uint8)))
        memories[spec.own].begin(spec.flights)
        self.sleeping = Sleeping(memories[spec.own].sleepers, spec.names[spec.own])
        self._network, self._memories = network, memories
        self._done = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._round = MemberRound(0.0, 0.0, 0.0)
        self._wakers: list[Waker] = []
        self._next = 1

    def begin(self) -> None:
        """Compiles and starts the threads; call it when all members have their sockets."""
        spec, network = self._spec, self._network
        self._wakers = [Waker(memory.sleepers, name) for memory, name in zip(self._memories, spec.names, strict=True)]
        wakes = {number: waker.wake for number, waker in enumerate(self._wakers)}
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
            network, Neighbours(spec.own, self._memories, wakes), spec.batch, spec.flights, self._replica.weights,
            accruing=accruing, clip_norm=spec.experiment.optimizer.clip_norm,
        )  # fmt: skip
        self._batches = self._made_up()
        self._threads = FlightThreads(
            member, spec.flights, spec.threads, self.sleeping, self._finished, _Slots(self._replica), spins=spec.spins
        )
        self._threads.start()

    def run(self, flights: int) -> MemberRound:
        """Runs so many flights."""
        self._round = MemberRound(0.0, 0.0, 0.0)
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
        for waker in self._wakers:
            waker.close()
        self.sleeping.close()
        self._replica.memory.close()

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
                self._round = MemberRound(
                    before.compute_s + done.compute_s, before.wait_s + done.wait_s, before.loss_sum + done.found.loss
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
    """A child process: says that its socket is there, begins when told to, then runs rounds until told None."""
    member = BenchMember(spec)
    pipe.send("there")
    pipe.recv()
    member.begin()
    pipe.send("ready")
    while (flights := pipe.recv()) is not None:
        began = time.perf_counter(), time.process_time()
        made = member.run(flights)
        pipe.send((made, time.perf_counter() - began[0], time.process_time() - began[1], os.getpid()))
    member.close()
