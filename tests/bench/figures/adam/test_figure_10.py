"""Adam's figure 10: which networks fit, which are trained efficiently, and what is said of both."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adamctl.bench.figures.adam import figure_10
from adamctl.bench.figures.adam.figure_10 import MACHINES, SHARES, Size, efficient, sizes_on, widest_that
from adamctl.bench.figures.adam.networks import connections_of
from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.paper_machines import Core
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.rates import Rate, Rates
from adamctl.model.partition.work import work_of
from tests.bench.figures.fake_trainings import keep

CORE = Core(2.5e9, 64, 100e9)


def rates_of(size: Size) -> Rates:
    """Returns rates of 20 billion multiply-adds a second for whatever a size computes."""
    plan = plan_of(size.experiment, size.machines)
    works = [work_of(plan, stage.index, partition) for stage in plan.stages for partition in range(size.machines)]
    stages = [Rate(work.kind, work.label, work.working_set_bytes, 16, 20e9) for work in works if work is not None]
    return Rates(1 << 20, 32 << 20, 1e9, tuple(dict.fromkeys(stages)))


def priced(size: Size, *rest: Any) -> float:
    """Returns images/s of as many connections/s for each machine, whatever the size."""
    return 3e9 * size.machines / connections_of(size.experiment.model)


def rounds_of(slower: dict[str, float] | None = None, memory: float = 1.0) -> Rounds:
    """Returns rounds as fast as planned, but for sizes that are so much slower, and with so much of the formula."""
    rounds = Rounds()
    keep(rounds, "core", msgspec.to_builtins(CORE))
    for machines in MACHINES[:2]:
        for size in sizes_on(machines):
            rates = rates_of(size)
            planned = priced(size) * (slower or {}).get(size.name, 1.0)
            keep(rounds, f"rates/{size.name}", msgspec.to_builtins(rates))
            peaks = [round(figure_10.memory_bytes(size) * memory)] * machines
            for number, off in enumerate((0.99, 1.0, 1.01), 1):
                keep(rounds, f"{size.name}/round-{number}", {"images_per_s": planned * off, "peak_bytes": peaks})
    return rounds


@pytest.fixture
def even_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one machine of the paper's is planned: more take some seconds."""
    monkeypatch.setattr(figure_10, "PLANNED_MACHINES", (1,))
    monkeypatch.setattr(figure_10, "_price", priced)


def outcomes(figure: Figure) -> list[str]:
    return [bar.outcome for bar in figure.bars]


def test_the_widest_network_needs_the_memory_of_a_machine_and_the_next_one_more() -> None:
    limit = 1.2 * figure_10.memory_bytes(Size(1, 1.0))
    for machines in MACHINES:
        widest = sizes_on(machines)[-1]
        assert figure_10.memory_bytes(widest) <= limit < figure_10.memory_bytes(Size(machines, widest.width + 0.125))
        assert len(sizes_on(machines)) == len(SHARES)


def test_the_widest_that_fits_is_found_in_steps_of_an_eighth() -> None:
    assert widest_that(lambda width: width <= 3.3) == 3.25
    assert widest_that(lambda width: False) == 0.0


@pytest.mark.parametrize(
    ("speeds", "width"),
    [
        ({1.0: 10.0, 2.0: 11.0, 3.0: 10.6, 4.0: 10.3}, 3.0),
        ({1.0: 10.0, 2.0: 11.0, 3.0: 12.0}, 3.0),
        ({1.0: 10.0, 2.0: 9.0, 3.0: 8.0}, 1.0),
    ],
)
def test_efficient_is_the_widest_that_keeps_the_best_narrower_ones_speed(
    speeds: dict[float, float], width: float
) -> None:
    assert efficient(speeds) == width


@pytest.mark.usefixtures("even_speed")
def test_what_is_as_planned_meets_all_bars_and_memory_limits() -> None:
    figure = figure_10.figure_of(rounds_of())
    assert outcomes(figure) == ["met", "met", "met"]
    measured, planned = figure.panels
    widest = [connections_of(sizes_on(machines)[-1].experiment.model) / 1e9 for machines in MACHINES[:2]]
    assert [point.y for point in measured.lines[0].points] == pytest.approx(widest)
    assert (planned.lines[0].kind, planned.claims[0].x, planned.claims[0].y) == ("planned", 16, 36.0)
    assert [row[-1] for row in figure.tables[0].rows] == ["", "", "", "<- memory"] * 2


@pytest.mark.usefixtures("even_speed")
def test_a_widest_network_that_loses_speed_is_not_efficient_and_misses_its_plan() -> None:
    widest = sizes_on(2)[-1]
    figure = figure_10.figure_of(rounds_of({widest.name: 0.7}))
    assert [row[-1] for row in figure.tables[0].rows[4:]] == ["", "", "<- speed", ""]
    assert outcomes(figure) == ["missed", "missed", "met"]


@pytest.mark.usefixtures("even_speed")
def test_a_peak_that_is_not_the_formulas_is_told() -> None:
    assert outcomes(figure_10.figure_of(rounds_of(memory=1.2)))[-1] == "missed"


def test_more_machines_and_faster_cores_are_planned_to_train_more() -> None:
    rates = rates_of(sizes_on(1)[-1])
    one, two = (figure_10._planned_on(count, rates, CORE) for count in (1, 2))
    slower = figure_10._planned_on(1, rates, Core(5e9, 64, 100e9))
    assert two.connections > one.connections == slower.connections
    (width, (speed,)), *_ = one.speeds.items()
    assert slower.speeds[width][0] == pytest.approx(speed / 2, rel=0.05)
    assert one.binds == "memory"


def test_nothing_measured_is_said_to_be_missing() -> None:
    rounds = Rounds()
    keep(rounds, "core", msgspec.to_builtins(CORE))
    with pytest.raises(MissingRoundError, match="machines-1/width"):
        figure_10.figure_of(rounds)


def test_settings_alternate_and_start_only_if_a_round_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def round_of(self: Any, size: Size, number: int) -> dict[str, Any]:
        taken.append(f"{size.name}/round-{number}")
        return {"images_per_s": 1.0, "peak_bytes": [1]}

    monkeypatch.setattr(figure_10._Running, "round_of", round_of)
    monkeypatch.setattr(figure_10, "core_here", lambda: CORE)
    monkeypatch.setattr(figure_10, "_rates", lambda size: {})
    rounds = Rounds()
    for _ in range(2):
        figure_10.measure(Session(FigureSettings(), rounds))
    first = [size.name for size in sizes_on(1)]
    assert taken[:8] == [f"{name}/round-{number}" for number in (1, 2) for name in first]
    assert len(taken) == len(set(taken)) == 5 * len(SHARES) * len(MACHINES)
