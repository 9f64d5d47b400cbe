"""A process that holds one partition of a model and predicts with it: `python -m adamctl.launch.prediction.member FD`.

It has no role, no event loop and no address: the command that started it is at the other end of FD, and it ends when
that end closes, however the command ends. Flights are those of a worker of a run (`adamctl.roles.worker.partition`).
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np

from adamctl.config.experiment import Experiment
from adamctl.errors import AdamctlError, MisfitError
from adamctl.kernels.backend import choose
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import Neighbours
from adamctl.kernels.partition.predictor import Predictor, flight_of
from adamctl.kernels.partition.stages import CutNetwork, MemberTensors, cut_network, cuts_of
from adamctl.kernels.segments import Wake
from adamctl.launch.prediction.forward import StoredParameters
from adamctl.launch.prediction.memory import GroupMemory
from adamctl.launch.prediction.messages import (
    Begin,
    Done,
    Failed,
    FromMember,
    Predict,
    Ready,
    receive_as_member,
    send,
)
from adamctl.model.custom.plain import experiment_from_user
from adamctl.model.partition.prediction import prediction_plan
from adamctl.roles.ps.checkpoint_files import read_manifest
from adamctl.roles.worker.partition.sleeping import Sleeping
from adamctl.roles.worker.partition.threads import Flight, FlightDone, FlightThreads, laid_out


class Member:
    """One partition, from its first message on."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()

    def run(self) -> None:
        """Predicts until the command is gone. Raises EOFError or OSError then."""
        begin = receive_as_member(self._connection)
        assert isinstance(begin, Begin)
        memory = self._prepare(begin)
        while True:
            message = receive_as_member(self._connection)
            assert isinstance(message, Predict)
            examples = memory.examples[message.flight % begin.flights][: message.examples]
            self._threads.submit(Flight(message.flight, flight_of(examples), trains=False))

    def _prepare(self, begin: Begin) -> GroupMemory:
        experiment = msgspec.convert(
            experiment_from_user(read_manifest(Path(begin.checkpoint))["experiment"]), Experiment
        )
        plan = prediction_plan(experiment.model, begin.partitions, experiment.partition)
        if plan.hash != begin.plan_hash:
            raise MisfitError(
                f"expected plan {begin.plan_hash}; found {plan.hash}: the checkpoint or a layer has changed"
            )
        network = cut_network(experiment.model, cuts_of(plan), choose())
        mapped = np.frombuffer(mmap.mmap(begin.memory, begin.memory_bytes), np.uint8)
        memory = GroupMemory(network, begin.batch, begin.flights, mapped)
        weights = _read(Path(begin.checkpoint), network, begin.own)
        wakes = {
            other: Wake(memory.partitions[other].sleepers, waker)
            for other, waker in enumerate(begin.wakers)
            if other != begin.own
        }
        neighbours = Neighbours(begin.own, memory.partitions, wakes)
        predictor = laid_out(
            lambda: Predictor(network, neighbours, begin.batch, begin.flights, weights, memory.outputs), begin.batch
        )
        ends = socket.socket(fileno=begin.sleepers), socket.socket(fileno=begin.wakers[begin.own])
        sleeping = Sleeping(memory.partitions[begin.own].sleepers, ends=ends)
        self._threads = FlightThreads(
            predictor, begin.flights, begin.threads, sleeping, self._finished, spins=begin.spins
        )
        self._threads.start()
        self._tell(Ready(sum(weight.nbytes for weight in weights)))
        return memory

    def fail(self, failure: BaseException) -> None:
        """Tells why this process ends."""
        if not isinstance(failure, AdamctlError):
            traceback.print_exception(failure)
        kind = type(failure).__name__ if isinstance(failure, AdamctlError) else ""
        self._tell(Failed(kind, str(failure) or type(failure).__name__))

    def _finished(self, done: FlightDone) -> None:
        if done.failure is not None:
            self.fail(done.failure)
        else:
            self._tell(Done(done.flight.number, done.compute_s))

    def _tell(self, message: FromMember) -> None:
        with self._sending:
            send(self._connection, message)


def _read(folder: Path, network: CutNetwork, own: int) -> list[Array]:
    """Returns the parameters that a partition computes with, and no others."""
    tensors, stored = MemberTensors(network, own), StoredParameters(folder, network.tensors)
    weights: list[Array] = []
    for (tensor, (start, _)), shape in zip(tensors.held, tensors.shapes, strict=True):
        weights.append(np.empty(shape, np.float32))
        stored.read(tensor, start, weights[-1])
    return weights


def main() -> None:
    """Runs until the command is gone, whatever threads are doing then."""
    member = Member(Connection(int(sys.argv[1])))
    try:
        try:
            member.run()
        except (EOFError, ConnectionError):
            raise
        except Exception as failure:
            member.fail(failure)
            sys.stderr.flush()
    except (EOFError, OSError):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
