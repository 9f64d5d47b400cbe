"""Replicas of several partitions against one process with as many threads, on one machine (Adam 3.2, figure 8).

Rounds alternate, so that all see the same machine state. Each round of a setting is a number of flights that takes
about the wanted time; the ratio is of images per second, the median over rounds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from adamctl.bench.child import Child, Pipe
from adamctl.bench.partition.program import SENT, MemberRound, Spec, member_program
from adamctl.bench.report import make_report
from adamctl.bench.worker.trainer import Trainer
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import flights_of, plan_of
from adamctl.kernels.threads import available_cores
from adamctl.model.partition.plan import PartitionPlan
from adamctl.net.address import TransportKind
from adamctl.roles.worker.partition.sending import Sent
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
        transport: how partitions reach each other.
        rates: images per second of each round.
        waiting: share of their time that threads slept, of each round.
        ran: flights of all rounds.
        sent: by each partition, of all rounds.
        ways: how blocks went, as people call it.
    """

    partitions: int
    threads: int
    flights: int
    transport: TransportKind = "shared"
    rates: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    ran: int = 0
    sent: list[Sent] = field(default_factory=list)
    ways: str = ""

    @property
    def name(self) -> str:
        if self.partitions == 1:
            return f"one process, {self.threads} threads"
        return f"{self.partitions} partitions, {self.threads} threads each, {self.flights} flights, {self.transport}"


def run_partition_benchmark(
    experiment: Experiment,
    partitions: Sequence[int],
    *,
    threads: int,
    batch: int,
    flights: Sequence[int] = (),
    transports: Sequence[TransportKind] = ("shared",),
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
        transports: how partitions reach each other, all on loopback.
        rounds, seconds: how many, and about how long each.
        progress: called before each measurement with its description.

    Raises:
        ConfigurationError: the network cannot be cut like that.
    """
    settings = [Setting(1, threads, 0)]
    for number in partitions:
        own = max(threads // number, 1)
        counts = flights or (flights_of(experiment, own),)
        settings += [Setting(number, own, open_, kind) for open_ in counts for kind in transports]
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
    plan = plan_of(experiment, setting.partitions)
    planned = planned_bytes(plan, batch, experiment.optimizer.clip_norm is not None)
    sent = Sent(*(sum(column) for column in zip(*setting.sent, strict=True))) if setting.sent else Sent()
    return {
        "partitions": setting.partitions,
        "transport": setting.ways or None,
        "threads_each": setting.threads,
        "flights": setting.flights,
        "batch": batch,
        "images_per_s": round(statistics.median(setting.rates), 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
        "waiting_share": round(statistics.median(setting.waiting), 3),
        "planned_bytes_per_flight": planned,
        "sent_bytes_per_flight": sent.block_bytes / setting.ran if sent.frames else None,
        "framing_share": round(sent.framing_bytes / sent.block_bytes, 5) if sent.block_bytes else None,
    }


def planned_bytes(plan: PartitionPlan, batch: int, clips: bool) -> int:
    """Returns what goes between all partitions for one flight of so many examples.

    The plan does not know whether gradients are clipped: then each partition sends each other one the squared norm of
    every stage.
    """
    edges = sum((one.up_bytes + one.down_bytes) * batch + one.flight_bytes for one in plan.traffic())
    norms = plan.partitions * (plan.partitions - 1) * len(plan.stages) * 8
    return edges + (norms if clips else 0)


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
    with tempfile.TemporaryDirectory(prefix="adamctl-") as folder, ExitStack() as stack:
        spins = SPINS if setting.partitions * setting.threads < available_cores() else 0
        specs = [
            Spec(
                experiment, setting.partitions, own, batch, setting.flights, setting.threads, spins, setting.transport,
                folder,
            )
            for own in range(setting.partitions)
        ]  # fmt: skip
        children = [stack.enter_context(Child(member_program, spec)) for spec in specs]
        addresses = tuple(child.receive(START_S) for child in children)
        for child in children:
            child.send(addresses)
        for child in children:
            child.receive(START_S)

        def run(count: int) -> tuple[float, float]:
            began_s = time.perf_counter()
            for child in children:
                child.send(count)
            made: list[MemberRound] = [child.receive(ROUND_S)[0] for child in children]
            took_s = time.perf_counter() - began_s
            setting.ran += count
            waited = sum(one.wait_s for one in made)
            return took_s, waited / (waited + sum(one.compute_s for one in made))

        yield run
        told = [child.ask(SENT, ROUND_S) for child in children]
        setting.ways, setting.sent = told[0][0], [sent for _, sent in told]
        for child in children:
            child.send(None)


def _whole_program(experiment: Experiment, threads: int, batch: int, pipe: Pipe) -> None:
    """A child process that trains whole batches with the worker's own threads."""
    trainer = Trainer(experiment, threads, batch)
    pipe.send("ready")
    while (count := pipe.recv()) is not None:
        pipe.send(trainer.run_batches(count))
    trainer.close()
