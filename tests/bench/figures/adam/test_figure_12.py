"""Adam's figure 12: which runs it asks for, and when accuracy is said to rise with size, less and less."""

from __future__ import annotations

import pytest

from adamctl.bench.figures import trained
from adamctl.bench.figures.adam import figure_12
from adamctl.bench.figures.adam.figure_12 import CONNECTIONS, SEEDS
from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.runs import Training, example
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.config.load import load_experiment, parse_setting
from adamctl.model.shapes import infer
from tests.bench.figures.fake_trainings import FakeTrainings, TopOne


def measured(monkeypatch: pytest.MonkeyPatch, top1: TopOne) -> tuple[FakeTrainings, Rounds]:
    fake, rounds = FakeTrainings(top1), Rounds()
    monkeypatch.setattr(trained, "train_several", fake)
    figure_12.measure(Session(FigureSettings(), rounds))
    return fake, rounds


def of_sizes(*top1: float, spread: float = 0.001) -> TopOne:
    """Accuracy by size; each seed has its own luck with all sizes, and a little of its own with each."""
    widths = list(CONNECTIONS)

    def run(key: str, training: Training) -> float:
        at = next(at for at, width in enumerate(widths) if key.startswith(f"width-{width:g}/"))
        return top1[at] + 0.01 * training.seed + spread * ((training.seed + at) % 2 - 0.5)

    return run


def outcomes(figure: Figure) -> list[str]:
    return [bar.outcome for bar in figure.bars]


@pytest.mark.parametrize("width", CONNECTIONS)
def test_connections_are_those_of_the_shapes(width: float) -> None:
    settings = [parse_setting(f"{key}={value}") for key, value in figure_12.settings_of(width).items()]
    model = load_experiment(example("caltech.toml"), settings=settings).experiment.model
    assert sum(shape.connections for shape in infer(model)) == CONNECTIONS[width]


def test_all_sizes_train_alike_with_the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, _ = measured(monkeypatch, of_sizes(0.8, 0.85, 0.87))
    assert len(fake.ran) == len(CONNECTIONS) * len(SEEDS)
    assert [one.seed for one in fake.ran.values()] == [seed for seed in SEEDS for _ in CONNECTIONS]
    varied = {key for one in fake.ran.values() for key in one.settings}
    assert {key.rpartition(".")[2] for key in varied} == {"filters", "units"}


def test_what_rises_less_and_less_meets_all_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, of_sizes(0.8, 0.85, 0.87))
    assert outcomes(figure_12.figure_of(rounds)) == ["met", "met", "met"]


def test_what_rises_more_and_more_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, of_sizes(0.8, 0.81, 0.87))
    assert outcomes(figure_12.figure_of(rounds)) == ["met", "met", "missed"]


def test_a_rise_that_is_smaller_than_its_error_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, of_sizes(0.8, 0.85, 0.8501, spread=0.01))
    assert outcomes(figure_12.figure_of(rounds))[:2] == ["met", "not settled"]


def test_each_seed_is_a_small_point_and_means_have_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, of_sizes(0.8, 0.85, 0.87))
    (panel,) = figure_12.figure_of(rounds).panels
    seeds, means = panel.lines
    assert (seeds.kind, len(seeds.points)) == ("seeds", len(CONNECTIONS) * len(SEEDS))
    assert [point.x for point in means.points] == [pytest.approx(count / 1e6) for count in CONNECTIONS.values()]
    assert means.points[0].y == pytest.approx(100 * (0.8 + 0.045), abs=0.1)
    assert all(point.low is not None and point.low < point.y for point in means.points)


def test_nothing_measured_is_said_to_be_missing() -> None:
    with pytest.raises(MissingRoundError, match="width-"):
        figure_12.figure_of(Rounds())
