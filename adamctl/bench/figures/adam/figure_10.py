"""Adam's figure 10: how large a network some machines train well, in partitions and without servers (Adam 4.4.1)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from adamctl.bench.figures.adam.networks import (
    PAPER_CLASSES,
    PAPER_SIDE,
    connections_of,
    experiment_of,
    paper_link,
    said_of_machines,
    settings_of,
)
from adamctl.bench.figures.cluster_rates import rates_on_shares
from adamctl.bench.figures.figure import Claim, Figure, Line, Panel, Point, Table, measured, planned
from adamctl.bench.figures.judging import median_point, near
from adamctl.bench.figures.machines import core_here
from adamctl.bench.figures.paper_machines import ADAM, Core
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.session import Session
from adamctl.bench.partition.machines import Machines, emulated
from adamctl.bench.partition.partition import FIRST_FLIGHTS
from adamctl.bench.partition.prediction import Prediction, Slowed
from adamctl.bench.partition.started import Kind, Replica, started
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import flights_of, plan_of
from adamctl.launch.partitions import conditions_of
from adamctl.model.partition.cost import memories_of, price
from adamctl.model.partition.rates import Rates
from adamctl.model.partition.work import memory_of

MACHINES, CORES = (1, 2, 4), 0.4
"""Emulated ones, and what each has of a core."""
BATCH = 16
SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the widest network that fits."""
STEP = 0.125
"""Widths are multiples of it."""
MEMORY_FACTOR = 1.2
"""Memory of an emulated machine over what the network of width 1 needs in one process."""
EFFICIENT = 0.95
"""Of the best narrower network's connections/s, that an efficient one has at least."""
ROUND_S, ROUND_S_QUICK = 6.0, 0.5
PLANNED_MACHINES = (1, 2, 4, 8, 16)
PAPER = (16, 36.0)
"""Machines, and billion connections: Adam 4.4.1."""
WIDEST = 64.0
EXAMPLES_AHEAD = 1024
"""That a process of the measurement holds."""
NO_RATES = Rates(0, 0, 1.0, ())
"""For memory, which needs none."""
VECTORS = SLOTS = 1
"""That a process of the measurement holds: it fetches and evaluates nothing, and each push is acknowledged at once."""


class Size(NamedTuple):
    """A network on some machines."""

    machines: int
    width: float

    @property
    def name(self) -> str:
        """Returns its part of a round's key."""
        return f"machines-{self.machines}/width-{self.width:g}"

    @property
    def experiment(self) -> Experiment:
        return _experiment_of(self)

    @property
    def kind(self) -> Kind:
        """Returns the processes that train it: one compute thread each."""
        if self.machines == 1:
            return Kind(1, 1, 0, "shared", f"{self.width:g}-")
        return Kind(self.machines, 1, flights_of(self.experiment, 1), "tcp", f"{self.width:g}-")


@cache
def _experiment_of(size: Size) -> Experiment:
    return experiment_on(size.machines, settings_of(size.width))


def experiment_on(machines: int, settings: Mapping[str, Any]) -> Experiment:
    """Returns an experiment of one replica over so many machines, without servers."""
    cluster = {"cluster.ps": 0, "cluster.workers": machines, "cluster.partitions": machines}
    return experiment_of("imagenet_partitioned.toml", {**settings, **cluster, "train.batch": BATCH})


def measure(session: Session) -> None:
    core = session.take("core", lambda: msgspec.to_builtins(core_here()))
    link = ADAM.scaled_link_bytes_per_s(CORES, msgspec.convert(core, Core))
    for machines in session.sized(MACHINES, MACHINES[:2]):
        every = sizes_on(machines)
        sizes = {size.name: size for size in session.sized(every, every[:1])}
        for name, size in sizes.items():
            session.take(f"rates/{name}", partial(_rates, size))
        with ExitStack() as stack:
            running = _Running(stack, list(sizes.values()), link, session.sized(ROUND_S, ROUND_S_QUICK))
            session.in_turn(sizes, partial(_round, running, sizes))


def _round(running: _Running, sizes: Mapping[str, Size], name: str, number: int) -> dict[str, Any]:
    return running.round_of(sizes[name], number)


class _Running:
    """Replicas of several sizes, which start when the first round of one is needed."""

    def __init__(self, stack: ExitStack, sizes: Sequence[Size], link_bytes_per_s: float, seconds: float) -> None:
        self._stack, self._sizes, self._link_bytes_per_s, self._seconds = stack, sizes, link_bytes_per_s, seconds
        self._replicas: dict[Size, Replica] = {}
        self._counts: dict[Size, int] = {}

    def round_of(self, size: Size, number: int) -> dict[str, Any]:
        """Returns the images/s of a round, and the most memory that each process has had up to now."""
        if not self._replicas:
            self._start()
        count = self._counts[size]
        took_s = self._replicas[size].run(count, self._link_of(size), number).took_s
        peaks = [peak_bytes(self._machines.pids[name]) for name in size.kind.machines()]
        return {"images_per_s": count * BATCH / took_s, "peak_bytes": peaks}

    def _start(self) -> None:
        names = [name for size in self._sizes for name in size.kind.machines()]
        self._machines = self._stack.enter_context(emulated(emulated_machines(self._link_bytes_per_s), names))
        for size in self._sizes:
            replica = self._stack.enter_context(started(size.experiment, size.kind, BATCH, self._machines))
            took_s = min(replica.run(FIRST_FLIGHTS, self._link_of(size), 0).took_s for _ in range(2))
            self._counts[size] = max(round(FIRST_FLIGHTS * self._seconds / took_s), 1)
            self._replicas[size] = replica

    def _link_of(self, size: Size) -> float | None:
        return None if size.machines == 1 else self._link_bytes_per_s


def emulated_machines(link_bytes_per_s: float) -> Machines:
    return Machines((link_bytes_per_s,), quota_cores=CORES)


def peak_bytes(pid: int) -> int:
    """Returns the most resident memory that a process has had. Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def _rates(size: Size) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(rates_on_shares(size.experiment, size.machines, BATCH, CORES))
    return found


# --- which networks fit ---------------------------------------------------------------------------------------------


@cache
def sizes_on(machines: int) -> tuple[Size, ...]:
    """Returns the widest network that fits so many machines, and narrower ones, ascending."""
    limit = MEMORY_FACTOR * memory_bytes(Size(1, 1.0))
    widest = widest_that(lambda width: memory_bytes(Size(machines, width)) <= limit)
    return tuple(Size(machines, width) for width in narrower(widest))


def memory_bytes(size: Size) -> int:
    """Returns the memory of the largest process of a size that is measured, by the formula."""
    one = Prediction(size.experiment, NO_RATES, Machines(), BATCH).conditions(size.kind, None)
    plan = plan_of(size.experiment, size.machines)
    sizes = (one.batch, one.threads, SLOTS, one.flights, one.pushing, EXAMPLES_AHEAD, VECTORS)
    return max(memory_of(plan, partition, *sizes).total for partition in range(plan.partitions))


def widest_that(fits: Callable[[float], bool]) -> float:
    """Returns the largest multiple of STEP up to WIDEST that fits, and of which all smaller ones do."""
    low, high = 0, round(WIDEST / STEP)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * STEP) else (low, middle - 1)
    return low * STEP


def narrower(widest: float) -> tuple[float, ...]:
    """Returns the widths that are measured, or planned, for a widest one, ascending."""
    return tuple(dict.fromkeys(max(round(share * widest / STEP), 1) * STEP for share in SHARES))


def efficient(speeds: Mapping[float, float]) -> float:
    """Returns the widest network that is trained efficiently: those that are wider lose speed (Adam 4.4.1).

    Args:
        speeds: connections/s, by width.
    """
    found, best = 0.0, 0.0
    for width, speed in sorted(speeds.items()):
        if speed >= EFFICIENT * best:
            found = width
        best = max(best, speed)
    return found


# --- what was found -------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A number of machines: connections/s by width, in each round or planned, and what limits the network.

    Attributes:
        connections: of the widest network that is trained efficiently.
        binds: `memory` or `speed`.
    """

    machines: int
    speeds: Mapping[float, Sequence[float]]
    connections: int
    binds: str


def figure_of(rounds: Rounds) -> Figure:
    core = msgspec.convert(rounds["core"], Core)
    sizes = _sizes_in(rounds)
    found = [_measured_on(rounds, [size for size in sizes if size.machines == one]) for one in _machines_of(sizes)]
    rates = {size: msgspec.convert(rounds[f"rates/{size.name}"], Rates) for size in sizes}
    ratios = [_over_planned(rounds, size, rates[size], core) for size in sizes]
    peaks = [_peak_of(rounds, size) / memory_bytes(size) for size in sizes]
    beyond = [_planned_on(count, merged(rates.values()), core) for count in PLANNED_MACHINES]
    bars = (
        near("speed over the planned one", ratios, 0.2),
        near("speed over the planned one", ratios, 0.1, share=0.9),
        near("peak of memory over the formula", peaks, 0.1),
    )
    return Figure(
        (_panel(found, "emulated machines", "measured", measured), _paper_panel(beyond)),
        bars,
        (_table(rounds, sizes, found, rates, core), _paper_table(beyond)),
        tuple(_sentences(core)),
    )


def _sizes_in(rounds: Rounds) -> list[Size]:
    """Returns the sizes that were measured: in a quick figure not all."""
    every = [size for machines in MACHINES for size in sizes_on(machines)]
    found = [size for size in every if f"{size.name}/round-1" in rounds]
    return found or every


def _machines_of(sizes: Iterable[Size]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(size.machines for size in sizes))


def _measured_on(rounds: Rounds, sizes: Sequence[Size]) -> _Found:
    machines = sizes[0].machines
    speeds = {
        size.width: [one * connections_of(size.experiment.model) for one in _images_per_s(rounds, size)]
        for size in sizes
    }
    return _found(machines, speeds, lambda width: connections_of(Size(machines, width).experiment.model))


def _found(machines: int, speeds: Mapping[float, Sequence[float]], connections: Callable[[float], int]) -> _Found:
    width = efficient({width: statistics.median(values) for width, values in speeds.items()})
    return _Found(machines, speeds, connections(width), "memory" if width == max(speeds) else "speed")


def _images_per_s(rounds: Rounds, size: Size) -> list[float]:
    return [float(one["images_per_s"]) for one in rounds.all_of(size.name)]


def _peak_of(rounds: Rounds, size: Size) -> int:
    return max(int(peak) for one in rounds.all_of(size.name) for peak in one["peak_bytes"])


def _over_planned(rounds: Rounds, size: Size, rates: Rates, core: Core) -> float:
    """Returns how fast a size is, over what is planned for it."""
    link_bytes_per_s = ADAM.scaled_link_bytes_per_s(CORES, core)
    return statistics.median(_images_per_s(rounds, size)) / _price(size, rates, link_bytes_per_s)


def _price(size: Size, rates: Rates, link_bytes_per_s: float) -> float:
    """Returns the planned images/s of a size that is measured."""
    prediction = Prediction(size.experiment, rates, emulated_machines(link_bytes_per_s), BATCH)
    return prediction.price(size.kind, None if size.machines == 1 else link_bytes_per_s).examples_per_s


def merged(several: Iterable[Rates]) -> Rates:
    """Returns all rates as those of one machine, whose updates are as fast as in the slowest measurement."""
    every = list(several)
    stages = tuple(dict.fromkeys(stage for one in every for stage in one.stages))
    return Rates(every[0].l2_bytes, every[0].l3_bytes, min(one.update_per_s for one in every), stages)


def _planned_on(machines: int, rates: Rates, core: Core) -> _Found:
    """Returns what so many of Adam's machines are planned to train."""
    speed = ADAM.core_speed(core)
    link = paper_link(core)

    def experiment(width: float) -> Experiment:
        return experiment_on(machines, settings_of(width, PAPER_SIDE, PAPER_CLASSES))

    def fits(width: float) -> bool:
        trained = experiment(width)
        conditions = conditions_of(trained, link, ADAM.cores)
        return max(one.total for one in memories_of(plan_of(trained, machines), conditions)) <= (ADAM.memory_bytes or 0)

    speeds = {}
    for width in narrower(widest_that(fits)):
        trained = experiment(width)
        priced = price(plan_of(trained, machines), Slowed(rates, speed), conditions_of(trained, link, ADAM.cores))
        speeds[width] = [priced.examples_per_s * connections_of(trained.model)]
    return _found(machines, speeds, lambda width: connections_of(experiment(width).model))


# --- how it is shown ------------------------------------------------------------------------------------------------


def _panel(found: Sequence[_Found], what: str, name: str, line: Callable[[str, Sequence[Point]], Line]) -> Panel:
    points = [Point(one.machines, one.connections / 1e9) for one in found]
    first = points[0].y / points[0].x
    even = Line(
        "as many connections a machine as on one", "theory", tuple(Point(one.x, first * one.x) for one in points)
    )
    ticks = tuple(float(one.machines) for one in found)
    return Panel(what, "billion connections trained efficiently", (line(name, points), even), ticks=ticks)


def _paper_panel(found: Sequence[_Found]) -> Panel:
    panel = _panel(found, "machines of Adam's", "planned", planned)
    machines, billion = PAPER
    claim = Claim("cross", f"{billion:g} billion on {machines} machines: Adam 4.4.1", machines, billion)
    return replace(panel, claims=(claim,), y_logarithmic=True)


def _table(
    rounds: Rounds, sizes: Sequence[Size], found: Sequence[_Found], rates: Mapping[Size, Rates], core: Core
) -> Table:
    of_machines = {one.machines: one for one in found}
    rows = []
    for size in sizes:
        one, own = of_machines[size.machines], connections_of(size.experiment.model)
        speed = median_point(size.width, one.speeds[size.width])
        peak, formula = _peak_of(rounds, size), memory_bytes(size)
        over = _over_planned(rounds, size, rates[size], core)
        rows.append(
            (
                f"{size.machines}", f"{size.width:g}", f"{own / 1e9:.3f}", f"{speed.y / 1e9:.2f}",
                f"{(speed.low or 0) / 1e9:.2f} to {(speed.high or 0) / 1e9:.2f}", f"{over:.3f}",
                f"{peak / 1e9:.2f} GB", f"{peak / formula:.2f}", f"<- {one.binds}" if own == one.connections else "",
            )
        )  # fmt: skip
    columns = (
        "machines", "width", "billion connections", "billion connections/s", "smallest to largest", "over planned",
        "peak", "over formula", "efficient",
    )  # fmt: skip
    return Table(columns, tuple(rows), "Measured. The arrow is at the widest efficient network, with what limits it.")


def _paper_table(found: Sequence[_Found]) -> Table:
    rows = tuple(
        (f"{one.machines}", f"{max(one.speeds):g}", f"{one.connections / 1e9:.1f}", one.binds) for one in found
    )
    return Table(("machines", "widest that fits", "billion connections, efficient", "limited by"), rows, "Planned")


def _sentences(core: Core) -> Iterator[str]:
    link = ADAM.scaled_link_bytes_per_s(CORES, core)
    yield (
        f"Emulated: machines of {CORES:g} of a core and one thread each, with links of {link / 125e3:,.0f} Mbit/s: "
        "10 Gbit/s times their speed over that of one of Adam's. One replica without servers; nothing is pushed. "
        "Planned from rates of their parts, measured by processes with the same shares."
    )
    yield (
        "Network: examples/imagenet_partitioned.toml on images of 64 x 64, synthetic, batches of 16; all convolutions "
        f"are made wider, in steps of an eighth, and nothing else. A machine has {MEMORY_FACTOR:g} times the memory "
        "that width 1 needs in one process, by the formula of docs/partitions.md."
    )
    yield (
        f"Efficient, as in the paper, up to where speed falls: the widest network whose connections/s are at least "
        f"{EFFICIENT:g} of the best narrower one's, of widths of 0.25, 0.5, 0.75 and 1 of the widest that fits."
    )
    yield (f"Planned: images of {PAPER_SIDE} x {PAPER_SIDE} and {PAPER_CLASSES:,} classes. {said_of_machines(core)}")
    yield (
        "Planned networks are as large as memory allows: the planner knows nothing that makes speed fall before. "
        "All emulated machines share one L3 cache, so this cannot show that caches let networks grow faster than "
        "machines. Where they do here, the dense layers, which stay as they are, are the cause."
    )
