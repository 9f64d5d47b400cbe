"""The time to a loss: `adamctl train` with L-BFGS against PyTorch's LBFGS and SciPy's with PyTorch's gradients.

All begin at the same weights, with the same examples in memory and the same number of threads, and evaluate the whole
training set each time. The loss is the lowest that all have reached. Ours counts from when the first worker is there:
reading the examples, from the data server, is part of its first evaluation.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isclose, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import psutil

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.peer import PeerProcess, require
from adamctl.bench.sandblaster.experiments import SEED, SHAPES, WEIGHT_DECAY, Workload
from adamctl.bench.sandblaster.whole_runs import Trained, train
from adamctl.bench.watched_run import WatchedRun
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.kernels.threads import available_cores
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.readers import open_source

PROGRAM = "torch_lbfgs.py"
HISTORY = 10
LOOK_S = 0.2
LOAD_S, MINIMISE_S = 300.0, 1800.0
ALIKE = 1e-3
"""How far losses at the same weights may differ, as a part of them: sums are rounded in other orders."""
OURS, TORCH, SCIPY = "adamctl", "torch", "scipy"


class Descent(NamedTuple):
    """Losses of one side, and the seconds until each was known."""

    losses: Sequence[float]
    seconds: Sequence[float]

    def seconds_to(self, loss: float) -> float:
        """Returns when it had a loss of at most `loss`; infinity if it never had."""
        reached = (seconds for found, seconds in zip(self.losses, self.seconds, strict=True) if found <= loss)
        return next(reached, float("inf"))


class Race(NamedTuple):
    """The lowest loss that all reached, each side's seconds in its best round, and ours over the fastest peer's."""

    loss: float
    seconds: dict[str, float]
    ratio: float


def race_of(sides: dict[str, list[Descent]]) -> Race:
    """Compares the sides, each of which has had some rounds: what disturbs one makes it longer.

    Raises:
        RunFailedError: they did not begin at the same loss.
    """
    first = sides[OURS][0].losses[0]
    for name, rounds in sides.items():
        if not isclose(rounds[0].losses[0], first, rel_tol=ALIKE):
            raise RunFailedError(f"expected {name} to begin at a loss of {first:.6g}; found {rounds[0].losses[0]:.6g}")
    loss = max(min(one.losses) for rounds in sides.values() for one in rounds)
    seconds = {name: min(one.seconds_to(loss) for one in rounds) for name, rounds in sides.items()}
    return Race(loss, seconds, seconds[OURS] / min(taken for name, taken in seconds.items() if name != OURS))


def measure_time_to_loss(
    workload: Workload, evaluations: int, rounds: int, data: Sequence[str], peer_python: str,
    progress: Callable[[str], None] = lambda line: None, groups: ControlGroups | None = None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Has all sides minimise, in turn, and returns the parts `time-to-loss` and `command-share`.

    Args:
        evaluations: of each side.
        data: folders in which data are looked up.
        peer_python: an interpreter with PyTorch and, for SciPy's side, SciPy.
        groups: give all sides their cores before other programs.

    Raises:
        ConfigurationError: the data are not found.
        RunFailedError: a run failed.
    """
    runs: list[Trained] = []
    sides: dict[str, list[Descent]] = {OURS: []}
    processor_s: dict[str, list[float]] = {OURS: [], TORCH: [], SCIPY: []}
    peer_figures: dict[str, Any] = {}
    cannot = ""
    try:
        require(peer_python, TORCH)
    except ConfigurationError as error:
        cannot = str(error)
    with _peer(workload, data, "" if cannot else peer_python, groups) as peer:
        for number in range(rounds):
            progress(f"{workload.name}: round {number + 1} of {rounds}, {evaluations} evaluations, ours")
            spent = ProcessorTime()
            runs.append(
                train(workload, evaluations, {"cluster.threads": available_cores()}, data, spent.follow, groups=groups)
            )
            processor_s[OURS].append(spent.evaluation_s)
            if peer is None:
                continue
            sides[OURS].append(_ours(runs[-1]))
            for name in (TORCH, SCIPY):
                progress(f"{workload.name}: round {number + 1} of {rounds}, {evaluations} evaluations, {name}")
                found = peer.minimise(name, evaluations)
                if found is not None:
                    sides.setdefault(name, []).append(found[0])
                    processor_s[name].append(found[1])
            peer_figures = peer.figures
    shares = [one.command_share for one in runs]
    parts = {"command-share": {"ratio": statistics.median(shares), "network": workload.name, "runs": len(runs)}}
    if cannot:
        return {"time-to-loss": {"cannot": cannot}, **parts}
    race = race_of(sides)
    figures = {f"{name}_s": seconds for name, seconds in race.seconds.items()}
    figures |= {f"{name}_processor_s_per_evaluation": min(found) for name, found in processor_s.items() if found}
    return {
        "time-to-loss": {
            "ratio": race.ratio, "network": workload.name, "loss": race.loss,
            **figures, "threads": available_cores(), "evaluations": evaluations, "rounds": rounds, **peer_figures,
        },
        **parts,
    }  # fmt: skip


def _ours(trained: Trained) -> Descent:
    return Descent([one.loss for one in trained.iterations], [one.seconds for one in trained.iterations])


class ProcessorTime:
    """The processor time of all roles of a run, which other programs on these cores change little."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, float]] = []

    async def follow(self, run: WatchedRun) -> None:
        """Looks until the run has ended."""
        while run.progress is not None and run.progress.batch is not None and not run.progress.batch.stop_reason:
            try:
                self._samples.append((run.progress.batch.evaluations, run.cpu_s()))
            except psutil.Error:  # a role has just ended
                return
            await asyncio.sleep(LOOK_S)

    @property
    def evaluation_s(self) -> float:
        """Of an evaluation and its commands; NaN if it was too short to be seen."""
        if not self._samples or self._samples[-1][0] == self._samples[0][0]:
            return float("nan")
        (first, first_s), (last, last_s) = self._samples[0], self._samples[-1]
        return (last_s - first_s) / (last - first)


class _Peer:
    """The others, in one process, with examples and weights in memory."""

    def __init__(self, process: PeerProcess, loaded: dict[str, Any]) -> None:
        self._process = process
        self.figures: dict[str, Any] = {"torch_version": loaded["torch_version"], "torch_chunk": loaded["chunk"]}

    def minimise(self, name: str, evaluations: int) -> tuple[Descent, float] | None:
        """Returns what a peer found, and the processor time of an evaluation; None if it cannot: `figures` says why."""
        request = {"do": "minimise", "with": name, "evaluations": evaluations, "history": HISTORY}
        found = self._process.ask(request, MINIMISE_S)
        if "error" in found:
            self.figures[name] = found["error"]
            if name == TORCH:
                raise RunFailedError(f"PyTorch's LBFGS: {found['error']}")
            return None
        return Descent(found["losses"], found["seconds"]), found["processor_s"] / len(found["losses"])


@contextmanager
def _peer(workload: Workload, data: Sequence[str], python: str, groups: ControlGroups | None) -> Iterator[_Peer | None]:
    """Starts the others, if there is a Python for them."""
    if not python:
        yield None
        return
    threads = available_cores()
    with TemporaryDirectory(prefix="adamctl-bench-") as folder, PeerProcess(python, PROGRAM, threads) as process:
        if groups is not None:
            groups.give(process.pid, threads)
        request = {"do": "load", "weight_decay": WEIGHT_DECAY, "threads": threads}
        loaded = process.ask(request | _files(workload, data, Path(folder)), LOAD_S)
        if not loaded["ok"]:
            raise ConfigurationError(f"PyTorch: {loaded['error']}")
        yield _Peer(process, loaded)


def _files(workload: Workload, data: Sequence[str], folder: Path) -> dict[str, Any]:
    """Writes examples and initial weights as arrays; returns their files as the peer's program is told them."""
    config = workload.data_config
    source = open_source(config, find_source(config, data), SHAPES[workload.data])
    labels = source.labels("train")
    images = np.empty((len(labels), prod(SHAPES[workload.data])), np.uint8)
    source.load("train", np.arange(len(labels)), images.reshape(-1, *SHAPES[workload.data]))
    arrays = {
        tensor.name: initial_rows(tensor, index, 0, tensor.shape[0], SEED).reshape(tensor.shape)
        for index, tensor in enumerate(build_layout(workload.model, 1).tensors)
    }
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", labels)
    np.savez(folder / "weights.npz", **arrays)  # type: ignore[arg-type]
    return {
        "images": str(folder / "images.npy"), "value_max": source.value_max, "labels": str(folder / "labels.npy"),
        "weights": str(folder / "weights.npz"),
    }  # fmt: skip
