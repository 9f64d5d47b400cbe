"""Whatever happens, in whatever order: no example is lost, none is counted twice, also across a resumption."""

from __future__ import annotations

import random

import msgspec
import pytest

from adamctl.roles.coordinator.core import events
from tests.roles.coordinator.simulation import Simulation, len_of, plan


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
        book = run.core.run.book
        left = sum(examples - ledger.done_examples for ledger in book.ledgers.values())
        left += (settings.passes - 1 - book.current) * examples
        assert run.core.run.tally.examples == settings.passes * examples - left
        distinct = len(run.reported)
        assert run.core.run.tally.examples - done_before <= distinct
        for ledger in book.ledgers.values():
            assert len_of(ledger.done) == ledger.done_examples
        if run.finished.state == "ended":
            assert left <= (1 - settings.pass_fraction) * examples
            break
        assert run.finished.state == "stopped", run.finished
        if not run.checkpoints:
            counted = run.core.run.tally.examples
            assert counted == done_before or counted == 0 or snapshot is not None
            snapshot = snapshot
            continue
        snapshot = msgspec.json.decode(msgspec.json.encode(run.checkpoints[-1]), type=events.RunSnapshot)
        assert snapshot.examples == run.core.run.tally.examples


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
                if (worker.node, worker.incarnation) not in run.core.run.workers:
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
    assert resumed.core.run.tally.examples == 400
    assert resumed.core.run.train_seconds > run.core.run.train_seconds


def test_resume_with_more_passes_goes_on_where_the_run_is_among_all_of_them() -> None:
    """Schedules follow this progress: one over 4 passes is at a half after 2, though the first run was at its end."""
    run = Simulation(22, plan(passes=2, evaluate_every=0.0))
    run.add_worker("w")
    run.run()
    assert run.handed_out[-1][0].progress_stop == 1.0
    longer = Simulation(23, plan(passes=4, evaluate_every=0.0), snapshot=run.checkpoints[-1])
    longer.add_worker("w")
    longer.run()
    tasks = [task for task, _ in longer.handed_out]
    assert tasks[0].pass_number == 2
    assert tasks[0].progress_start == pytest.approx(0.5)
    assert tasks[-1].progress_stop == 1.0
