"""DistBelief figure 5 from runs that are made up."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.distbelief import figure_4, figure_5
from adamctl.bench.figures.distbelief.speech_methods import ADAGRAD, ADAGRAD_8, DOWNPOUR, TARGET
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.errors import ConfigurationError
from tests.bench.figures.distbelief.fake_speech import FakeTrainings


@pytest.fixture(autouse=True)
def plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans so many frames per second for each replica, without a simulation."""
    monkeypatch.setattr(figure_5, "planned_frames_per_s", lambda rounds, replicas: 110.0 * replicas)


def session(others: Rounds | None = None) -> Session:
    return Session(FigureSettings(), Rounds(), lambda name: Rounds() if others is None else others)


def test_every_setting_ends_at_the_target_and_has_the_rate_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTrainings(monkeypatch)
    here = session()
    figure_5.measure(here)
    names = [f"{family}-{replicas}" for replicas in (1, 2, 4, 8) for family in ("downpour", "adagrad", "lbfgs")]
    seeds = [f"{name}/seed-{seed}" for seed in (1, 2) for name in ("warm", *names)]
    assert list(here.rounds.to_json()["rounds"]) == ["rates", "server-rates", *seeds]
    for training, experiment in fake.trainings:
        if experiment.train.passes > 1:
            assert experiment.train.target == TARGET and training.seconds_most is not None
        if experiment.optimizer.type == "adagrad":
            assert experiment.optimizer.lr == ADAGRAD.rate


def test_runs_of_figure_4_are_used_again_where_the_rate_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTrainings(monkeypatch)
    before = session()
    monkeypatch.setattr(figure_4, "METHODS", (DOWNPOUR, ADAGRAD_8.with_rate(0.5)))
    figure_4.measure(before)
    fake.trainings.clear()
    figure_5.measure(session(before.rounds))
    assert "downpour-4/1" not in fake.names and "adagrad-8/1" in fake.names


def test_a_run_with_another_rate_is_no_run_of_this_figure_though_figure_4_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeTrainings(monkeypatch)
    before = session()
    monkeypatch.setattr(figure_4, "METHODS", (DOWNPOUR,))
    figure_4.measure(before)
    other = {"downpour-4/seed-1": before.rounds["downpour-4/seed-1"] | {"rate": 0.5}}
    mixed = session(before.rounds)
    mixed.rounds.take_over({"starts": [], "rounds": other, "done": False})
    with pytest.raises(
        ConfigurationError, match=r"downpour-4/seed-1: expected a run with the rate 0\.01; found .* 0\.5"
    ):
        figure_5.measure(mixed)


def test_bars_and_points(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrainings(monkeypatch)
    here = session()
    figure_5.measure(here)
    figure = figure_5.figure_of(here.rounds)
    assert [bar.outcome for bar in figure.bars] == ["met", "missed", "missed", "missed"]
    assert figure.bars[0].found == "all"
    assert figure.bars[3].found.startswith("1 of 4, ")
    machines, cores, speed = figure.panels
    assert [point.x for point in machines.lines[0].points] == [2, 3, 5, 9]
    assert [point.x for point in cores.lines[0].points] == pytest.approx([0.45, 0.6, 0.9, 1.5])
    assert machines.lines[0].points[0].y == 30.0 and not machines.lines[0].points[0].beyond
    plan = speed.lines[2]
    assert plan.kind == "planned" and [point.x for point in plan.points] == [1, 2, 4, 8, 16, 32, 64, 128, 200]


def test_a_setting_that_was_not_measured_is_missing() -> None:
    with pytest.raises(MissingRoundError, match="downpour-4/seed-1"):
        figure_5.figure_of(Rounds())


def test_the_least_time_is_of_whoever_gets_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ADAGRAD.rate is not None
    FakeTrainings(monkeypatch, bad_rate=ADAGRAD.rate)
    here = session()
    figure_5.measure(here)
    bar = figure_5.figure_of(here.rounds).bars[0]
    assert bar.outcome == "missed" and bar.found.startswith("the least has Sandblaster L-BFGS with 1, ")
    nobody = {key: {**value, "tested": []} for key, value in here.rounds.to_json()["rounds"].items() if "-" in key}
    rounds = Rounds()
    rounds.take_over({"starts": [], "rounds": nobody, "done": True})
    assert figure_5.figure_of(rounds).bars[0].found.startswith("the least has nobody with 1, ")


def test_a_setting_that_does_not_get_there_is_a_triangle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DOWNPOUR.rate is not None
    FakeTrainings(monkeypatch, bad_rate=DOWNPOUR.rate)
    here = session()
    figure_5.measure(here)
    figure = figure_5.figure_of(here.rounds)
    assert all(point.beyond for point in figure.panels[0].lines[0].points)
    assert figure.bars[1].outcome == "met" and "2 of 2 missed it with 8" in figure.bars[1].found
    assert figure.tables[0].rows[0][5] == "never, never"
