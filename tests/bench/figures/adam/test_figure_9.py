"""Adam figure 9 from made-up rounds: what each line is, what bounds its plan, and the bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from adamctl.bench.figures.adam import figure_9
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Session

RATES = {"push": 0.5, "local, 1 delta": 2.0, "factors": 40.0, "local, factors": 45.0}


def report_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns what `bench ps-throughput` would: more threads help factors alone, memory moves 36 GB/s."""
    if "--link" in arguments:
        assert arguments[arguments.index("--link") + 1] == "10Gbit"
        rows = [{"mode": "push", "apply_threads": one, "g_updates_per_s": 0.29 + one / 100} for one in (1, 2)]
        return {"results": rows}
    return {
        "results": [
            {
                "mode": mode, "apply_threads": one, "g_updates_per_s": rate * (one if "factors" in mode else 1),
                "limit_gb_per_s": 36.0 if mode.startswith("local, 1") else 1.0,
            }
            for mode, rate in RATES.items()
            for one in (1, 2)
        ]
    }  # fmt: skip


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    monkeypatch.setattr(figure_9, "command", report_of)
    monkeypatch.setattr(figure_9, "available_cores", lambda: 2)
    rounds = Rounds()
    figure_9.measure(Session(FigureSettings(is_quick=True), rounds))
    return rounds


def test_measured_and_planned_of_each_case(rounds: Rounds) -> None:
    (panel,) = figure_9.figure_of(rounds).panels
    lines = {(line.color, line.kind): [(point.x, round(point.y, 3)) for point in line.points] for line in panel.lines}
    assert lines[0, "measured"] == [(1, 0.5), (2, 0.5)]
    assert lines[0, "planned"] == [(2, 0.5), (4, 2.0), (8, 3.0), (16, 3.0)]  # 36 GB/s over 12 bytes
    assert lines[1, "planned"] == [(2, 0.31), *((count, 0.299) for count in (4, 8, 16))]  # 1.25 GB/s by TCP, over 4
    assert lines[3, "planned"] == [(2, 80.0), (4, 160.0), (8, 320.0), (16, 640.0)]
    assert [(claim.kind, claim.x or claim.y) for claim in panel.claims] == [("level", 13.0), ("vertical", 8)]


def test_bars(rounds: Rounds) -> None:
    bars = figure_9.figure_of(rounds).bars
    assert [bar.outcome for bar in bars] == ["met"] * 5
    assert [bar.what.partition(":")[0] for bar in bars] == [
        "factors over TCP on loopback, two threads over one", "factors, no network, two threads over one",
        "weights over a link of 10 Gbit/s, threads", "weights over a link of 10 Gbit/s, threads",
        "factors over TCP on loopback, threads",
    ]  # fmt: skip
    for rows in (*rounds.under("servers"), *rounds.under("link")):
        for row in rows:
            row["g_updates_per_s"] = {"push": 0.4}.get(row["mode"], 12.0)
    assert [bar.outcome for bar in figure_9.figure_of(rounds).bars] == ["missed"] * 5


def test_it_says_how_updates_are_counted(rounds: Rounds) -> None:
    assert "128 examples to 4096 x 4096 weights is 2.1 billion" in figure_9.figure_of(rounds).sentences[0]


def test_rounds_that_are_not_there_are_told(rounds: Rounds) -> None:
    fewer = Rounds()
    for key in rounds.to_json()["rounds"].keys() - {"servers/round-1", "servers/round-2"}:
        fewer.take(key, lambda key=key: rounds[key])
    with pytest.raises(MissingRoundError, match="expected the round servers/round-1"):
        figure_9.figure_of(fewer)
