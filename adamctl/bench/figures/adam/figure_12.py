"""Adam's figure 12: how accurate networks of several sizes are (Adam 4.4.3).

One convolutional network on ten classes of photographs, all of its layers but the last made narrower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adamctl.bench.figures.figure import Figure, Line, Panel, Point, Table, measured
from adamctl.bench.figures.judging import Mean, above, differences, mean_of, paired
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import Training, example
from adamctl.bench.figures.session import Session
from adamctl.bench.figures.trained import compared_seeds, key_of_seed, last_percents, take_trainings

SEEDS, SEEDS_QUICK = tuple(range(1, 9)), (1,)
CONNECTIONS: Mapping[float, int] = {0.25: 745_792, 0.5: 2_060_928, 1.0: 6_399_232}
"""By width, of the shapes that `settings_of` gives."""
FILTERS: Mapping[int, int] = {0: 24, 2: 48, 4: 64}
UNITS: Mapping[int, int] = {6: 128}
"""Of the layers of `examples/caltech.toml`, by place."""
TEST_PHOTOGRAPHS = 222
PAPER = ((1.1, 24.0), (2.0, 29.8))
"""Billion connections, and top-1 on ImageNet with 22,000 categories in percent: Adam 4.4.3 and table 2."""
QUICK: Mapping[str, Any] = {"train.passes": 2, "train.evaluate_every": 1}


def settings_of(width: float) -> dict[str, Any]:
    """Returns the keys of a width, as a share of that of the example."""
    filters = {f"model.layers.{layer}.filters": round(count * width) for layer, count in FILTERS.items()}
    return filters | {f"model.layers.{layer}.units": round(count * width) for layer, count in UNITS.items()}


def setting_of(width: float) -> str:
    """Returns the part of a round's key before the seed."""
    return f"width-{width:g}"


def measure(session: Session) -> None:
    """Trains what is not there yet, all widths with a seed before the next seed."""
    file, more = example("caltech.toml"), session.sized({}, QUICK)
    for seed in session.sized(SEEDS, SEEDS_QUICK):
        trainings = {
            key_of_seed(setting_of(width), seed): Training(
                file, {**settings_of(width), **more}, seed, data=session.settings.data
            )
            for width in CONNECTIONS
        }
        take_trainings(session, trainings)


def figure_of(rounds: Rounds) -> Figure:
    seeds = compared_seeds(rounds, [setting_of(width) for width in CONNECTIONS], SEEDS)
    percents = {width: last_percents(rounds, setting_of(width), seeds) for width in CONNECTIONS}
    means = {width: mean_of(values) for width, values in percents.items()}
    small, middle, large = percents.values()
    first, second = paired(middle, small), paired(large, middle)
    slowing = paired(differences(middle, small), differences(large, middle))
    bars = (
        above("second size minus the first, percentage points", first, 0.0, errors=1),
        above("third size minus the second, percentage points", second, 0.0, errors=1),
        above("first gain minus the second, percentage points", slowing, 0.0, errors=1),
    )
    return Figure((_panel(percents, means),), bars, (_table(means),), tuple(_sentences(seeds)))


def _panel(percents: Mapping[float, list[float]], means: Mapping[float, Mean]) -> Panel:
    seeds = Line(
        "each seed", "seeds",
        tuple(Point(CONNECTIONS[width] / 1e6, value) for width, values in percents.items() for value in values),
    )  # fmt: skip
    mean = measured(
        "mean, with its standard error", [mean.point(CONNECTIONS[width] / 1e6) for width, mean in means.items()]
    )
    return Panel(
        "million connections",
        "test top-1 of the last evaluation, %",
        (seeds, mean),
        x_logarithmic=True,
        y_least=None,
    )


def _table(means: Mapping[float, Mean]) -> Table:
    rows = tuple(
        (
            f"{width:g}", f"{CONNECTIONS[width] / 1e6:.2f} M", f"{mean.value:.2f}",
            f"{mean.error:.2f}" if mean.seeds > 1 else "", f"{mean.low:.2f} to {mean.high:.2f}", f"{mean.seeds}",
        )
        for width, mean in means.items()
    )  # fmt: skip
    return Table(
        ("width", "connections", "mean of the last, %", "standard error", "smallest to largest", "seeds"), rows
    )


def _sentences(seeds: tuple[int, ...]) -> Iterator[str]:
    yield (
        "Data: ten classes of Caltech-101, 908 photographs to train on and 222 to test with. "
        f"One test photograph is {100 / TEST_PHOTOGRAPHS:.2f}%."
    )
    yield (
        "150 passes over reflected, cropped, turned and scaled photographs. All sizes have the rate and the schedule "
        f"of examples/caltech.toml, not chosen anew; seeds {', '.join(map(str, seeds))}. One worker of all cores: no "
        "share of a core and no link is emulated, since only accuracy counts."
    )
    said = " and ".join(f"{percent:g}% at {billion:g} billion connections" for billion, percent in PAPER)
    yield f"Adam 4.4.3, on ImageNet with 22,000 categories: {said}. The scale is another, so it is not drawn."
