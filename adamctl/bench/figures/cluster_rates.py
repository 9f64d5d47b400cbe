"""The rates of an emulated machine, for predictions: of its parts alone, and of a real worker with its share of a core.

A thread that is stopped in every 10 ms finds less in the caches when it goes on, and less still where others had the
core meanwhile. So as many processes measure side by side as have room, each with its share, in processor time. A real
worker takes more than all its parts: another thread sends and receives, and overwrites what the first one reads. So a
run of one worker and one server then says how much more, as `adamctl plan --measured` takes it from a run.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import psutil

from adamctl.bench.child import Child, Pipe
from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.figures.cluster_prediction import bytes_of_a_batch
from adamctl.bench.figures.linked_cluster import LinkedCluster
from adamctl.bench.figures.machines import core_shares
from adamctl.bench.partition.prediction import TCP
from adamctl.bench.serving_rates import server_rates
from adamctl.bench.slices import measure_rates
from adamctl.bench.speed_probe import SpeedProbe
from adamctl.bench.watched_run import WatchedRun, examples_at
from adamctl.cli.model.scaling_figures import training_of
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.cost import TCP_PROCESSOR_S_PER_BYTE
from adamctl.model.partition.measured import scaled
from adamctl.model.partition.rates import Rates
from adamctl.model.scaling.machines import Size
from adamctl.model.scaling.rates import APPLY_RATES, ServerRates

CALIBRATIONS, CALIBRATED_TOGETHER, CALIBRATION_S = 3, 4, 300.0
ALONE = Size(1, 1, 1, 1)
WARM_S, RUN_S = 4.0, 20.0


class Taken(NamedTuple):
    """Processor time that a worker takes for one example: its event loop, and the threads that compute."""

    loop_s: float
    compute_s: float


class Calibrated(NamedTuple):
    """Rates of this machine, and how fast it was while they were measured.

    Attributes:
        processor_s_per_byte: of a worker's event loop, for pushes and fetches.
    """

    rates: Rates
    serving: ServerRates
    speed: float
    processor_s_per_byte: float = TCP_PROCESSOR_S_PER_BYTE

    def at(self, speed: float) -> Calibrated:
        """Returns the rates of the machine at another speed."""
        factor = speed / self.speed
        return Calibrated(
            self.rates.times(factor), self.serving.times(factor), speed, self.processor_s_per_byte / factor
        )

    def with_worker(self, experiment: Experiment, batch: int, taken: Taken) -> Calibrated:
        """Returns rates at which a worker takes what a real one took for an example, at this speed."""
        pushing = training_of(experiment, TCP).conditions.pushing
        rates = scaled(self.rates, plan_of(experiment, 1), batch, pushing, [taken.compute_s])
        return self._replace(rates=rates, processor_s_per_byte=taken.loop_s * batch / bytes_of_a_batch(experiment))


def calibrated_alone(
    experiment: Experiment, partitions: Sequence[int], batch: int, quota_cores: float, probe: SpeedProbe
) -> Calibrated:
    """Returns the rates of this machine's parts with a share of a core: medians, at a speed in the middle."""
    found = []
    with core_shares() as groups, ExitStack() as stack:
        children = _on_shares(stack, groups, quota_cores, _measure, experiment, partitions, batch)
        for _ in range(CALIBRATIONS):
            for child in children:
                child.send("measure")
            for child in children:
                began_s, ended_s, rates, serving = child.receive(CALIBRATION_S)
                found.append(Calibrated(rates, serving, probe.speed(began_s, ended_s)))
    return _median([one.at(statistics.median(one.speed for one in found)) for one in found])


def rates_on_shares(experiment: Experiment, partitions: int, batch: int, quota_cores: float) -> Rates:
    """Returns the rates of this machine's parts as processes with a share of a core have them side by side: medians.

    They are in processor time: those of a whole core that such processes would have together.
    """
    with core_shares() as groups, ExitStack() as stack:
        children = _on_shares(stack, groups, quota_cores, _measure_parts, experiment, partitions, batch)
        for child in children:
            child.send("measure")
        return _median_rates([child.receive(CALIBRATION_S) for child in children])


def calibrated_by_run(
    alone: Calibrated, experiment: Experiment, path: str, settings: Sequence[str], data: Sequence[str],
    quota_cores: float, probe: SpeedProbe,
) -> Calibrated:  # fmt: skip
    """Returns rates at which a worker takes what it takes in a run of one worker and one server, over free links.

    Args:
        alone: the rates of the parts.
        path, settings, data: of the run.

    Raises:
        RunFailedError: it failed.
    """
    with core_shares() as groups, LinkedCluster(ALONE, data, groups, quota_cores) as cluster:
        arguments = cluster.arguments(path, ALONE, settings)
        (worker,) = cluster.workers
        taken, speed = asyncio.run(_taken(arguments, cluster.roles.pids()[worker], probe))
    return alone.at(speed).with_worker(experiment, experiment.train.batch, taken)


async def _taken(arguments: Sequence[str], worker_pid: int, probe: SpeedProbe) -> tuple[Taken, float]:
    async with WatchedRun(arguments, environment={}) as training:
        await training.trains()
        await asyncio.sleep(WARM_S)
        began_s, before = time.monotonic(), _threads_s(worker_pid)
        await asyncio.sleep(RUN_S)
        ended_s, after = time.monotonic(), _threads_s(worker_pid)
        await asyncio.sleep(WARM_S / 2)  # for a sample that is later
        examples = examples_at(training.samples, ended_s) - examples_at(training.samples, began_s)
    loop_s, compute_s = (later - sooner for later, sooner in zip(after, before, strict=True))
    return Taken(loop_s / examples, compute_s / examples), probe.speed(began_s, ended_s)


def _threads_s(pid: int) -> tuple[float, float]:
    """Returns the processor time of a process: of its first thread, which has the event loop, and of all others."""
    threads = psutil.Process(pid).threads()
    times = {thread.id: thread.user_time + thread.system_time for thread in threads}
    first_s = times.pop(pid)
    return first_s, sum(times.values())


def _on_shares(
    stack: ExitStack, groups: ControlGroups, quota_cores: float, measure: Callable[..., None], *arguments: Any
) -> list[Child]:
    """Returns processes that have measured once as they are, and have their shares of a core from now on."""
    children = [stack.enter_context(Child(measure, *arguments)) for _ in range(CALIBRATED_TOGETHER)]
    for number, child in enumerate(children):
        child.receive(CALIBRATION_S)
        groups.share_cores(f"calibrating-{number}", child.pid, quota_cores)
    return children


def _measure(experiment: Experiment, partitions: Sequence[int], batch: int, pipe: Pipe) -> None:
    """Measures rates in a process of their own, once before it has its share, and then as often as it is told."""
    plans = [plan_of(experiment, number) for number in partitions]
    told: object = "measure"
    while told is not None:
        began_s = time.monotonic()
        rates = measure_rates(plans, batch, clock=time.thread_time)
        serving = server_rates(experiment.optimizer.rule, time.thread_time)
        pipe.send((began_s, time.monotonic(), rates, serving))
        told = pipe.recv()


def _measure_parts(experiment: Experiment, partitions: int, batch: int, pipe: Pipe) -> None:
    """Measures rates in a process of their own, once before it has its share, and once with it."""
    plans = [plan_of(experiment, partitions)]
    told: object = "measure"
    while told is not None:
        pipe.send(measure_rates(plans, batch, clock=time.thread_time))
        told = pipe.recv()


def _median(found: Sequence[Calibrated]) -> Calibrated:
    """Returns the medians of rates at one speed."""
    serving = found[0].serving
    medians = {name: statistics.median(getattr(one.serving, name) for one in found) for name in APPLY_RATES}
    rates = _median_rates([one.rates for one in found])
    return found[0]._replace(rates=rates, serving=msgspec.structs.replace(serving, **medians))


def _median_rates(found: Sequence[Rates]) -> Rates:
    """Returns the medians of rates of the same parts."""
    stages = tuple(
        msgspec.structs.replace(stage, amount_per_s=statistics.median(one.stages[place].amount_per_s for one in found))
        for place, stage in enumerate(found[0].stages)
    )
    update_per_s = statistics.median(one.update_per_s for one in found)
    return msgspec.structs.replace(found[0], update_per_s=update_per_s, stages=stages)
