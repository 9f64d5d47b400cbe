"""No replica runs further ahead of the slowest than the bound, and the slowest never waits."""

from __future__ import annotations

from random import Random

import pytest

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Answer, AnswerStep, Instruction, Refuse
from adamctl.roles.coordinator.core.pace import Pace
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import NextTaskRequest, RunStepReply, RunStepRequest, TaskReport
from tests.roles.coordinator.simulation import plan

A, B, C = ("a", 1), ("b", 2), ("c", 3)


def two(bound: int = 3) -> Pace:
    pace = Pace(bound)
    pace.enter(A)
    pace.enter(B)
    return pace


def test_the_fast_one_waits_at_the_bound_and_the_slow_one_does_not() -> None:
    pace = two(3)
    assert pace.limit(A) == pace.limit(B) == 3
    pace.tell(A, 3)
    assert pace.limit(A) == 3, "a fourth step would be four ahead"
    assert pace.limit(B) == 3
    pace.tell(B, 1)
    assert pace.limit(A) == 4
    assert pace.lead_max == 3


def test_one_alone_goes_on() -> None:
    pace = Pace(1)
    pace.enter(A)
    for done in range(20):
        assert pace.limit(A) == done + 1
        pace.tell(A, done + 1)


def test_who_joins_late_sets_out_beside_the_others() -> None:
    pace = Pace(2)
    pace.enter(A)
    pace.tell(A, 1000)
    pace.enter(B)
    assert (pace.limit(A), pace.limit(B)) == (1002, 2)
    pace.tell(A, 1002)
    assert pace.limit(A) == 1002, "it waits for the new one"
    pace.tell(B, 1)
    assert (pace.limit(A), pace.limit(B)) == (1003, 3)


@pytest.mark.parametrize("away", [Pace.rest, Pace.leave])
def test_who_has_nothing_to_do_or_is_gone_holds_nobody_up(away) -> None:
    pace = two(2)
    pace.tell(A, 2)
    assert pace.limit(A) == 2
    away(pace, B)
    assert pace.limit(A) > 2


def test_who_comes_back_to_work_does_not_hold_the_others_up_for_what_it_missed() -> None:
    pace = two(2)
    pace.rest(B)
    pace.tell(A, 50)
    pace.enter(B)
    assert (pace.limit(A), pace.limit(B)) == (52, 2)
    pace.tell(B, 2)
    assert pace.limit(A) == 52, "at its own pace, too"


@pytest.mark.parametrize("seed", range(30))
def test_the_bound_holds_whatever_happens(seed: int) -> None:
    """Replicas of random speed begin steps up to what they were granted, and tell late; they come, rest and go."""
    chance = Random(seed)
    bound = chance.randint(1, 6)
    pace = Pace(bound)
    begun: dict[tuple[str, int], int] = {}
    done: dict[tuple[str, int], int] = {}
    granted: dict[tuple[str, int], int] = {}
    working: set[tuple[str, int]] = set()
    speeds = {("r", number): chance.random() ** 3 for number in range(5)}
    waited = 0
    for _ in range(3000):
        replica = chance.choices(list(speeds), list(speeds.values()))[0]
        what = chance.random()
        if what < 0.02 and replica in working and begun[replica] == done[replica]:
            working.discard(replica)
            if what < 0.01:
                pace.leave(replica)
                begun[replica] = done[replica] = 0
            else:
                pace.tell(replica, done[replica])
                pace.rest(replica)
        elif replica not in working:
            working.add(replica)
            begun.setdefault(replica, 0)
            done.setdefault(replica, 0)
            pace.enter(replica)
            granted[replica] = begun[replica]
        elif what < 0.5:
            pace.tell(replica, done[replica])
            granted[replica] = max(granted[replica], pace.limit(replica))
        elif begun[replica] < granted[replica]:
            begun[replica] += 1
            done[replica] += chance.random() < 0.9 or begun[replica] - done[replica] > 2
        else:
            done[replica] = begun[replica]
            waited += 1
        times = {key: pace.clock(key).offset + done[key] for key in working}
        for key in working:
            others = [time for other, time in times.items() if other != key]
            if others:
                assert pace.clock(key).offset + begun[key] <= min(others) + bound, f"seed {seed}"
        known = {key: pace.clock(key).time for key in working}
        if known:
            slowest = min(known, key=lambda key: known[key])
            assert pace.limit(slowest) > pace.clock(slowest).done, f"seed {seed}: the slowest may always go on"
            granted[slowest] = max(granted[slowest], pace.limit(slowest))
    assert waited
    assert pace.lead_max <= bound


# --- in the run's state machine ---------------------------------------------------------------------------------------


class Run:
    """A run of two workers whose requests a test makes one by one."""

    def __init__(self, **changes: object) -> None:
        self.core = RunCore(plan(workers=2, checkpoint_every=0.0, evaluate_every=9.0, **changes), 0.0)
        self.now_s, self.token = 0.0, 0
        self.out: list[Instruction] = []
        self.step(events.Ready(400, 0))
        for number, node in enumerate("ab"):
            self.step(events.WorkerJoins(self._token(), node, number + 1, 1))
            self.tasks(node)

    def _token(self) -> int:
        self.token += 1
        return self.token

    def step(self, event: events.Event) -> list[Instruction]:
        self.out = self.core.step(event, self.now_s)
        return self.out

    def tasks(self, node: str, reports: tuple[TaskReport, ...] = (), wanted: int = 2) -> list[int]:
        request = NextTaskRequest(node, "ab".index(node) + 1, reports, wanted, 5.0 if wanted else 0.0)
        self.step(events.TasksWanted(self._token(), request))
        return [t.id for i in self.out if isinstance(i, Answer) for t in i.reply.train]

    def ask(self, node: str, done: int, wanted: int = 0, wait_s: float = 5.0) -> dict[int, int]:
        """Returns the answers that come at once, as token -> limit; the request's own token is `self.token`."""
        request = RunStepRequest(node, "ab".index(node) + 1, done, wanted, wait_s if wanted else 0.0)
        self.step(events.StepWanted(self._token(), request))
        return {i.token: i.reply.limit for i in self.out if isinstance(i, AnswerStep)}


def test_a_request_waits_until_the_slower_one_has_told_of_its_step() -> None:
    run = Run(max_staleness=2)
    assert run.ask("a", 0, 1) == {run.token: 2}
    assert run.ask("a", 2, 3) == {}
    waiting, run.now_s = run.token, 1.5
    assert run.ask("b", 1) == {run.token: 3, waiting: 3}
    assert (run.core.run.steps.waits, run.core.run.steps.wait_s, run.core.run.pace.lead_max) == (1, 1.5, 2)


def test_a_request_is_answered_when_its_time_is_over() -> None:
    run = Run(max_staleness=1)
    assert run.ask("a", 1, 2) == {}
    waiting = run.token
    assert run.core.run.wakeup_s() == 5.0
    run.now_s = 5.0
    assert run.step(events.Tick())[-1] == AnswerStep(waiting, RunStepReply(1))


def test_the_death_of_the_slower_one_lets_the_other_go_on() -> None:
    run = Run(max_staleness=1)
    assert run.ask("a", 1, 2) == {}
    run.step(events.WorkerLost("b", 2, "gone"))
    (answer,) = [i for i in run.out if isinstance(i, AnswerStep)]
    assert answer.reply.limit >= 2


def test_one_that_has_reported_everything_holds_nobody_up() -> None:
    run = Run(max_staleness=1)
    assert run.ask("a", 1, 2) == {}
    waiting = run.token
    mine = [number for number, found in run.core.run.work.assignments.items() if found.worker == ("b", 2)]
    run.tasks("b", tuple(TaskReport(number, 8, 1.0, 0, 2) for number in mine), wanted=0)
    assert [i.token for i in run.out if isinstance(i, AnswerStep)] == [waiting]


def test_strangers_are_sent_away_and_at_the_end_nobody_waits() -> None:
    run = Run(max_staleness=1)
    (refused,) = run.step(events.StepWanted(99, RunStepRequest("stranger", 9, 0, 1, 5.0)))
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.STALE_INCARNATION
    run.ask("a", 1, 2)
    waiting = run.token
    run.step(events.Failed("lost"))
    assert [i.token for i in run.out if isinstance(i, AnswerStep)] == [waiting]
    assert run.ask("b", 0, 7) == {run.token: 1 << 62}


def test_one_that_is_taken_for_dead_is_told_so_where_it_waits() -> None:
    run = Run(max_staleness=1)
    run.ask("a", 1, 2)
    waiting = run.token
    run.step(events.WorkerLost("a", 1, "gone"))
    assert [i.token for i in run.out if isinstance(i, Refuse)] == [waiting]


def test_without_a_bound_the_lead_is_seen_in_reports() -> None:
    run = Run()
    for _ in range(5):
        mine = [number for number, found in run.core.run.work.assignments.items() if found.worker == ("a", 1)]
        run.tasks("a", tuple(TaskReport(number, 8, 1.0, 0, 2) for number in mine))
    assert run.core.run.pace.lead_max >= 8
