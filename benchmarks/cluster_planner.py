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
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import NamedTuple

from adamctl.bench import namespaces
from adamctl.bench.control_groups import ControlGroups, quotas
from adamctl.bench.failover.cluster import TOO_LONG_FOR_A_SOCKET, RoleInside
from adamctl.bench.namespaces import HUB, TCP_SHARE, Namespaces
from adamctl.bench.partition.machines import Machines
from adamctl.bench.partition.prediction import TCP, Slowed, on_shares
from adamctl.bench.role_processes import CONTROLLER, RoleProcesses
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
from adamctl.model.scaling.choosing import binding, run
from adamctl.model.scaling.machines import Planner, Size
from adamctl.model.scaling.rates import DataRates, ServerRates, ServingRates
from adamctl.roles.role_process import RoleCommand

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CORES_MOST, QUOTA = 1.8, 0.4
TRANSFERS = (0.25, 1.0, 2.0)
"""Time of one push of a whole replica through its link, over the compute time of its batch."""
WARM_S = 4.0
DATA_PER_S = 1e6
"""Examples that the data server decodes each second: it has them in memory, and is not what is measured."""


class Point(NamedTuple):
    """One size over one link, measured and predicted."""

    size: Size
    link_bytes_per_s: float
    measured: float
    predicted: float
    binds: str


class EmulatedCluster(RoleProcesses):
    """Roles of a size: workers and parameter servers on machines of their own."""

    def __init__(self, size: Size, data: Sequence[str], groups: ControlGroups, quota: float) -> None:
        super().__init__()
        self._size, self._data, self._groups, self._quota = size, data, groups, quota
        self.servers = tuple(f"ps-{number}" for number in range(1, size.servers + 1))
        self.workers = tuple(f"worker-{number}" for number in range(1, size.partitions * size.replicas + 1))
        self.links: Namespaces

    def _start(self, stack: ExitStack) -> None:
        self.links = stack.enter_context(namespaces.namespaces((*self.servers, *self.workers)))
        stack.callback(self.roles.kill)
        self.roles.add(self._beside(CONTROLLER, CONTROLLER, "--dir", str(self.folder / CONTROLLER)))
        self.roles.start_one(CONTROLLER)
        self.wait_serving(CONTROLLER)
        member = ("--controller", self.addresses[CONTROLLER])
        roots = tuple(part for folder in self._data for part in ("--data", folder))
        self.roles.add(
            self._beside("data", "data-1", *member, *roots),
            *(self._inside("ps", node, *member, "--apply-threads", "1") for node in self.servers),
            *(self._inside("worker", node, *member, "--threads", "1") for node in self.workers),
        )
        for node in ("data-1", *self.servers, *self.workers):
            self.roles.start_one(node)
        self.wait_serving("data-1", *self.servers, *self.workers)
        pids = self.roles.pids()
        for node in (*self.servers, *self.workers):
            self._groups.share_cores(f"{os.getpid()}-{time.monotonic_ns()}-{node}", pids[node], self._quota)

    def _common(self, node: str) -> tuple[str, ...]:
        sockets = self.folder / TOO_LONG_FOR_A_SOCKET / node
        return "--socket-folder", str(sockets), "--log-level", "warning", "--port", "0"

    def _beside(self, role: str, node: str, *arguments: str) -> RoleCommand:
        return RoleCommand(role, node, ("--bind", HUB, *self._common(node), *arguments))

    def _inside(self, role: str, node: str, *arguments: str) -> RoleCommand:
        bound = ("--bind", self.links.address(node), *self._common(node), *arguments)
        return RoleInside(role, node, bound, self.links.prefix(node))

    def limit(self, bytes_per_s: float) -> None:
        """Gives every machine's link a rate."""
        for node in (*self.servers, *self.workers):
            self.links.limit(node, bytes_per_s)


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
    with quotas() as groups, EmulatedCluster(size, data, groups, quota) as cluster:
        arguments = [
            str(Path(path).resolve()), "--join", cluster.addresses[CONTROLLER].removeprefix("tcp://"),
            "--workers", str(len(cluster.workers)), "--ps", str(size.servers),
            *(part for folder in data for part in ("--data", folder)),
            *(part for one in (*settings, f"cluster.partitions={size.partitions}") for part in ("--set", one)),
        ]  # fmt: skip
        speeds = asyncio.run(_train(arguments, cluster, links, given.rounds, given.seconds))
    points = []
    for link, rounds in zip(links, speeds, strict=True):
        predicted, binds = predict(experiment, size, rates, serving, quota, link)
        points.append(Point(size, link, statistics.median(rounds), predicted, binds))
    return points


async def _train(
    arguments: Sequence[str], cluster: EmulatedCluster, links: Sequence[float], rounds: int, seconds: float
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


def predict(
    experiment: Experiment, size: Size, rates: Rates, serving: ServerRates, quota: float, link_bytes_per_s: float
) -> tuple[float, str]:
    """Returns the images per second of a size on machines with a share of a core each, and what binds."""
    machines = Machines(quota_cores=quota)
    training = training_of(experiment, replace(TCP, bytes_per_s=link_bytes_per_s * TCP_SHARE))
    slowed = Slowed(rates, quota)
    conditions = on_shares(training.conditions, plan_of(experiment, size.partitions), slowed, machines)
    training = replace(
        training, conditions=conditions, apply_threads=1, decode_threads=1, server_cores=quota, core_share=quota
    )
    example_bytes = prod(experiment.model.input) + ELEMENT_BYTES  # pixels as bytes, and a label
    served = ServingRates(serving, DataRates(DATA_PER_S, example_bytes, 60_000))
    cluster = Planner(training, slowed, served).cluster(size)
    cluster = replace(cluster, latency_s=TCP.latency_s + machines.idle_s())  # of pushes, of which a flight has one
    outcome = run(cluster, experiment.seed)
    return outcome.examples_per_s, binding(cluster, outcome)


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
