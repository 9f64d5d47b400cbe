"""The simulation of clusters against measurements, on emulated machines: a share of a core each, and slow links.

    python benchmarks/cluster_planner.py [EXP.toml] [--replicas 1,2,4] [--servers 1,2] [--partitions 1,2,4]

Real roles train: every worker and every parameter server has a network namespace of its own with one link, and a share
of a core; all together have at most 1.8 cores. Controller, coordinator and data server are beside them. For each size,
images per second are measured over three links, in interleaved rounds, and predicted from rates that are measured
first on this machine as it is. Links are chosen so that one push of one worker takes a quarter of its batch's compute
time, as long as that, and twice as long. It counts how many predictions are within 10% and within 20%.

Needs Linux, network namespaces, and control groups that this user may write to. Medians of rounds;
about two minutes for each size with the defaults. Let nothing else run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from adamctl.bench import namespaces
from adamctl.bench.figures.cluster_prediction import predicted
from adamctl.bench.figures.linked_cluster import LinkedCluster
from adamctl.bench.figures.machines import CORES_MOST, core_shares
from adamctl.bench.partition.prediction import TCP, Slowed
from adamctl.bench.serving_rates import server_rates
from adamctl.bench.slices import measure_rates
from adamctl.bench.watched_run import WatchedRun, examples_per_s
from adamctl.cli.model.scaling_figures import training_of
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment, parse_setting
from adamctl.config.partitioning import plan_of
from adamctl.errors import AdamctlError
from adamctl.model.layout import ELEMENT_BYTES, tensors_of
from adamctl.model.partition.rates import Rates
from adamctl.model.scaling.machines import Planner, Size
from adamctl.model.scaling.rates import ServerRates, ServingRates

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
QUOTA = 0.4
TRANSFERS = (0.25, 1.0, 2.0)
"""Time of one push of a whole replica through its link, over the compute time of its batch."""
WARM_S = 4.0


class Point(NamedTuple):
    """One size over one link, measured and predicted."""

    size: Size
    link_bytes_per_s: float
    measured: float
    predicted: float
    binds: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default=str(EXAMPLES / "mnist.toml"), metavar="EXP.toml")
    parser.add_argument("--replicas", default="1,2,4")
    parser.add_argument("--servers", default="1,2")
    parser.add_argument("--partitions", default="1,2,4")
    parser.add_argument("--workers-most", type=int, default=4, help="leave out sizes with more workers")
    parser.add_argument("--examples", type=int, default=64, help="of a batch")
    parser.add_argument("--n-push", type=int, default=1, help="batches between a worker's pushes, and fetches")
    parser.add_argument("--sync", action="store_true", help="replicas in step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a round")
    given = parser.parse_args()
    if not namespaces.is_inside():
        namespaces.go_inside(sys.argv[1:], [__file__])
    data = [folder for folder in os.environ.get("ADAMCTL_DATA", "").split(os.pathsep) if folder]
    lists = [[int(one) for one in text.split(",")] for text in (given.partitions, given.replicas, given.servers)]
    sizes = [Size(p, r, s, 1) for p in lists[0] for r in lists[1] for s in lists[2] if p * r <= given.workers_most]
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
    rates = measure_rates([plan_of(experiment, number) for number in lists[0]], given.examples)
    serving = server_rates(experiment.optimizer.rule)
    found: list[Point] = []
    print("partitions  replicas  servers   Mbit/s   measured  predicted   ratio  binds")
    for size in sizes:
        for point in measured(given.experiment, experiment, settings, data, size, rates, serving, given):
            found.append(point)
            print(
                f"{size.partitions:10}  {size.replicas:8}  {size.servers:7}  {point.link_bytes_per_s / 125e3:7.4g}  "
                f"{point.measured:9.1f}  {point.predicted:9.1f}  {point.measured / point.predicted:6.3f}  "
                f"{point.binds}",
                flush=True,
            )
    near = [abs(point.measured / point.predicted - 1) for point in found]
    within = [sum(one <= limit for one in near) for limit in (0.1, 0.2)]
    print(f"{len(near)} points: {within[0]} within 10%, {within[1]} within 20% of the prediction")


def measured(
    path: str, experiment: Experiment, settings: Sequence[str], data: Sequence[str], size: Size, rates: Rates,
    serving: ServerRates, given: argparse.Namespace,
) -> list[Point]:  # fmt: skip
    """Returns a size's points, one for each link."""
    quota = min(QUOTA, CORES_MOST / (size.machines - size.data_servers))
    links = _links(experiment, rates, quota)
    with core_shares() as groups, LinkedCluster(size, data, groups, quota) as cluster:
        arguments = cluster.arguments(str(Path(path).resolve()), size, settings)
        speeds = asyncio.run(_train(arguments, cluster, links, given.rounds, given.seconds))
    points = []
    for link, rounds in zip(links, speeds, strict=True):
        expected, binds = predicted(experiment, size, rates, serving, quota, link)
        points.append(Point(size, link, statistics.median(rounds), expected, binds))
    return points


async def _train(
    arguments: Sequence[str], cluster: LinkedCluster, links: Sequence[float], rounds: int, seconds: float
) -> list[list[float]]:
    speeds: list[list[float]] = [[] for _ in links]
    async with WatchedRun(arguments, environment={}) as training:
        await training.trains()
        await asyncio.sleep(WARM_S)
        for _ in range(rounds):
            for link, found in zip(links, speeds, strict=True):
                cluster.limit(link)
                await asyncio.sleep(WARM_S / 2)  # what is under way went through the link before
                began_s = training.samples[-1].at_s
                await asyncio.sleep(seconds)
                found.append(examples_per_s(training.samples, began_s, training.samples[-1].at_s))
    return speeds


def _links(experiment: Experiment, rates: Rates, quota: float) -> tuple[float, ...]:
    serving = ServingRates(ServerRates("", 0, 1.0, 1.0, 1.0))
    alone = Planner(training_of(experiment, TCP), Slowed(rates, quota), serving).inside(Size(1, 1, 1, 0))
    push_bytes = sum(tensor.size for tensor in tensors_of(experiment.model)) * ELEMENT_BYTES
    return tuple(float(f"{push_bytes / (share * alone.compute_s[0]):.2g}") for share in TRANSFERS)


if __name__ == "__main__":
    try:
        main()
    except AdamctlError as error:
        sys.exit(str(error))
