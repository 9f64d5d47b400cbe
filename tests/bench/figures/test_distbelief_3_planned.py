"""DistBelief's figure 3 as it is planned: which machine, which lines, and bars that can be missed."""

from __future__ import annotations

import pytest

from adamctl.bench.figures import distbelief_3_planned
from adamctl.bench.figures.distbelief_3_planned import (
    LARGEST,
    MACHINES,
    NAMES,
    SPEECH,
    machine_of,
    panels_of,
    planned_bars,
    planned_curve,
    planned_rows,
    said_of_plans,
)
from adamctl.bench.figures.paper_machines import DISTBELIEF, DISTBELIEF_SLOW_LINKS, Core
from adamctl.model.scaling.speedup import ClusterMachine

CORE = Core(clock_hz=4e9, operations_per_cycle=64, product_per_s=0.5 * 4e9 * 64)


def test_a_machine_does_the_share_of_its_peak_that_a_core_here_does() -> None:
    machine = machine_of(DISTBELIEF, CORE)
    assert machine.products_per_s == pytest.approx(0.5 * 20 * 2.5e9 * 8 / 2)
    assert (machine.link_bytes_per_s, machine.spread) == (1.25e9, 0.0)
    assert machine_of(DISTBELIEF_SLOW_LINKS, CORE, 0.2).link_bytes_per_s == 125e6
    assert "100 billion products a second" in next(said_of_plans(CORE))


def test_curves_start_at_one_and_slow_links_or_a_spread_make_them_lower() -> None:
    fast = planned_curve(SPEECH, machine_of(DISTBELIEF, CORE))
    assert fast[1] == 1.0 and tuple(fast) == MACHINES
    for other in (machine_of(DISTBELIEF_SLOW_LINKS, CORE), machine_of(DISTBELIEF, CORE, 0.2)):
        assert all(planned_curve(SPEECH, other)[count] < fast[count] for count in MACHINES[1:])


Made = dict[str, list[float]]
GOOD: Made = {SPEECH: [1, 2, 3, 3.5, 3, 2, 1, 1, 1]}
GOOD |= {name: [1, 2, 3, 4, 5, 6, 7, 8 + place, 13] for place, name in enumerate(NAMES[1:])}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Curves as they are made up; a test may change them."""
    found = {name: list(values) for name, values in GOOD.items()}

    def curve(name: str, machine: ClusterMachine, by_rows: bool = True) -> dict[int, float]:
        return dict(zip(MACHINES, found[name], strict=True))

    monkeypatch.setattr(distbelief_3_planned, "planned_curve", curve)
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
    assert [bar.outcome for bar in planned_bars(CORE)] == ["met"] * 5
    made[name][MACHINES.index(count)] = value
    assert [n for n, bar in enumerate(planned_bars(CORE)) if bar.outcome == "missed"] == missed


def test_panels_have_all_networks_and_what_the_paper_says(made: Made) -> None:
    panels = list(panels_of(CORE))
    assert len(panels) == 3
    for panel in panels:
        assert [(claim.x, claim.y) for claim in panel.claims] == [(8, 2.2), (81, 12.0)]
        assert sum(line.kind == "planned" and not line.is_faint for line in panel.lines) == 4
    assert sum(line.is_faint for line in panels[0].lines) == 4
    assert "1,675 M parameters" in panels[0].lines[3].name
    columns, rows = planned_rows(CORE)
    assert len(rows) == len(MACHINES) and all(len(row) == len(columns) for row in rows)
