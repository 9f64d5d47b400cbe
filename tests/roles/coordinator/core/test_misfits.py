"""A run with workers that cannot be used goes on without them, or fails with the reason; a bad moment ends nothing."""

from __future__ import annotations

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import WriteCheckpoint
from adamctl.roles.coordinator.core.lobby import MIX_AFTER_S
from adamctl.roles.coordinator.core.misfits import ATTEMPTS_MAX, NODES_REMEMBERED_MAX, OTHERS_WITHIN_S, Misfits
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import TaskReport
from tests.roles.coordinator.core.grouped_run import GroupedRun

RIGHT, OTHER = "a" * 8, "b" * 8
APART = "was not reached within 30 s: connection refused"


def spoil(run: GroupedRun, epoch: int, reporter: str = "w1", partition: int = 1) -> None:
    run.drop(reporter, epoch, partition, APART, fault="unreachable")


def spoilt(run: GroupedRun, times: int) -> None:
    """Groups of the same two processes that do not reach each other."""
    for _ in range(times):
        spoil(run, run.grouped("w1", "w2"))


class TestOtherPlans:
    def test_a_run_whose_only_other_member_has_another_plan_fails_and_names_both(self) -> None:
        run = GroupedRun(partitions=2, plan_hash=RIGHT)
        epoch = run.grouped("w1", "w2")
        run.refused(run.watch("w2", epoch, plan_hash=OTHER))
        run.join("w1", wait_s=100.0)
        run.wait(OTHERS_WITHIN_S - 0.1)
        assert not run.core.run.final_state
        run.wait(0.2)
        assert run.core.run.final_state == "failed" and run.core.run.ending is not None
        assert run.core.run.ending.reason == "misfit"
        assert f"worker w2 has partition plan {OTHER}, run sim has {RIGHT}" in run.core.run.cause

    def test_one_that_says_so_itself_stays_out_and_another_takes_its_place(self) -> None:
        run = GroupedRun(partitions=2, plan_hash=RIGHT)
        run.drop("w2", run.grouped("w1", "w2"), 1, "this worker derives another layout", fault="unfit")
        code, text = run.refused(run.join("w2"))
        assert code == ErrorCode.PLAN_MISMATCH and text == "partition 1 (w2): this worker derives another layout"
        epoch = run.grouped("w1", "w3")
        run.ask("w1", epoch)
        run.lose("w3")
        run.wait(2 * OTHERS_WITHIN_S)
        assert not run.core.run.final_state, "that another member dies later has nothing to do with it"

    def test_what_was_trained_is_saved_first(self) -> None:
        run = GroupedRun(partitions=2, plan_hash=RIGHT)
        epoch = run.grouped("w1", "w2")
        (task,) = run.tasks(run.ask("w1", epoch)).train
        report = TaskReport(task.id, task.stop - task.start, 1.0, 0, 2)
        run.ask("w1", epoch, wanted=0, wait_s=0.0, reports=[report])
        run.lose("w2")
        run.drop("w3", run.grouped("w1", "w3"), 1, "this worker derives another layout", fault="unfit")
        run.now_s += OTHERS_WITHIN_S
        (order,) = [one for one in run.step(events.Tick()) if isinstance(one, WriteCheckpoint)]
        assert order.snapshot.examples == task.stop - task.start and not run.core.run.final_state
        run.step(events.CheckpointWritten(order.number))
        assert run.core.run.final_state == "failed"

    def test_a_worker_that_joins_with_another_plan_is_the_reason_if_nobody_else_comes(self) -> None:
        run = GroupedRun(partitions=2, plan_hash=RIGHT)
        run.refused(run.join("w1", plan_hash=OTHER))
        run.wait(OTHERS_WITHIN_S)
        assert run.core.run.final_state == "failed"


class TestOutOfReach:
    def test_the_same_two_processes_have_several_groups_and_then_the_run_fails(self) -> None:
        run = GroupedRun(partitions=2)
        spoilt(run, ATTEMPTS_MAX - 1)
        run.wait(10 * OTHERS_WITHIN_S)
        assert not run.core.run.final_state
        spoilt(run, 1)
        code, text = run.refused(run.join("w2"))
        assert code == ErrorCode.NEIGHBOUR_UNREACHABLE
        reported = f"partition 1 (w2): {APART}, as partition 0 (w1) reports"
        assert text == f"{reported}; so {ATTEMPTS_MAX} replicas in a row could not begin"
        run.wait(OTHERS_WITHIN_S)
        assert run.core.run.final_state == "failed" and run.core.run.cause == text

    def test_another_process_of_the_same_name_counts_from_zero(self) -> None:
        run = GroupedRun(partitions=2)
        spoilt(run, ATTEMPTS_MAX - 1)
        run.join("w2", incarnation=2)
        spoil(run, run.seat(run.join("w1")).group_epoch)
        run.wait(OTHERS_WITHIN_S)
        assert not run.core.run.final_state and run.waits(run.join("w2", incarnation=2))

    def test_a_group_that_began_shows_that_they_reach_each_other(self) -> None:
        run = GroupedRun(partitions=2)
        for _ in range(2 * ATTEMPTS_MAX):
            spoilt(run, ATTEMPTS_MAX - 1)
            epoch = run.grouped("w1", "w2")
            run.ask("w1", epoch)
            spoil(run, epoch)  # it is not at its beginning: a member may just have died
        run.wait(OTHERS_WITHIN_S)
        assert not run.core.run.final_state

    def test_spares_come_before_both(self) -> None:
        run = GroupedRun(partitions=2)
        spoilt(run, 1)
        tokens = [run.join(f"w{number}", host=f"h{number}") for number in range(1, 5)]
        run.wait(MIX_AFTER_S)
        assert run.nodes(tokens[-1]) == ["w3", "w4"]

    def test_other_replicas_go_on(self) -> None:
        run = GroupedRun(partitions=2, workers=2)
        run.ask("a", run.grouped("a", "b"), wait_s=1000.0, wanted=0)
        spoilt(run, ATTEMPTS_MAX)
        run.wait(OTHERS_WITHIN_S)
        assert not run.core.run.final_state
        assert run.refused(run.join("w2"))[0] == ErrorCode.NEIGHBOUR_UNREACHABLE


def test_what_is_remembered_is_bounded() -> None:
    misfits = Misfits()
    for number in range(NODES_REMEMBERED_MAX + 5):
        misfits.add((f"w{number}", 1), ErrorCode.PLAN_MISMATCH, "another plan", 0.0)
    assert misfits.find(("w4", 1)) is None and misfits.find(("w5", 1)) is not None
    assert misfits.find(("w5", 2)) is None, "another process may have another version"
