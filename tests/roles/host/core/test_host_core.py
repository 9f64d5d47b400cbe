"""What an agent does with orders, ends and a front that is not there: every case by its number."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from adamctl.roles.host.core.arguments import Roots
from adamctl.roles.host.core.host_core import GRACE_S_MAX, LEAVE_GRACE_S, REPORTS_MAX, ROLES_MAX, UNUSABLE, HostCore
from adamctl.roles.host.core.instructions import (
    FindPorts,
    Forget,
    ForgetOthers,
    Instruction,
    KillProcess,
    Leave,
    ReadTail,
    SignalProcess,
    StartProcess,
)
from adamctl.wire.messages import (
    HostCredentials,
    HostDraining,
    HostEnded,
    HostFailing,
    HostFreePorts,
    HostJoinReply,
    HostLines,
    HostPorts,
    HostReading,
    HostServing,
    HostStart,
    HostStop,
    HostTail,
    Report,
)

KEEP_S = 60.0


def core(run: str = "small/001") -> HostCore:
    made = HostCore(Roots(data=("/data",)))
    if run:
        made.joined(HostJoinReply(run, 2.0, KEEP_S), 0.0)
    return made


def start(number: int, node: str = "worker-1", *arguments: str) -> HostStart:
    return HostStart(number, "worker", node, arguments)


def reports(made: HostCore) -> list[Report]:
    return list(made.unconfirmed()[1])


def test_an_order_is_carried_out_once_however_often_it_comes() -> None:
    made = core()
    orders = (start(1), HostTail(2, "worker-1", 5), HostPorts(3, 2))
    found = made.ordered(orders, 1.0)
    assert found == [
        StartProcess("worker", "worker-1", 1, (), False, ()),
        ReadTail(2, "worker-1", 5),
        FindPorts(3, 2),
    ]
    assert made.ordered(orders, 2.0) == [] and made.last_order == 3
    assert made.ordered((start(4, "worker-2"), *orders), 2.0) == [StartProcess("worker", "worker-2", 4, (), False, ())]


def test_what_is_asked_for_is_bounded() -> None:
    made = core()
    assert made.ordered((HostTail(1, "w", 10**9), HostPorts(2, 10**9)), 0.0) == [
        ReadTail(1, "w", 1000),
        FindPorts(2, 64),
    ]
    made.ordered([start(number, f"worker-{number}") for number in range(3, ROLES_MAX + 4)], 0.0)
    assert len(made.roles) == ROLES_MAX
    ended = reports(made)[-1]
    assert isinstance(ended, HostEnded) and f"already runs {ROLES_MAX} roles" in ended.error


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (
            HostStart(2, "coordinator", "c", ()),
            "an agent starts controller, ps, data, worker; found role 'coord",
        ),
        (HostStart(2, "worker", "w/../x", ()), "the name of a node is"),
        (HostStart(2, "worker", "worker-1", ()), "worker-1 runs already"),
        (HostStart(2, "worker", "w", ("--token-file", "/etc/passwd")), "found '--token-file'"),
        (HostStart(2, "worker", "w", ("--threads", "2; rm")), "--threads: expected a number"),
        (HostStart(2, "data", "d", ("--data-root", "/etc")), "lies in none of this agent's roots"),
        (HostStart(2, "worker", "w", (), True), "a worker keeps no folder"),
        (HostStart(2, "worker", "w", (), credentials=HostCredentials(b"", b"b", b"c")), "found [0, 1, 1]"),
        (HostStart(2, "worker", "w", (), credentials=HostCredentials(b"a", b"b", b"c" * 16385)), "found [1, 1, 16385]"),
    ],
)
def test_what_is_refused_is_reported_as_an_end_that_no_restart_mends(order: HostStart, reason: str) -> None:
    made = core()
    made.ordered([start(1)], 0.0)
    assert made.ordered([order], 0.0) == []
    (ended,) = reports(made)
    assert isinstance(ended, HostEnded) and reason in ended.error
    assert (ended.node, ended.attempt, ended.status, ended.retry_helps) == (order.node, 2, UNUSABLE, False)
    assert "worker-1" in made.roles and len(made.roles) == 1


def test_credentials_are_handed_on_and_not_shown() -> None:
    made, own = core(), HostCredentials(b"authorities", b"certificate", b"the key")
    (found,) = made.ordered([HostStart(1, "worker", "worker-1", (), credentials=own)], 0.0)
    assert isinstance(found, StartProcess) and found.credentials == own
    assert "the key" not in repr(found)


def test_reports_are_kept_until_they_are_confirmed_in_order() -> None:
    made = core()
    made.ordered([start(1)], 0.0)
    made.serving("worker-1", 1, ("tcp://h:1",), 7)
    made.failing(HostFailing("worker-1", 1, "no", 1, True, 0.0))
    assert made.unconfirmed()[0] == 1
    made.confirmed(1)
    assert made.unconfirmed() == (2, (HostFailing("worker-1", 1, "no", 1, True, 0.0),))
    made.confirmed(1)
    made.ended(HostEnded("worker-1", 1, 1), 1.0)
    made.confirmed(5)
    assert made.unconfirmed() == (4, ())


def test_readings_are_worth_nothing_to_a_front_that_is_not_there() -> None:
    made = core()
    made.read([HostReading("worker-1", 0.5, 10)])
    assert len(reports(made)) == 1
    made.read([HostReading("worker-1", 0.6, 10)])
    assert len(reports(made)) == 1, "nor while earlier ones have not arrived"
    made.confirmed(1)
    made.lost_front(1.0)
    made.read([HostReading("worker-1", 0.5, 10)])
    assert reports(made) == []


def test_reports_do_not_fill_the_memory() -> None:
    made = core()
    for number in range(REPORTS_MAX + 10):
        made.tailed(number, "", ())
    assert len(reports(made)) == REPORTS_MAX


def test_a_role_is_asked_to_end_and_killed_when_its_time_is_over() -> None:
    made = core()
    made.ordered([start(1)], 0.0)
    assert made.ordered([HostStop(2, "worker-1", 9, 5.0)], 1.0) == [], "another process of this name"
    assert made.ordered([HostStop(3, "worker-1", 1, 5.0)], 1.0) == [SignalProcess("worker-1")]
    assert made.tick(5.9) == []
    assert made.ordered([HostStop(4, "worker-1", 1, 1.0)], 2.0) == [], "it was asked already; its time is shorter now"
    assert made.tick(3.0) == [KillProcess("worker-1")] and made.tick(9.0) == []
    assert made.ended(HostEnded("worker-1", 1, -9), 9.0) == []
    assert made.roles == {}


def test_a_role_that_is_ending_starts_again_when_it_has_ended() -> None:
    made = core()
    made.ordered([start(1), HostStop(2, "worker-1", 1, 5.0)], 0.0)
    assert made.ordered([start(3)], 1.0) == [] and reports(made) == []
    assert made.ended(HostEnded("worker-1", 1, 143), 2.0) == [StartProcess("worker", "worker-1", 3, (), False, ())]
    assert made.roles["worker-1"].attempt == 3
    made.ordered([HostStop(4, "worker-1", 3, 5.0), start(5), HostStop(6, "worker-1", 5, 5.0)], 3.0)
    assert made.ended(HostEnded("worker-1", 3, 143), 4.0) == [], "it was told to end before it began"
    ends = {one.attempt for one in reports(made) if isinstance(one, HostEnded)}
    assert ends == {1, 3, 5}


def test_no_grace_is_longer_than_a_minute() -> None:
    made = core()
    made.ordered([start(1), HostStop(2, "worker-1", 1, 1e9)], 0.0)
    assert made.tick(GRACE_S_MAX - 0.1) == [] and made.tick(GRACE_S_MAX) == [KillProcess("worker-1")]


def test_the_end_of_the_run_ends_roles_then_the_agent() -> None:
    made = core()
    made.ordered([start(1), start(2, "worker-2")], 0.0)
    found = made.ordered([HostStop(3, "", 0, 2.0, "the run is over", forget=True)], 1.0)
    assert found == [SignalProcess("worker-1"), SignalProcess("worker-2")]
    assert made.ended(HostEnded("worker-1", 1, 0), 1.5) == []
    assert made.tick(3.0) == [KillProcess("worker-2")]
    assert made.ended(HostEnded("worker-2", 2, -9), 3.1) == [Forget(), Leave("the run is over", False)]


def test_nothing_starts_while_the_agent_ends() -> None:
    made = core()
    made.ordered([start(1), HostStop(2, "", 0, 2.0, "the run is over")], 0.0)
    assert made.ordered([start(3, "worker-2")], 1.0) == []
    ended = reports(made)[-1]
    assert isinstance(ended, HostEnded) and ended.node == "worker-2" and "is ending" in ended.error


def test_an_agent_that_ends_by_itself_tells_the_front_before_its_roles_have_ended() -> None:
    made = core()
    made.ordered([start(1)], 0.0)
    assert made.leave("received SIGTERM", False, 1.0) == [SignalProcess("worker-1")]
    assert made.leave("received SIGTERM", False, 2.0) == []
    made.ended(HostEnded("worker-1", 1, 138), 2.0)
    assert reports(made) == [HostDraining(0.0, "its agent ends: received SIGTERM"), HostEnded("worker-1", 1, 138)]
    ordered = core()
    ordered.ordered([HostStop(1, "", 0, 2.0, "the run is over")], 0.0)
    ordered.leave("received SIGTERM", False, 1.0)
    assert reports(ordered) == [], "the front knows"
    alone = core(run="")
    assert alone.leave("received SIGTERM", False, 1.0) == [Leave("received SIGTERM", False)] and reports(alone) == []


def test_an_agent_without_roles_leaves_at_once() -> None:
    assert core().ordered([HostStop(1, "", 0, 5.0, "over")], 0.0) == [Leave("over", False)]


def test_roles_are_kept_without_the_front_for_a_minute_and_no_longer() -> None:
    made = core()
    made.ordered([start(1)], 0.0)
    made.lost_front(10.0)
    made.lost_front(40.0)
    assert made.tick(10.0 + KEEP_S - 0.1) == []
    assert made.tick(10.0 + KEEP_S) == [SignalProcess("worker-1")]
    found = made.ended(HostEnded("worker-1", 1, 143), 71.0)
    assert found == [Leave("the front has not been there for 60 s", True)]


def test_a_front_that_comes_back_in_time_finds_everything_as_it_was() -> None:
    made = core()
    made.ordered([start(1)], 0.0)
    made.lost_front(10.0)
    made.joined(HostJoinReply("small/001", 2.0, KEEP_S), 69.0)
    assert made.tick(200.0) == [] and "worker-1" in made.roles


def test_the_front_of_another_run_finds_nothing() -> None:
    made = core()
    made.ordered([start(1)], 0.0)
    made.lost_front(10.0)
    assert made.joined(HostJoinReply("other/001", 2.0, KEEP_S), 12.0) == [SignalProcess("worker-1")]
    found = made.ended(HostEnded("worker-1", 1, 143), 13.0)
    assert found == [Leave("the front now runs another run", True)]


def test_what_an_agent_before_has_kept_is_for_the_run_of_this_very_front() -> None:
    made = HostCore(Roots(data=("/data",)))
    assert made.joined(HostJoinReply("small/001", 2.0, KEEP_S, 7), 0.0) == [ForgetOthers("small/001 7")]
    made.lost_front(1.0)
    assert made.joined(HostJoinReply("small/001", 2.0, KEEP_S, 7), 2.0) == [], "roles run"


def test_an_agent_that_has_met_no_front_waits() -> None:
    made = core(run="")
    made.lost_front(0.0)
    assert made.tick(1e6) == []


@dataclass
class Machine:
    """Processes as a core sees them, which end when they are told to or at random."""

    made: HostCore
    living: dict[str, int] = field(default_factory=dict)
    started: list[tuple[str, int]] = field(default_factory=list)
    left: Leave | None = None

    def do(self, found: list[Instruction], now_s: float) -> None:
        for one in found:
            match one:
                case StartProcess(node=node, attempt=attempt):
                    assert node not in self.living, "one process for a name at a time"
                    self.living[node] = attempt
                    self.started.append((node, attempt))
                case KillProcess(node=node):
                    self.end(node, -9, now_s)
                case Leave():
                    assert not self.living, "an agent leaves nothing behind"
                    self.left = one

    def end(self, node: str, status: int, now_s: float) -> None:
        attempt = self.living.pop(node, None)
        if attempt is not None:
            self.do(self.made.ended(HostEnded(node, attempt, status), now_s), now_s)


@pytest.mark.parametrize("seed", range(60))
def test_any_orders_twice_late_and_in_any_batches_end_with_the_same_processes(seed: int) -> None:
    random = Random(seed)
    made = core()
    machine, now_s = Machine(made), 0.0
    orders: list[HostStart | HostStop] = []
    for number in range(1, 30):
        node = f"worker-{random.randrange(4)}"
        known = [one for one in orders if isinstance(one, HostStart)]
        if random.random() < 0.6 or not known:
            orders.append(HostStart(number, "worker", node, ()))
        else:
            chosen = random.choice(known)
            orders.append(HostStop(number, chosen.node, chosen.number, 1.0))
    seen = 0
    while made.last_order < orders[-1].number:
        now_s += random.random()
        seen = min(seen + random.randrange(3), len(orders))
        begin = random.randrange(seen + 1) if random.random() < 0.3 else made.last_order
        machine.do(made.ordered(orders[begin:seen], now_s), now_s)
        machine.do(made.tick(now_s), now_s)
        if random.random() < 0.2:
            made.lost_front(now_s)
        if random.random() < 0.5:
            machine.do(made.joined(HostJoinReply("small/001", 2.0, KEEP_S), now_s), now_s)
        if machine.living and random.random() < 0.3:
            machine.end(random.choice(sorted(machine.living)), 1, now_s)
    assert len(machine.started) == len(set(machine.started)), "no order started two processes"
    now_s += 2 * GRACE_S_MAX + LEAVE_GRACE_S
    machine.do(made.ordered([HostStop(orders[-1].number + 1, "", 0, 1.0, "over")], now_s), now_s)
    machine.do(made.tick(now_s + 2), now_s + 2)
    assert machine.left is not None and made.roles == {}
    ends = [one for one in reports(made) if isinstance(one, HostEnded)]
    starts = [one.number for one in orders if isinstance(one, HostStart)]
    assert sorted(one.attempt for one in ends) == starts, "each start has exactly one end"
    assert not any(isinstance(one, (HostServing, HostLines, HostFreePorts)) for one in reports(made))
