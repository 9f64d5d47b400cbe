"""DistBelief figure 3: how much faster a mini-batch of one replica is with more machines (DistBelief 5).

Measured by `bench partition` on 1, 2 and 4 emulated machines, beside what the cost model of partitions predicts for
each; planned for the paper's networks and machines by `adamctl.model.scaling`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from adamctl.bench.figures.distbelief.figure_3_planned import panels_of, planned_bars, planned_rows, said_of_plans
from adamctl.bench.figures.figure import Figure, Judged, Line, Panel, Point, Table
from adamctl.bench.figures.judging import median_point, near
from adamctl.bench.figures.machines import core_here
from adamctl.bench.figures.paper_machines import DISTBELIEF, Core
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import command, example
from adamctl.bench.figures.session import Session
from adamctl.bench.partition.machines import Machines
from adamctl.bench.partition.prediction import Prediction
from adamctl.bench.partition.started import Kind
from adamctl.bench.slices import measure_rates
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment
from adamctl.config.partitioning import flights_of, plan_of
from adamctl.model.partition.rates import Rates

CORES = 0.4
"""Of an emulated machine, which has one thread."""
PARTITIONS = (2, 4)
CORE, SETTINGS = "core", "settings"
MBIT = 125e3
WITHIN, WITHIN_MOST, SHARE_WITHIN = 0.2, 0.1, 0.9


class Network(NamedTuple):
    """A network that is measured.

    Attributes:
        name: in the figure, and of its rounds.
        file: of the examples.
        batch, quick_batch: examples of a mini-batch, and of one in a quick figure.
    """

    name: str
    file: str
    batch: int
    quick_batch: int


NETWORKS = (
    Network("speech", "speech_partitioned.toml", 128, 16),
    Network("images, 8 nodes, 64 x 64", "locally_connected.toml", 32, 8),
)


class Setting(NamedTuple):
    """What a row of a round is of. `link_mbit_per_s`: None: no limit, and that of one machine."""

    partitions: int
    flights: int
    link_mbit_per_s: float | None


def measure(session: Session) -> None:
    seconds = session.sized(5.0, 0.5)
    core = msgspec.convert(session.take(CORE, lambda: msgspec.to_builtins(core_here())), Core)
    link_bytes_per_s = float(f"{DISTBELIEF.scaled_link_bytes_per_s(CORES, core):.3g}")
    batches = {one.name: session.sized(one.batch, one.quick_batch) for one in NETWORKS}
    session.take(SETTINGS, lambda: {"seconds": seconds, "link_bytes_per_s": link_bytes_per_s, "batches": batches})
    networks = {one.name: one for one in NETWORKS}
    experiments = {one.name: load_experiment(example(one.file)).experiment for one in NETWORKS}
    for name, experiment in experiments.items():
        session.take(_key(name, "rates"), partial(_rates, experiment, batches[name]))

    def one(name: str, number: int) -> Any:
        flights = sorted({1, flights_of(experiments[name], 1)})
        return _kept(
            command(
                (
                    "bench", "partition", str(example(networks[name].file)), "--all-threads", "1", "--transport", "tcp",
                    "--partition-counts", ",".join(map(str, PARTITIONS)), "--quota", str(CORES), "--rounds", "1",
                    "--flight-counts", ",".join(map(str, flights)), "--examples", str(batches[name]),
                    "--link", f"{link_bytes_per_s / MBIT:.6g}Mbit", "--seconds", str(seconds),
                )
            )
        )  # fmt: skip

    session.in_turn(networks, one)
    for name, experiment in experiments.items():
        rates = msgspec.convert(session.rounds[_key(name, "rates")], Rates)
        settings = [setting for setting, _ in _settings(session.rounds.under(name))]
        prediction = Prediction(experiment, rates, Machines((link_bytes_per_s,), quota_cores=CORES), batches[name])
        session.take(_key(name, "predicted"), partial(_predicted, prediction, settings, link_bytes_per_s))


def _key(name: str, what: str) -> str:
    """Returns the key of what is there once for a network; its rounds are `NAME/round-N`."""
    return f"{what}: {name}"


def _rates(experiment: Experiment, batch: int) -> Any:
    return msgspec.to_builtins(measure_rates([plan_of(experiment, number) for number in (1, *PARTITIONS)], batch))


def _kept(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what counts of a report's rows."""
    keys = ("partitions", "flights", "link_mbit_per_s", "images_per_s")
    return [{key: row[key] for key in keys} for row in report["results"]]


def _settings(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[tuple[Setting, list[float]]]:
    """Returns what was measured, and the examples per second of each round; one machine is the first."""
    found: dict[Setting, list[float]] = {}
    for rows in rounds:
        for row in rows:
            setting = Setting(row["partitions"], row["flights"], row["link_mbit_per_s"])
            found.setdefault(setting, []).append(row["images_per_s"])
    return sorted(found.items(), key=lambda pair: (pair[0].partitions, pair[0].flights, pair[0].link_mbit_per_s or 0))


def _predicted(prediction: Prediction, settings: Sequence[Setting], link_bytes_per_s: float) -> list[float]:
    """Returns the examples per second of settings, by the cost model."""
    found = []
    for setting in settings:
        kind = Kind(setting.partitions, 1, setting.flights, "shared" if setting.partitions == 1 else "tcp")
        link = None if setting.link_mbit_per_s is None else link_bytes_per_s
        found.append(prediction.price(kind, link).examples_per_s)
    return found


# --- the figure -------------------------------------------------------------------------------------------------------


class _Measured:
    """One network: speed-ups over one machine, measured and predicted."""

    def __init__(self, rounds: Rounds, network: Network) -> None:
        self.network = network
        self.settings = _settings(rounds.all_of(network.name))
        self.predicted: list[float] = rounds[_key(network.name, "predicted")]
        (_, self._alone) = self.settings[0]

    def speed_ups(self, place: int) -> list[float]:
        """Returns the speed-ups of a setting, of each round."""
        return [rate / alone for rate, alone in zip(self.settings[place][1], self._alone, strict=True)]

    @property
    def ratios(self) -> list[float]:
        """Measured over predicted examples per second, of each setting."""
        pairs = zip(self.settings, self.predicted, strict=True)
        return [statistics.median(rates) / predicted for (_, rates), predicted in pairs]

    def lines(self, color: int) -> Iterator[Line]:
        flights = sorted({setting.flights for setting, _ in self.settings[1:]})
        for number, count in enumerate(flights):
            for is_limited in (True, False):
                if is_limited or number == 0:  # the control is shown with one flight alone
                    yield from self._lines(count, is_limited, color + 2 * number if is_limited else color)

    def _lines(self, flights: int, is_limited: bool, color: int) -> Iterator[Line]:
        places = [
            place
            for place, (setting, _) in enumerate(self.settings)
            if place and setting.flights == flights and (setting.link_mbit_per_s is not None) == is_limited
        ]
        shown = [Point(1, 1), *(median_point(self.settings[p][0].partitions, self.speed_ups(p)) for p in places)]
        name = f"{self.network.name}, {'one flight' if flights == 1 else f'{flights} flights'}"
        if not is_limited:
            yield Line(f"{name}, links without a limit", "measured", tuple(shown), color, is_faint=True)
            return
        yield Line(name, "measured", tuple(shown), color)
        alone = self.predicted[0]
        predicted = [Point(self.settings[p][0].partitions, self.predicted[p] / alone) for p in places]
        yield Line(f"{name}, predicted", "planned", (Point(1, 1), *predicted), color)

    def rows(self) -> Iterator[tuple[str, ...]]:
        for place, (setting, rates) in enumerate(self.settings):
            ups, link = self.speed_ups(place), setting.link_mbit_per_s
            yield (
                self.network.name, f"{setting.partitions}", f"{setting.flights}" if place else "-",
                "-" if link is None else f"{link:.4g}", f"{statistics.median(rates):.4g}",
                *(f"{value:.3f}" for value in (statistics.median(ups), min(ups), max(ups))),
                f"{self.predicted[place]:.4g}", f"{self.ratios[place]:.3f}",
            )  # fmt: skip


def figure_of(rounds: Rounds) -> Figure:
    core = msgspec.convert(rounds[CORE], Core)
    found = [_Measured(rounds, network) for network in NETWORKS]
    lines = [line for color, one in enumerate(found) for line in one.lines(color)]
    panel = Panel(
        "emulated machines", "speed-up of a mini-batch", (*lines, Line("", "theory", (Point(1, 1), Point(4, 4)))),
        title="measured here, and predicted for these machines", x_logarithmic=True, y_logarithmic=True,
        ticks=(1, *PARTITIONS),
    )  # fmt: skip
    table = Table(
        (
            "network", "machines", "flights", "Mbit/s", "examples/s", "speed-up", "lowest", "highest", "predicted",
            "over predicted",
        ),
        tuple(row for one in found for row in one.rows()),
        "Measured",
    )  # fmt: skip
    ratios = [ratio for one in found for ratio in one.ratios]
    checks = (
        near("predicted speed of each measured point", ratios, WITHIN),
        near("predicted speed of the measured points", ratios, WITHIN_MOST, SHARE_WITHIN),
    )
    bars: tuple[Judged, ...] = (*checks, *planned_bars())
    tables = (table, Table(*planned_rows(), "Planned: times one machine"))
    sentences = (*_sentences(rounds, core), *said_of_plans())
    return Figure((panel, *panels_of()), bars, tables, sentences)


def _sentences(rounds: Rounds, core: Core) -> Iterator[str]:
    settings = rounds[SETTINGS]
    batches = "; ".join(f"{name}: {batch}" for name, batch in settings["batches"].items())
    count = len(rounds.under(NETWORKS[0].name))
    yield (
        f"Measured: medians of {count} rounds of about {settings['seconds']:g} s in turn, with the smallest and the "
        f"largest. Each machine is a process with {CORES:g} of a core and one thread, with a network of its own; "
        f"mini-batches, {batches}; synthetic examples, nothing pushed. One machine has no network."
    )
    yield (
        f"Links of {settings['link_bytes_per_s'] / MBIT:.4g} Mbit/s: 1 Gbit/s times the speed of an emulated machine "
        "over that of one of DistBelief's, so that transfer and compute have the ratio assumed there; here a core runs "
        f"at {core.clock_hz / 1e9:.2f} GHz with {core.operations_per_cycle} float operations a cycle, of which "
        f"products reach {core.share_of_peak:.0%}."
    )
