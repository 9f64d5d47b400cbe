"""A set of four times the memory of its data server, against the same set with memory for all of it: whole runs.

Both are started as a user would start them, with one data server, which is given its memory by ADAMCTL_DATA_MEMORY, and
one worker on a network so small that it asks for examples faster than others would. They take turns, and the best
passes of each count: what else the machine does makes them slower. First passes do not: both read the set in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import psutil

from adamctl.bench.bars import Found, Progress
from adamctl.bench.data.parts import DataSettings
from adamctl.bench.watched_run import Sample, WatchedRun
from adamctl.config.data import DataConfig
from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig, TrainConfig
from adamctl.config.resolved import write_resolved
from adamctl.errors import AdamctlError, RunFailedError
from adamctl.model.description import Dense, Model, Softmax
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Connection
from adamctl.wire.messages import StatusReply, StatusRequest

MEMORY: Final = "128MiB"
MEMORY_BYTES: Final = 128 << 20
ENOUGH: Final = "4GiB"
SIDE, CLASSES = 28, 10
PASSES: Final = 3
SERVER: Final = "data-1"
LOOK_S, ANSWER_S, PASS_S_MAX = 0.05, 10.0, 300.0
WINDOW_BLOCKS: Final = 32
AHEAD_BYTES: Final = 2 * WINDOW_BLOCKS * 1024 * SIDE * SIDE
"""Two windows: what may have been read ahead of a pass that does not come."""


class Streamed(NamedTuple):
    """One run: examples per second of its best later pass, and what its data server read and held meanwhile.

    `waiting_share`: of the worker's time, over the whole run.
    """

    examples_per_s: float
    waiting_share: float
    read_bytes: int
    grown_bytes: int
    held_bytes: int


def measure(settings: DataSettings, progress: Progress) -> dict[str, Found]:
    """Returns throughput, resident memory and bytes read of the streamed set, over those they are measured against."""
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as place:
        folder = Path(place) / "set"
        examples = write_images(folder, 4 * MEMORY_BYTES)
        file = write_resolved(experiment_of(folder), Path(place))
        runs: dict[str, list[Streamed]] = {MEMORY: [], ENOUGH: []}
        for turn in range(max(1, settings.rounds // 2)):
            for memory, found in runs.items():
                progress(f"a set of {4 * MEMORY_BYTES >> 20} MiB in {memory}: round {turn + 1}")
                found.append(asyncio.run(_run(file, memory, examples)))
    return compared(runs[MEMORY], runs[ENOUGH], examples * SIDE * SIDE)


def experiment_of(folder: Path) -> Experiment:
    """Returns what both runs train: a small network, on passes in block order."""
    return Experiment(
        name="stream",
        model=Model((SIDE, SIDE, 1), (Dense(128, "relu"), Softmax(CLASSES))),
        data=DataConfig(
            format="npy", source=str(folder), order="blocks", window_blocks=WINDOW_BLOCKS, memory_share=0.9
        ),
        optimizer=OptimizerConfig(type="sgd", lr=0.02),
        train=TrainConfig(passes=PASSES, batch=64, range_batches=16, evaluate_every=PASSES),
        cluster=ClusterConfig(workers=1, threads=1, ps=0, data=1, replication=1),
    )


def compared(streamed: Sequence[Streamed], in_memory: Sequence[Streamed], set_bytes: int) -> dict[str, Found]:
    """Returns what is found for each bar; of each side the best run, and of memory and bytes the worst."""
    best, peer = (max(run.examples_per_s for run in runs) for runs in (streamed, in_memory))
    grown_bytes = max(run.grown_bytes for run in streamed)
    read_bytes = max(run.read_bytes for run in streamed)
    return {
        "stream-rate": {
            "ratio": best / peer,
            "images_per_s": best,
            "in_memory_images_per_s": peer,
            "set_bytes": set_bytes,
            "waiting_share": min(run.waiting_share for run in streamed),
            "in_memory_waiting_share": min(run.waiting_share for run in in_memory),
            "in_memory_held_bytes": max(run.held_bytes for run in in_memory),
        },
        "stream-memory": {"ratio": grown_bytes / MEMORY_BYTES, "grown_bytes": grown_bytes},
        "stream-bytes": {
            "ratio": read_bytes / (PASSES * set_bytes + AHEAD_BYTES),
            "read_bytes": read_bytes,
            "in_memory_read_bytes": max(run.read_bytes for run in in_memory),
        },
    }


def write_images(folder: Path, size_bytes: int) -> int:
    """Writes an `.npy` set of grey images like digits, as many as take so much, and returns how many."""
    folder.mkdir()
    examples = size_bytes // (SIDE * SIDE)
    shape = (examples, SIDE, SIDE)
    images = np.lib.format.open_memmap(folder / "x_train.npy", mode="w+", dtype=np.uint8, shape=shape)
    labels = (np.arange(examples) * 7 % CLASSES).astype(np.uint8)
    noise = np.random.default_rng(1).integers(0, 60, (997, SIDE, SIDE), np.uint8)
    for start in range(0, examples, len(noise)):
        part = images[start : start + len(noise)]
        part[...] = noise[: len(part)]
        rows = 2 + 2 * labels[start : start + len(part)].astype(np.int64)
        part[np.arange(len(part)), rows, 4:24] = 250  # a bar, whose height in the image is its class
    images.flush()
    np.save(folder / "y_train.npy", labels)
    return examples


async def _run(file: Path, memory: str, examples: int) -> Streamed:
    async with WatchedRun((str(file),), environment={"ADAMCTL_DATA_MEMORY": memory}) as run:
        server = await _Server.of(run)
        await run.trains()
        until_s = time.monotonic() + PASSES * PASS_S_MAX
        while run.samples[-1].examples < PASSES * examples and not run.has_ended:
            if time.monotonic() > until_s:
                raise RunFailedError(f"expected {PASSES} passes within {PASSES * PASS_S_MAX:g} s")
            await server.look()
            await asyncio.sleep(LOOK_S)
        await server.connection.close()
        rate = best_pass(run.samples, examples)
        waiting_share = 0.0 if run.progress is None else run.progress.waiting_share
    status = server.status
    return Streamed(rate, waiting_share, status["read_bytes"], server.grown_bytes, status["held_bytes"])


class _Server:
    """A run's data server: what it says of its one data set, and how much its resident memory has grown."""

    def __init__(self, connection: Connection, process: psutil.Process) -> None:
        self.connection, self._process = connection, process
        self._before_bytes = process.memory_info().rss
        self.grown_bytes = 0
        self.status: dict[str, Any] = {}

    @classmethod
    async def of(cls, run: WatchedRun) -> _Server:
        address = await run.address(SERVER)
        hello = make_hello("front", "front-bench", 0, run.token)
        return cls(await StreamTransport().connect(address, hello, deadline_s=ANSWER_S), run.processes()[SERVER])

    async def look(self) -> None:
        """Looks, unless the server has just ended with its run."""
        with contextlib.suppress(AdamctlError, psutil.Error):
            reply = await self.connection.request(StatusRequest(), deadline_s=ANSWER_S)
            self.grown_bytes = max(self.grown_bytes, self._process.memory_info().rss - self._before_bytes)
            assert isinstance(reply.message, StatusReply)
            if reply.message.status["datasets"]:
                (self.status,) = reply.message.status["datasets"]


def best_pass(samples: Sequence[Sample], examples: int) -> float:
    """Returns the examples per second of the fastest pass but the first.

    Raises:
        RunFailedError: there is no whole one.
    """
    ends = [_time_of(samples, number * examples) for number in range(1, samples[-1].examples // examples + 1)]
    if len(ends) < 2:
        raise RunFailedError(f"expected at least 2 passes of {examples} examples, found {samples[-1].examples} in all")
    return examples / min(after - before for before, after in pairwise(ends))


def _time_of(samples: Sequence[Sample], wanted: int) -> float:
    """Returns when so many examples had been trained on, interpolated between two samples."""
    for before, after in pairwise(samples):
        if before.examples < wanted <= after.examples:
            share = (wanted - before.examples) / (after.examples - before.examples)
            return before.at_s + share * (after.at_s - before.at_s)
    raise RunFailedError(f"expected a sample before {wanted} examples: the run was watched too late")
