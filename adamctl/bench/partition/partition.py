"""Replicas of several partitions against one process with as many threads, on one machine (Adam 3.2, figure 8).

Rounds alternate, so that all see the same machine state. Each round of a setting is a number of flights that takes
about the wanted time; the ratio is of images per second, the median over rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from adamctl.bench.child import Child, Pipe
from adamctl.bench.partition.program import MemberRound, Spec, member_program, network_of
from adamctl.bench.report import make_report
from adamctl.bench.worker.trainer import Trainer
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import flights_of, plan_of
from adamctl.errors import ConfigurationError
from adamctl.kernels.partition.memory import SharedLayout
from adamctl.kernels.threads import available_cores
from adamctl.roles.worker.partition.sleeping import NAMELESS, unique_name
from adamctl.roles.worker.partition.threads import SPINS

PACKAGES = ("adamctl", "numpy", "numba")
START_S = 300.0
ROUND_S = 600.0
FIRST_FLIGHTS = 4

Progress = Callable[[str], None]


@dataclass
class Setting:
    """What is measured, and its rounds.

    Attributes:
        rates: images per second of each round.
        waiting: share of their time that threads slept, of each round.
    """

    partitions: int
    threads: int
    flights: int
    rates: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        if self.partitions == 1:
            return f"one process, {self.threads} threads"
        return f"{self.partitions} partitions, {self.threads} threads each, {self.flights} flights"


def run_partition_benchmark(
    experiment: Experiment,
    partitions: Sequence[int],
    *,
    threads: int,
    batch: int,
    flights: Sequence[int] = (),
    rounds: int = 5,
    seconds: float = 5.0,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Measures and returns the report.

    Args:
        partitions: numbers of partitions, each above 1.
        threads: all threads of a replica, together; each partition has its share, at least one.
        batch: examples of a step.
        flights: open flights; none: as a run has them.
        rounds, seconds: how many, and about how long each.
        progress: called before each measurement with its description.

    Raises:
        ConfigurationError: the network cannot be cut like that, or memory cannot be shared here.
    """
    if not NAMELESS:
        raise ConfigurationError("bench partition: memory is shared between partitions on Linux only")
    settings = [Setting(1, threads, 0)]
    for number in partitions:
        own = max(threads // number, 1)
        settings += [Setting(number, own, open_) for open_ in flights or (flights_of(experiment, own),)]
    with ExitStack() as stack:
        runs = []
        for setting in settings:
            progress(f"starting {setting.name}")
            runs.append(stack.enter_context(_started(experiment, setting, batch)))
        counts = [max(round(FIRST_FLIGHTS * seconds / run(FIRST_FLIGHTS)[0]), 1) for run in runs]
        for number in range(rounds):
            for setting, run, count in zip(settings, runs, counts, strict=True):
                progress(f"round {number + 1} of {rounds}: {setting.name}")
                took_s, waiting = run(count)
                setting.rates.append(count * batch / took_s)
                setting.waiting.append(waiting)
    report = make_report("partition", PACKAGES, [_row(experiment, setting, settings[0], batch) for setting in settings])
    report["model"], report["rounds"], report["seconds_per_round"] = experiment.name, rounds, seconds
    return report


def _row(experiment: Experiment, setting: Setting, whole: Setting, batch: int) -> dict[str, Any]:
    ratios = [rate / other for rate, other in zip(setting.rates, whole.rates, strict=True)]
    traffic = plan_of(experiment, setting.partitions).traffic() if setting.partitions > 1 else ()
    per_example = sum(one.up_bytes + one.down_bytes for one in traffic)
    return {
        "partitions": setting.partitions,
        "threads_each": setting.threads,
        "flights": setting.flights,
        "batch": batch,
        "images_per_s": round(statistics.median(setting.rates), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
        "waiting_share": round(statistics.median(setting.waiting), 3),
        "boundary_bytes_per_example": per_example,
        "boundary_bytes_per_flight": sum(one.flight_bytes for one in traffic),
    }


Run = Callable[[int], tuple[float, float]]
"""Runs so many batches; returns the seconds that took, and the share of their time that threads slept."""


@contextmanager
def _started(experiment: Experiment, setting: Setting, batch: int) -> Iterator[Run]:
    if setting.partitions == 1:
        with Child(_whole_program, experiment, setting.threads, batch) as child:
            child.receive(START_S)

            def run_whole(count: int) -> tuple[float, float]:
                child.send(count)
                took_s: float = child.receive(ROUND_S)
                return took_s, 0.0

            yield run_whole
            child.send(None)
        return
    with _memories(experiment, setting, batch) as files, ExitStack() as stack:
        names = tuple(unique_name(f"bench-{number}") for number in range(setting.partitions))
        spins = SPINS if setting.partitions * setting.threads < available_cores() else 0
        specs = [
            Spec(experiment, setting.partitions, own, batch, setting.flights, setting.threads, spins, files, names)
            for own in range(setting.partitions)
        ]
        children = [stack.enter_context(Child(member_program, spec)) for spec in specs]
        for word in ("there", "ready"):
            for child in children:
                child.receive(START_S)
            if word == "there":
                for child in children:
                    child.send("begin")

        def run(count: int) -> tuple[float, float]:
            began_s = time.perf_counter()
            for child in children:
                child.send(count)
            made: list[MemberRound] = [child.receive(ROUND_S)[0] for child in children]
            took_s = time.perf_counter() - began_s
            waited = sum(one.wait_s for one in made)
            return took_s, waited / (waited + sum(one.compute_s for one in made))

        yield run
        for child in children:
            child.send(None)


@contextmanager
def _memories(experiment: Experiment, setting: Setting, batch: int) -> Iterator[tuple[str, ...]]:
    """Yields files of memory for all members, which are gone with this process."""
    network = network_of(experiment, setting.partitions)
    descriptors = []
    try:
        for number in range(setting.partitions):
            descriptor = os.memfd_create(f"partition-{number}")
            descriptors.append(descriptor)
            os.ftruncate(descriptor, SharedLayout(network, number, batch, setting.flights).size_bytes)
        yield tuple(f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _whole_program(experiment: Experiment, threads: int, batch: int, pipe: Pipe) -> None:
    """A child process that trains whole batches with the worker's own threads."""
    trainer = Trainer(experiment, threads, batch)
    pipe.send("ready")
    while (count := pipe.recv()) is not None:
        pipe.send(trainer.run_batches(count))
    trainer.close()
