"""Predicts with a model of which several processes hold the parts: they are started, given examples, watched, ended.

Processes are this command's children, in a session of their own: Ctrl-C reaches the command alone, which then ends
them. One that dies, or stays stopped, ends the prediction with a message that names it; the next prediction starts
them all again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import psutil

from adamctl import errors
from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.kernels.backend import choose
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.predictor import finish
from adamctl.kernels.partition.stages import CutNetwork, cut_network, cuts_of
from adamctl.launch.prediction.flight_order import FlightOrder
from adamctl.launch.prediction.memory import GroupMemory
from adamctl.launch.prediction.messages import (
    Begin,
    Done,
    Failed,
    FromMember,
    Predict,
    Ready,
    receive_from_member,
    send,
)
from adamctl.launch.supervision import describe_status
from adamctl.model.custom.registry import environment_for
from adamctl.model.partition.plan import PartitionPlan
from adamctl.net.shared_memory import SharedMemory
from adamctl.roles.role_process import role_environment

STOP_S = 5.0
"""How long a process may take to end by itself."""
SILENT_S = 5.0
"""After how long without a message it is looked whether processes are stopped; twice in a row fails."""
OUTPUT_BYTES_MAX = 2000
OUTPUT_LINES_MAX = 6


class Setting(NamedTuple):
    """How a group predicts.

    Attributes:
        checkpoint: the folder of the parameters.
        batch: most examples of a flight.
        flights: most that are open.
        threads: of each process.
        spins: see `adamctl.roles.worker.partition.threads.SPINS`.
    """

    checkpoint: Path
    plan: PartitionPlan
    batch: int
    flights: int
    threads: int
    spins: int


class PartitionGroup:
    """The processes of one model. See `adamctl.launch.prediction.forward.Forward`.

    They start with the first prediction, and stay until `close` or until this object is gone. One prediction runs at a
    time: `outputs` refuses another one before all of its outputs were taken, or its iterator was closed.

    Attributes:
        batch: most examples of a part.
        compute_s: that threads of all processes worked on flights, together, up to now.
    """

    def __init__(self, setting: Setting) -> None:
        self.batch, self.compute_s = setting.batch, 0.0
        self._setting = setting
        self._network = cut_network(setting.plan.model, cuts_of(setting.plan), choose())
        self._processes: _Processes | None = None
        self._busy = threading.Lock()

    def start(self) -> None:
        """Starts the processes, unless they run; returns when all can predict.

        Raises:
            DamagedDataError: a file of the checkpoint is damaged.
            RunFailedError: a process cannot be started, ended, or stays stopped; the message names it.
        """
        if self._processes is None:
            try:
                self._processes = _started(self._setting, self._network)
            except (OSError, MemoryError) as error:
                raise RunFailedError(f"processes to predict with cannot be started: {error}") from error

    def outputs(self, parts: Iterable[Array]) -> Iterator[Array]:
        """See `Forward`.

        Raises:
            ConfigurationError: another prediction is not finished.
            CustomError: a layer of the user's own failed.
            RunFailedError: a process ended, or stays stopped; the message names it.
        """
        if not self._busy.acquire(blocking=False):
            raise ConfigurationError(
                "this model is still predicting: take all outputs of the other prediction first, or load the model "
                "once more"
            )
        try:
            self.start()
            processes = self._processes
            assert processes is not None
            yield from self._run(processes, iter(parts))
        finally:
            if self._processes is not None and self._processes.order.open:
                self.close()
            self._busy.release()

    def _run(self, processes: _Processes, parts: Iterator[Array]) -> Iterator[Array]:
        """Yields outputs; a part that cannot be read fails when those of all parts before it were taken."""
        order, sizes = processes.order, dict[int, int]()
        failure = self._fill(processes, parts, sizes)
        while order.next is not None:
            self._wait(processes)
            flight = order.take()
            outputs = np.array(processes.memory.outputs[flight % self._setting.flights][: sizes.pop(flight)])
            finish(self._network, outputs)
            failure = failure or self._fill(processes, parts, sizes)
            try:
                yield outputs
            except GeneratorExit:
                self._drain(processes)
                raise
        if failure is not None:
            raise failure

    def _fill(self, processes: _Processes, parts: Iterator[Array], sizes: dict[int, int]) -> Exception | None:
        """Opens as many flights as may be open; returns why the next part could not be read."""
        while processes.order.may_begin:
            try:
                part = next(parts, None)
            except Exception as failure:
                return failure
            if part is None:
                return None
            flight = processes.order.begin()
            sizes[flight] = len(part)
            processes.predict(flight, part)
        return None

    def _drain(self, processes: _Processes) -> None:
        """Waits for flights whose outputs nobody wants, so that the next prediction can use the same processes."""
        while processes is self._processes and processes.order.next is not None:
            self._wait(processes)
            processes.order.take()

    def _wait(self, processes: _Processes) -> None:
        """Returns when the flight whose outputs come next is done.

        Raises ConfigurationError: `close` has ended the processes meanwhile.
        """
        if processes is not self._processes:
            raise ConfigurationError("this model was closed before all outputs of its prediction were taken")
        while not processes.order.is_next_done:
            for partition, message in processes.receive():
                assert isinstance(message, Done)
                self.compute_s += message.compute_s
                processes.order.done(partition, message.flight)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes, by partition; none while they do not run."""
        return () if self._processes is None else self._processes.pids

    @property
    def parameters_bytes(self) -> tuple[int, ...]:
        """What each process holds of the parameters; none while they do not run."""
        return () if self._processes is None else tuple(self._processes.parameters_bytes)

    def close(self) -> None:
        """Ends the processes. The next prediction starts them again."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None


@dataclass(frozen=True)
class _Process:
    """One process, what it was started with, and where its standard error goes."""

    partition: int
    process: subprocess.Popen[bytes]
    connection: Connection
    output: IO[bytes]

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, and none has let it go on; False if it has ended."""
        with suppress(psutil.Error):
            return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)
        return False


class _Processes:
    """The running processes of a group, and the memory that they share.

    Attributes:
        order: of their flights.
        memory: that they share.
        parameters_bytes: that each holds.
    """

    def __init__(self, setting: Setting, network: CutNetwork) -> None:
        self._setting = setting
        self.order = FlightOrder(setting.plan.partitions, setting.flights)
        size_bytes = GroupMemory.size_bytes(network, setting.batch, setting.flights)
        self._region = SharedMemory(size_bytes)
        shared = self._region.array(-(-size_bytes // 4)).view(np.uint8)
        self.memory = GroupMemory(network, setting.batch, setting.flights, shared)
        for partition in self.memory.partitions:
            partition.begin(setting.flights)
        self.parameters_bytes = [0] * setting.plan.partitions
        self._started: list[_Process] = []
        self._end = weakref.finalize(self, _end, self._started)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(one.process.pid for one in self._started)

    def begin(self) -> None:
        """Starts all processes, and waits until each has its parameters."""
        setting = self._setting
        partitions = setting.plan.partitions
        with ExitStack() as stack:
            pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(partitions)]
            for end in (end for pair in pairs for end in pair):
                stack.enter_context(end)
                end.setblocking(False)
            wakers = tuple(waker.fileno() for _, waker in pairs)
            for own in range(partitions):
                begin = Begin(
                    str(setting.checkpoint.absolute()), setting.plan.hash, partitions, own, setting.batch,
                    setting.flights, setting.threads, setting.spins, self._region.descriptor, self._region.size_bytes,
                    pairs[own][0].fileno(), wakers,
                )  # fmt: skip
                self._started.append(self._start(begin))
                self._send(self._started[-1], begin)
        waited = set(range(partitions))
        while waited:
            for partition, message in self.receive():
                assert isinstance(message, Ready)
                self.parameters_bytes[partition] = message.parameters_bytes
                waited.remove(partition)

    def _start(self, begin: Begin) -> _Process:
        output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        ours, theirs = Pipe()
        environment = role_environment(environment_for(self._setting.plan.model, os.environ))
        try:
            process = subprocess.Popen(
                (sys.executable, "-m", "adamctl.launch.prediction.member", str(theirs.fileno())),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
                pass_fds=(theirs.fileno(), begin.memory, begin.sleepers, *begin.wakers),
            )  # fmt: skip
        except OSError as error:
            ours.close()
            output.close()
            raise RunFailedError(f"{self._name(begin.own)} cannot be started: {error}") from error
        finally:
            theirs.close()
        return _Process(begin.own, process, ours, output)

    def predict(self, flight: int, part: Array) -> None:
        """Gives the examples of a flight to all processes."""
        self.memory.examples[flight % self._setting.flights][: len(part)] = part
        for one in self._started:
            self._send(one, Predict(flight, len(part)))

    def _send(self, one: _Process, message: Begin | Predict) -> None:
        try:
            send(one.connection, message)
        except OSError:
            raise self._ended(one) from None

    def receive(self) -> list[tuple[int, FromMember]]:
        """Returns messages and the partitions that sent them, at least one.

        Raises:
            AdamctlError: a process failed, ended, or stays stopped, as by SIGSTOP.
        """
        connections, stopped = [one.connection for one in self._started], list[_Process]()
        while not (ready := wait(connections, SILENT_S)):  # computing may take any time
            before, stopped = stopped, [one for one in self._started if one.is_stopped]
            for one in stopped:
                if one in before:
                    raise RunFailedError(
                        f"{self._name(one.partition)} (process {one.process.pid}) is stopped, as by SIGSTOP, and the "
                        f"others wait for it: it is ended with them; predict again"
                    )
        found: list[tuple[int, FromMember]] = []
        for one in self._started:
            if one.connection in ready:
                try:
                    message = receive_from_member(one.connection)
                except (EOFError, OSError):
                    raise self._ended(one) from None
                if isinstance(message, Failed):
                    raise self._failed(one, message)
                found.append((one.partition, message))
        return found

    def _name(self, partition: int) -> str:
        return f"partition {partition} of {self._setting.plan.partitions}"

    def _ended(self, one: _Process) -> RunFailedError:
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(STOP_S)
        status = one.process.poll()
        how = "closed its connection" if status is None else describe_status(status)
        text = f"{self._name(one.partition)} (process {one.process.pid}) ended while it was needed: {how}"
        if status is not None and status < 0:
            text += ": it was killed by somebody, or by the system for want of memory"
        return RunFailedError("\n".join([text, *_last_output(one.output)]))

    def _failed(self, one: _Process, message: Failed) -> AdamctlError:
        kind = getattr(errors, message.kind, RunFailedError) if message.kind else RunFailedError
        text = f"{self._name(one.partition)}: {message.text}"
        return kind(text if message.kind else "\n".join([text, *_last_output(one.output)]))

    def close(self) -> None:
        """Ends all processes, whatever they are doing."""
        self._end()
        self._region.close()


def _started(setting: Setting, network: CutNetwork) -> _Processes:
    """Returns processes that can predict. Raises as `PartitionGroup.start`, and OSError, MemoryError."""
    processes = _Processes(setting, network)
    try:
        processes.begin()
    except BaseException:
        processes.close()
        raise
    return processes


def _end(started: Sequence[_Process]) -> None:
    for one in started:
        one.process.kill()
    for one in started:
        one.process.wait()
        one.connection.close()
        one.output.close()


def _last_output(output: IO[bytes]) -> list[str]:
    """Returns the last lines that a process has written, indented."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(size - OUTPUT_BYTES_MAX, 0))
    lines = output.read().decode(errors="replace").splitlines()
    return [f"    {line}" for line in lines[-OUTPUT_LINES_MAX:]]
