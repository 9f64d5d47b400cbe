"""Workers that have joined and have no group: who forms one, in which order, and who waits."""

from __future__ import annotations

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.instructions import Admit
from adamctl.roles.coordinator.core.joining import JOIN_WAIT_S
from adamctl.roles.coordinator.core.lobby import ASKS_AGAIN_S, GUESTS_MAX, MIX_AFTER_S
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import GroupMember
from tests.roles.coordinator.core.grouped_run import GroupedRun
from tests.roles.coordinator.simulation import plan


class TestForming:
    def test_with_one_partition_a_worker_is_a_replica_and_there_are_no_groups(self) -> None:
        core = RunCore(plan(workers=2), 0.0)
        core.step(events.Ready(100, 0), 0.0)
        joins = events.WorkerJoins(1, "w1", 1, 1, "h1", ("memory://w1",), 10.0)
        assert core.step(joins, 0.0) == [Admit(1, 0)]
        assert not core.run.groups.groups and not len(core.run.lobby)

    def test_workers_wait_in_the_lobby_until_there_are_as_many_as_partitions(self) -> None:
        run = GroupedRun(partitions=3)
        tokens = [run.join(node) for node in ("w1", "w2")]
        assert all(run.waits(token) for token in tokens)
        tokens.append(run.join("w3"))
        seats = [run.seat(token) for token in tokens]
        assert [seat.partition for seat in seats] == [0, 1, 2]
        assert {(seat.group_epoch, seat.replica) for seat in seats} == {(1, 0)}
        members = tuple(GroupMember(node, 1, "h1", (f"memory://{node}",)) for node in ("w1", "w2", "w3"))
        assert all(seat.members == members for seat in seats)

    def test_a_wait_ends_with_how_many_are_there_and_asking_again_keeps_the_place(self) -> None:
        run = GroupedRun(partitions=4)
        run.join("w1", wait_s=60.0)
        waiting = run.join("w2", wait_s=1.0)
        run.wait(1.0)
        assert run.in_lobby(waiting) == "2 of 4 workers of a replica are there"
        again = run.join("w2")
        for node in ("w3", "w4"):
            run.join(node)
        assert run.nodes(again) == ["w1", "w2", "w3", "w4"]

    def test_who_does_not_ask_again_is_forgotten_and_never_put_in_a_group(self) -> None:
        run = GroupedRun()
        run.join("w1", wait_s=0.0)
        other = run.join("w2", wait_s=60.0)
        assert run.waits(other) and len(run.core.run.lobby) == 2
        run.wait(ASKS_AGAIN_S)
        assert list(run.core.run.lobby.guests) == ["w2"]

    def test_who_asks_again_while_it_waits_has_both_requests_answered(self) -> None:
        run = GroupedRun()
        first, second = run.join("w1"), run.join("w1")
        assert run.in_lobby(first) and run.waits(second)
        run.join("w2")
        assert run.nodes(second) == ["w1", "w2"]

    def test_members_of_one_host_first(self) -> None:
        run = GroupedRun(partitions=2, workers=2)
        tokens = {node: run.join(node, host=host) for node, host in zip("abcd", ("h1", "h2", "h2", "h1"), strict=True)}
        assert run.nodes(tokens["c"]) == ["b", "c"] and run.nodes(tokens["d"]) == ["a", "d"]

    def test_hosts_are_mixed_after_a_moment_and_their_workers_stay_side_by_side(self) -> None:
        run = GroupedRun(partitions=3)
        tokens = [run.join(node, host=host) for node, host in (("a", "h1"), ("b", "h2"), ("c", "h2"))]
        assert all(run.waits(token) for token in tokens)
        run.wait(MIX_AFTER_S)
        assert run.nodes(tokens[0]) == ["b", "c", "a"]

    def test_a_worker_that_does_not_know_its_host_shares_none(self) -> None:
        run = GroupedRun()
        tokens = [run.join(node, host="") for node in ("w1", "w2")]
        assert all(run.waits(token) for token in tokens)
        run.wait(MIX_AFTER_S)
        assert run.nodes(tokens[0]) == ["w1", "w2"]

    def test_further_workers_are_spares(self) -> None:
        run = GroupedRun(partitions=2, workers=2)
        for node in ("w1", "w2", "w3", "w4"):
            run.join(node)
        spare = run.join("w5", wait_s=1.0)
        run.wait(1.0)
        assert run.in_lobby(spare) == "all 2 replicas are complete; 1 spare worker"

    def test_who_comes_before_the_run_is_ready_is_in_the_lobby_the_moment_it_is(self) -> None:
        run = GroupedRun(ready=False)
        tokens = [run.join(node) for node in ("w1", "w2")]
        late = run.join("w3")
        run.step(events.Ready(100, 0))
        assert run.nodes(tokens[1]) == ["w1", "w2"] and run.waits(late)

    def test_who_comes_far_too_early_is_told_to_come_again(self) -> None:
        run = GroupedRun(ready=False)
        token = run.join("w1", wait_s=60.0)
        run.wait(JOIN_WAIT_S)
        assert run.refused(token)[0] == ErrorCode.NOT_READY

    def test_a_worker_that_tells_no_address_cannot_be_a_partition(self) -> None:
        run = GroupedRun()
        run.step(events.WorkerJoins(1, "old", 1, 2))
        code, text = run.refused(1)
        assert code == ErrorCode.BAD_CONFIGURATION and "worker old told no address" in text

    def test_the_lobby_has_a_bound(self) -> None:
        run = GroupedRun(partitions=GUESTS_MAX + 1)
        for number in range(GUESTS_MAX):
            run.join(f"w{number}", wait_s=1e6)
        assert run.refused(run.join("more"))[0] == ErrorCode.OVER_QUOTA
        assert run.waits(run.join("w7")), "who is there may ask again"
