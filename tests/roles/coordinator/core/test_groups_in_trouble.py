"""Whatever happens to workers of groups and to links, nothing is lost or done twice, and in the end replicas are whole.

Planted faults of the core, each a mistake that is easily made, are found by the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any

import pytest

from adamctl.roles.coordinator.core.group_book import Group, GroupBook, Member
from adamctl.roles.coordinator.core.groups import Groups
from adamctl.roles.coordinator.core.lobby import Guest, Lobby
from adamctl.roles.coordinator.core.misfits import ATTEMPTS_MAX, Misfits
from adamctl.roles.coordinator.core.work import WorkerKey
from adamctl.wire.messages import RunJoinRequest
from tests.roles.coordinator.core.group_ledger import GroupLedger
from tests.roles.coordinator.core.group_member import Connection, Process
from tests.roles.coordinator.core.group_world import SILENT_AFTER_S, GroupWorld
from tests.roles.coordinator.core.grouped_run import EXAMPLES, GroupedRun
from tests.sim.engine import ViolationError

SEEDS = range(1, 13)
SLOW_SEEDS = range(13, 1001)
TROUBLES_S = 20.0
WHOLE_AFTER_S, OVER_AFTER_S, TOLD_AFTER_S = 40.0, 240.0, 20.0
TROUBLES = ("dies", "dies", "dies", "silent", "stop", "stop", "cut", "hang", "hang", "coordinator", "late", "for good")


class Troubles:
    """What happens in one seed, until it does not any more."""

    def __init__(self, group_world: GroupWorld) -> None:
        self.group_world, self.world, self.calm = group_world, group_world.world, False
        self._may_go = self.world.random.randint(0, 2)
        self._often_s = self.world.random.choice((0.5, 1.5, 4.0))
        self.world.after(self.world.random.random(), self._next)

    def _next(self) -> None:
        if self.calm:
            return
        process = self.world.random.choice(list(self.group_world.processes.values()))
        self._happens(self.world.random.choice(TROUBLES), process)
        self.world.after(self._often_s * self.world.random.random(), self._next)

    def _happens(self, kind: str, process: Process) -> None:
        random, coordinator = self.world.random, self.group_world.coordinator
        self.world.note("world", kind, process.name)
        length_s = random.random() * random.choice((0.5, 3.0, 8.0))
        match kind:
            case "coordinator":
                coordinator.stopped_until_s = self.world.now_s + length_s / 2
            case "stop":
                process.stopped_until_s = self.world.now_s + length_s
            case "cut":
                if process.connection is not None:
                    process.connection.cut()
            case "hang":
                process.hung, grouped = True, self.group_world.partitions > 1
                process.until_dropped = self.world.chance(0.5) and grouped
                self.world.after(length_s, lambda: self._heal(process))
            case "late":
                self._late_join(process)
            case "for good" if self._may_go:
                self._may_go -= 1
                process.crash(noticed=self.world.chance(0.5))
                process.gone = True
            case _:
                former = process.key
                process.crash(noticed=kind == "dies")
                self.world.after(length_s, process.start)
                if self.world.chance(0.3):
                    self.world.after(length_s * 2, lambda: coordinator.lose(former, "it is no longer a member"))

    def _heal(self, process: Process) -> None:
        process.hung = process.until_dropped

    def _late_join(self, process: Process) -> None:
        """It dies; what it has sent last comes after its successor's first words."""
        late = RunJoinRequest(process.name, process.incarnation, 1, process.host, ("memory://x",), 1.0)
        connection = Connection(self.group_world, process)
        process.crash(noticed=True)
        self.world.after(0.1, process.start)
        self.world.after(0.5 + self.world.random.random(), lambda: self._come(connection, late))

    def _come(self, connection: Connection, late: RunJoinRequest) -> None:
        self.group_world.coordinator.take(connection, 0, late)
        self.world.after(self.world.random.random(), lambda: self.group_world.coordinator.lose_sight(connection))

    def end(self) -> None:
        self.calm = True
        self.group_world.coordinator.stopped_until_s = 0.0
        for process in self.group_world.processes.values():
            self._heal(process)
            process.stopped_until_s = 0.0
            process.start()


def whole(group_world: GroupWorld) -> bool:
    """Whether there are as many replicas as there can be, and all their members work in them."""
    run = group_world.coordinator.core.run
    alive = [process for process in group_world.processes.values() if process.alive]
    wanted = min(run.plan.workers, len(alive) // run.plan.partitions)
    leads = [one.session for one in alive if one.session is not None and not one.session.seat.partition]
    working = [session for session in leads if not session.absent()]
    current = set(run.groups.groups) if run.plan.partitions > 1 else {0}
    strays = [one for one in alive if one.session is not None and one.session.seat.group_epoch not in current]
    return len(working) >= wanted == len(run.workers) and not strays


def play(seed: int) -> GroupWorld:
    """Plays a seed; raises ViolationError, or AssertionError of the core, if something does not hold."""
    group_world = GroupWorld(seed)
    troubles, world = Troubles(group_world), group_world.world
    coordinator, run = group_world.coordinator, group_world.coordinator.core.run
    world.run_until(TROUBLES_S)
    troubles.end()

    def wait(reached: Callable[[], object], seconds: float, what: str) -> None:
        until_s = world.now_s + seconds
        while not reached():
            if world.now_s >= until_s:
                raise ViolationError(f"{what}, {seconds:g} s after faults: {run.state}, groups {run.groups.groups}")
            world.run_until(world.now_s + 0.25)

    wait(lambda: run.final_state or whole(group_world), WHOLE_AFTER_S, "no whole replicas")
    alive = [process for process in group_world.processes.values() if process.alive]
    if len(alive) >= group_world.partitions:
        wait(lambda: run.final_state, OVER_AFTER_S, "the run is not over")
        coordinator.ledger.check_end(run)
        wait(lambda: all(process.done for process in alive), TOLD_AFTER_S, "who is there is not told of the end")
    return group_world


@cache
def played(seed: int) -> GroupWorld:
    """A seed, played once without any planted fault."""
    return play(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_or_done_twice_and_replicas_are_whole_in_the_end(seed: int) -> None:
    print(f"seed {seed}")
    played(seed)


def test_seeds_have_what_they_are_for() -> None:
    worlds = [played(seed) for seed in SEEDS]
    ledgers = [one.coordinator.ledger for one in worlds]
    assert min(one.partitions for one in worlds) == 1 and max(one.partitions for one in worlds) >= 7
    assert sum(one.dissolved for one in ledgers) > 5 * len(worlds)
    assert sum(one.again for one in ledgers) > len(worlds) and any(one.late for one in ledgers)


@pytest.mark.slow
def test_nothing_is_lost_in_a_thousand_seeds() -> None:
    for seed in SLOW_SEEDS:
        print(f"seed {seed}")
        play(seed)


# --- planted faults -------------------------------------------------------------------------------------------------

_refusal, _dissolve_in_book, _choose = GroupBook.refusal, GroupBook.dissolve, Lobby.choose
_lose, _dissolve, _answer_watch = Groups.lose, Groups._dissolve, Groups._answer_watch
_seat, _form = GroupBook.seat, Groups._form


def _old_group_is_served(self: GroupBook, worker: WorkerKey, epoch: int) -> str:
    seat = self.seat(worker)
    return "" if seat is not None and not seat.member.partition else _refusal(self, worker, epoch)


def _epoch_again(self: GroupBook, group: Group, cause: str, dropped: WorkerKey | None) -> None:
    _dissolve_in_book(self, group, cause, dropped)
    self.epoch = group.epoch - 1


def _stays_in_the_lobby(self: Lobby, now_s: float) -> list[Guest]:
    before = dict(self.guests)
    chosen = _choose(self, now_s)
    self.guests = before
    return chosen


def _whoever_was_there(self: Lobby) -> list[Guest]:
    return sorted(self.guests.values(), key=lambda guest: (guest.drops, guest.place))


def _only_leads_are_missed(self: Groups, worker: WorkerKey, cause: str) -> None:
    seat = self._run.groups.seat(worker)
    if seat is None or seat.member is seat.group.lead:
        _lose(self, worker, cause)


def _keeps_its_ranges(self: Groups, group: Group, cause: str, dropped: Member | None) -> None:
    give_up, self._give_up = self._give_up, lambda *told: None
    _dissolve(self, group, cause, dropped)
    self._give_up = give_up


def _survivors_wait(self: Groups, member: Member, state: str, cause: str = "") -> None:
    if state != "dissolved":
        _answer_watch(self, member, state, cause)


def _all_are_to_blame(self: Groups, member: Member, state: str, cause: str = "") -> None:
    _answer_watch(self, member, "dropped" if state == "dissolved" else state, cause)


def _in_whatever_group(self: GroupBook, worker: WorkerKey, epoch: int | None = None) -> Any:
    return _seat(self, worker)


def _silence_is_life(self: Member, silent_after_s: float) -> float:
    return self.watch[1] if self.watch is not None else inf


def _begins_at_once(self: Groups, guests: list[Guest]) -> None:
    _form(self, guests)
    self._run.groups.groups[self._run.groups.epoch].begun = True


FAULTS: dict[str, list[tuple[type[Any], str, Callable[..., Any]]]] = {
    "a request of an old group is served": [(GroupBook, "refusal", _old_group_is_served)],
    "a group epoch is used again": [(GroupBook, "dissolve", _epoch_again)],
    "what a member says of an old group is taken for the new one": [(GroupBook, "seat", _in_whatever_group)],
    "who is in a group stays in the lobby": [(Lobby, "choose", _stays_in_the_lobby)],
    "who does not wait is put in a group": [(Lobby, "_waiting", _whoever_was_there)],
    "who is lost stays in the lobby": [(Lobby, "remove", lambda self, worker: None)],
    "hosts are never mixed": [(Lobby, "_of_several_hosts", lambda self: [])],
    "a member that is no lead is not missed": [(Groups, "lose", _only_leads_are_missed)],
    "ranges stay with a dissolved group": [(Groups, "_dissolve", _keeps_its_ranges)],
    "survivors are not told": [(Groups, "_answer_watch", _survivors_wait)],
    "survivors are told that they are to blame": [(Groups, "_answer_watch", _all_are_to_blame)],
    "neither silence nor a group that does not begin is noticed": [
        (Member, "deadline_s", _silence_is_life),
        (Groups, "_form", _begins_at_once),
    ],
    "who is out of reach once stays out for good": [(Misfits, "apart", lambda self, one, other: ATTEMPTS_MAX)],
    "a former process takes the place of the one after it": [(Groups, "is_former", lambda self, event: False)],
}
FOUND_WITHIN = 100


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, wrong in FAULTS[fault]:
        monkeypatch.setattr(owner, name, wrong)
    for seed in range(1, FOUND_WITHIN + 1):
        try:
            play(seed)
        except AssertionError as violation:
            print(f"seed {seed}: {violation}")
            return
    raise AssertionError(f"not found within {FOUND_WITHIN} seeds: {fault}")


# --- what a member says of an old group, and the ledger -------------------------------------------------------------


def speak_of_an_old_group(now_s: float) -> GroupLedger:
    """A member drops a group that is no more, and is in another one; nobody has been heard of since second 0."""
    run = GroupedRun(partitions=2, workers=2, silent_after_s=SILENT_AFTER_S)
    old = run.grouped("w1", "w2")
    run.grouped("w3", "w4")
    run.lose("w2")
    run.grouped("w1", "w5")
    ledger = GroupLedger(run.core.run.plan, EXAMPLES)
    run.now_s = now_s
    ledger.before(run.core, old, now_s)
    run.drop("w1", old, -1)
    ledger.check_groups(run.core.run, [], old)
    return ledger


def test_groups_whose_silence_is_over_the_limit_end_whatever_comes_first() -> None:
    assert speak_of_an_old_group(SILENT_AFTER_S - 1.0).dissolved == 0
    assert speak_of_an_old_group(SILENT_AFTER_S).dissolved == 2, "as by a tick, which comes later"


@pytest.mark.parametrize("now_s", [1.0, SILENT_AFTER_S])
def test_a_group_that_ends_otherwise_than_by_time_is_found(now_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupBook, "seat", _in_whatever_group)
    with pytest.raises(ViolationError, match="what a member says of group 1 ends"):
        speak_of_an_old_group(now_s)
