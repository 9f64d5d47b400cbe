"""`adamctl train` as a separate process, asked several times a second how many examples it has processed.

For benchmarks of whole runs: their progress, and how long they take to start. The run is started as a user would start
it, in its own folder; the addresses of its coordinator and controller are read from their logs.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
import psutil

from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.launch.run_token import read_token
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.token_file import environment_token
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.coordinator.core.progress import RunProgress
from adamctl.roles.coordinator.records import METRICS_NAME

START_S = 180.0
END_S = 60.0
LOOK_S = 0.005
BETWEEN_SIGNALS_S = 0.2
LOG_LINES = 10
ERROR = "adamctl: error: "
_READY = re.compile(r" ready on (tcp://[^\s,]+)")

_SMALL = """\
name = "{name}"
[data]
format = "digits"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "dense"
units = 256
activation = "relu"
[[model.layers]]
type = "softmax"
units = 10
[optimizer]
type = "sgd"
lr = 0.01
[train]
"""


def small_experiment(folder: str, name: str, **train: int) -> str:
    """Writes the experiment of a small network on handwritten digits, with these keys of `train`; returns its path."""
    path = Path(folder) / f"{name}.toml"
    keys = "".join(f"{key} = {value}\n" for key, value in train.items())
    path.write_text(_SMALL.format(name=name) + keys, encoding="utf-8")
    return str(path)


class Sample(NamedTuple):
    """A run's progress at a time of `time.monotonic()`."""

    at_s: float
    examples: int


def examples_at(samples: Sequence[Sample], at_s: float) -> float:
    """Returns how many examples were processed at a time, interpolated between two samples.

    Raises:
        RunFailedError: there are no samples around that time: the run ended before, or had not started.
    """
    for before, after in pairwise(samples):
        if before.at_s <= at_s <= after.at_s:
            share = (at_s - before.at_s) / (after.at_s - before.at_s) if after.at_s > before.at_s else 0.0
            return before.examples + share * (after.examples - before.examples)
    raise RunFailedError("expected a run that trains during the whole measurement; found its end: give more --passes")


def examples_per_s(samples: Sequence[Sample], start_s: float, stop_s: float) -> float:
    """Returns the mean throughput between two times. Raises RunFailedError: the run did not train all that time."""
    return (examples_at(samples, stop_s) - examples_at(samples, start_s)) / (stop_s - start_s)


def steady_examples_per_s(samples: Sequence[Sample], start_s: float, stop_s: float) -> float:
    """Returns the throughput from the first to the last progress between two times.

    A run that tells its progress in large steps, few of which are in that time, has made a part of one at either end.

    Raises:
        RunFailedError: the run did not train all that time, or told less than two steps.
    """
    examples_at(samples, stop_s)
    steps = [after for before, after in pairwise(samples) if after.examples > before.examples]
    told = [step for step in steps if start_s <= step.at_s <= stop_s]
    if len(told) < 2:
        raise RunFailedError(
            f"expected at least two steps in {stop_s - start_s:.1f} s; found {len(told)}: measure longer"
        )
    first, last = told[0], told[-1]
    return (last.examples - first.examples) / (last.at_s - first.at_s)


def failure(line: str, code: int, said: str) -> AdamctlError:
    """Returns what is raised when `line`, a command, has ended with a code other than 0, with the whole of its error.

    Exit code 2 is a ConfigurationError here, too; all others are a RunFailedError.
    """
    lines = said.splitlines()
    first = max((number for number, text in enumerate(lines) if ERROR in text), default=len(lines))
    kind = ConfigurationError if code == ConfigurationError.exit_code else RunFailedError
    return kind("\n".join([f"{line}: exit status {code}:", *lines[min(first, max(len(lines) - LOG_LINES, 0)) :]]))


class WatchedRun:
    """An asynchronous context manager: all that it starts has ended when the block is left.

    Attributes:
        began_s: just before the command was started, by `time.monotonic()`.
        samples: samples since the connection.
        progress: the last progress seen; None before the first.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        python: str = sys.executable,
        every_s: float = 0.1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            arguments: what follows `adamctl train`.
            every_s: the interval of samples in seconds.
            environment: variables of all its processes, besides those of this one.
        """
        self._environment = os.environ | dict(environment or {})
        self._line = (python, "-m", "adamctl", "train", *arguments, "--json")
        self._every_s = every_s
        self._place = tempfile.TemporaryDirectory(prefix="adamctl-watched-")
        self._folder = Path(self._place.name)
        self.samples: list[Sample] = []
        self.progress: RunProgress | None = None
        self.began_s = 0.0
        self._process: subprocess.Popen[bytes]
        self._client: CoordinatorClient | None = None
        self._sampling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> WatchedRun:
        self._start()
        try:
            address = await self.address("coordinator*")  # with --join it has the name of the run, too
            hello = make_hello("front", "front-watching", 0, self.token)
            self._client = await CoordinatorClient.connect(StreamTransport(), (address,), hello)
            self._sampling = asyncio.create_task(self._sample(self._client))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    def _start(self) -> None:
        with (self._folder / "out").open("wb") as out, (self._folder / "err").open("wb") as err:
            self.began_s = time.monotonic()
            self._process = subprocess.Popen(
                (*self._line, "--run-dir", str(self._folder / "runs")),
                env=self._environment,
                cwd=self._folder,  # not in a folder that may hold a package of the same name
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    async def _close(self) -> None:
        try:
            if self._sampling is not None:
                self._sampling.cancel()
                await asyncio.gather(self._sampling, return_exceptions=True)
            if self._client is not None:
                await self._client.close()
            await asyncio.to_thread(self._end)
        finally:
            self._place.cleanup()

    def _end(self) -> None:
        """Interrupts the command twice, which ends it and all its processes at once."""
        for _ in range(2):
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                time.sleep(BETWEEN_SIGNALS_S)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its roles notice that their lifeline closes
            self._process.wait()

    async def _sample(self, client: CoordinatorClient) -> None:
        """Samples until the run ends and the coordinator is gone."""
        while True:
            try:
                self.progress = await client.status()
            except AdamctlError:
                return
            self.samples.append(Sample(time.monotonic(), self.progress.examples))
            await asyncio.sleep(self._every_s)

    def _check(self) -> None:
        """Raises ConfigurationError or RunFailedError if the command has failed."""
        code = self._process.poll()
        if code:
            raise failure(" ".join(self._line), code, (self._folder / "err").read_text(errors="replace"))

    @property
    def pid(self) -> int:
        """Process of the command."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the command has ended, or its coordinator."""
        return self._process.poll() is not None or self._sampling is None or self._sampling.done()

    # --- its state ----------------------------------------------------------------------------------------------------

    @property
    def job(self) -> str:
        """Name of the run."""
        return self.run_folder.parent.name

    @property
    def run_folder(self) -> Path:
        """What the run writes; it goes with the block."""
        return next((self._folder / "runs").glob("*/*/logs")).parent

    async def address(self, node: str) -> str:
        """Returns a role's TCP address, once it serves; `node` may be a pattern.

        Raises:
            ConfigurationError: the command ends with exit code 2.
            RunFailedError: it fails otherwise, or the role does not serve in time.
        """
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            for log in (self._folder / "runs").glob(f"*/*/logs/{node}.log"):
                found = _READY.search(log.read_text(errors="replace"))
                if found is not None:
                    return found[1]
            self._check()
            await asyncio.sleep(LOOK_S)
        raise RunFailedError(f"{node} does not serve after {START_S:g} s")

    @property
    def token(self) -> str:
        """Returns the token of the run, or of the cluster that it joined."""
        own = filter(None, map(read_token, (self._folder / "runs").glob("*/*")))
        return next(own, environment_token(self._environment))

    async def trains(self) -> float:
        """Returns the time of the first reported steps, by `time.monotonic()`.

        Raises:
            ConfigurationError: the command ends with exit code 2.
            RunFailedError: it fails otherwise, or takes no step in time.
        """
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            if self.samples and self.samples[-1].examples:
                return next(sample.at_s for sample in self.samples if sample.examples)
            self._check()
            await asyncio.sleep(LOOK_S)
        raise RunFailedError(f"no step was taken within {START_S:g} s")

    async def result(self) -> dict[str, Any]:
        """Waits for the run's end and returns the JSON object that it prints. Raises as `trains` does."""
        await asyncio.to_thread(self._process.wait)
        self._check()
        result: dict[str, Any] = msgspec.json.decode((self._folder / "out").read_bytes())
        return result

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Returns what the run has written of one kind to its `metrics.jsonl` so far; `time` is Unix time."""
        (file,) = (self._folder / "runs").glob(f"*/*/{METRICS_NAME}")
        whole = file.read_bytes().rpartition(b"\n")[0]
        return [record for line in whole.splitlines() if (record := msgspec.json.decode(line))["kind"] == kind]

    # --- its processes ------------------------------------------------------------------------------------------------

    def cpu_s(self) -> float:
        """Returns the processor time that the command and its roles have used."""
        command = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (command, *command.children())]
        return float(sum(taken.user + taken.system for taken in times))

    def process(self, node: str) -> psutil.Process:
        """Returns a role's process. Raises RunFailedError if there is none."""
        found = self.processes().get(node)
        if found is None:
            raise RunFailedError(f"expected a process of {node}; found none")
        return found

    def processes(self) -> dict[str, psutil.Process]:
        """Returns the processes of all roles, by node."""
        lines = {process: process.cmdline() for process in psutil.Process(self._process.pid).children()}
        return {line[line.index("--name") + 1]: process for process, line in lines.items() if "--name" in line}

    def kill(self, node: str) -> None:
        """Sends SIGKILL to a role. Raises RunFailedError if there is no such process."""
        self.process(node).kill()
