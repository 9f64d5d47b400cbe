"""Adam's figure 11: what is measured in which order, and what is said of replicas with servers and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.bench.figures.adam import figure_11
from adamctl.bench.figures.adam.figure_11 import (
    FREE,
    KINDS,
    NO_SERVERS,
    REPLICAS,
    ROUNDS,
    SCALED,
    Setting,
    write_examples,
)
from adamctl.bench.figures.adam.networks import connections_of
from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.paper_machines import Core
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.rates import Rate, Rates
from adamctl.model.partition.work import work_of
from adamctl.model.scaling.machines import Size
from adamctl.model.scaling.rates import ServerRates
from tests.bench.figures.fake_trainings import keep

CORE = Core(2.5e9, 64, 100e9)
SERVING = ServerRates("sgd", 0, 1e9, 2e9, 30e9)
ONE = 25.0
"""Examples per second of a replica."""


def rates() -> Rates:
    """Returns rates of 20 billion multiply-adds a second for whatever a replica computes."""
    plan = plan_of(figure_11.experiment(), 1)
    works = [work for stage in plan.stages if (work := work_of(plan, stage.index, 0)) is not None]
    return Rates(
        1 << 20, 32 << 20, 1e9, tuple(Rate(one.kind, one.label, one.working_set_bytes, 16, 20e9) for one in works)
    )


def rounds_of(rates_by_setting: dict[Setting, float]) -> Rounds:
    rounds = Rounds()
    keep(rounds, "core", msgspec.to_builtins(CORE))
    keep(rounds, "rates", msgspec.to_builtins(rates()))
    keep(rounds, "server-rates", msgspec.to_builtins(SERVING))
    for setting, value in rates_by_setting.items():
        for number, off in enumerate((0.98, 1.0, 1.03), 1):
            keep(rounds, f"{setting.name}/round-{number}", {"examples_per_s": value * off})
    return rounds


def found(four: float = 0.9, without: float = 1.0) -> dict[Setting, float]:
    """Returns rates: four replicas have so much of four times one, and those without servers of what is linear."""
    shares = {1: 1.0, 2: 0.97, 4: four}
    served = {Setting(count, kind): ONE * count * shares[count] for kind in (FREE, SCALED) for count in REPLICAS}
    return served | {Setting(count, NO_SERVERS): ONE * count * without for count in REPLICAS}


@pytest.fixture
def as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned is 25 examples/s a replica, and only 4 replicas of Adam's machines are planned."""

    def planned(experiment: Any, size: Size, *rest: Any) -> tuple[float, str]:
        return ONE * size.replicas, "compute"

    monkeypatch.setattr(figure_11, "predicted", planned)
    monkeypatch.setattr(figure_11, "PAPER_REPLICAS", (4,))


def outcomes(figure: Figure) -> list[str]:
    return [bar.outcome for bar in figure.bars]


@pytest.mark.usefixtures("as_planned")
def test_what_scales_and_is_as_planned_meets_all_bars() -> None:
    figure = figure_11.figure_of(rounds_of(found()))
    assert outcomes(figure) == ["met", "met", "met"]
    measured, planned = figure.panels
    own = connections_of(figure_11.experiment().model)
    free, *_, linear = measured.lines
    assert [point.y for point in free.points] == pytest.approx([ONE * own / 1e9 * one for one in (1, 1.94, 3.6)])
    assert (linear.kind, linear.points[-1].y) == ("theory", pytest.approx(4 * free.points[0].y))
    assert [line.kind for line in planned.lines] == ["planned", "planned"]


@pytest.mark.usefixtures("as_planned")
@pytest.mark.parametrize(
    ("rates_by_setting", "missed"), [(found(four=0.7), [0, 1]), (found(without=0.9), [2]), (found(four=0.82), [0])]
)
def test_each_bar_can_be_missed(rates_by_setting: dict[Setting, float], missed: list[int]) -> None:
    figure = figure_11.figure_of(rounds_of(rates_by_setting))
    assert [at for at, outcome in enumerate(outcomes(figure)) if outcome == "missed"] == missed


def test_adams_machines_are_planned_with_servers_and_without() -> None:
    few, many = (figure_11._planned(count, rates(), SERVING, CORE) for count in (4, 22))
    assert few.rate <= few.rate_alone
    assert many.rate_alone == pytest.approx(5.5 * few.rate_alone)
    assert few.servers_too_few < many.servers_too_few
    half = figure_11._planned(4, rates(), SERVING, Core(5e9, 64, 100e9))
    assert half.rate_alone == pytest.approx(few.rate_alone / 2, rel=0.1)


def test_replicas_train_on_random_images_of_bytes(tmp_path: Path) -> None:
    write_examples(tmp_path / "examples.npz", 20)
    with np.load(tmp_path / "examples.npz") as arrays:
        assert (arrays["x_train"].shape, arrays["x_train"].dtype) == ((20, 64, 64, 3), np.uint8)
        assert arrays["y_train"].max() < 1000
    assert figure_11.experiment().model.input == (64, 64, 3)


def test_settings_alternate_within_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[Setting, int]] = []

    def round_of(setting: Setting, path: Path, link: float, seconds: float, number: int) -> dict[str, Any]:
        assert path.is_file()
        taken.append((setting, number))
        return {"examples_per_s": 1.0}

    monkeypatch.setattr(figure_11, "_round", round_of)
    monkeypatch.setattr(figure_11, "core_here", lambda: CORE)
    monkeypatch.setattr(figure_11, "measure_rates", lambda plans, batch: rates())
    monkeypatch.setattr(figure_11, "server_rates", lambda rule: SERVING)
    figure_11.measure(Session(FigureSettings(), Rounds()))
    settings = [Setting(count, kind) for kind in KINDS for count in REPLICAS]
    assert taken == [(setting, number) for number in range(1, ROUNDS + 1) for setting in settings]


def test_nothing_measured_is_said_to_be_missing() -> None:
    with pytest.raises(MissingRoundError, match="free-links/replicas-1"):
        figure_11.figure_of(rounds_of({}))
