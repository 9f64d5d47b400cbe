"""What a picture of runs shows: which panels there are, whose lines are in them, and how their axes go."""

from __future__ import annotations

import pytest

from adamctl.launch.run_curves import Curves, Point
from adamctl.launch.run_panels import BOTH, EVALUATIONS, PASSES, SECONDS, panels


def downpour(*losses: float) -> Curves:
    return Curves(training=[Point(n + 1.0, n + 5.0, loss) for n, loss in enumerate(losses)])


def test_losses_over_passes_and_over_seconds_and_nothing_that_was_not_measured() -> None:
    found = panels([downpour(2.0, 1.0)])
    assert [(panel.what, panel.over) for panel in found] == [("loss", PASSES), ("loss", SECONDS)]
    assert [panel.lines[0].x for panel in found] == [(1.0, 2.0), (5.0, 6.0)]
    assert found[0].lines[0].y == (2.0, 1.0)


def test_every_run_has_its_lines_in_every_panel_that_it_measured() -> None:
    first, second = downpour(2.0), downpour(1.0)
    second.held_out, second.metric_values = [Point(1.0, 5.0, 1.5)], [Point(1.0, 5.0, 0.5)]
    second.rate = second.staleness = second.waiting_share = [Point(1.0, 5.0, 0.25)]
    found = panels([first, second])
    assert [panel.row for panel in found] == [0, 0, 1, 1, 2, 2, 2]
    assert [(line.run, line.held_out) for line in found[0].lines] == [(0, False), (1, False), (1, True)]
    assert all([line.run for line in panel.lines] == [1] for panel in found[2:])
    assert [panel.share for panel in found] == [False, False, True, True, False, False, True]


def test_runs_of_several_metrics_have_a_row_for_each() -> None:
    first, second = downpour(2.0), downpour(1.0)
    first.metric_values, second.metric_values = [Point(1.0, 5.0, 0.5)], [Point(1.0, 5.0, 7.0)]
    second.metric = "rmse"
    second.rate = [Point(1.0, 5.0, 0.25)]
    found = panels([first, second])
    assert [(one.row, one.what, one.share, [line.run for line in one.lines]) for one in found[2::2]] == [
        (1, "top-1", True, [0]),
        (2, "rmse", False, [1]),
        (3, "training examples per second", False, [1]),
    ]


def test_the_horizontal_axis_says_what_is_counted() -> None:
    batch = Curves("lbfgs", training=[Point(1.0, 1.0, 1.0)])
    assert panels([batch])[0].over == EVALUATIONS
    assert panels([batch, downpour(1.0)])[0].over == BOTH


@pytest.mark.parametrize(
    ("losses", "log"), [((2.0, 1.0), False), ((100.0, 0.0), False), ((3.0, -1.0), False), ((1.0, 0.1), True)]
)
def test_losses_far_apart_and_above_0_are_on_a_logarithmic_axis(losses: tuple[float, ...], log: bool) -> None:
    assert {panel.log for panel in panels([downpour(*losses)])} == {log}
    assert {panel.log for panel in panels([downpour(loss) for loss in losses])} == {log}, "of all runs together"
