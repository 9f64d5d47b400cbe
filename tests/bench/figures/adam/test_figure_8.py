"""Adam figure 8 from made-up rounds: what is measured of each network, and which limit a planned point has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adamctl.bench.figures.adam import figure_8
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Session

LOCK = {"predicted_speed_up": {"2": 2.0, "4": 3.9, "8": 7.5, "16": 14.0}, "held_share": 0.01}


def report_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns what `bench worker` would: 10 billion connections/s for each thread of the networks but speech."""
    rate = 20e9 if "speech" in arguments[2] else 10e9
    threads = [int(one) for one in arguments[arguments.index("--thread-counts") + 1].split(",")]
    rows = [
        {"threads": one, "connections_per_s": rate * (2.02 if one == 2 else one), "connections_per_example": 40e6}
        for one in threads
    ]
    return {"results": rows, "interpreter_lock": [LOCK]}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Rounds of a machine of two cores, whose cache holds a million parameters."""
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(figure_8, "command", lambda arguments: asked.append(arguments) or report_of(arguments))
    monkeypatch.setattr(figure_8, "available_cores", lambda: 2)
    monkeypatch.setattr(figure_8, "cache_bytes", lambda level: 4_000_000)
    monkeypatch.setattr(figure_8, "memory_limit", lambda threads: type("Limit", (), {"measure": lambda s, t: 83.5e9})())
    rounds = Rounds()
    figure_8.measure(Session(FigureSettings(is_quick=True), rounds))
    assert len(asked) == 2 * 3 and all(one[:2] == ("bench", "worker") for one in asked)
    return rounds


def test_measured_points_and_bars(rounds: Rounds) -> None:
    figure = figure_8.figure_of(rounds)
    (panel,) = figure.panels
    assert panel.title == "batches of 32"
    lines = {line.name: line for line in panel.lines if line.kind == "measured"}
    assert [(point.x, point.y) for point in lines["speech"].points] == [(1, 20.0), (2, pytest.approx(40.4))]
    assert [bar.outcome for bar in figure.bars] == ["met"] * 3
    assert "with 2 threads, above linear in every round: mnist in batches of 32 (2.020)" in figure.sentences[0]


def test_the_lock_limits_what_a_cache_holds_and_memory_what_none_does(rounds: Rounds) -> None:
    (panel,) = figure_8.figure_of(rounds).panels
    beyond = {line.name: [point.y for point in line.points[1:]] for line in panel.lines if line.kind == "planned"}
    assert beyond["mnist, planned"] == [pytest.approx(10 * one) for one in (3.9, 7.5, 14.0)]
    parameters = rounds[figure_8.SETTINGS]["parameters"]["speech"]
    allowed = 83.5e9 / (figure_8.PASSES * 4 * parameters) * 32 * 40e6 / 1e9
    assert 78 < allowed < 160
    assert beyond["speech, planned"] == [pytest.approx(one) for one in (78, allowed, allowed)]


def test_a_bar_is_missed_below_its_limit(rounds: Rounds) -> None:
    for one in rounds.under("speech, batch 32"):
        one["connections_per_s"]["2"] = 37e9
    figure = figure_8.figure_of(rounds)
    assert [bar.outcome for bar in figure.bars] == ["met", "met", "missed"] and "1.85" in figure.bars[2].found


def test_rounds_that_are_not_there_are_told(rounds: Rounds) -> None:
    fewer = Rounds()
    for key in rounds.to_json()["rounds"].keys() - {"mnist, batch 32/round-1", "mnist, batch 32/round-2"}:
        fewer.take(key, lambda key=key: rounds[key])
    with pytest.raises(MissingRoundError, match="expected the round mnist, batch 32/round-1"):
        figure_8.figure_of(fewer)
