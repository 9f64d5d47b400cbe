"""DistBelief figure 3 from made-up rounds: speed-ups of each round, beside what is predicted for each point."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from adamctl.bench.figures.distbelief import figure_3
from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.paper_machines import Core
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.model.partition.rates import Rate, Rates

CORE = Core(clock_hz=4e9, operations_per_cycle=64, product_per_s=0.6 * 4e9 * 64)
KINDS = ("dense", "softmax", "local2d", "l2pool2d", "local_contrast_norm", "logistic")
RATES = Rates(1 << 20, 1 << 25, 1e9, tuple(Rate(kind, kind, 1 << 20, 32, 1e10) for kind in KINDS))


def report_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns what `bench partition` would: two machines 1.5 times one, four twice, over links a tenth less."""
    rows = [{"partitions": 1, "flights": 0, "link_mbit_per_s": None, "images_per_s": 100.0}]
    counts = [int(one) for one in arguments[arguments.index("--flight-counts") + 1].split(",")]
    link = float(arguments[arguments.index("--link") + 1].removesuffix("Mbit"))
    rows += [
        {"partitions": p, "flights": f, "link_mbit_per_s": limit, "images_per_s": speed * (0.9 if limit else 1.0)}
        for p, speed in ((2, 150.0), (4, 200.0))
        for f in counts
        for limit in (None, round(link, 2))
    ]
    return {"results": rows}


@pytest.fixture(scope="module")
def taken() -> Rounds:
    asked: list[Sequence[str]] = []
    rounds = Rounds()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(figure_3, "command", lambda arguments: asked.append(arguments) or report_of(arguments))
        monkeypatch.setattr(figure_3, "core_here", lambda: CORE)
        monkeypatch.setattr(figure_3, "measure_rates", lambda plans, batch: RATES)
        figure_3.measure(Session(FigureSettings(is_quick=True), rounds))
    assert len(asked) == 2 * 2 and all(one[one.index("--quota") + 1] == "0.4" for one in asked)
    return rounds


@pytest.fixture
def rounds(taken: Rounds) -> Rounds:
    """Rounds of its own, which a test may change."""
    rounds = Rounds()
    rounds.take_over(deepcopy(taken.to_json()))
    return rounds


@pytest.fixture
def figure(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """Without its plans, which have a test of their own and take a while."""
    for name in ("planned_bars", "panels_of"):
        monkeypatch.setattr(figure_3, name, lambda: iter(()))
    monkeypatch.setattr(figure_3, "planned_rows", lambda: (("machines",), ()))
    return figure_3.figure_of(rounds)


def test_speed_ups_are_over_one_machine_of_the_same_round(figure: Figure) -> None:
    (panel,) = figure.panels
    lines = {line.name: [(point.x, round(point.y, 3)) for point in line.points] for line in panel.lines}
    assert lines["speech, one flight"] == [(1, 1), (2, 1.35), (4, 1.8)]
    assert lines["speech, one flight, links without a limit"] == [(1, 1), (2, 1.5), (4, 2.0)]
    assert lines["images, 8 nodes, 64 x 64, 2 flights"] == [(1, 1), (2, 1.35), (4, 1.8)]
    assert {line.kind for line in panel.lines if line.name.endswith("predicted")} == {"planned"}


def test_every_measured_point_is_held_to_its_prediction(rounds: Rounds, figure: Figure) -> None:
    assert [bar.outcome for bar in figure.bars] == ["missed", "missed"]
    for network in figure_3.NETWORKS:
        predicted = rounds[f"predicted: {network.name}"]
        assert len(predicted) == 9 and predicted[0] < predicted[5], "one machine is slower than four"
        assert predicted[2] < predicted[1], "a link is slower than none"
        for place, (_, rates) in enumerate(figure_3._settings(rounds.under(network.name))):
            predicted[place] = rates[0] / (1.15 if place == 3 else 1.05)
    bars = figure_3.figure_of(rounds).bars
    assert [bar.outcome for bar in bars] == ["met", "missed"]
    assert bars[1].found == "16 of 18, the furthest at 1.15"


def test_links_have_the_paper_s_ratio_of_transfer_to_compute(rounds: Rounds) -> None:
    assert rounds["settings"]["link_bytes_per_s"] == pytest.approx(125e6 * 0.4 * 4e9 * 64 / (16 * 2.3e9 * 8), rel=0.01)


def test_rounds_that_are_not_there_are_told(rounds: Rounds) -> None:
    fewer = Rounds()
    for key in rounds.to_json()["rounds"].keys() - {"speech/round-1", "speech/round-2"}:
        fewer.take(key, lambda key=key: rounds[key])
    with pytest.raises(MissingRoundError, match="expected the round speech/round-1"):
        figure_3.figure_of(fewer)
