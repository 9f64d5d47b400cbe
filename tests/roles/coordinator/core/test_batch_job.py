"""What is saved and shown of a batch algorithm, on servers and workers in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.roles.coordinator.core.batch_job import BatchJob, BatchSnapshot, Phases
from adamctl.roles.coordinator.core.batch_run import BatchRun
from tests.roles.coordinator.core.batch_cluster import BatchCluster, quadratic

SIZE, EXAMPLES, BUDGET = 24, 7, 6


def start(budget: int) -> Callable[[Progress | None], Execution]:
    return lambda committed: Execution(lbfgs, LBFGSSettings(history=3), budget=budget, committed=committed)


class Cluster(BatchCluster):
    """A cluster whose run is that of a job."""

    def __init__(self, snapshot: BatchSnapshot | None = None, budget: int = BUDGET, **given: Any) -> None:
        part, x = quadratic(SIZE, EXAMPLES)
        super().__init__(lbfgs, LBFGSSettings(history=3), part, x, EXAMPLES, budget=budget, **given)
        self.job = BatchJob("lbfgs", start(budget), self.run.book.bundles, len(self.buckets), snapshot)
        self.run: BatchRun = self.job.run

    def resumed(self, budget: int) -> Cluster:
        """A new job on the vectors of this one, as from a checkpoint of its last commit."""
        snapshot = msgspec.json.decode(msgspec.json.encode(self.job.snapshot()), type=BatchSnapshot)
        other = Cluster(snapshot, budget, buckets=len(self.buckets))
        for bucket, before in zip(other.buckets, self.buckets, strict=True):
            bucket.kept = {name: value.copy() for name, value in before.kept.items()}
        return other


def test_what_is_shown_is_what_the_last_commit_said() -> None:
    one = Cluster()
    one.to_the_end()
    found = one.job.progress()
    state = one.job.committed.state
    assert (found.iterations, found.loss, found.step) == (state["iteration"], state["loss"], state["step"])
    assert (found.evaluations, found.stop_reason) == (BUDGET, "budget")
    assert found.bundles == found.bundles_total == 4
    assert one.job.passes == BUDGET
    assert one.job.loss == pytest.approx(state["loss"]), "there is no L2 term"


def test_a_run_goes_on_from_its_snapshot_as_if_it_had_not_stopped() -> None:
    straight = Cluster(budget=10)
    straight.to_the_end()
    one = Cluster()
    one.to_the_end()
    other = one.resumed(budget=10)
    assert other.job.progress().iterations == one.job.progress().iterations
    other.to_the_end()
    assert other.x.tobytes() == straight.x.tobytes()
    assert other.job.progress().evaluations == 10
    assert other.job.progress().iterations == straight.job.progress().iterations


def test_no_commit_is_named_while_shards_may_be_at_different_ones() -> None:
    one = Cluster(buckets=2)
    seen: list[tuple[int | None, int, int]] = []
    answer = one.answer

    def watch(order: Any) -> None:
        seen.append((one.job.commit, *(bucket.commit for bucket in one.buckets)))
        answer(order)
        seen.append((one.job.commit, *(bucket.commit for bucket in one.buckets)))

    one.answer = watch  # type: ignore[method-assign]
    one.to_the_end()
    assert any(commit is None for commit, *_ in seen)
    assert all(commit in (None, least) and (commit is None or least == most) for commit, least, most in seen)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_what_was_counted_before_the_history_was_dropped_counts(seed: int) -> None:
    one = Cluster(budget=60, seed=seed, faults=0.02, rolls_back=True, buckets=3)
    shown: list[int] = []
    answer = one.answer

    def watch(order: Any) -> None:
        answer(order)
        shown.append(one.job.progress().iterations or 0)

    one.answer = watch  # type: ignore[method-assign]
    one.to_the_end()
    assert shown == sorted(shown), "iterations are never counted back"
    assert one.job.restarts, "choose a seed in which stores go back"
    other = one.resumed(budget=70)
    assert other.job.restarts == one.job.restarts
    assert other.job.progress().iterations == one.job.progress().iterations


def test_seconds_are_those_of_commands_and_of_evaluations() -> None:
    phases = Phases(command_s=1.0, evaluation_s=2.0)
    for phase, now_s in (
        ("rest", 10.0),
        ("commands", 20.0),
        ("evaluation", 20.5),
        ("evaluation", 21.0),
        ("rest", 24.5),
    ):
        phases.enter(phase, now_s)  # type: ignore[arg-type]
    phases.enter("rest", 99.0)
    assert (phases.command_s, phases.evaluation_s) == (1.5, 6.0)
