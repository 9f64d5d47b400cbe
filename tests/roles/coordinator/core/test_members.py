"""Workers that join, die, fall silent, leave, return and report late."""

from __future__ import annotations

from collections import Counter

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Admit, Refuse
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.wire.constants import ErrorCode
from tests.roles.coordinator.simulation import Simulation, plan


def times_handed_out(run: Simulation) -> Counter[tuple[int, int]]:
    return Counter(
        (task.pass_number, example) for task, _ in run.handed_out for example in range(task.start, task.stop)
    )


class TestDeath:
    def test_ranges_of_a_dead_worker_are_handed_out_again_before_anything_new(self) -> None:
        run = Simulation(4, plan(evaluate_every=0.0), examples=400)
        dead = run.add_worker("dead")
        run.advance()
        held = [(task.pass_number, task.start) for task, _ in run.handed_out if task.id in run.out]
        run.kill(dead)
        before = len(run.handed_out)
        run.ask(run.add_worker("other"), len(held), 1.0)
        assert [(task.pass_number, task.start) for task, _ in run.handed_out[before:]] == held

    def test_silence_beyond_the_deadline_is_death(self) -> None:
        run = Simulation(4, plan(silent_after_s=20.0, evaluate_every=0.0, pass_fraction=1.0), examples=400)
        silent = run.add_worker("silent")
        run.add_worker("other")
        run.advance()
        silent.silent, silent.tasks = True, []
        run.run()
        assert any("silent is gone: no message" in text for text in run.said)
        assert run.core.run.tally.examples == 1200

    def test_a_parked_request_is_a_sign_of_life(self) -> None:
        run = Simulation(4, plan(silent_after_s=3.0, warmstart_steps=10_000), examples=100, evaluation_examples=0)
        run.add_worker("warm", seconds_per_example=0.01)
        waiting = run.add_worker("waiting")
        waiting.wait_s = 50.0
        run.run()
        assert not any("gone" in text for text in run.said)

    def test_a_late_report_of_a_range_done_again_is_a_duplicate_and_no_progress(self) -> None:
        run = Simulation(5, plan(passes=1, evaluate_every=0.0, silent_after_s=10.0), examples=4)
        late = run.add_worker("late", seconds_per_example=1e6)
        run.ask(late, 1, 1.0)
        run.now_s += 10.0
        run.clock_s += 10.0
        run.step(events.Tick())
        assert (late.node, late.incarnation) not in run.core.run.workers
        late.silent = True
        other = run.add_worker("other")
        run.ask(other, 1, 1.0)
        run.finish_task(other)
        run.ask(other, 1, 1.0)
        assert run.core.run.tally.examples == 4
        run.finish_task(late)
        run.ask(late, 0, 0.0)
        assert (run.core.run.tally.examples, run.core.run.tally.duplicates) == (4, 4)

    def test_a_late_report_that_comes_first_counts_and_the_range_is_not_handed_out_again(self) -> None:
        run = Simulation(5, plan(passes=1, evaluate_every=0.0, silent_after_s=10.0), examples=16)
        late = run.add_worker("late", seconds_per_example=1e6)
        run.ask(late, 1, 1.0)
        run.now_s += 10.0
        run.clock_s += 10.0
        run.step(events.Tick())
        run.finish_task(late)
        run.ask(late, 0, 0.0)
        assert run.core.run.tally.examples == 4
        assert [r.code for r in run.refused] == [ErrorCode.STALE_INCARNATION]
        run.workers.remove(late)
        run.add_worker("other")
        run.run()
        assert max(times_handed_out(run).values()) == 1
        assert (run.core.run.tally.examples, run.core.run.tally.duplicates) == (16, 0)

    def test_a_worker_that_leaves_gives_back_what_it_did_not_do(self) -> None:
        run = Simulation(6, plan(evaluate_every=0.0))
        leaver = run.add_worker("leaver")
        run.advance()
        run.ask(leaver, 0, 0.0, leaving=True)
        run.workers.remove(leaver)
        run.add_worker("other")
        run.run()
        assert run.core.run.tally.examples == 600

    def test_a_restarted_worker_is_another_and_takes_the_place_of_its_former_self(self) -> None:
        run = Simulation(6, plan(workers=1, evaluate_every=0.0))
        run.workers.remove(run.add_worker("w"))
        again = run.add_worker("w")
        assert again.joined
        run.run()
        assert run.core.run.tally.examples == 600

    def test_a_run_without_any_worker_for_too_long_has_failed(self) -> None:
        run = Simulation(6, plan(no_worker_s=30.0))
        run.kill(run.add_worker("only"))
        run.until(lambda: run.finished)
        assert run.finished is not None and run.finished.state == "failed"
        assert "no worker for 30 s" in run.finished.cause


class TestJoining:
    def test_no_more_workers_than_the_experiment_asks_for(self) -> None:
        run = Simulation(7, plan(workers=2))
        assert [run.add_worker(f"w{number}").joined for number in range(3)] == [True, True, False]
        assert run.refused[0].code == ErrorCode.OVER_QUOTA

    def test_who_comes_before_the_run_is_ready_is_admitted_the_moment_it_is(self) -> None:
        core = RunCore(plan(), 0.0)
        assert core.step(events.WorkerJoins(1, "w", 1, 1), 0.0) == []
        assert core.run.state == "starting"
        assert core.step(events.Ready(100, 100), 1.0) == [Admit(1, 0)]

    def test_who_comes_far_too_early_is_told_to_come_again(self) -> None:
        core = RunCore(plan(), 0.0)
        core.step(events.WorkerJoins(1, "w", 1, 1), 0.0)
        (refused,) = core.step(events.Tick(), core.run.wakeup_s())
        assert isinstance(refused, Refuse) and refused.code == ErrorCode.NOT_READY

    def test_nobody_joins_a_run_that_is_over(self) -> None:
        core = RunCore(plan(), 0.0)
        core.step(events.WorkerJoins(1, "early", 1, 1), 0.0)
        instructions = core.step(events.Failed("a server is gone"), 1.0)
        instructions += core.step(events.WorkerJoins(2, "late", 1, 1), 1.0)
        refused = [entry for entry in instructions if isinstance(entry, Refuse)]
        assert [entry.code for entry in refused] == [ErrorCode.RUN_ENDED, ErrorCode.RUN_ENDED]

    def test_who_is_lost_before_the_run_is_ready_is_not_admitted(self) -> None:
        core = RunCore(plan(), 0.0)
        core.step(events.WorkerJoins(1, "w", 1, 1), 0.0)
        core.step(events.WorkerLost("w", 1, "gone"), 0.5)
        core.step(events.Ready(100, 100), 1.0)
        assert not core.run.workers

    def test_who_comes_early_is_not_sent_away_for_the_process_before_it(self) -> None:
        """It would not ask again: the refusal is that of a process whose name another has."""
        core = RunCore(plan(), 0.0)
        core.step(events.WorkerJoins(1, "w", 2, 1), 0.0)
        assert core.step(events.WorkerLost("w", 1, "it is no longer a member of the cluster"), 0.5) == []
        assert core.step(events.Ready(100, 100), 1.0) == [Admit(1, 0)]
