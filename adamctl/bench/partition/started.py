"""Replicas in child processes, whole or in partitions, which run rounds of batches when they are told to."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, Protocol

from adamctl.bench.child import Child, Pipe
from adamctl.bench.partition.machines import Emulated
from adamctl.bench.partition.program import SENT, MemberRound, Spec, member_program
from adamctl.bench.worker.trainer import Trainer
from adamctl.config.experiment import Experiment
from adamctl.kernels.threads import available_cores
from adamctl.net.address import TransportKind
from adamctl.roles.worker.partition.sending import Sent
from adamctl.roles.worker.partition.threads import SPINS

START_S = 300.0
ROUND_S = 600.0


class Kind(NamedTuple):
    """A replica: its partitions, compute threads of each, open flights (0: one for each thread) and transport.

    `label` tells replicas apart that are alike but for their cuts.
    """

    partitions: int
    threads: int
    flights: int
    transport: TransportKind
    label: str = ""

    @property
    def name(self) -> str:
        if self.partitions == 1:
            return f"one process, {self.threads} threads"
        return f"{self.partitions} partitions, {self.threads} threads each, {self.flights} flights, {self.transport}"

    def machines(self) -> tuple[str, ...]:
        """Returns the names of its machines, one for each process."""
        return tuple(
            f"{self.label}{self.transport}-{self.flights}-{self.partitions}-{own}" for own in range(self.partitions)
        )


class Round(NamedTuple):
    """What a round took.

    Attributes:
        took_s: from its beginning to its end.
        waiting: share of their time that threads slept.
        compute_s: that the busiest partition's threads computed, together; 0 where it is not known.
    """

    took_s: float
    waiting: float = 0.0
    compute_s: float = 0.0


class Replica(Protocol):
    """A replica between rounds."""

    def run(self, count: int, bytes_per_s: float | None, seed: int) -> Round:
        """Trains so many batches.

        Args:
            bytes_per_s: of each machine's link, in each direction; None: no limit.
            seed: of pauses.
        """
        ...

    def told(self) -> tuple[str, list[Sent]]:
        """Returns how blocks go between partitions, as people call it, and what each has sent up to now."""
        ...


@contextmanager
def started(experiment: Experiment, kind: Kind, batch: int, machines: Emulated) -> Iterator[Replica]:
    """Starts a replica; it ends with the block."""
    with ExitStack() as stack:
        yield (_Whole if kind.partitions == 1 else _Partitions)(stack, experiment, kind, batch, machines)


class _Whole:
    def __init__(self, stack: ExitStack, experiment: Experiment, kind: Kind, batch: int, machines: Emulated) -> None:
        self._child = stack.enter_context(Child(_whole_program, experiment, kind.threads, batch))
        (name,) = kind.machines()
        machines.holds(name, self._child.pid)
        self._child.receive(START_S)

    def run(self, count: int, bytes_per_s: float | None, seed: int) -> Round:
        return Round(self._child.ask(count, ROUND_S))

    def told(self) -> tuple[str, list[Sent]]:
        return "", []


class _Partitions:
    def __init__(self, stack: ExitStack, experiment: Experiment, kind: Kind, batch: int, machines: Emulated) -> None:
        self._machines, self._names = machines, kind.machines()
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="adamctl-"))
        spins = SPINS if kind.partitions * kind.threads < available_cores() else 0
        self._children = []
        for own, name in enumerate(self._names):
            spec = Spec(
                experiment, kind.partitions, own, batch, kind.flights, kind.threads, spins, kind.transport, folder,
                machines.place(name),
            )  # fmt: skip
            child = stack.enter_context(Child(member_program, spec))
            machines.holds(name, child.pid)
            self._children.append(child)
        addresses = tuple(child.receive(START_S) for child in self._children)
        for child in self._children:
            child.send(addresses)
        for child in self._children:
            child.receive(START_S)

    def run(self, count: int, bytes_per_s: float | None, seed: int) -> Round:
        self._machines.limit(self._names, bytes_per_s)
        with self._machines.disturbed([child.pid for child in self._children], seed):
            began_s = time.perf_counter()
            for child in self._children:
                child.send(count)
            made: list[MemberRound] = [child.receive(ROUND_S)[0] for child in self._children]
            took_s = time.perf_counter() - began_s
        waited, computed = sum(one.wait_s for one in made), sum(one.compute_s for one in made)
        return Round(took_s, waited / (waited + computed), max(one.compute_s for one in made))

    def told(self) -> tuple[str, list[Sent]]:
        self._machines.limit(self._names, None)
        told = [child.ask(SENT, ROUND_S) for child in self._children]
        return told[0][0], [sent for _, sent in told]


def _whole_program(experiment: Experiment, threads: int, batch: int, pipe: Pipe) -> None:
    """A child process that trains whole batches with the worker's own threads."""
    trainer = Trainer(experiment, threads, batch)
    pipe.send("ready")
    while (count := pipe.recv()) is not None:
        pipe.send(trainer.run_batches(count))
    trainer.close()
