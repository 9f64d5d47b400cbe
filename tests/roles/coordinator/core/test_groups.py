"""Replicas of several workers: groups, their leads, and what becomes of them when a member is lost."""

from __future__ import annotations

import pytest

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.group_book import ENDED_KEPT_MAX
from adamctl.roles.coordinator.core.instructions import Confirm
from adamctl.roles.coordinator.core.lobby import MIX_AFTER_S
from adamctl.roles.coordinator.core.report import run_progress
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import TaskReport
from tests.roles.coordinator.core.grouped_run import GroupedRun


class TestALeadStandsForItsGroup:
    def test_it_alone_gets_ranges(self) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        assert run.tasks(run.ask("w1", epoch)).train
        code, text = run.refused(run.ask("w2", epoch))
        assert code == ErrorCode.STALE_GROUP and text == "partition 1 (w2) takes no ranges; the lead of group 1 is w1"

    def test_requests_of_an_old_group_are_refused_and_reports_of_what_it_had_done_count_once(self) -> None:
        run = GroupedRun(partitions=2, batch=4)
        old = run.grouped("w1", "w2")
        (task,) = run.tasks(run.ask("w1", old)).train
        run.lose("w2")
        new = run.grouped("w1", "w3")
        done = TaskReport(task.id, task.stop - task.start, 1.0, 0, 2)
        code, text = run.refused(run.ask("w1", old, reports=[done]))
        assert code == ErrorCode.STALE_GROUP
        assert text == "group 1 is dissolved: partition 1 (w2): its connection closed; join again"
        assert run.core.run.tally.examples == task.stop - task.start
        assert run.core.run.workers["w1", 1].examples == 0, "of the new group nothing is done yet"
        (other,) = run.tasks(run.ask("w1", new)).train
        assert (other.pass_number, other.start) != (task.pass_number, task.start)

    def test_steps_of_an_old_group_are_refused(self) -> None:
        run = GroupedRun(partitions=2, max_staleness=2)
        old = run.grouped("w1", "w2")
        run.ask("w1", old)
        assert run.limit(run.ask_step("w1", old, 0, 1)) >= 1
        run.lose("w2")
        new = run.grouped("w1", "w3")
        run.ask("w1", new)
        assert run.refused(run.ask_step("w1", old, 0, 1))[0] == ErrorCode.STALE_GROUP
        assert run.refused(run.ask_step("w3", new, 0, 1))[0] == ErrorCode.STALE_GROUP
        assert run.limit(run.ask_step("w1", new, 0, 1)) >= 1

    def test_replicas_in_step_begin_when_all_groups_are_there(self) -> None:
        run = GroupedRun(partitions=2, workers=2, in_step=True)
        first = run.grouped("w1", "w2")
        waiting = run.ask("w1", first, wait_s=50.0)
        assert run.waits(waiting)
        second = run.grouped("w3", "w4")
        parts = [*run.tasks(waiting).train, *run.tasks(run.ask("w3", second)).train]
        assert {(part.step, part.part, len(part.batches)) for part in parts if part.step == 1} == {(1, 0, 2), (1, 1, 2)}

    def test_a_replica_in_step_is_given_the_parts_of_a_dissolved_one(self) -> None:
        run = GroupedRun(partitions=2, workers=2, in_step=True)
        first, second = run.grouped("w1", "w2"), run.grouped("w3", "w4")
        lost = run.tasks(run.ask("w1", first)).train
        run.ask("w3", second)
        run.lose("w2")
        again = run.tasks(run.ask("w3", second)).train
        assert {(part.step, part.part) for part in lost} <= {(part.step, part.part) for part in again}


class TestAMemberIsLost:
    def test_survivors_are_told_and_what_the_lead_had_is_handed_out_again(self) -> None:
        run = GroupedRun(partitions=3, workers=2)
        epoch = run.grouped("w1", "w2", "w3")
        (task,) = run.tasks(run.ask("w1", epoch)).train
        waiting = run.ask("w1", epoch, wait_s=50.0, wanted=0)
        watches = [run.watch(node, epoch) for node in ("w1", "w3")]
        run.lose("w2")
        cause = "partition 1 (w2): its connection closed"
        assert [run.news(token) for token in watches] == [("dissolved", cause)] * 2
        assert run.refused(waiting) == (ErrorCode.STALE_GROUP, f"group 1 is dissolved: {cause}; join again")
        assert run.said[-1] == (
            f"replica 0 of w1, w2, w3 (group 1) is dissolved: {cause}; 8 examples are handed out again"
        )
        other = run.grouped("w4", "w5", "w6")
        (again,) = run.tasks(run.ask("w4", other)).train
        assert (again.pass_number, again.start, again.stop) == (task.pass_number, task.start, task.stop)

    def test_who_asks_later_is_told_too(self) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        run.lose("w2")
        assert run.news(run.watch("w1", epoch)) == ("dissolved", "partition 1 (w2): its connection closed")
        assert run.news(run.watch("w2", epoch))[0] == "dropped"

    def test_what_is_remembered_of_dissolved_groups_has_a_bound(self) -> None:
        run = GroupedRun(partitions=1 + 1)
        first = run.grouped("w1", "w2")
        for _ in range(ENDED_KEPT_MAX + 1):
            run.lose("w2")
            run.grouped("w1", "w2")
        code, text = run.refused(run.watch("w1", first))
        assert (code, text) == (ErrorCode.STALE_GROUP, "worker w1 is not, or no longer, in group 1; join again")

    def test_a_spare_takes_its_place_as_soon_as_the_survivors_are_back(self) -> None:
        run = GroupedRun(partitions=3)
        old = run.grouped("w1", "w2", "w3")
        spare = run.join("w4")
        run.lose("w1")
        assert run.waits(spare)
        back = [run.join(node) for node in ("w2", "w3")]
        assert run.nodes(spare) == ["w4", "w2", "w3"] and run.seat(back[0]).group_epoch > old
        assert run.seat(back[0]).replica == 1

    def test_the_restarted_process_takes_its_place_without_a_spare(self) -> None:
        run = GroupedRun(partitions=2)
        run.grouped("w1", "w2")
        run.lose("w2")
        run.join("w1")
        token = run.join("w2", incarnation=2)
        assert run.nodes(token) == ["w1", "w2"] and run.seat(token).members[1].incarnation == 2

    def test_spares_enough_for_a_replica_form_it_at_once(self) -> None:
        run = GroupedRun(partitions=2)
        run.grouped("w1", "w2")
        spares = [run.join(node) for node in ("w3", "w4")]
        run.lose("w1")
        assert run.nodes(spares[0]) == ["w3", "w4"]
        assert run.waits(run.join("w2")), "the survivor is a spare now"

    def test_the_other_replicas_go_on(self) -> None:
        run = GroupedRun(partitions=2, workers=2)
        first, second = run.grouped("w1", "w2"), run.grouped("w3", "w4")
        watch = run.watch("w4", second)
        run.lose("w1")
        assert run.refused(run.ask("w1", first))[0] == ErrorCode.STALE_GROUP
        assert run.waits(watch) and run.tasks(run.ask("w3", second)).train

    def test_silence_beyond_the_deadline_is_death_and_a_waiting_watch_is_a_sign_of_life(self) -> None:
        run = GroupedRun(partitions=2, silent_after_s=20.0, no_worker_s=1e6)
        epoch = run.grouped("w1", "w2")
        watch = run.watch("w1", epoch, wait_s=50.0)
        run.wait(19.9)
        assert run.waits(watch)
        run.wait(0.2)
        assert run.news(watch) == ("dissolved", "partition 1 (w2): no message from it for 20 s")

    def test_a_watch_without_news_is_answered_after_its_wait(self) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        watch = run.watch("w2", epoch, wait_s=5.0)
        run.wait(5.0)
        assert run.news(watch) == ("alive", "")

    def test_a_watch_takes_the_place_of_an_earlier_one(self) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        first, second = run.watch("w2", epoch), run.watch("w2", epoch)
        assert run.news(first) == ("alive", "") and run.waits(second)

    def test_a_lead_that_compiles_for_long_is_not_silent_as_long_as_it_watches(self) -> None:
        run = GroupedRun(partitions=2, silent_after_s=20.0)
        epoch = run.grouped("w1", "w2")
        for _ in range(20):
            watches = [run.watch(node, epoch, wait_s=5.0) for node in ("w1", "w2")]
            run.wait(5.0)
            assert [run.news(token)[0] for token in watches] == ["alive", "alive"]
        assert run.tasks(run.ask("w1", epoch)).train

    def test_a_lead_that_has_begun_is_silent_when_it_asks_for_nothing(self) -> None:
        run = GroupedRun(partitions=2, silent_after_s=20.0)
        epoch = run.grouped("w1", "w2")
        assert run.tasks(run.ask("w1", epoch)).train
        for node in ("w1", "w2"):
            run.watch(node, epoch, wait_s=50.0)
        run.wait(20.0)
        assert "partition 0 (w1): no message from it for 20 s" in run.said[-1]

    def test_a_group_that_never_begins_is_dissolved_and_its_lead_dropped(self) -> None:
        run = GroupedRun(partitions=2, group_ready_s=100.0)
        epoch = run.grouped("w1", "w2")
        watches = [run.watch(node, epoch, wait_s=200.0) for node in ("w1", "w2")]
        run.wait(100.0)
        cause = "partition 0 (w1): its replica was not ready within 100 s"
        assert [run.news(token) for token in watches] == [("dropped", cause), ("dissolved", cause)]

    @pytest.mark.parametrize("lead", [True, False])
    def test_a_member_that_leaves_dissolves_its_group(self, lead: bool) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        watch = run.watch("w2" if lead else "w1", epoch)
        left = run.ask("w1", epoch, wanted=0, leaving=True) if lead else run.watch("w2", epoch, leaving=True)
        assert not run.waits(left)
        assert run.news(watch) == ("dissolved", f"partition {1 - lead} (w{2 - lead}): it left")

    def test_a_member_that_joins_again_has_left(self) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        watch = run.watch("w1", epoch)
        again = run.join("w2")
        assert run.news(watch) == ("dissolved", "partition 1 (w2): it has joined again") and run.waits(again)

    def test_a_request_of_a_former_process_does_not_disturb_the_one_after_it(self) -> None:
        run = GroupedRun(partitions=2)
        run.join("w1", incarnation=5)
        epoch = run.seat(run.join("w2")).group_epoch
        watch = run.watch("w1", epoch, incarnation=5)
        assert run.refused(run.join("w1", incarnation=4))[0] == ErrorCode.STALE_INCARNATION
        run.lose("w1", incarnation=4)
        assert run.waits(watch)

    def test_who_is_lost_in_the_lobby_is_put_in_no_group(self) -> None:
        run = GroupedRun(partitions=2)
        run.join("w1")
        run.lose("w1")
        assert run.waits(run.join("w2"))


class TestDropping:
    def test_who_hangs_is_dropped_and_the_others_are_told_why(self) -> None:
        run = GroupedRun(partitions=3)
        epoch = run.grouped("w1", "w2", "w3")
        watches = [run.watch(node, epoch) for node in ("w1", "w2", "w3")]
        run.answer(run.drop("w1", epoch, 2, "no flight finished for 300 s"), Confirm)
        cause = "partition 2 (w3): no flight finished for 300 s, as partition 0 (w1) reports"
        assert [run.news(token) for token in watches] == [("dissolved", cause)] * 2 + [("dropped", cause)]

    def test_any_member_may_say_whom_it_cannot_reach_and_that_nobody_is_to_blame(self) -> None:
        run = GroupedRun(partitions=3)
        epoch = run.grouped("w1", "w2", "w3")
        watches = [run.watch(node, epoch) for node in ("w1", "w2", "w3")]
        run.drop("w2", epoch, -1, "cannot reach partition 2 (w3)")
        cause = "cannot reach partition 2 (w3), as partition 1 (w2) reports"
        assert [run.news(token) for token in watches] == [("dissolved", cause)] * 3

    def test_who_was_dropped_may_join_again_and_comes_after_the_others(self) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        run.drop("w1", epoch, 1)
        run.join("w2", host="h2")
        run.join("w3", host="h3")
        token = run.join("w1", host="h1")
        run.wait(MIX_AFTER_S)
        assert run.nodes(token) == ["w3", "w1"]
        last = run.join("w4", host="h4")
        run.lose("w3")
        run.wait(MIX_AFTER_S)
        assert sorted(run.nodes(last)) == ["w2", "w4"], "without another it is taken"

    def test_a_drop_of_an_old_group_changes_nothing(self) -> None:
        run = GroupedRun(partitions=2)
        old = run.grouped("w1", "w2")
        run.lose("w2")
        new = run.grouped("w1", "w2")
        watch = run.watch("w2", new)
        assert run.refused(run.drop("w1", old, 1))[0] == ErrorCode.STALE_GROUP
        assert run.refused(run.drop("stranger", new, 1))[0] == ErrorCode.STALE_GROUP
        assert run.refused(run.drop("w1", new, 2))[0] == ErrorCode.BAD_MESSAGE
        assert run.waits(watch)


class TestPlans:
    RIGHT, OTHER = "a" * 8, "b" * 8

    def test_a_member_with_another_plan_is_refused_for_good_and_the_message_names_both(self) -> None:
        run = GroupedRun(partitions=2, plan_hash=self.RIGHT)
        epoch = run.grouped("w1", "w2")
        watch = run.watch("w1", epoch, plan_hash=self.RIGHT)
        code, text = run.refused(run.watch("w2", epoch, plan_hash=self.OTHER))
        assert code == ErrorCode.PLAN_MISMATCH
        assert text == (
            f"worker w2 has partition plan {self.OTHER}, run sim has {self.RIGHT}; "
            "all must run the same version of adamctl"
        )
        assert run.news(watch) == ("dissolved", f"partition 1 (w2): {text}")
        assert run.refused(run.join("w2")) == (code, text)
        assert run.waits(run.join("w2", incarnation=2)), "another process may have another version"

    def test_a_worker_that_knows_its_plan_is_refused_when_it_joins(self) -> None:
        run = GroupedRun(partitions=2, plan_hash=self.RIGHT)
        assert run.refused(run.join("w1", plan_hash=self.OTHER))[0] == ErrorCode.PLAN_MISMATCH
        assert run.waits(run.join("w2", plan_hash=self.RIGHT))

    def test_where_the_run_has_no_plan_members_are_compared_with_each_other(self) -> None:
        run = GroupedRun(partitions=3)
        epoch = run.grouped("w1", "w2", "w3")
        run.watch("w1", epoch)
        run.watch("w2", epoch, plan_hash=self.RIGHT)
        code, text = run.refused(run.watch("w3", epoch, plan_hash=self.OTHER))
        assert code == ErrorCode.PLAN_MISMATCH and f"worker w2 has {self.RIGHT}" in text
        assert run.waits(run.join("w3")), "either of the two may be the wrong one"


class TestTheWholeRun:
    def test_a_run_without_a_replica_for_too_long_has_failed_and_says_who_is_there_and_why(self) -> None:
        run = GroupedRun(partitions=4, no_worker_s=30.0)
        run.grouped("w1", "w2", "w3", "w4")
        run.lose("w1")
        for node in ("w2", "w3"):
            run.join(node, wait_s=60.0)
        run.wait(30.0)
        assert run.core.run.cause == (
            "no replica for 30 s: 2 of 4 workers of a replica are there; the last one was dissolved: partition 0 (w1): "
            "its connection closed; start one with: adamctl worker start"
        )

    def test_everybody_is_told_of_the_end(self) -> None:
        run = GroupedRun(partitions=2, workers=2)
        epoch = run.grouped("w1", "w2")
        spare, lead, watch = run.join("w3"), run.ask("w1", epoch, wait_s=50.0, wanted=0), run.watch("w1", epoch)
        run.step(events.Failed("a server is gone"))
        assert run.refused(spare)[0] == ErrorCode.RUN_ENDED
        assert run.tasks(lead).ended and run.news(watch) == ("ended", "failed: a server is gone")
        assert not run.core.run.everybody_told, "w2 has not asked yet"
        assert run.news(run.watch("w2", epoch)) == ("ended", "failed: a server is gone")
        assert run.core.run.everybody_told
        assert run.refused(run.drop("w1", epoch, 1))[0] == ErrorCode.RUN_ENDED

    @pytest.mark.parametrize("again", [True, False])
    def test_a_member_that_is_gone_or_joins_again_need_not_be_told(self, again: bool) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        run.ask("w1", epoch)
        run.step(events.Failed("a server is gone"))
        for node in ("w1", "w2"):
            if again:
                assert run.refused(run.join(node))[0] == ErrorCode.RUN_ENDED
            else:
                run.lose(node)
        assert run.core.run.everybody_told

    def test_a_stop_is_carried_out_by_the_lead(self) -> None:
        run = GroupedRun(partitions=2)
        epoch = run.grouped("w1", "w2")
        watch = run.watch("w2", epoch)
        (task,) = run.tasks(run.ask("w1", epoch)).train
        run.step(events.StopWanted("Ctrl-C", True))
        reply = run.tasks(run.ask("w1", epoch))
        assert reply.drain and not reply.train and run.waits(watch)
        run.ask("w1", epoch, wanted=0, wait_s=0.0, reports=[TaskReport(task.id, task.stop - task.start, 1.0, 0, 2)])
        run.step(events.CheckpointWritten(1))
        assert run.core.run.final_state == "stopped" and run.news(watch) == ("ended", "stopped: Ctrl-C")

    def test_progress_lists_replicas_with_their_partitions_and_spares(self) -> None:
        run = GroupedRun(partitions=2, workers=2)
        epoch = run.grouped("w1", "w2")
        run.watch("w2", epoch, state="compiling")
        run.join("w3")
        own = {"partition": 0, "flights": 3, "waiting_share": 0.25, "waits_for": {"1": 0.25}}
        told = {**own, "members": [own], "cut": "rows", "threads": 1}
        row = run_progress(run.core.run, (), (), {}).replicas[0]
        assert (row.replica, row.group_epoch, row.state, row.cut) == (0, epoch, "starting", "")
        run.ask("w1", epoch, status=told)
        progress = run_progress(run.core.run, (), (), {})
        (row,) = progress.replicas
        assert [(one.partition, one.node, one.host, one.state) for one in row.members] == [
            (0, "w1", "h1", "training"),
            (1, "w2", "h1", "compiling"),
        ]
        assert row.cut == "rows" and [one.flights for one in row.members] == [3, None]
        assert progress.partitions == 2 and progress.lobby == ("w3",)
        rows = [(one.node, one.state, one.detail) for one in progress.roles]
        assert rows == [
            ("w1", "training", "partition 0 of replica 0, 0 examples"),
            ("w2", "training", "partition 1 of replica 0"),
            ("w3", "in the lobby", ""),
        ]
        run.join("w4")
        run.join("w5")
        rows = [(one.node, one.state) for one in run_progress(run.core.run, (), (), {}).roles]
        assert rows[-1] == ("w5", "spare")


def test_what_partitions_have_computed_is_added_up_over_replicas() -> None:
    run = GroupedRun(2, 2)
    one, two = run.grouped("a", "b"), run.grouped("c", "d")
    assert run_progress(run.core.run, (), (), {}).computed == ()
    run.ask("a", one, status={"computed": [[1.5, 10], [2.0, 10]]})
    run.ask("c", two, status={"computed": [[0.5, 6], [1.0, 6]]})
    assert run_progress(run.core.run, (), (), {}).computed == ((2.0, 16), (3.0, 16))
    for odd in (7, [[1.0, 2]], [["x", 1], [1.0, 2]], {"a": 1}):  # of another version
        run.ask("c", two, status={"computed": odd})
        assert run_progress(run.core.run, (), (), {}).computed == ((1.5, 10), (2.0, 10))
