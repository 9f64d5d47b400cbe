"""The cost model of partitions against measurements, on emulated machines: a share of a core each, and slow links.

    python benchmarks/partition_planner.py points [EXP.toml ...]
    python benchmarks/partition_planner.py cuts [EXP.toml ...]

`points` predicts and measures every network with 1, 2 and 4 partitions over three links, and counts how many
predictions are within 10% and within 20%. Links are chosen so that with the slowest one the transfer of a flight takes
twice its compute time in two partitions, as long with the second, and a quarter of it with the fastest.

`cuts` measures five cuts of each network in two partitions, in turn: the one that the planner chooses, that of the
rules, and three in which one layer's boundary is moved by an eighth: those with the best, the middle and the worst
price. It says how far the chosen one is from the best.

Needs Linux, network namespaces, and control groups that this user may write to. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from adamctl.bench import namespaces
from adamctl.bench.partition.machines import Machines, emulated
from adamctl.bench.partition.partition import FIRST_FLIGHTS, busiest_bytes, run_partition_benchmark
from adamctl.bench.partition.prediction import Prediction
from adamctl.bench.partition.started import Kind, started
from adamctl.bench.script import run_script
from adamctl.bench.slices import measure_rates
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.cost import price
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.rates import Rates
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.search import find_cuts
from adamctl.model.partition.stages import stages_of

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NETWORKS = (("imagenet_partitioned.toml", 32), ("speech_partitioned.toml", 128), ("locally_connected.toml", 256))
"""Files, and the examples of a flight of each."""
PARTITIONS = (2, 4)
TRANSFERS = (0.25, 1.0, 2.0)
"""Transfer of a flight over its compute time, in two partitions."""


class Task(NamedTuple):
    """A network, as it is measured: a flight of `batch` examples, on machines with `quota` of a core."""

    experiment: Experiment
    batch: int
    quota: float
    rounds: int
    seconds: float

    @property
    def flights(self) -> int:
        return 2 if self.experiment.cluster.flights == "auto" else self.experiment.cluster.flights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["points", "cuts"])
    parser.add_argument("experiments", nargs="*", metavar="EXP.toml", help="default: three of the examples")
    parser.add_argument("--quota", type=float, default=0.4, help="share of a core of each machine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long a round takes")
    parser.add_argument("--examples", type=int, help="of a flight, for the experiments that are named")
    given = parser.parse_args()
    if not namespaces.is_inside():
        namespaces.go_inside(sys.argv[1:], [__file__])
    named = [(Path(path), given.examples or 16) for path in given.experiments]
    near: list[float] = []
    for path, batch in named or [(EXAMPLES / name, batch) for name, batch in NETWORKS]:
        experiment = load_experiment(path).experiment
        task = Task(experiment, batch, given.quota, given.rounds, given.seconds)
        rates = measure_rates([plan_of(experiment, number) for number in (1, *PARTITIONS)], batch)
        if given.what == "points":
            near += points(task, rates)
        else:
            cuts(task, rates)
    if near:
        within = [sum(abs(one - 1) <= limit for one in near) for limit in (0.1, 0.2)]
        print(f"{len(near)} points: {within[0]} within 10%, {within[1]} within 20% of the prediction")


def points(task: Task, rates: Rates) -> list[float]:
    """Prints the table of a network; returns measured over predicted speed of each number of partitions and link."""
    machines = Machines(quota_cores=task.quota)
    compute_s = max(Prediction(task.experiment, rates, machines, task.batch).price(_kind(task), None).compute_s)
    busiest = busiest_bytes(task.experiment, 2, task.batch)
    links = tuple(float(f"{busiest / (share * compute_s):.2g}") for share in TRANSFERS)
    report = run_partition_benchmark(
        task.experiment, PARTITIONS, threads=1, batch=task.batch, transports=["tcp"], machine_rates=rates,
        machines=Machines(links, quota_cores=task.quota), rounds=task.rounds, seconds=task.seconds,
        progress=lambda line: print(line, file=sys.stderr),
    )  # fmt: skip
    print(f"{task.experiment.name}: batches of {task.batch}, machines of {task.quota:g} core")
    print("partitions   Mbit/s   measured  predicted   ratio  binds")
    found = []
    for row in report["results"]:
        link = row["link_mbit_per_s"]
        if row["partitions"] > 1 and link is None:
            continue
        found += [row["over_predicted"]] * (1 if link is not None else len(links))
        print(
            f"{row['partitions']:10}  {'-' if link is None else format(link, '.4g'):>7}  {row['images_per_s']:9.2f}  "
            f"{row['predicted_images_per_s']:9.2f}  {row['over_predicted']:6.3f}  {row['binds']}",
            flush=True,
        )
    return found


def cuts(task: Task, rates: Rates) -> None:
    """Prints what five cuts in two partitions are predicted and measured to take, and how far the chosen is off."""
    machines = Machines(quota_cores=task.quota)
    tried = _cuts_of(task, rates, machines)
    speeds: list[list[float]] = [[] for _ in tried]
    with ExitStack() as stack:
        kinds = [_kind(task)._replace(transport="shared", label=f"{number}-") for number in range(len(tried))]
        made = stack.enter_context(emulated(machines, [name for kind in kinds for name in kind.machines()]))
        replicas = [
            stack.enter_context(started(one, kind, task.batch, made)) for one, kind in zip(tried, kinds, strict=True)
        ]
        counts = [
            max(round(FIRST_FLIGHTS * task.seconds / replica.run(FIRST_FLIGHTS, None, 0).took_s), 1)
            for replica in replicas
        ]
        for number in range(task.rounds):
            for replica, count, speed in zip(replicas, counts, speeds, strict=True):
                speed.append(count * task.batch / replica.run(count, None, number).took_s)
    medians = [statistics.median(speed) for speed in speeds]
    print(f"{task.experiment.name}: cuts in two partitions, batches of {task.batch}, machines of {task.quota:g} core")
    for number, (one, median, speed) in enumerate(zip(tried, medians, speeds, strict=True)):
        predicted = Prediction(one, rates, machines, task.batch).price(kinds[number], None).examples_per_s
        spread = (max(speed) - min(speed)) / median
        name = "chosen" if number == 0 else "rules" if number == 1 else "other"
        print(f"  {name:7} predicted {predicted:9.2f}  measured {median:9.2f}  spread {spread:.3f}  {_shown(one)}")
    print(f"  the chosen one is {medians[0] / max(medians):.3f} of the best", flush=True)


def _kind(task: Task) -> Kind:
    return Kind(2, 1, task.flights, "tcp")


def _cuts_of(task: Task, rates: Rates, machines: Machines) -> list[Experiment]:
    """Returns experiments with the chosen cuts, those of the rules, and three in which one stage is cut elsewhere."""
    prediction = Prediction(task.experiment, rates, machines, task.batch)
    kind = _kind(task)._replace(transport="shared")
    stages = [stage for stage in stages_of(task.experiment.model) if not stage.follows]
    plan, _ = find_cuts(task.experiment.model, 2, prediction.machine(kind), prediction.conditions(kind, None))
    chosen, rules = (
        {stage.name: one.stages[stage.index].cut for stage in stages} for one in (plan, plan_of(task.experiment, 2))
    )
    others: list[dict[str, Cut]] = []
    for stage in stages:
        cut = chosen[stage.name]
        if cut.at is not None and stage.groups == 1:
            eighth = max(stage.extent(cut.axis) // 8, 1)
            others += [{**chosen, stage.name: Cut(cut.axis, (cut.at[0] + way,))} for way in (-eighth, eighth)]
    prices = [(_priced(task, one, prediction, kind), number) for number, one in enumerate(others)]
    order = [number for _, number in sorted(prices)]
    picked = [others[order[place]] for place in (0, len(order) // 2, len(order) - 1)]
    return [msgspec.structs.replace(task.experiment, partition=one) for one in (chosen, rules, *picked)]


def _priced(task: Task, cuts: dict[str, Cut], prediction: Prediction, kind: Kind) -> float:
    plan = make_plan(task.experiment.model, 2, cuts)
    return price(plan, prediction.machine(kind), prediction.conditions(kind, None)).interval_s


def _shown(experiment: Experiment) -> str:
    return ", ".join(f"{name} {cut}" for name, cut in experiment.partition.items())


if __name__ == "__main__":
    run_script(main)
