"""How a copy that is missing is made anew: filled, counted, made a member, given up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from adamctl.config.records import BucketRecord, bucket_key, encode
from adamctl.roles.ps.replication.core.bucket_group import Part
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message, ReplicaPrepareReply, ReplicaPrepareRequest
from tests.roles.ps.replica_cluster import MANY, Cluster
from tests.roles.ps.replica_server import JOB, Server


def test_a_lost_copy_is_made_anew_elsewhere() -> None:
    cluster = Cluster(spare="d")
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
    cluster.kill("c")
    cluster.configure()
    cluster.run()
    cluster.pass_time(15.0)
    assert cluster.record().in_sync == ("a", "b", "d") and not cluster.record().learners
    assert cluster["d"].value(0) == 3.0
    assert cluster["a"].pushed(2, 1.0) == ErrorCode.OK
    assert cluster["d"].value(0) == 4.0
    cluster.check()


def test_a_learner_counts_for_nothing_before_it_has_everything() -> None:
    """At any point of the filling the others die: it never takes over with less than all (mutant: counted early)."""
    for steps in range(0, 120, 3):
        cluster = Cluster(spare="d", shapes=MANY, message_bytes_max=300)
        a = cluster["a"]
        for number in range(1, 4):
            assert a.pushed(number, 1.0, shard=number) is not None
        cluster.kill("b")
        cluster.kill("c")
        cluster.configure()
        cluster.step(steps)
        a.push("late", [(5, 1, 7.0)])
        cluster.step(steps // 2)
        acknowledged = a.code("late") == ErrorCode.OK
        cluster.kill("a")
        cluster.configure("d")
        cluster.run()
        cluster.pass_time(5.0)
        d = cluster["d"]
        if d.serves():
            assert "d" in cluster.record().in_sync
            assert not acknowledged or d.value(5) == 7.0
            assert d.value(1) == a.value(1), steps
        else:
            assert "d" not in cluster.record().in_sync


def test_acknowledgements_wait_for_a_learner_from_when_it_has_had_everything_once() -> None:
    cluster = Cluster("ab", replication=2, spare="d")
    cluster.kill("b")
    cluster.propose_hook = lambda server, record: "d" not in record.in_sync
    cluster.configure()
    cluster.run()
    cluster.pass_time(11.0)
    a = cluster["a"]
    (group,) = a.replication.groups(JOB).values()
    assert group.members["d"].part is Part.COUNTED and cluster.record().in_sync == ("a",)
    cluster.hold_all(("d", "a"))
    assert a.pushed(1) is None
    cluster.deliver_held()
    assert a.code(("p", 1)) == ErrorCode.OK


def test_a_learner_is_no_member_before_what_was_acknowledged_without_it_has_reached_it() -> None:
    cluster = Cluster(spare="d", shapes=MANY, message_bytes_max=300, learner_bytes_per_s=1000.0, settle_s=0.1)
    cluster.kill("c")
    cluster.configure()
    cluster.run()
    d = cluster["d"]
    while (held := d.held()) is None or len(held.versions()) < len(held.shards) - 2:
        cluster.pass_time(0.1)
    cluster.hold = lambda source, target, message: target == "d"
    assert cluster["a"].pushed(1, 5.0) == ErrorCode.OK  # the learner does not count
    cluster.hold = lambda source, target, message: False
    cluster.pass_time(10.0)
    assert held.whole and cluster.record().learners == ("d",)
    cluster.deliver_held()
    cluster.pass_time(1.0)
    assert "d" in cluster.record().in_sync and d.value(0) == 5.0


def test_a_promotion_that_nobody_knows_of_is_found_out() -> None:
    cluster = Cluster("ab", replication=2, spare="d")

    def lost(server: Server, record: BucketRecord) -> bool:
        if "d" in record.in_sync and cluster.record().in_sync == ("a",):
            cluster.config.set(bucket_key(JOB, 0), encode(record))  # it was done, but the answer got lost
            return False
        return True

    cluster.propose_hook = lost
    cluster.kill("b")
    cluster.configure()
    cluster.run()
    cluster.pass_time(15.0)
    assert cluster.record().in_sync == ("a", "d")
    assert cluster["a"].pushed(1) == ErrorCode.OK
    cluster.check()


def test_a_learner_that_dies_is_removed_and_another_is_taken() -> None:
    cluster = Cluster(spare="de", shapes=MANY, message_bytes_max=300, learner_bytes_per_s=300.0, settle_s=0.1)
    cluster.kill("c")
    cluster.configure()
    cluster.run()
    cluster.pass_time(1.0)
    (learner,) = cluster.record().learners
    cluster.kill(learner)
    cluster.configure()
    cluster.run()
    cluster.pass_time(60.0)
    assert len(cluster.record().in_sync) == 3 and learner not in cluster.record().in_sync


def test_a_server_that_begins_no_copy_is_not_asked_again_for_a_while() -> None:
    cluster = Cluster(spare="de", settle_s=0.1)
    d = cluster["d"]
    requested = d.replication.requested
    asked: list[float] = []

    def no_room(token: Any, peer: str, message: Message, records: Any, now: float) -> Any:
        if isinstance(message, ReplicaPrepareRequest) and message.begins:
            asked.append(now)
            refused = dict.fromkeys(message.epochs, int(ErrorCode.UNKNOWN_SHARD))
            token(ReplicaPrepareReply(d.incarnation, refused), [], 0)
            return []
        return requested(token, peer, message, records, now)

    d.replication.requested = no_room  # type: ignore[method-assign]
    cluster.kill("c")
    cluster.kill("e")
    cluster.configure()
    cluster.run()
    cluster.pass_time(15.0)
    assert 1 <= len(asked) <= 3
    assert all(later - sooner > 9.0 for sooner, later in pairwise(asked))
    cluster.start("e")
    cluster.configure()
    cluster.run()
    cluster.pass_time(3.0)
    assert "e" in cluster.record().in_sync


def test_learners_are_filled_at_a_limited_rate() -> None:
    cluster = Cluster(spare="d", shapes=MANY, message_bytes_max=300, learner_bytes_per_s=1000.0, settle_s=0.1)
    cluster.kill("c")
    cluster.configure()
    cluster.run()
    began = cluster.now
    while "d" not in cluster.record().in_sync:
        cluster.pass_time(0.5)
    assert 3.0 < cluster.now - began < 8.0  # 4096 bytes


def test_a_learner_that_is_restarted_begins_again() -> None:
    cluster = Cluster(spare="d", shapes=MANY, message_bytes_max=300, learner_bytes_per_s=1000.0, settle_s=0.1)
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
    cluster.kill("c")
    cluster.configure()
    cluster.run()
    cluster.pass_time(2.0)
    assert cluster.record().learners == ("d",)
    cluster.kill("d", reported=False)
    cluster.start("d")
    cluster.configure()
    cluster.run()
    cluster.pass_time(30.0)
    assert "d" in cluster.record().in_sync and cluster["d"].value(0) == 3.0
    cluster.check()


def test_hot_shards_do_not_keep_a_learner_from_becoming_a_member() -> None:
    cluster = Cluster(spare="d", settle_s=0.0)
    cluster.kill("c")
    cluster.configure()
    a = cluster["a"]
    for number in range(1, 60):
        a.push(("p", number), [(0, number, 1.0)])
        cluster.step(3)
    cluster.run()
    cluster.pass_time(2.0)
    assert "d" in cluster.record().in_sync and cluster["d"].value(0) == a.value(0) == 59.0
