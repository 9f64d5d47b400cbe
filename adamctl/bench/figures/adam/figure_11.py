"""Adam's figure 11: replicas over one set of parameter servers, and without any (Adam 4.4.2)."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import psutil

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.figures.adam.networks import (
    CLASSES,
    FILTERS,
    SIDE,
    connections_of,
    experiment_of,
    paper_link,
    said_of_machines,
    settings_of,
)
from adamctl.bench.figures.cluster_prediction import predicted
from adamctl.bench.figures.figure import Figure, Line, Panel, Point, Table, measured, planned
from adamctl.bench.figures.judging import at_least, median_point, near
from adamctl.bench.figures.linked_cluster import LinkedCluster
from adamctl.bench.figures.machines import BESIDE_CORES, check_machines, core_here, core_shares
from adamctl.bench.figures.paper_machines import ADAM, Core
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import example, toml_value
from adamctl.bench.figures.session import Session
from adamctl.bench.partition.prediction import Slowed
from adamctl.bench.serving_rates import server_rates
from adamctl.bench.slices import measure_rates
from adamctl.bench.watched_run import WatchedRun, examples_per_s
from adamctl.cli.model.scaling_figures import training_of
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.rates import Rates
from adamctl.model.scaling.choosing import binding, busy, run
from adamctl.model.scaling.machines import Planner, Size
from adamctl.model.scaling.rates import ServerRates, ServingRates
from adamctl.net import loop
from adamctl.net.address import TRANSPORT_VARIABLE

REPLICAS, CORES, ROUNDS = (1, 2, 4), 0.3, 3
"""Each replica, and the server, is one machine with so much of a core."""
EXAMPLES, EXAMPLES_QUICK, TESTED = 2_000, 200, 32
RUN_S, RUN_S_QUICK = 60.0, 8.0
EVERY_S = 0.1
FREE, SCALED, NO_SERVERS = "free-links", "scaled-links", "no-servers"
KINDS = (FREE, SCALED, NO_SERVERS)
WORKER = "worker-1"
SHARE_LEAST = 0.85
"""Of four times one replica, that four have at least."""
TRAINING: Mapping[str, Any] = {
    "data.format": "npz", "train.batch": 16, "train.n_push": 4, "train.n_fetch": 4, "train.passes": 100_000,
    "train.evaluate_every": 100_000, "train.checkpoint_every": 0, "train.range_batches": 1, "optimizer.lr": 0.0001,
    "optimizer.schedule.type": "constant", "cluster.threads": 1,
}  # fmt: skip
"""A range is one batch, since progress is told range by range; the rate is low, so that noise does not diverge."""
PAPER_REPLICAS, PAPER_PARTITIONS, PAPER_SERVERS = (4, 10, 12, 16, 22), 4, 20
"""Adam 4.4.2."""
PAPER_MACHINES_MOST, PAPER_RATE_MOST = 100, 800.0
"""Where the axes of the paper's picture end: machines, and billion connections/s (4.4.2)."""
PAPER_FILTERS = (120, 240, 360, 480, 600)
PAPER_NETWORK: Mapping[str, Any] = {
    "model.input": [256, 256, 3], "model.layers.0.stride": 4, "model.layers.13.units": 22_000,
    **{f"model.layers.{layer}.filters": maps for layer, maps in zip(FILTERS, PAPER_FILTERS, strict=True)},
    "train.batch": 64, "train.n_push": 4, "train.n_fetch": 4, "cluster.threads": ADAM.cores,
    "cluster.apply_threads": ADAM.cores,
}  # fmt: skip
"""Adam 4.4.3: 120 to 600 maps, kernels of 3 to 7, over 2 billion connections. Stride, maps in between, batch and pushes
after 256 images are assumed."""


class Setting(NamedTuple):
    """What a round is of."""

    replicas: int
    kind: str

    @property
    def name(self) -> str:
        """Returns its part of a round's key."""
        return f"{self.kind}/replicas-{self.replicas}"


def experiment() -> Experiment:
    """Returns what each replica trains, but for its data."""
    settings = {**settings_of(1.0), **TRAINING, "data.source": "examples.npz"}
    return experiment_of("imagenet.toml", settings)


def measure(session: Session) -> None:
    core = session.take("core", lambda: msgspec.to_builtins(core_here()))
    link = ADAM.scaled_link_bytes_per_s(CORES, msgspec.convert(core, Core))
    trained = experiment()
    session.take("rates", lambda: msgspec.to_builtins(measure_rates([plan_of(trained, 1)], trained.train.batch)))
    session.take("server-rates", lambda: msgspec.to_builtins(server_rates(trained.optimizer.rule)))
    counts = session.sized(REPLICAS, REPLICAS[:2])
    check_machines({f"machine-{number}": CORES for number in range(max(counts) + 1)})
    settings = {one.name: one for one in (Setting(count, kind) for kind in KINDS for count in counts)}
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as folder:
        path = Path(folder) / "examples.npz"
        write_examples(path, session.sized(EXAMPLES, EXAMPLES_QUICK))
        seconds = session.sized(RUN_S, RUN_S_QUICK)

        def round_of(name: str, number: int) -> dict[str, Any]:
            return _round(settings[name], path, link, seconds, number)

        session.in_turn(settings, round_of, ROUNDS)


def write_examples(path: Path, count: int) -> None:
    """Writes random images of bytes with random classes."""
    generator = np.random.default_rng(7)
    arrays: dict[str, Any] = {}
    for part, size in (("train", count), ("test", TESTED)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (size, SIDE, SIDE, 3), np.uint8)
        arrays[f"y_{part}"] = generator.integers(0, CLASSES, size).astype(np.int32)
    np.savez(path, **arrays)


def _round(setting: Setting, path: Path, link_bytes_per_s: float, seconds: float, seed: int) -> dict[str, Any]:
    """Returns the examples/s of the middle half of a run of so many seconds."""
    settings = {**settings_of(1.0), **TRAINING, "data.source": str(path), "seed": seed}
    with core_shares() as groups:
        if setting.kind == NO_SERVERS:
            rates = loop.run(_alone(setting.replicas, path.parent, settings, groups, seconds))
        else:
            link = link_bytes_per_s if setting.kind == SCALED else None
            rates = [_together(setting.replicas, path.parent, settings, groups, link, seconds)]
    return {"examples_per_s": sum(rates), "of_each": rates}


def _together(
    replicas: int,
    folder: Path,
    settings: Mapping[str, Any],
    groups: ControlGroups,
    link_bytes_per_s: float | None,
    seconds: float,
) -> float:
    size = Size(1, replicas, 1, 1)
    with LinkedCluster(size, (str(folder),), groups, CORES) as cluster:
        cluster.limit(link_bytes_per_s)
        keys = [f"{key}={toml_value(value)}" for key, value in settings.items()]
        arguments = cluster.arguments(str(example("imagenet.toml")), size, keys)

        async def trained() -> float:
            async with WatchedRun(arguments, every_s=EVERY_S) as running:
                groups.share_together([*cluster.beside(), *_pids(running.processes())], BESIDE_CORES)
                return await _middle(running, seconds)

        return loop.run(trained())


async def _alone(
    replicas: int, folder: Path, settings: Mapping[str, Any], groups: ControlGroups, seconds: float
) -> list[float]:
    """Returns the examples/s of as many runs without servers side by side."""
    keys = {**settings, "cluster.ps": 0}
    sets = [part for key, value in keys.items() for part in ("--set", f"{key}={toml_value(value)}")]
    arguments = (str(example("imagenet.toml")), "--data", str(folder), *sets)
    async with AsyncExitStack() as stack:
        runs = [
            await stack.enter_async_context(
                WatchedRun(arguments, every_s=EVERY_S, environment={TRANSPORT_VARIABLE: "tcp"})
            )
            for _ in range(replicas)
        ]
        beside: list[int] = []
        for running in runs:
            await running.address(WORKER)
            groups.share_cores(f"{running.pid}-{WORKER}", running.process(WORKER).pid, CORES)
            beside += _pids({node: one for node, one in running.processes().items() if node != WORKER})
        groups.share_together(beside, BESIDE_CORES)
        return list(await asyncio.gather(*(_middle(running, seconds) for running in runs)))


def _pids(processes: Mapping[str, psutil.Process]) -> list[int]:
    return [one.pid for one in processes.values()]


async def _middle(running: WatchedRun, seconds: float) -> float:
    """Returns the examples/s of the middle half of the time from a run's first step on."""
    began_s = await running.trains()
    await asyncio.sleep(seconds)
    return examples_per_s(running.samples, began_s + seconds / 4, began_s + seconds * 3 / 4)


# --- what was found -------------------------------------------------------------------------------------------------


class _Planned(NamedTuple):
    """Replicas on machines of Adam's.

    Attributes:
        rate, rate_alone: connections/s with servers, and as many without.
        servers_too_few: the most servers that would hold the replicas up.
    """

    replicas: int
    rate: float
    rate_alone: float
    binds: str
    servers_too_few: int


def figure_of(rounds: Rounds) -> Figure:
    core = msgspec.convert(rounds["core"], Core)
    rates, serving = msgspec.convert(rounds["rates"], Rates), msgspec.convert(rounds["server-rates"], ServerRates)
    trained = experiment()
    own = connections_of(trained.model)
    counts = [one for one in REPLICAS if f"{Setting(one, NO_SERVERS).name}/round-1" in rounds] or [REPLICAS[0]]
    found = {kind: {count: _rates_of(rounds, Setting(count, kind)) for count in counts} for kind in KINDS}
    links = {FREE: None, SCALED: ADAM.scaled_link_bytes_per_s(CORES, core)}
    plans = {
        (kind, count): predicted(trained, Size(1, count, 1, 1), rates, serving, CORES, link, EXAMPLES)
        for kind, link in links.items()
        for count in counts
    }
    ratios = [statistics.median(found[kind][count]) / plan for (kind, count), (plan, _) in plans.items()]
    medians = {kind: [statistics.median(one) for one in of.values()] for kind, of in found.items()}
    linear = medians[FREE][-1] / medians[FREE][0] / counts[-1] * counts[0]
    over = min(alone / served for alone, served in zip(medians[NO_SERVERS], medians[FREE], strict=True))
    beyond = [_planned(count, rates, serving, core) for count in PAPER_REPLICAS]
    bars = (
        at_least(f"{counts[-1]} replicas over {counts[-1]} times one, no limit of links", linear, SHARE_LEAST),
        near("measured over planned", ratios, 0.2),
        at_least("without servers over with them, the smallest of all points", over, 1.0),
    )
    return Figure(
        (_panel(found, own), _paper_panel(beyond)),
        bars,
        (_table(found, plans, own), _paper_table(beyond)),
        tuple(_sentences(core, own)),
    )


def _rates_of(rounds: Rounds, setting: Setting) -> list[float]:
    return [float(one["examples_per_s"]) for one in rounds.all_of(setting.name)]


def _planned(replicas: int, rates: Rates, serving: ServerRates, core: Core) -> _Planned:
    speed = ADAM.core_speed(core)
    trained = experiment_of("imagenet.toml", {**settings_of(1.0), **PAPER_NETWORK})
    link = paper_link(core)
    planner = Planner(training_of(trained, link), Slowed(rates, speed), ServingRates(serving.times(speed)))
    own = connections_of(trained.model)
    size = Size(PAPER_PARTITIONS, replicas, PAPER_SERVERS, 0)
    cluster = planner.cluster(size)
    outcome = run(cluster, trained.seed)
    inside = planner.inside(size)
    alone = replicas * trained.train.batch / inside.interval_s
    too_few = 0
    while busy(planner.cluster(size._replace(servers=too_few + 1), placed=False))[0] > 1:
        too_few += 1
    return _Planned(replicas, outcome.examples_per_s * own, alone * own, binding(cluster, outcome), too_few)


# --- how it is shown ------------------------------------------------------------------------------------------------

SAID = {
    FREE: "one server, links without a limit",
    SCALED: "one server, links of 10 Gbit/s, scaled",
    NO_SERVERS: "no servers",
}


def _panel(found: Mapping[str, Mapping[int, Sequence[float]]], own: int) -> Panel:
    lines = []
    for color, (kind, of) in enumerate(found.items()):
        points = [median_point(count, [rate * own / 1e9 for rate in rates]) for count, rates in of.items()]
        lines.append(measured(SAID[kind], points, color))
    first = lines[0].points[0]
    counts = [point.x for point in lines[0].points]
    lines.append(
        Line("linear from one replica", "theory", tuple(Point(count, first.y / first.x * count) for count in counts))
    )
    return Panel("emulated training machines", "billion connections/s", tuple(lines), ticks=tuple(counts))


def _paper_panel(beyond: Sequence[_Planned]) -> Panel:
    machines = [PAPER_PARTITIONS * one.replicas for one in beyond]
    lines = (
        planned(
            f"{PAPER_SERVERS} servers", [Point(x, one.rate / 1e9) for x, one in zip(machines, beyond, strict=True)], 0
        ),
        planned("no servers", [Point(x, one.rate_alone / 1e9) for x, one in zip(machines, beyond, strict=True)], 2),
    )
    return Panel("training machines of Adam's", "billion connections/s", lines, ticks=tuple(map(float, machines)))


def _table(
    found: Mapping[str, Mapping[int, Sequence[float]]], plans: Mapping[tuple[str, int], tuple[float, str]], own: int
) -> Table:
    rows = []
    for kind, of in found.items():
        one = statistics.median(next(iter(of.values()))) / next(iter(of))
        for count, rates in of.items():
            median = statistics.median(rates)
            plan, binds = plans.get((kind, count), (0.0, ""))
            rows.append(
                (
                    SAID[kind], f"{count}", f"{median:.1f}", f"{min(rates):.1f} to {max(rates):.1f}",
                    f"{median * own / 1e9:.2f}", f"{median / one / count:.2f}",
                    f"{median / plan:.3f}" if plan else "", binds,
                )
            )  # fmt: skip
    columns = (
        "servers and links", "replicas", "examples/s", "smallest to largest", "billion connections/s",
        "share of linear", "over planned", "planned to bind",
    )  # fmt: skip
    return Table(columns, tuple(rows), "Measured")


def _paper_table(beyond: Sequence[_Planned]) -> Table:
    first = beyond[0].rate / beyond[0].replicas
    rows = tuple(
        (
            f"{one.replicas}", f"{PAPER_PARTITIONS * one.replicas}", f"{one.rate / 1e9:.0f}",
            f"{one.rate_alone / 1e9:.0f}", f"{one.rate / first / one.replicas:.2f}", one.binds,
            f"{one.servers_too_few}",
        )
        for one in beyond
    )  # fmt: skip
    columns = (
        "replicas", "machines", "billion connections/s", "without servers", "share of linear", "binds",
        "most servers that would bind",
    )  # fmt: skip
    return Table(columns, rows, f"Planned, with {PAPER_SERVERS} servers")


def _sentences(core: Core, own: int) -> Iterator[str]:
    link = ADAM.scaled_link_bytes_per_s(CORES, core)
    yield (
        f"Emulated: replicas of one machine and one server, each of {CORES:g} of a core, what is beside them of "
        f"{BESIDE_CORES:g}. Scaled links have {link / 125e3:,.0f} Mbit/s: 10 Gbit/s times their speed over that of one "
        "of Adam's. Without servers: as many runs side by side, their rates added up; nothing goes through their links "
        "but examples."
    )
    yield (
        f"Network: examples/imagenet.toml on {EXAMPLES:,} random images of 64 x 64, {own / 1e9:.2f} billion "
        f"connections; batches of 16, a push and a fetch after 4. The middle half of runs of {RUN_S:g} s."
    )
    model = experiment_of("imagenet.toml", {**settings_of(1.0), **PAPER_NETWORK}).model
    yield (
        f"Planned: replicas of {PAPER_PARTITIONS} of Adam's machines and {PAPER_SERVERS} servers, a network as in "
        f"4.4.3 with {connections_of(model) / 1e9:.2f} billion connections: a stride of 4, maps of "
        f"{', '.join(map(str, PAPER_FILTERS))}, batches of 64 and a push after 4 are assumed. "
        f"{said_of_machines(core)}"
    )
    yield (
        f"Adam 4.4.2: good scaling; the axes of its picture end at {PAPER_MACHINES_MOST} machines and "
        f"{PAPER_RATE_MOST:g} billion connections/s."
    )
