"""The simulation of clusters against measurements, on emulated machines: a share of a core each, and slow links.

    python benchmarks/cluster_planner.py [EXP.toml] [--replicas 1,2,4] [--servers 1,2] [--partitions 1,2,4]

Real roles train: every worker and every parameter server has a network namespace of its own with one link, and a share
of a core; all together have at most 1.8 cores. Controller, coordinator and data server are beside them. For each size,
images per second are measured over three links, in interleaved rounds, and predicted from rates that are measured
first: by processes with the same share of a core, and by a run of one worker and one server over free links, whose
worker says what its threads take of a processor beyond that (`adamctl.bench.figures.cluster_rates`). Links are chosen
so that one push of one worker takes a quarter of its batch's compute time, as long as that, and twice as long. It
counts how many predictions are within 10% and within 20%.

A machine that shares its hardware with others is not equally fast all the time. So beside everything a process makes a
step now and then (`adamctl.bench.speed_probe`), and each round is predicted from rates that are as much larger or
smaller as the speed of its steps is than while the rates were measured. The column `speed` says how much that was.

Needs Linux, network namespaces, and control groups that this user may write to. Medians of rounds;
about three minutes for each size with the defaults. Let nothing else run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from adamctl.bench import namespaces
from adamctl.bench.figures.cluster_prediction import predicted
from adamctl.bench.figures.cluster_rates import Calibrated, calibrated_alone, calibrated_by_run
from adamctl.bench.figures.linked_cluster import LinkedCluster
from adamctl.bench.figures.machines import CORES_MOST, core_shares
from adamctl.bench.partition.prediction import TCP, Slowed
from adamctl.bench.script import counts, run_script
from adamctl.bench.speed_probe import SpeedProbe
from adamctl.bench.watched_run import WatchedRun, steady_examples_per_s
from adamctl.cli.model.scaling_figures import training_of
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment, parse_setting
from adamctl.errors import RunFailedError
from adamctl.model.layout import ELEMENT_BYTES, tensors_of
from adamctl.model.partition.rates import Rates
from adamctl.model.scaling.machines import Planner, Size
from adamctl.model.scaling.rates import ServerRates, ServingRates

NETWORK = Path(__file__).resolve().parent / "mnist_wide.toml"
QUOTA = 0.4
TRANSFERS = (0.25, 1.0, 2.0)
"""Time of one push of a whole replica through its link, over the compute time of its batch."""
WARM_S, LOOK_S = 4.0, 0.2
LATE_S = 300.0
BATCHES_LEAST = 20
"""Of a round: of fewer, one more or less that ends in it would be several percent."""


class Round(NamedTuple):
    """Images per second of one round, and how fast the machine was meanwhile."""

    images_per_s: float
    speed: float


class Point(NamedTuple):
    """One size over one link, measured and predicted: medians of rounds.

    `speed`: of the machine, over what it was while its rates were measured.
    """

    size: Size
    link_bytes_per_s: float
    measured: float
    predicted: float
    ratio: float
    speed: float
    binds: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default=str(NETWORK), metavar="EXP.toml")
    parser.add_argument("--replicas", type=counts, default="1,2,4", metavar="N,...")
    parser.add_argument("--servers", type=counts, default="1,2", metavar="N,...")
    parser.add_argument("--partitions", type=counts, default="1,2,4", metavar="N,...")
    parser.add_argument("--workers-most", type=int, default=4, help="leave out sizes with more workers")
    parser.add_argument("--examples", type=int, default=64, help="of a batch")
    parser.add_argument("--n-push", type=int, default=1, help="batches between a worker's pushes, and fetches")
    parser.add_argument("--sync", action="store_true", help="replicas in step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round, at least")
    given = parser.parse_args()
    if not namespaces.is_inside():
        namespaces.go_inside(sys.argv[1:], [__file__])
    data = [folder for folder in os.environ.get("ADAMCTL_DATA", "").split(os.pathsep) if folder]
    wanted = itertools.product(given.partitions, given.replicas, given.servers)
    sizes = [Size(p, r, s, 1) for p, r, s in wanted if p * r <= given.workers_most]
    settings = [
        f"train.batch={given.examples}", "train.passes=100000", "train.evaluate_every=100000",
        "train.pass_fraction=1.0", "train.checkpoint_every=0", "train.protocol=gradient", "optimizer.lr=0.0001",
        "optimizer.type=sgd", "optimizer.schedule.type=constant", "cluster.data=1", "cluster.threads=1",
        "train.range_batches=1",  # progress is told range by range
        f"train.consistency={'sync' if given.sync else 'async'}",
        f"train.n_push={given.n_push}", f"train.n_fetch={given.n_push}",
    ]  # fmt: skip
    overrides = tuple(map(parse_setting, settings))
    experiment = load_experiment(given.experiment, settings=overrides, search=data).experiment
    found: list[Point] = []
    print("partitions  replicas  servers   Mbit/s   measured  predicted   ratio   speed  binds")
    with SpeedProbe(experiment, given.examples) as probe:
        alone = calibrated_alone(experiment, given.partitions, given.examples, QUOTA, probe)
        path = str(Path(given.experiment).resolve())
        machine = calibrated_by_run(alone, experiment, path, settings, data, QUOTA, probe)
        slower = alone.at(machine.speed).rates.update_per_s / machine.rates.update_per_s
        print(
            f"a worker computes for {slower:.2f} of the time of its parts, and its event loop for "
            f"{machine.processor_s_per_byte * 1e9:.2f} ns a byte",
            file=sys.stderr,
        )
        for size in sizes:
            for point in measured(path, experiment, settings, data, size, machine, probe, given):
                found.append(point)
                print(
                    f"{size.partitions:10}  {size.replicas:8}  {size.servers:7}  "
                    f"{point.link_bytes_per_s / 125e3:7.4g}  {point.measured:9.1f}  {point.predicted:9.1f}  "
                    f"{point.ratio:6.3f}  {point.speed:6.3f}  {point.binds}",
                    flush=True,
                )
    near = [abs(point.ratio - 1) for point in found]
    within = [sum(one <= limit for one in near) for limit in (0.1, 0.2)]
    print(f"{len(near)} points: {within[0]} within 10%, {within[1]} within 20% of the prediction")


def measured(
    path: str, experiment: Experiment, settings: Sequence[str], data: Sequence[str], size: Size, machine: Calibrated,
    probe: SpeedProbe, given: argparse.Namespace,
) -> list[Point]:  # fmt: skip
    """Returns a size's points, one for each link."""
    quota = min(QUOTA, CORES_MOST / (size.machines - size.data_servers))
    links = _links(experiment, machine.rates, quota)
    with core_shares() as groups, LinkedCluster(size, data, groups, quota) as cluster:
        arguments = cluster.arguments(path, size, settings)
        rounds = asyncio.run(_train(arguments, cluster, links, probe, given.rounds, given.seconds, given.examples))
    return [_point(experiment, size, machine, quota, link, own) for link, own in zip(links, rounds, strict=True)]


def _point(
    experiment: Experiment, size: Size, machine: Calibrated, quota: float, link: float, rounds: Sequence[Round]
) -> Point:
    found: list[float] = []
    binds = ""
    for one in rounds:
        then = machine.at(one.speed)
        expected, binds = predicted(
            experiment, size, then.rates, then.serving, quota, link, processor_s_per_byte=then.processor_s_per_byte
        )
        found.append(expected)
    return Point(
        size, link,
        statistics.median(one.images_per_s for one in rounds),
        statistics.median(found),
        statistics.median(one.images_per_s / expected for one, expected in zip(rounds, found, strict=True)),
        statistics.median(one.speed for one in rounds) / machine.speed,
        binds,
    )  # fmt: skip


async def _train(
    arguments: Sequence[str], cluster: LinkedCluster, links: Sequence[float], probe: SpeedProbe, rounds: int,
    seconds: float, batch: int,
) -> list[list[Round]]:  # fmt: skip
    every: list[list[Round]] = [[] for _ in links]
    async with WatchedRun(arguments, environment={}) as training:
        await training.trains()
        await asyncio.sleep(WARM_S)
        for _ in range(rounds):
            for link, found in zip(links, every, strict=True):
                cluster.limit(link)
                await asyncio.sleep(WARM_S)  # what is under way went through the link before
                first, began_s = training.samples[-1], time.monotonic()
                until_s, enough = began_s + seconds, first.examples + BATCHES_LEAST * batch
                late_s = until_s + LATE_S
                while time.monotonic() < until_s or training.samples[-1].examples < enough:
                    await asyncio.sleep(LOOK_S)
                    if training.has_ended or time.monotonic() > late_s:
                        raise RunFailedError(
                            f"the run ended, or took more than {LATE_S:g} s for {BATCHES_LEAST} batches"
                        )
                images_per_s = steady_examples_per_s(training.samples, first.at_s, training.samples[-1].at_s)
                found.append(Round(images_per_s, probe.speed(began_s, time.monotonic())))
    return every


def _links(experiment: Experiment, rates: Rates, quota: float) -> tuple[float, ...]:
    serving = ServingRates(ServerRates("", 0, 1.0, 1.0, 1.0))
    alone = Planner(training_of(experiment, TCP), Slowed(rates, quota), serving).inside(Size(1, 1, 1, 0))
    push_bytes = sum(tensor.size for tensor in tensors_of(experiment.model)) * ELEMENT_BYTES
    return tuple(float(f"{push_bytes / (share * alone.compute_s[0]):.2g}") for share in TRANSFERS)


if __name__ == "__main__":
    run_script(main)
