"""DistBelief figure 4 from runs that are made up."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.distbelief import figure_4
from adamctl.bench.figures.distbelief.speech_methods import DOWNPOUR, METHODS, TARGET
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Session
from tests.bench.figures.distbelief.fake_speech import WARM_S, FakeTrainings


def measured(monkeypatch: pytest.MonkeyPatch, *, is_quick: bool = False, bad_rate: float = 0.0) -> Rounds:
    FakeTrainings(monkeypatch, bad_rate)
    rounds = Rounds()
    figure_4.measure(Session(FigureSettings(is_quick=is_quick), rounds))
    return rounds


def test_methods_alternate_within_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = list(measured(monkeypatch).to_json()["rounds"])
    names = [METHODS[0].name, "warm", *(method.name for method in METHODS[1:])]
    assert rounds == [f"{name}/seed-{seed}" for seed in (1, 2, 3) for name in names]


def test_the_order_of_times_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = figure_4.figure_of(measured(monkeypatch))
    assert [bar.outcome for bar in figure.bars] == ["met", "met", "met", "met", "met"]
    assert [len(panel.lines) for panel in figure.panels] == [5, 5]
    first = figure.panels[1].lines[0].points[0]
    assert figure.panels[0].lines[0].points[0].y == pytest.approx(TARGET - 0.04)
    assert first.x == WARM_S and {first.y, first.low, first.high} == {TARGET - 0.05}
    assert [row[4] for row in figure.tables[0].rows] == [
        "20 (20 to 20)", "19 (19 to 19)", "14 (14 to 14)", "13 (13 to 13)", "14 (14 to 14)",
    ]  # fmt: skip


def test_a_run_that_does_not_get_there_counts_with_its_whole_time_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DOWNPOUR.rate is not None
    figure = figure_4.figure_of(measured(monkeypatch, bad_rate=DOWNPOUR.rate))
    assert figure.bars[0].outcome == "missed" and figure.bars[1].outcome == "met"
    assert figure.tables[0].rows[1][4] == "210 (210 to 210), 3 never"
    assert any(f"{DOWNPOUR.title}, seed 2 (diverged)" in sentence for sentence in figure.sentences)


def test_a_method_that_was_not_measured_is_missing() -> None:
    with pytest.raises(MissingRoundError, match="sgd/seed-1"):
        figure_4.figure_of(Rounds())


def test_one_seed_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = figure_4.figure_of(measured(monkeypatch, is_quick=True))
    assert {bar.outcome for bar in figure.bars} == {"not settled"}
