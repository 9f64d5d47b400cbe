"""What an experiment asks of its coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adamctl.model.partition.work import SLOTS_PER_THREAD
from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.ranges import ranges_most
from adamctl.roles.coordinator.plan import run_plan
from adamctl.roles.worker.partition.engine import slots_per_flight
from tests.roles.coordinator.played_run import make_experiment
from tests.roles.coordinator.simulation import Simulation, plan


def planned(tmp_path: Path, **train: Any) -> events.RunPlan:
    return run_plan(make_experiment(tmp_path, train=train), "j", 1.0, tended=False)


def test_open_flights_have_no_more_slots_than_are_counted() -> None:
    assert all(flights * slots_per_flight(1, flights) <= max(SLOTS_PER_THREAD, 2 * flights) for flights in range(1, 9))


def test_a_range_that_is_reported_without_an_answer_leaves_nothing_unanswered(tmp_path: Path) -> None:
    assert planned(tmp_path, n_push=1).unanswered_batches == 0
    assert planned(tmp_path, n_push=5).unanswered_batches == 5 * SLOTS_PER_THREAD


def test_ranges_that_wait_for_servers_come_on_top_of_those_that_are_read_ahead() -> None:
    assert ranges_most(plan(range_batches=1), 2, 4) == 8
    assert ranges_most(plan(range_batches=1, unanswered_batches=12), 2, 4) == 8 + 24
    assert ranges_most(plan(range_batches=8, unanswered_batches=12), 2, 8 * 4) == 8 + 3


@pytest.mark.parametrize("unanswered", [0, 12])
def test_a_worker_computes_while_servers_have_not_answered(unanswered: int) -> None:
    """It reports nothing, because all of its gradients wait, and is given what fits its slots all the same."""
    run = Simulation(1, plan(range_batches=1, unanswered_batches=unanswered, workers=1))
    worker = run.add_worker("w")
    given = 0
    for _ in range(40):
        run.ask(worker, 1, 0.0)
        given += len(worker.tasks)
        worker.tasks.clear()
    assert given == 6 + unanswered
