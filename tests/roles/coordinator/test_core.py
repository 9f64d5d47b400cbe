"""The run's state machine as its specification: what is handed out, to whom, when a run ends, what the clock counts."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
import pytest

from adamctl.roles.coordinator import core_events as events
from adamctl.roles.coordinator.core import RunCore
from adamctl.wire.constants import ErrorCode
from tests.roles.coordinator.simulation import Simulation, len_of, plan


def times_handed_out(run: Simulation) -> Counter[tuple[int, int]]:
    return Counter(
        (task.pass_number, example) for task, _ in run.handed_out for example in range(task.start, task.stop)
    )


def test_one_worker_processes_every_example_of_every_pass_exactly_once() -> None:
    run = Simulation(1)
    run.add_worker("w0")
    run.run()
    assert run.finished == events.Finished("ended", "")
    assert run.reported == Counter({(number, example): 1 for number in range(3) for example in range(200)})
    assert run.core.tally.examples == 600
    assert run.core.tally.duplicates == 0


def test_progress_follows_the_share_of_the_run_that_was_handed_out() -> None:
    run = Simulation(1)
    run.add_worker("w0")
    run.run()
    tasks = [task for task, _ in run.handed_out]
    assert tasks[0].progress_start == 0.0
    assert tasks[-1].progress_stop == 1.0
    for before, after in itertools.pairwise(tasks):
        assert before.progress_stop == pytest.approx(after.progress_start)


def test_adam_3_2_5_a_pass_ends_when_the_stated_fraction_is_done_and_the_next_begins_at_once() -> None:
    run = Simulation(1, plan(passes=2, evaluate_every=0.0, pass_fraction=0.75), examples=80)
    slow = run.add_worker("slow", seconds_per_example=1000.0)
    run.add_worker("fast", seconds_per_example=0.01)
    run.until(lambda: any(task.pass_number == 1 for task, _ in run.handed_out))
    assert slow.tasks, "the slow worker still has a range of the first pass"
    assert run.core.book.current == 1
    assert sum(count for (number, _), count in run.reported.items() if number == 0) >= 0.75 * 80


def test_what_is_still_worked_on_when_a_pass_ends_is_finished_and_counts() -> None:
    run = Simulation(1, plan(passes=2, evaluate_every=0.0), examples=160)
    run.add_worker("slow", seconds_per_example=1.0)
    run.add_worker("fast")
    run.run()
    assert run.core.tally.examples == 320


def test_tasks_ahead_are_bounded() -> None:
    run = Simulation(1, examples=10_000)
    worker = run.add_worker("w0")
    for _ in range(10):
        run.ask(worker, 100, 1.0)
    assert len(worker.tasks) == 4 + 2


def test_distbelief_4_1_warm_start_only_one_replica_trains_at_first() -> None:
    run = Simulation(3, plan(warmstart_steps=20, evaluate_every=0.0), examples=400)
    for number in range(3):
        run.add_worker(f"w{number}")
    while run.core.state == "warmstart":
        assert len({worker.node for _, worker in run.handed_out}) <= 1
        assert run.advance()
    assert run.core.tally.steps >= 20
    run.run()
    assert len({worker.node for _, worker in run.handed_out}) == 3


def test_another_replica_goes_on_with_the_warm_start_when_the_first_dies() -> None:
    run = Simulation(3, plan(warmstart_steps=1000, evaluate_every=0.0), examples=400)
    for number in range(3):
        run.add_worker(f"w{number}")
    run.advance()
    first = run.handed_out[0][1]
    run.kill(first)
    run.run()
    assert run.core.tally.examples == 3 * 400


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
        assert any("silent is gone: no word" in text for text in run.said)
        assert run.core.tally.examples == 1200

    def test_a_parked_request_is_a_sign_of_life(self) -> None:
        run = Simulation(4, plan(silent_after_s=3.0, warmstart_steps=10_000), examples=100, evaluation_examples=0)
        run.add_worker("warm", seconds_per_example=0.01)
        waiting = run.add_worker("waiting")
        waiting.wait_s = 50.0
        run.run()
        assert not any("gone" in text for text in run.said)

    def test_a_late_report_of_a_range_done_again_is_a_duplicate_and_no_progress(self) -> None:
        run = Simulation(5, plan(passes=1, evaluate_every=0.0, silent_after_s=10.0), examples=8)
        late = run.add_worker("late", seconds_per_example=1e6)
        run.ask(late, 1, 1.0)
        run.now_s += 10.0
        run.clock_s += 10.0
        run.step(events.Tick())
        assert (late.node, late.incarnation) not in run.core.workers
        late.silent = True
        other = run.add_worker("other")
        run.ask(other, 1, 1.0)
        run.finish_task(other)
        run.ask(other, 1, 1.0)
        assert run.core.tally.examples == 8
        run.finish_task(late)
        run.ask(late, 0, 0.0)
        assert (run.core.tally.examples, run.core.tally.duplicates) == (8, 8)

    def test_a_late_report_that_comes_first_counts_and_the_range_is_not_handed_out_again(self) -> None:
        run = Simulation(5, plan(passes=1, evaluate_every=0.0, silent_after_s=10.0), examples=16)
        late = run.add_worker("late", seconds_per_example=1e6)
        run.ask(late, 1, 1.0)
        run.now_s += 10.0
        run.clock_s += 10.0
        run.step(events.Tick())
        run.finish_task(late)
        run.ask(late, 0, 0.0)
        assert run.core.tally.examples == 8
        assert [r.code for r in run.refused] == [ErrorCode.STALE_INCARNATION]
        run.workers.remove(late)
        run.add_worker("other")
        run.run()
        assert max(times_handed_out(run).values()) == 1
        assert (run.core.tally.examples, run.core.tally.duplicates) == (16, 0)

    def test_a_worker_that_leaves_gives_back_what_it_did_not_do(self) -> None:
        run = Simulation(6, plan(evaluate_every=0.0))
        leaver = run.add_worker("leaver")
        run.advance()
        run.ask(leaver, 0, 0.0, leaving=True)
        run.workers.remove(leaver)
        run.add_worker("other")
        run.run()
        assert run.core.tally.examples == 600

    def test_a_restarted_worker_is_another_and_takes_the_place_of_its_former_self(self) -> None:
        run = Simulation(6, plan(workers=1, evaluate_every=0.0))
        run.workers.remove(run.add_worker("w"))
        again = run.add_worker("w")
        assert again.joined
        run.run()
        assert run.core.tally.examples == 600

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
        assert core.state == "starting"
        assert core.step(events.Ready(100, 100), 1.0) == [events.Admit(1, 0)]

    def test_who_comes_far_too_early_is_told_to_come_again(self) -> None:
        core = RunCore(plan(), 0.0)
        core.step(events.WorkerJoins(1, "w", 1, 1), 0.0)
        (refused,) = core.step(events.Tick(), core.wakeup_s())
        assert isinstance(refused, events.Refuse) and refused.code == ErrorCode.NOT_READY

    def test_nobody_joins_a_run_that_is_over(self) -> None:
        core = RunCore(plan(), 0.0)
        core.step(events.WorkerJoins(1, "early", 1, 1), 0.0)
        instructions = core.step(events.Failed("a server is gone"), 1.0)
        instructions += core.step(events.WorkerJoins(2, "late", 1, 1), 1.0)
        refused = [entry for entry in instructions if isinstance(entry, events.Refuse)]
        assert [entry.code for entry in refused] == [ErrorCode.RUN_ENDED, ErrorCode.RUN_ENDED]

    def test_who_is_lost_before_the_run_is_ready_is_not_admitted(self) -> None:
        core = RunCore(plan(), 0.0)
        core.step(events.WorkerJoins(1, "w", 1, 1), 0.0)
        core.step(events.WorkerLost("w", 1, "gone"), 0.5)
        core.step(events.Ready(100, 100), 1.0)
        assert not core.workers


class TestEvaluation:
    def test_one_worker_drains_then_evaluates_while_the_clock_stands_still(self) -> None:
        run = Simulation(8, plan(evaluate_every=0.25))
        worker = run.add_worker("w")
        seen = 0
        while run.finished is None:
            assert run.advance()
            if run.core.state == "evaluating" and any(hasattr(t, "evaluation") for t in worker.tasks):
                seen += 1
                assert run.core.clock.ranges_out == 0
        assert seen and worker.drained >= 12
        passes = [result.result.passes for result in run.evaluated]
        assert passes == [0.25 * number for number in range(1, 13)]

    def test_it_is_looked_at_where_that_many_examples_were_handed_out(self) -> None:
        run = Simulation(8, plan(evaluate_every=0.25), examples=400)
        run.add_worker("w")
        run.run()
        shares = [result.result.progress for result in run.evaluated]
        for number, share in enumerate(shares, start=1):
            assert number / 12 <= share + 1e-9 <= number / 12 + 8 / 1200 + 1e-6

    def test_with_several_workers_one_evaluates_and_the_others_train_on(self) -> None:
        run = Simulation(9, plan(evaluate_every=0.5, passes=2), examples=4000, evaluation_examples=500)
        for number in range(3):
            run.add_worker(f"w{number}")
        trained_meanwhile = 0
        while run.finished is None:
            before = len(run.handed_out)
            assert run.advance()
            current = run.core.desk.current
            if current is not None and current.worker is not None and not current.exclusive:
                assert run.core.state in ("training", "finishing")
                trained_meanwhile += len(run.handed_out) - before
        assert trained_meanwhile > 0
        owners: dict[int, set[str]] = {}
        for task in run.evaluation_order:
            owners.setdefault(task.evaluation, set())
        assert len(run.evaluated) == 4
        assert all(result.result.top1 == pytest.approx(0.5) for result in run.evaluated)

    def test_ranges_of_an_evaluation_cover_the_split_once_in_thousands(self) -> None:
        run = Simulation(8, plan(passes=1), evaluation_examples=2500)
        run.add_worker("w")
        run.run()
        assert [(task.start, task.stop) for task in run.evaluation_order] == [(0, 1000), (1000, 2000), (2000, 2500)]
        assert run.evaluated[0].result.loss == pytest.approx(0.25)

    def test_another_worker_begins_anew_when_the_evaluating_one_dies(self) -> None:
        run = Simulation(10, plan(passes=1, evaluate_every=0.0))
        first = run.add_worker("first")
        run.until(lambda: run.evaluation_order)
        run.kill(first)
        run.add_worker("second")
        run.run()
        assert len(run.evaluated) == 1
        assert {task.evaluation for task in run.evaluation_order} == {1, 2}

    def test_there_is_always_a_final_evaluation_and_never_two_of_the_same_state(self) -> None:
        for every in (0.0, 1.0, 0.7):
            run = Simulation(11, plan(evaluate_every=every, passes=2))
            run.add_worker("w")
            run.run()
            progress = [entry.result.progress for entry in run.evaluated]
            assert progress[-1] == 1.0
            assert len(set(progress)) == len(progress)

    def test_an_empty_split_is_not_evaluated(self) -> None:
        run = Simulation(11, evaluation_examples=0)
        run.add_worker("w")
        run.run()
        assert run.finished == events.Finished("ended", "")
        assert not run.evaluated

    def test_early_stop_when_the_target_is_reached(self) -> None:
        run = Simulation(12, plan(target=0.9, passes=50), accuracy=0.95)
        run.add_worker("w")
        run.run()
        assert run.finished == events.Finished("ended", "target 0.9 reached")
        assert len(run.evaluated) == 1
        assert run.core.tally.examples == 200


class TestCheckpoints:
    def test_at_every_mark_after_its_evaluation_and_at_the_end(self) -> None:
        run = Simulation(13)
        run.add_worker("w")
        run.run()
        assert [len(snapshot.evaluations) for snapshot in run.checkpoints] == [1, 2, 3]
        assert [snapshot.checkpoint for snapshot in run.checkpoints] == [1, 2, 3]

    def test_every_zero_writes_only_the_last_one(self) -> None:
        run = Simulation(13, plan(checkpoint_every=0.0))
        run.add_worker("w")
        run.run()
        assert len(run.checkpoints) == 1

    def test_a_failed_one_is_said_and_the_run_goes_on_but_the_last_one_is_promised(self) -> None:
        run = Simulation(13, plan(passes=2))
        run.add_worker("w")
        run.write_failure = "disk full"
        run.run()
        assert run.said[0] == "checkpoint 1 could not be written: disk full"
        assert run.finished is not None and run.finished.state == "failed"
        assert run.finished.cause == "checkpoint 2 could not be written: disk full"


class TestStop:
    def test_hands_nothing_out_any_more_takes_what_is_there_and_writes_a_checkpoint(self) -> None:
        run = Simulation(14, examples=2000)
        worker = run.add_worker("w")
        for _ in range(5):
            run.advance()
        run.step(events.StopWanted("told to", True))
        before = len(run.handed_out)
        run.run()
        assert run.finished == events.Finished("stopped", "told to")
        assert len(run.handed_out) == before
        assert worker.drained
        assert len(run.checkpoints) == 1
        assert run.checkpoints[0].examples == run.core.tally.examples

    def test_does_not_wait_for_ever_for_a_slow_worker(self) -> None:
        run = Simulation(14, plan(stop_wait_s=5.0))
        run.add_worker("slow", seconds_per_example=1e5)
        run.add_worker("quick")
        for _ in range(5):
            run.advance()
        at = run.now_s
        run.step(events.StopWanted("told to", True))
        run.until(lambda: run.finished)
        assert run.now_s <= at + 5.0 + run.write_s
        assert not any(worker == "slow" for worker in run.out)

    def test_no_checkpoint_before_anything_was_trained_or_when_none_is_wanted(self) -> None:
        run = Simulation(14)
        run.step(events.StopWanted("told to", True))
        assert run.finished is not None and not run.checkpoints
        run = Simulation(14)
        run.add_worker("w")
        run.advance()
        run.step(events.StopWanted("told to", False))
        run.run()
        assert not run.checkpoints

    def test_during_an_evaluation_it_is_made_up_for_after_resuming(self) -> None:
        run = Simulation(15)
        run.add_worker("w")
        run.until(lambda: run.core.state == "evaluating")
        run.step(events.StopWanted("told to", True))
        run.run()
        assert run.checkpoints[-1].evaluation_due == 1.0
        resumed = Simulation(15, snapshot=run.checkpoints[-1])
        resumed.add_worker("w")
        resumed.run()
        assert [entry.result.passes for entry in resumed.evaluated] == [1.0, 2.0, 3.0]


def test_a_lost_server_fails_the_run_with_the_cause_and_everybody_is_told() -> None:
    run = Simulation(16)
    worker = run.add_worker("w")
    run.advance()
    run.step(events.Failed("parameter server ps-0 is gone"))
    run.run()
    assert run.finished == events.Finished("failed", "parameter server ps-0 is gone")
    assert worker.told_end == "failed: parameter server ps-0 is gone"


def test_a_parked_request_is_answered_in_the_step_that_brings_work() -> None:
    run = Simulation(17, plan(pass_fraction=1.0, evaluate_every=0.0), examples=8)
    first, second = run.add_worker("first"), run.add_worker("second")
    run.ask(first, 1, 5.0)
    run.ask(second, 1, 5.0)
    assert first.parked is None and second.parked is not None
    run.finish_task(first)
    run.ask(first, 0, 0.0)
    assert second.parked is None and second.tasks[0].pass_number == 1


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_or_counted_twice_whatever_happens(seed: int) -> None:
    """Workers of random speed join, die, fall silent, restart and report late, over several passes and a resumption."""
    print(f"seed {seed}")
    chance = random.Random(f"chaos {seed}")
    settings = plan(
        passes=chance.randint(1, 4),
        pass_fraction=chance.choice([0.5, 0.75, 1.0]),
        warmstart_steps=chance.choice([0, 0, 30]),
        evaluate_every=chance.choice([0.0, 0.25, 1.0]),
        checkpoint_every=chance.choice([0.0, 0.5, 1.0]),
        silent_after_s=5000.0,
        no_worker_s=1e6,
    )
    examples = chance.randint(1, 400)
    snapshot: events.RunSnapshot | None = None
    for part in range(3):
        run = Simulation(seed * 10 + part, settings, examples=examples, snapshot=snapshot)
        done_before = snapshot.examples if snapshot else 0
        chaos(run, chance, stop=part < 2 and chance.random() < 0.7)
        run.run()
        assert run.finished is not None
        book = run.core.book
        left = sum(examples - ledger.done_examples for ledger in book.ledgers.values())
        left += (settings.passes - 1 - book.current) * examples
        assert run.core.tally.examples == settings.passes * examples - left
        distinct = len(run.reported)
        assert run.core.tally.examples - done_before <= distinct
        for ledger in book.ledgers.values():
            assert len_of(ledger.done) == ledger.done_examples
        if run.finished.state == "ended":
            assert left <= (1 - settings.pass_fraction) * examples
            break
        assert run.finished.state == "stopped", run.finished
        if not run.checkpoints:
            assert run.core.tally.examples == done_before or run.core.tally.examples == 0 or snapshot is not None
            snapshot = snapshot
            continue
        snapshot = msgspec.json.decode(msgspec.json.encode(run.checkpoints[-1]), type=events.RunSnapshot)
        assert snapshot.examples == run.core.tally.examples


def chaos(run: Simulation, chance: random.Random, stop: bool) -> None:
    for number in range(chance.randint(1, 4)):
        run.add_worker(f"w{number}", chance.choice([0.001, 0.01, 0.05, 0.5]))
    for _ in range(chance.randint(0, 150)):
        if run.finished is not None:
            return
        action = chance.random()
        alive = [w for w in run.workers if w.joined and not w.silent]
        if action < 0.03 and alive:
            run.kill(chance.choice(alive))
        elif action < 0.05 and alive:
            chance.choice(alive).silent = True
        elif action < 0.09:
            silent = [w for w in run.workers if w.silent]
            for worker in silent:
                worker.silent = False
                if (worker.node, worker.incarnation) not in run.core.workers:
                    worker.joined, worker.parked = False, None
                    run.ask(worker, 0, 0.0)
                    worker.joined = False
        elif action < 0.12 and len(run.workers) < 6:
            run.add_worker(f"n{chance.randint(0, 9)}-{run.incarnations}", chance.choice([0.001, 0.05]))
        elif alive:
            run.advance()
        else:
            run.add_worker(f"spare-{run.incarnations}")
    for worker in [w for w in run.workers if w.silent]:
        run.kill(worker)
    if not run.workers:
        run.add_worker("last")
    if stop and run.finished is None:
        run.step(events.StopWanted("stop", True))


def test_resume_hands_out_what_was_not_done_and_nothing_else() -> None:
    run = Simulation(20, plan(passes=2, evaluate_every=0.0))
    run.add_worker("slow", 0.5)
    run.add_worker("quick", 0.01)
    for _ in range(25):
        run.advance()
    run.step(events.StopWanted("stop", True))
    run.run()
    done = set(run.reported)
    accepted = {
        (number, example)
        for number, frontier, intervals in run.checkpoints[-1].passes
        for start, stop in intervals
        for example in range(start, stop)
    }
    assert accepted <= done
    resumed = Simulation(21, plan(passes=2, evaluate_every=0.0, range_batches=3), snapshot=run.checkpoints[-1])
    resumed.add_worker("w")
    resumed.run()
    everything = {(number, example) for number in range(2) for example in range(200)}
    assert set(resumed.reported) == everything - accepted
    assert max(resumed.reported.values()) == 1
    assert resumed.core.tally.examples == 400
    assert resumed.core.train_seconds > run.core.train_seconds
