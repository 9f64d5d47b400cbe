"""Training and inference in partitions against one process with as many threads, in turn (DistBelief 3).

Both compute the same flights of the same examples; inference goes forward alone, through processes as `adamctl predict
--partitions` has them, from a checkpoint that is written for it. The bar: partitions cost inference no more than they
cost training, within 0.05.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adamctl.bench.bars import Bar, row_of
from adamctl.bench.partition.machines import Machines, emulated
from adamctl.bench.partition.started import Kind, started
from adamctl.bench.report import make_report
from adamctl.cli.export.checkpoint import write_checkpoint
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import flights_of
from adamctl.kernels.operation import Array
from adamctl.kernels.threads import available_cores
from adamctl.launch.prediction.group import PartitionGroup, Setting
from adamctl.model.initial import initial_rows
from adamctl.model.layout import tensors_of
from adamctl.model.partition.prediction import open_flights, prediction_plan
from adamctl.roles.worker.partition.threads import SPINS

PACKAGES = ("adamctl", "numpy", "numba")
FIRST_FLIGHTS = 4
TRAINING_BAR = 0.9
"""What two partitions of an ImageNet-size network have of one process's speed in training, at least."""
WITHIN = 0.05
BATCHES = 4
EXAMPLES_BYTES_MAX = 64 << 20

Progress = Callable[[str], None]
Run = Callable[[int], float]
"""Computes so many flights; returns the seconds that took."""


class Measured(NamedTuple):
    """Images per second of each round."""

    whole: list[float]
    partitions: list[float]

    @property
    def ratios(self) -> list[float]:
        """Partitions over one process, of each round."""
        return [mine / other for mine, other in zip(self.partitions, self.whole, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def run_inference_benchmark(
    experiment: Experiment,
    partitions: int,
    *,
    threads: int,
    batch: int,
    rounds: int = 5,
    seconds: float = 5.0,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Measures and returns the report of both bars: of training, and of inference beside it.

    Args:
        partitions: above 1.
        threads: all threads of a replica, together; each partition has its share, at least one.
        batch: examples of a flight.
        rounds, seconds: how many, and about how long each of the four takes in one.
        progress: called before each measurement with its description.

    Raises:
        ConfigurationError: the network cannot be cut like that.
    """
    each, load = max(threads // partitions, 1), os.getloadavg()[0]
    with ExitStack() as stack:
        runs: dict[tuple[str, int], Run] = {}
        kinds = [Kind(1, threads, 0, "shared"), Kind(partitions, each, flights_of(experiment, each), "shared")]
        machines = stack.enter_context(emulated(Machines(), [name for kind in kinds for name in kind.machines()]))
        for kind in kinds:
            progress(f"starting {kind.name}, training")
            replica = stack.enter_context(started(experiment, kind, batch, machines))
            runs["training", kind.partitions] = lambda count, replica=replica: replica.run(count, None, 0).took_s  # type: ignore[misc]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adamctl-"))) / "000001"
        _write(folder, experiment)
        for kind in kinds:
            progress(f"starting {kind.partitions} x {kind.threads} threads, inference")
            run = _predicting(stack, experiment, folder, kind, batch)
            runs["inference", kind.partitions] = run
        counts = {key: _count(run, seconds) for key, run in runs.items()}
        measured = {what: Measured([], []) for what, _ in runs}
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            for key, run in runs.items():
                rate = counts[key] * batch / run(counts[key])
                (measured[key[0]].whole if key[1] == 1 else measured[key[0]].partitions).append(rate)
    report = make_report("partition-inference", PACKAGES, rows_of(measured, partitions, load))
    report["model"], report["batch"], report["rounds"] = experiment.name, batch, rounds
    return report


def rows_of(measured: dict[str, Measured], partitions: int, load: float) -> list[dict[str, Any]]:
    """Returns a row for each bar. That of inference is the ratio of training, as measured, less `WITHIN`.

    Args:
        measured: of `training` and `inference`.
        load: of the machine before, over a minute.
    """
    rows = []
    limits = {"training": TRAINING_BAR, "inference": measured["training"].ratio - WITHIN}
    for what, found in measured.items():
        text = f"{what} in {partitions} partitions / in one process"
        bar = Bar(text if what == "training" else f"{text}, against training", round(limits[what], 3), at_least=True)
        details = {
            "ratio": round(found.ratio, 3),
            "lowest_to_highest": [round(min(found.ratios), 3), round(max(found.ratios), 3)],
            "images_per_s": round(statistics.median(found.partitions), 1),
            "one_process_images_per_s": round(statistics.median(found.whole), 1),
        }
        rows.append(row_of(what, bar, details, load))
    return rows


def _count(run: Run, seconds: float) -> int:
    """Returns how many flights take about so long."""
    taken_s = min(run(FIRST_FLIGHTS) for _ in range(2))  # the first ones fill caches
    return max(round(FIRST_FLIGHTS * seconds / taken_s), 1)


def _predicting(stack: ExitStack, experiment: Experiment, folder: Path, kind: Kind, batch: int) -> Run:
    spins = SPINS if kind.partitions * kind.threads < available_cores() else 0
    plan = prediction_plan(experiment.model, kind.partitions, experiment.partition)
    setting = Setting(folder, plan, batch, open_flights(kind.partitions, kind.threads), kind.threads, spins)
    group = stack.enter_context(closing(PartitionGroup(setting)))
    group.start()
    generator, shape = np.random.default_rng(experiment.seed), (batch, *experiment.model.input)
    kept = max(min(BATCHES, EXAMPLES_BYTES_MAX // (4 * int(np.prod(shape)))), 1)
    parts = [generator.standard_normal(shape, np.float32) for _ in range(kept)]

    def run(count: int) -> float:
        began_s = time.perf_counter()
        for _ in group.outputs(islice(_repeated(parts), count)):
            pass
        return time.perf_counter() - began_s

    return run


def _repeated(parts: list[Array]) -> Iterator[Array]:
    return (part for again in repeat(parts) for part in again)


def _write(folder: Path, experiment: Experiment) -> None:
    """Writes a checkpoint with the weights that training begins with."""
    values = {
        tensor.name: initial_rows(tensor, number, 0, tensor.shape[0], experiment.seed).reshape(tensor.shape)
        for number, tensor in enumerate(tensors_of(experiment.model))
    }
    write_checkpoint(folder, experiment, values)
