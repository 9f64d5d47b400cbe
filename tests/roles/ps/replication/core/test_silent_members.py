"""Which members a primary gives up because they do not answer, and what becomes of those that it keeps."""

from __future__ import annotations

from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ReplicaPrepareRequest
from tests.roles.ps.replica_cluster import Cluster


def test_a_member_that_does_not_answer_is_removed_before_anything_is_acknowledged_without_it() -> None:
    cluster = Cluster()
    cluster.hold_all(("a", "c"), ("c", "a"))
    a = cluster["a"]
    a.push("p", [(0, 1, 1.0)])
    cluster.run()
    cluster.propose_hook = lambda server, record: False
    cluster.pass_time(3.0)
    assert cluster.proposals and a.code("p") is None
    cluster.propose_hook = lambda server, record: True
    cluster.pass_time(2.0)
    assert cluster.record().in_sync == ("a", "b")
    assert a.code("p") == ErrorCode.OK


def test_a_member_that_answers_slowly_is_kept() -> None:
    cluster = Cluster()
    cluster.hold = lambda source, target, message: isinstance(message, ReplicaPrepareRequest) and target == "c"
    a = cluster["a"]
    a.push("p", [(0, 1, 1.0)])
    cluster.run()
    cluster.hold = lambda source, target, message: False
    cluster.pass_time(10.0)  # heartbeats are answered
    assert cluster.record().epoch == 1


def test_whoever_hears_nobody_gives_nobody_up() -> None:
    """What is sent to it is lost, and what it sends arrives: it must not take the bucket away from all others."""
    cluster = Cluster()
    a = cluster["a"]
    a.confirmed_s = cluster.now
    cluster.hold_all(("b", "a"), ("c", "a"))
    cluster.pass_time(10.0)
    assert not cluster.proposals
    a.confirmed_s = cluster.now  # it was heard and answered while they were silent
    cluster.pass_time(1.0)
    assert cluster.record().in_sync == ("a",)


def test_members_without_which_nothing_is_acknowledged_are_not_given_up_for_silence_alone() -> None:
    cluster = Cluster(min_in_sync=2)
    cluster.hold_all(("b", "a"), ("c", "a"))
    cluster["a"].push("p", [(0, 1, 1.0)])
    cluster.pass_time(30.0)
    assert len(cluster.record().in_sync) == 2
    (left,) = cluster.record().in_sync[1:]
    cluster.kill(left)
    cluster.configure("a")
    cluster.run()
    assert cluster.record().in_sync == ("a",) and cluster["a"].code("p") == ErrorCode.NOT_READY


def test_who_is_silent_is_kept_if_another_is_lost_before_it_could_be_removed() -> None:
    """Found by the simulator: both went in one change, and what the silent one had of all went with it."""
    cluster = Cluster(min_in_sync=2)
    cluster.hold_all(("c", "a"))
    cluster.propose_hook = lambda server, record: False
    cluster.pass_time(10.0)
    assert cluster.proposals and len(cluster.record().in_sync) == 3
    cluster.kill("b")
    cluster.propose_hook = lambda server, record: True
    cluster.configure("a")
    cluster.run()
    cluster.pass_time(2.0)
    assert cluster.record().in_sync == ("a", "c")


def test_who_is_kept_gets_what_changed_while_it_counted_as_lost() -> None:
    """Found by the simulator: nobody sent it, so that this push and all after it were never acknowledged."""
    cluster = Cluster(min_in_sync=2)
    cluster.hold_all(("c", "a"))
    cluster.propose_hook = lambda server, record: False
    cluster.pass_time(10.0)
    assert cluster.proposals and len(cluster.record().in_sync) == 3
    cluster["a"].push("p", [(0, 1, 2.0)])
    cluster.run()
    assert cluster["c"].value(0) == 0.0
    cluster.hold_all()
    cluster.kill("b")
    cluster.propose_hook = lambda server, record: True
    cluster.configure("a")
    cluster.run()
    cluster.pass_time(2.0)
    assert cluster.record().in_sync == ("a", "c")
    assert cluster["c"].value(0) == 2.0 and cluster["a"].code("p") == ErrorCode.OK


def test_whoever_slept_blames_nobody_for_the_silence() -> None:
    cluster = Cluster()
    cluster.hold_all(("b", "a"), ("c", "a"))
    cluster.pass_time(1.0)
    cluster.now += 30.0
    a = cluster["a"]
    a.take(a.replication.tick(cluster.now))
    cluster.deliver_held()
    cluster.pass_time(1.0)
    assert cluster.record().epoch == 1


def test_a_member_that_could_not_make_its_part_is_removed() -> None:
    """It would say for ever that it is still at it, and nothing would be acknowledged."""
    cluster = Cluster(start=False)
    c = cluster["c"]
    c.build = lambda buckets: setattr(c.job, "failed", (ErrorCode.OVER_QUOTA, "no room"))  # type: ignore[method-assign]
    cluster.configure()
    cluster.run()
    a = cluster["a"]
    a.attach()
    a.push("p", [(0, 1, 1.0)])
    cluster.run()
    cluster.pass_time(3.0)
    assert cluster.record().in_sync == ("a", "b") and a.code("p") == ErrorCode.OK
