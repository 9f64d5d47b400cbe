"""Membership: who has a name, until when, and what becomes of it."""

from __future__ import annotations

import pytest

from adamctl.config.records import NodeRecord, decode, node_key
from adamctl.errors import ConfigurationError
from adamctl.roles.controller.core.instructions import Answer, Append, Instruction, Notice, Probe, Refuse
from adamctl.roles.controller.core.paxos.forming import cluster_identity
from adamctl.roles.controller.core.service.config import lease_config
from adamctl.roles.controller.core.service.events import Beacon, Disconnected, Gone, Leave, Register, Tick, Watch
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigWatchReply, Empty, NodeBeaconReply, NodeRegisterReply, NodeRegisterRequest
from tests.roles.controller.core.paxos.test_paxos_core import Three
from tests.roles.controller.driven_core import Driven, only


def test_a_registration_that_comes_again_deposes_nobody() -> None:
    """Its key stays as it is: a new revision would tell others that the process which they know has ended."""
    driven = Driven()

    def register(process: int) -> NodeRegisterReply:
        request = NodeRegisterRequest("ps-1", "ps", (), "host/boot", 1, process=process)
        reply = only(driven.step(Register(9, 1, request)), Answer).message
        assert isinstance(reply, NodeRegisterReply)
        return reply

    first = register(77).incarnation
    revision = driven.core.state.revision_of(node_key("ps-1"))
    assert register(77).incarnation == first
    assert driven.core.state.revision_of(node_key("ps-1")) == revision


def test_two_containers_with_one_host_name_and_process_number_do_not_replace_each_other() -> None:
    """Both are process 1 of what is called `host`, on one machine; their random numbers tell them apart."""
    driven = Driven()

    def register(process: int, connection: int, now: float = 0.0) -> list[Instruction]:
        request = NodeRegisterRequest("ps-1", "ps", ("tcp://h:1",), "host/boot", 1, process=process)
        return driven.step(Register(9, connection, request), now)

    register(77, 1)
    refuse = only(register(78, 2), Refuse)
    assert refuse.code == ErrorCode.BAD_CONFIGURATION and "belongs to a living ps" in refuse.message
    driven.step(Disconnected(1), 1.0)  # it may be cut off, and believe in its lease
    waits = register(78, 2, 1.1)
    assert only(waits, Refuse).code == ErrorCode.NOT_READY and only(waits, Probe).record.incarnation == 1
    driven.step(Gone("ps-1", 1), 1.2)
    reply = only(register(78, 2, 1.3), Answer).message
    assert isinstance(reply, NodeRegisterReply) and reply.incarnation == 2


def test_registering_gives_growing_incarnations_and_a_key() -> None:
    driven = Driven()
    first = only(driven.register("ps-0"), Answer).message
    second = only(driven.register("ps-1", connection=2), Answer).message
    cluster = cluster_identity(driven.core.paxos.acceptor.vote.cluster)
    assert len(cluster) == 16
    assert first == NodeRegisterReply(1, 1.0, 5.0, 4.0, cluster)
    assert second == NodeRegisterReply(2, 1.0, 5.0, 4.0, cluster)
    entry = driven.core.state.get(node_key("ps-1"))
    assert entry is not None and decode(entry.value, NodeRecord).incarnation == 2


def test_a_name_of_a_living_node_is_refused_to_another_process() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    refuse = only(driven.register("ps-0", pid=2, connection=2, now=1.0), Refuse)
    assert refuse.code == ErrorCode.BAD_CONFIGURATION and "process 1 on host)" in refuse.message


def test_i8_a_restarted_process_takes_its_name_over_as_a_new_incarnation() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    driven.step(Disconnected(1), 0.05)
    waits = driven.register("ps-0", pid=2, connection=2, now=0.1)
    assert only(waits, Refuse).code == ErrorCode.NOT_READY and only(waits, Probe).record.incarnation == 1
    driven.step(Gone("ps-0", 1), 0.15)
    taken = driven.register("ps-0", pid=2, connection=2, now=0.15)
    cluster = cluster_identity(driven.core.paxos.acceptor.vote.cluster)
    assert only(taken, Answer).message == NodeRegisterReply(2, 1.0, 5.0, 4.0, cluster)
    stale = only(driven.step(Beacon(5, 1, "ps-0", 1), 0.2), Refuse)
    assert stale.code == ErrorCode.STALE_INCARNATION and "taken over by incarnation 2" in stale.message
    assert driven.step(Beacon(5, 2, "ps-0", 2), 0.3) == [Answer(5, NodeBeaconReply())]
    assert driven.step(Leave(6, "ps-0", 1), 0.3)[-1] == Answer(6, Empty())
    assert driven.keys() == ["/nodes/ps-0"]  # the old incarnation's goodbye does not remove the new one


def waits_in(three: Three, event: Beacon | Register) -> None:
    """The leader gets a request, whose round or slot is under way for a while."""
    three.carry_out("a", three.cores["a"].step(event, three.now))


def test_a_request_that_is_confirmed_after_its_connection_was_closed_connects_nobody() -> None:
    """Else a process that was killed just then would count as connected until its lease is over."""
    three = Three()
    request = NodeRegisterRequest("ps-0", "ps", ("tcp://h:1",), "host/boot", 1)
    three.step("a", Register(1, 4, request))
    leader = three.cores["a"]
    waits_in(three, Beacon(2, 5, "ps-0", 1))
    for connection in (4, 5):
        waits_in(three, Disconnected(connection))
    three.deliver()
    assert any(isinstance(one, Answer) and one.token == 2 for _, one in three.out)
    assert [record.node for record in leader.unconnected()] == ["ps-0"]
    other = NodeRegisterRequest("ps-0", "ps", ("tcp://h:2",), "host/boot", 2)
    refused = [one for one in three.step("a", Register(3, 6, other)) if isinstance(one, Refuse)]
    assert [one.code for one in refused] == [ErrorCode.NOT_READY]
    three.step("a", Gone("ps-0", 1))
    waits_in(three, Register(4, 6, other))
    waits_in(three, Disconnected(6))
    three.deliver()
    assert [(record.node, record.pid) for record in leader.unconnected()] == [("ps-0", 2)]


def test_a_beacon_of_a_closed_connection_leaves_the_open_one_alone() -> None:
    three = Three()
    three.step("a", Register(1, 4, NodeRegisterRequest("ps-0", "ps", ("tcp://h:1",), "host/boot", 1)))
    waits_in(three, Beacon(2, 5, "ps-0", 1))
    waits_in(three, Disconnected(5))
    three.deliver()
    assert three.cores["a"].unconnected() == []


def test_a_new_leader_takes_no_name_before_it_knows_who_is_alive() -> None:
    three = Three()
    first = NodeRegisterRequest("ps-1", "ps", ("tcp://h:1",), "host/boot", 1)
    three.step("a", Register(1, 4, first))
    three.wait(0.5)  # so that all know of it
    three.cut("a")
    del three.cores["a"]
    deliver, three.deliver = three.deliver, lambda: None  # type: ignore[method-assign]
    leader = ""
    for _ in range(200):  # messages one by one, until one leads that has decided nothing of its own yet
        if leader := next((name for name, core in three.cores.items() if core.paxos.leadership is not None), ""):
            break
        if three.under_way:
            address, _, event = three.under_way.pop(0)
            if address in three.cores:
                three.carry_out(address, three.cores[address].step(event, three.now))
        else:
            three.wait(0.05)
    core = three.cores[leader]
    assert not core.paxos.leading
    second = NodeRegisterRequest("ps-1", "ps", ("tcp://h:2",), "host/boot", 2)
    (refused,) = (one for one in core.step(Register(2, 9, second), three.now) if isinstance(one, Refuse))
    assert refused.code == ErrorCode.NOT_LEADER
    three.deliver = deliver  # type: ignore[method-assign]
    three.deliver()
    three.wait(0.2)
    assert core.paxos.leading
    (refused,) = (one for one in three.step(leader, Register(3, 9, second)) if isinstance(one, Refuse))
    assert refused.code == ErrorCode.NOT_READY and "may still be running" in refused.message
    assert any(isinstance(one, Answer) for one in three.step(leader, Beacon(4, 5, "ps-1", 1)))


def test_a_name_whose_process_may_still_be_there_is_free_when_its_lease_is_surely_over() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    driven.step(Disconnected(1), 1.0)
    for now in (1.0, 2.0, 3.0, 4.0, 4.9):
        driven.step(Tick(), now)
        assert only(driven.register("ps-0", pid=2, connection=2, now=now), Refuse).code == ErrorCode.NOT_READY
    driven.step(Tick(), 5.1)
    assert driven.keys() == []
    driven.register("ps-0", pid=2, connection=2, now=5.2)
    assert driven.keys() == ["/nodes/ps-0"]


def test_whoever_has_reaped_a_process_says_so_and_nobody_waits() -> None:
    driven = Driven()
    driven.register("ps-0", pid=1, connection=1)
    out = driven.step(Leave(6, "ps-0", 1, "has ended: killed by SIGKILL"), 0.1)
    assert driven.keys() == [] and only(out, Notice).message == "ps ps-0 on host has ended: killed by SIGKILL"
    driven.register("ps-0", pid=2, connection=2, now=0.2)
    assert driven.keys() == ["/nodes/ps-0"]


def test_times_follow_from_a_lease_or_from_the_silence_after_which_a_node_is_lost() -> None:
    def times(lease_s: float | None = None, lost_after_s: float | None = None) -> tuple[float, float, float]:
        config = lease_config(lease_s, lost_after_s)
        return config.granted_s, config.lost_after_s, config.beacon_interval_s

    assert times() == (4.0, 5.0, 1.0)
    assert times(1.0) == (1.0, 1.25, 0.25)
    assert times(None, 2.5) == (2.0, 2.5, 0.5)
    assert times(4.0, 30.0) == (4.0, 30.0, 1.0)
    for lease_s, lost_after_s, complaint in (
        (4.0, 4.0, "--lost-after: found 4 seconds with a lease of 4; expected at least 4.13"),
        (0.1, None, "--lease: expected at least 0.4 seconds, found 0.1"),
        (None, 0.1, "--lost-after: expected at least 0.5 seconds, found 0.1"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            lease_config(lease_s, lost_after_s)


def test_a_node_that_misses_its_beacons_loses_its_key() -> None:
    driven = Driven()
    driven.register("ps-0")
    for second in range(1, 8):
        driven.step(Beacon(5, 1, "ps-0", 1), float(second))
        assert driven.step(Tick(), float(second)) == []
    for second in range(8, 13):
        assert driven.step(Tick(), float(second)) == []
    out = driven.step(Tick(), 12.5)
    assert driven.keys() == [] and "no beacon for 5.5 s" in only(out, Notice).message
    assert only(driven.step(Beacon(5, 1, "ps-0", 1), 13.0), Refuse).code == ErrorCode.STALE_INCARNATION


def test_nobody_is_lost_because_the_controller_itself_stood_still() -> None:
    driven = Driven()
    driven.register("ps-0")
    assert driven.step(Tick(), 60.0) == []
    assert driven.keys() == ["/nodes/ps-0"]


def test_an_ended_process_is_lost_without_waiting_unless_it_came_back() -> None:
    driven = Driven()
    driven.register("ps-0", connection=1)
    assert driven.step(Gone("ps-0", 1)) == []  # it is connected
    driven.step(Disconnected(1))
    driven.step(Beacon(5, 2, "ps-0", 1), 0.5)
    assert driven.step(Gone("ps-0", 1)) == []  # it is connected again
    driven.step(Disconnected(2))
    assert driven.step(Gone("ps-0", 0)) == []  # another incarnation
    assert only(driven.step(Gone("ps-0", 1)), Append)
    assert driven.keys() == []


def test_leaving_removes_the_key_and_tells_watchers() -> None:
    driven = Driven()
    driven.register("ps-0")
    driven.step(Watch(3, 2, "/nodes/", 1, 10.0))
    out = driven.step(Leave(6, "ps-0", 1))
    answers = {answer.token: answer for answer in out if isinstance(answer, Answer)}
    assert answers[3].message == ConfigWatchReply(2, ("/nodes/ps-0",), False) and 6 in answers
    assert only(driven.step(Leave(6, "ps-0", 1)), Answer)  # saying goodbye twice is no error


def test_a_bad_name_is_refused() -> None:
    for name in ("", "a/b", "x" * 300):
        assert only(Driven().register(name), Refuse).code == ErrorCode.BAD_CONFIGURATION
