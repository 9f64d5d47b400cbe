"""DistBelief's figure 3 as it is planned: which machine, which lines, and bars that can be missed."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.distbelief import figure_3_planned
from adamctl.bench.figures.distbelief.figure_3_planned import (
    FAST,
    LARGEST,
    MACHINES,
    NAMES,
    SPEECH,
    UNEVEN,
    panels_of,
    planned_bars,
    planned_curve,
    planned_rows,
    said_of_plans,
)
from adamctl.model.scaling.distbelief import MACHINE
from adamctl.model.scaling.speedup import ClusterMachine


def test_curves_start_at_one_and_more_spread_or_cuts_by_rows_make_them_lower() -> None:
    words, largest = planned_curve(SPEECH), planned_curve(LARGEST)
    assert words[1] == largest[1] == 1.0 and tuple(words) == MACHINES
    for other in (planned_curve(SPEECH, UNEVEN), planned_curve(LARGEST, by_rows=True)):
        assert all(other[count] < (words if other[2] < 1.5 else largest)[count] for count in (16, 81))
    assert planned_curve(SPEECH, FAST)[16] > words[16]


def test_the_plan_is_the_one_of_the_planner_and_its_bars_are_met() -> None:
    assert [bar.outcome for bar in planned_bars()] == ["met"] * 5
    assert "2.3 GHz" in next(said_of_plans())


Made = dict[str, list[float]]
GOOD: Made = {SPEECH: [1, 2, 3, 3.5, 3, 2, 1, 1, 1]}
GOOD |= {name: [1, 2, 3, 4, 5, 6, 7, 8 + place, 13] for place, name in enumerate(NAMES[1:])}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Curves as they are made up; a test may change them."""
    found = {name: list(values) for name, values in GOOD.items()}

    def curve(name: str, machine: ClusterMachine = MACHINE, by_rows: bool = False) -> dict[int, float]:
        return dict(zip(MACHINES, found[name], strict=True))

    monkeypatch.setattr(figure_3_planned, "planned_curve", curve)
    return found


@pytest.mark.parametrize(
    ("name", "count", "value", "missed"),
    [
        (SPEECH, 2, 3.6, [0]),
        (SPEECH, 8, 4.0, [1]),
        (LARGEST, 128, 9.0, [2]),
        (LARGEST, 81, 17.0, [2, 3]),
        (NAMES[1], 81, 9.5, [4]),
    ],
)
def test_each_bar_can_be_missed(made: Made, name: str, count: int, value: float, missed: list[int]) -> None:
    assert [bar.outcome for bar in planned_bars()] == ["met"] * 5
    made[name][MACHINES.index(count)] = value
    assert [n for n, bar in enumerate(planned_bars()) if bar.outcome == "missed"] == missed


def test_panels_have_all_networks_and_what_the_paper_says(made: Made) -> None:
    panels = list(panels_of())
    assert len(panels) == 3
    for panel in panels:
        assert [(claim.x, claim.y) for claim in panel.claims] == [(8, 2.2), (81, 12.0)]
        assert sum(line.kind == "planned" and not line.is_faint for line in panel.lines) == 4
    assert sum(line.is_faint for line in panels[0].lines) == 4
    assert "1,675 M parameters" in panels[0].lines[3].name
    columns, rows = planned_rows()
    assert len(rows) == len(MACHINES) and all(len(row) == len(columns) for row in rows)
