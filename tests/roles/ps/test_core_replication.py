"""Whole lives of buckets: made, learned, moved, handed over, drained, lost and found; and the planted faults."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from adamctl.config.records import BucketRecord, bucket_key, encode
from adamctl.roles.ps.core_instructions import Refuse
from adamctl.roles.ps.core_job import ShardContent
from adamctl.roles.ps.core_replicate import Part
from adamctl.roles.ps.core_replication_events import NodeView
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import Message, ReplicaPrepareReply, ReplicaPrepareRequest
from tests.roles.ps.replica_cluster import JOB, Cluster, Server

MANY = ((64, 16),)


def pushed(server: Server, sequence: int, value: float = 1.0, shard: int = 0) -> int | None:
    """Pushes, lets everything come to rest, and returns the code of the answer."""
    server.push(("p", sequence), [(shard, sequence, value)])
    server.cluster.run()
    return server.code(("p", sequence))


# --- the beginning ----------------------------------------------------------------------------------------------------


def test_all_copies_are_made_as_the_job_begins() -> None:
    cluster = Cluster()
    assert cluster["a"].serves()
    assert all(cluster[node].held() is not None for node in "bc")
    assert cluster["a"].job.ready and cluster["b"].job.ready
    cluster.check()


def test_pushes_wait_for_a_copy_that_is_still_being_made() -> None:
    cluster = Cluster(start=False)
    build, cluster["c"].build = cluster["c"].build, lambda buckets: None  # type: ignore[method-assign]
    cluster.configure()
    cluster.run()
    a = cluster["a"]
    a.attach()
    assert pushed(a, 1) is None
    cluster.pass_time(5.0)
    assert cluster.record().epoch == 1
    build([0])
    cluster.pass_time(2.0)
    assert a.code(("p", 1)) == ErrorCode.OK
    cluster.check()


def test_a_server_that_was_restarted_before_it_saw_the_job_makes_nothing() -> None:
    cluster = Cluster(start=False)
    cluster.kill("c")
    cluster.start("c")
    cluster.configure()
    cluster.run()
    assert cluster["c"].held() is None or not cluster["c"].held().complete  # type: ignore[union-attr]
    cluster.pass_time(15.0)
    assert set(cluster.record().in_sync) == {"a", "b", "c"}
    cluster.check()


def test_a_server_that_sees_a_later_record_first_makes_nothing() -> None:
    """It cannot know what was pushed meanwhile."""
    cluster = Cluster(start=False)
    cluster.config.set(bucket_key(JOB, 0), encode(cluster.record().changed(0.0, "test")))
    cluster.configure("c")
    cluster.run()
    assert cluster["c"].held() is None
    assert cluster["c"].replication.status()[JOB][0]["part"] == "lost"


def test_a_job_that_is_over_is_let_go() -> None:
    cluster = Cluster()
    for server in cluster.servers.values():
        server.take(server.replication.configured(JOB, None, cluster.nodes(), frozenset(), cluster.now))
        server.take(server.core.remove_job(JOB))
    assert not any(server.job.buckets or server.replication.copies(JOB) for server in cluster.servers.values())
    cluster.run()
    cluster.pass_time(3.0)


# --- learners ---------------------------------------------------------------------------------------------------------


def test_a_lost_copy_is_made_anew_elsewhere() -> None:
    cluster = Cluster(spare="d")
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    cluster.kill("c")
    cluster.configure()
    cluster.run()
    cluster.pass_time(15.0)
    assert cluster.record().in_sync == ("a", "b", "d") and not cluster.record().learners
    assert cluster["d"].value(0) == 3.0
    assert pushed(cluster["a"], 2, 1.0) == ErrorCode.OK
    assert cluster["d"].value(0) == 4.0
    cluster.check()


def test_a_learner_counts_for_nothing_before_it_has_everything() -> None:
    """At any point of the filling the others die: it never takes over with less than all (mutant: counted early)."""
    for steps in range(0, 120, 3):
        cluster = Cluster(spare="d", shapes=MANY, message_bytes_max=300)
        a = cluster["a"]
        for number in range(1, 4):
            assert pushed(a, number, 1.0, shard=number) is not None
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
    assert pushed(a, 1) is None
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
    assert pushed(cluster["a"], 1, 5.0) == ErrorCode.OK  # the learner does not count
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
    assert pushed(cluster["a"], 1) == ErrorCode.OK
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

    def no_room(token: Any, peer: str, incarnation: int, message: Message, records: Any, now: float) -> Any:
        if isinstance(message, ReplicaPrepareRequest) and message.begins:
            asked.append(now)
            refused = dict.fromkeys(message.epochs, int(ErrorCode.UNKNOWN_SHARD))
            token(ReplicaPrepareReply(d.incarnation, refused), [], 0)
            return []
        return requested(token, peer, incarnation, message, records, now)

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
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
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


# --- moving -----------------------------------------------------------------------------------------------------------


def drained(cluster: Cluster, node: str) -> None:
    cluster.draining = frozenset({node})
    cluster.configure()
    cluster.run()
    cluster.pass_time(40.0)


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_drained_server_holds_nothing_in_the_end(node: str) -> None:
    cluster = Cluster(spare="d")
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    counts = []
    cluster.propose_hook = lambda server, record: counts.append(len(record.in_sync)) is None
    drained(cluster, node)
    record = cluster.record()
    assert node not in (*record.in_sync, *record.learners) and len(record.in_sync) == 3
    assert min(counts) >= 3
    assert cluster[node].held() is None and not cluster[node].serves()
    server = cluster.primary()
    server.attach()
    assert server.value(0) == 3.0
    assert pushed(server, 2) == ErrorCode.OK
    cluster.check()


def test_a_single_copy_is_moved_off_a_drained_server() -> None:
    cluster = Cluster("a", replication=1, acks="applied", spare="d")
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    drained(cluster, "a")
    assert cluster.record().in_sync == ("d",)
    assert cluster["d"].serves() and cluster["d"].value(0) == 3.0
    d = cluster["d"]
    d.attach()
    d.lease = False
    assert pushed(d, 2) == ErrorCode.OK


def test_a_primary_that_may_have_a_member_without_knowing_it_needs_its_lease() -> None:
    cluster = Cluster("a", replication=1, acks="applied", spare="d")
    cluster.propose_hook = lambda server, record: len(record.in_sync) == 1
    assert pushed(cluster["a"], 1) == ErrorCode.OK
    cluster["a"].lease = False
    assert pushed(cluster["a"], 2) == ErrorCode.OK
    cluster["a"].lease = True
    drained(cluster, "a")  # its copy has everything; nobody knows whether it is a member
    assert cluster.record().learners == ("d",)
    cluster["a"].lease = False
    assert pushed(cluster["a"], 3) == ErrorCode.NOT_READY


def test_the_old_copy_is_kept_until_the_new_configuration_is_there() -> None:
    """Mutant: old copy removed before the new configuration is committed."""
    cluster = Cluster(spare="d")
    refused = []

    def refuse(server: Server, record: BucketRecord) -> bool:
        if "b" not in record.in_sync:
            refused.append(record)
            return len(refused) > 3
        return True

    cluster.propose_hook = refuse
    cluster.draining = frozenset({"b"})
    cluster.configure()
    cluster.run()
    for _ in range(100):
        cluster.pass_time(0.4)
        if "b" in cluster.record().in_sync:
            assert cluster["b"].held() is not None
    assert refused and "b" not in cluster.record().in_sync and cluster["b"].held() is None


def test_pushes_during_a_hand_over_are_refused_and_go_through_elsewhere() -> None:
    cluster = Cluster()
    a = cluster["a"]
    cluster.propose_hook = lambda server, record: record.primary == "a"
    cluster.draining = frozenset({"a"})
    cluster.configure()
    cluster.run()
    assert cluster.proposals
    code = pushed(a, 1)
    assert code == ErrorCode.NOT_READY
    cluster.pass_time(30.0)
    cluster.propose_hook = lambda server, record: True
    cluster.pass_time(10.0)
    server = cluster.primary()
    assert server.node != "a"
    server.attach()
    assert pushed(server, 1, 2.0) == ErrorCode.OK and server.value(0) == 2.0


def test_a_hand_over_that_nobody_knows_of_is_made_sure_of_before_the_bucket_is_served_again() -> None:
    cluster = Cluster()
    epochs = []

    def lose(server: Server, record: BucketRecord) -> bool:
        epochs.append((record.primary, record.epoch))
        return len(epochs) > 1

    cluster.propose_hook = lose
    cluster.draining = frozenset({"a"})
    cluster.configure()
    cluster.run()
    cluster.draining = frozenset()
    cluster.configure()
    cluster.pass_time(20.0)
    assert epochs[0] == ("b", 2) and epochs[1] == ("a", 2)
    server = cluster.primary()
    server.attach()
    assert pushed(server, 1) == ErrorCode.OK
    cluster.check()


def test_the_old_primary_keeps_its_copy_when_it_hands_over() -> None:
    cluster = Cluster()
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    cluster.propose_hook = lambda server, record: len(record.in_sync) == 3
    drained(cluster, "a")
    record = cluster.record()
    assert record.primary != "a" and "a" in record.in_sync
    assert cluster["a"].held() is not None
    server = cluster.primary()
    server.attach()
    assert pushed(server, 2, 1.0) == ErrorCode.OK
    assert cluster["a"].value(0) == 4.0
    cluster.check()


def test_a_bucket_is_not_handed_over_to_a_process_that_was_started_meanwhile() -> None:
    cluster = Cluster()
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    cluster.kill("b", reported=False)
    cluster.start("b")  # nobody has heard of it yet
    a = cluster["a"]
    before = cluster.nodes() | {"b": NodeView(cluster.node_record("b", 12), 3)}
    a.take(a.replication.configured(JOB, cluster.view(), before, frozenset({"a"}), cluster.now))
    assert a.job.refusing
    cluster.step(1)
    assert [done for _, record, done in cluster.proposals if record.primary == "b"] == [False]
    cluster.run()
    cluster.pass_time(20.0)
    assert cluster.primary().value(0) == 3.0
    cluster.check()


def test_a_primary_that_holds_nothing_gets_everything_from_the_others() -> None:
    """However it came to be named: it is asked for nothing before it has what the others have."""
    cluster = Cluster()
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    cluster.kill("b", reported=False)
    cluster.start("b")
    changed = cluster.record().changed(0.0, "test", primary="b", in_sync=["b", "a", "c"])
    cluster.config.set(bucket_key(JOB, 0), encode(changed))
    cluster.configure()
    cluster.run()
    cluster.pass_time(5.0)
    b = cluster["b"]
    assert b.serves() and b.value(0) == 3.0
    b.attach()
    assert pushed(b, 2) == ErrorCode.OK
    cluster.check()


def test_a_part_of_a_step_that_is_not_complete_is_sent_to_the_new_primary() -> None:
    cluster = Cluster(rule="sgd")
    a = cluster["a"]
    a.push("p", [(0, 1, 1.0)], kind=UpdateKind.GRADIENT, place=(1, 0, 2))
    cluster.run()
    assert a.code("p") is None
    drained(cluster, "a")
    assert a.code("p") == ErrorCode.STALE_EPOCH
    server = cluster.primary()
    server.attach()
    server.push("p", [(0, 1, 1.0)], kind=UpdateKind.GRADIENT, place=(1, 0, 2))
    cluster.run()
    assert server.code("p") is None  # the other part is still to come


def test_parts_of_pushes_that_wait_when_a_bucket_is_lost_are_told_where_it_went() -> None:
    cluster = Cluster()
    cluster.hold_all(("a", "b"), ("a", "c"))
    a = cluster["a"]
    a.push("p", [(0, 1, 1.0)])
    cluster.run()
    cluster.kill("a")
    cluster["a"].alive = True
    cluster.configure("b", "c")
    cluster.run()
    cluster.pass_time(3.0)
    (result,) = a.results("p")
    assert result.code == ErrorCode.STALE_EPOCH and result.epoch == cluster.record().epoch > 1


# --- all copies lost --------------------------------------------------------------------------------------------------


def stored(cluster: Cluster, node: str, counter: int, value: float, epoch: int = 1) -> None:
    """What the store of a server's next process is going to find."""
    size = cluster.layout.shards[0].size
    cluster[node].store[0] = [ShardContent(0, np.full(size, value, np.float32), [], counter, counter, None, epoch)]


def test_when_all_copies_died_the_highest_durable_version_of_all_wins() -> None:
    cluster = Cluster()
    for node in "abc":
        cluster.kill(node)
    for node in "ab":
        cluster.start(node)
    stored(cluster, "a", 5, 5.0)
    stored(cluster, "b", 7, 7.0)
    cluster.configure("a", "b")
    cluster.run()
    cluster.pass_time(20.0)
    assert not any(server.serves() for server in cluster.servers.values())  # c may have more
    a = cluster["a"]
    answer = a.attach()
    assert isinstance(answer, Refuse) and answer.code == ErrorCode.NOT_READY
    cluster.start("c")
    stored(cluster, "c", 6, 6.0)
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    server = cluster.primary()
    assert server.value(0) == 7.0 and cluster.record().epoch > 1
    server.attach([(0, 9)])
    assert server.job.rolled_back  # a client knows of more than there is
    assert pushed(server, 10, 1.0) == ErrorCode.OK
    assert all(cluster[node].value(0) == 8.0 for node in "abc")
    cluster.check()


def test_the_epoch_of_a_stored_version_counts_more_than_its_number() -> None:
    cluster = Cluster()
    for node in "abc":
        cluster.kill(node)
    for node, counter, value, epoch in (("a", 9, 9.0, 1), ("b", 8, 8.0, 2), ("c", 7, 7.0, 2)):
        cluster.start(node)
        stored(cluster, node, counter, value, epoch)
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    assert cluster.primary().value(0) == 8.0


@pytest.mark.parametrize("late", [False, True])
def test_an_operator_may_go_on_with_less(late: bool) -> None:
    cluster = Cluster()
    for node in "abc":
        cluster.kill(node)
    b = cluster.start("b")
    stored(cluster, "b", 5, 5.0)
    if not late:
        b.configure()
        cluster.run()
        cluster.pass_time(10.0)
        assert not b.serves()
    changed = cluster.record().changed(0.0, "an operator accepts the loss", primary="b", in_sync=["b"])
    cluster.config.set(bucket_key(JOB, 0), encode(changed))
    b.configure()
    cluster.run()
    cluster.pass_time(3.0)
    assert b.serves() and b.value(0) == 5.0
    b.attach([(0, 9)])
    assert pushed(b, 10) == ErrorCode.OK


def test_if_no_store_has_a_bucket_either_the_job_has_failed() -> None:
    cluster = Cluster()
    for node in "abc":
        cluster.kill(node)
        cluster.start(node)
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    failed = [server.job.failed for server in cluster.servers.values() if server.job.failed is not None]
    assert failed and "resume the run from its last checkpoint" in failed[0][1]


def test_whoever_has_a_bucket_in_memory_takes_it_before_any_store_is_looked_at() -> None:
    cluster = Cluster()
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    for node in "ab":
        cluster.kill(node)
        cluster.start(node)
        stored(cluster, node, 9, 9.0)
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    assert all(cluster[node].value(0) == 3.0 for node in "abc")
    assert set(cluster.record().in_sync) == {"a", "b", "c"}


def test_a_server_that_dies_again_while_all_are_taken_up_is_waited_for() -> None:
    cluster = Cluster()
    for node in "abc":
        cluster.kill(node)
    for node in "abc":
        cluster.start(node)
        stored(cluster, node, 5, 5.0)
    stored(cluster, "c", 8, 8.0)
    cluster.hold = lambda source, target, message: "c" in (source, target)
    cluster.configure()
    cluster.run()
    cluster.pass_time(15.0)
    cluster.kill("c")
    cluster.configure("a", "b")
    cluster.pass_time(5.0)
    assert not any(server.serves() for server in cluster.servers.values())
    cluster.hold = lambda source, target, message: False
    cluster.start("c")
    stored(cluster, "c", 8, 8.0)
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    assert cluster.primary().value(0) == 8.0


# --- damage -----------------------------------------------------------------------------------------------------------


def damage(cluster: Cluster, server: Server, token: str, parts: list[tuple[int, int, float]]) -> None:
    """A batch fails while it writes over values."""
    cluster.applies = False
    server.push(token, parts)
    (apply,) = server.waiting
    server.waiting = []
    for batch in apply.batches:
        batch.begun = True
        batch.failed(ErrorCode.INTERNAL, "it failed")
    cluster.applies = True
    server.take(server.core.completed(apply.job, apply.batches))
    cluster.run()


def test_a_damaged_bucket_is_given_to_another_copy() -> None:
    cluster = Cluster()
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    damage(cluster, cluster["a"], "bad", [(0, 2, 1.0)])
    assert cluster["a"].code("bad") == ErrorCode.STALE_EPOCH and cluster["a"].job.failed is None
    server = cluster.primary()
    assert server.node != "a"
    server.attach()
    assert pushed(server, 2, 1.0) == ErrorCode.OK and server.value(0) == 4.0
    cluster.pass_time(20.0)
    assert set(cluster.record().in_sync) == {"a", "b", "c"}
    cluster.check()


def test_a_damaged_only_copy_fails_its_job_here() -> None:
    cluster = Cluster("ab", replication=2, min_in_sync=1)
    cluster.kill("b")
    cluster.configure("a")
    cluster.run()
    damage(cluster, cluster["a"], "bad", [(0, 1, 1.0)])
    assert cluster["a"].job.failed is not None and not cluster["a"].job.buckets
    cluster.pass_time(3.0)


# --- several buckets --------------------------------------------------------------------------------------------------


def test_all_buckets_of_a_dead_server_are_taken_over_by_one_change() -> None:
    cluster = Cluster(shapes=MANY, one_bucket=False)
    buckets = len(cluster.layout.buckets)
    assert buckets > 8
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.run()
    cluster.pass_time(1.0)
    assert all(cluster.record(bucket).primary == "b" for bucket in range(buckets))
    revisions = {cluster.config.keys[bucket_key(JOB, bucket)][1] for bucket in range(buckets)}
    assert len(revisions) == 1
    cluster.check()


def test_buckets_that_conflict_do_not_keep_the_others_from_being_taken_over() -> None:
    cluster = Cluster(shapes=MANY, one_bucket=False)
    buckets = range(len(cluster.layout.buckets))
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.config.set(bucket_key(JOB, 3), encode(cluster.record(3).changed(0.0, "test")))
    cluster.run()
    cluster.pass_time(3.0)
    assert all(cluster.record(bucket).primary == "b" for bucket in buckets)


def test_balance_comes_back_when_a_server_joins() -> None:
    cluster = Cluster(shapes=MANY, one_bucket=False, spare="d", settle_s=2.0)
    cluster.pass_time(60.0, most=2000)
    held = [0] * 4
    for bucket in range(len(cluster.layout.buckets)):
        for node in cluster.record(bucket).in_sync:
            held["abcd".index(node)] += 1
    assert max(held) - min(held) <= 2, held
    primaries = [cluster.record(bucket).primary for bucket in range(len(cluster.layout.buckets))]
    assert max(map(primaries.count, "abcd")) - min(map(primaries.count, "abcd")) <= 2
    cluster.check()


# --- planted faults ---------------------------------------------------------------------------------------------------


def test_the_clients_memory_is_part_of_what_is_shipped() -> None:
    cluster = Cluster()
    assert pushed(cluster["a"], 1, 3.0) == ErrorCode.OK
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.run()
    b = cluster["b"]
    b.attach()
    b.push("again", [(0, 1, 3.0)])
    cluster.run()
    assert b.code("again") == ErrorCode.OK and b.value(0) == 3.0


def test_reordered_and_repeated_messages_change_nothing() -> None:
    rng = np.random.default_rng(5)
    cluster = Cluster(spare="d")
    kept: list[Message] = []

    def shuffle(source: str, target: str, message: Message | None) -> bool:
        if isinstance(message, ReplicaPrepareRequest):
            kept.append(message)
        return bool(rng.random() < 0.4)

    cluster.hold = shuffle
    a = cluster["a"]
    for number in range(1, 40):
        a.push(("p", number), [(0, number, 1.0)])
        cluster.run()
        if rng.random() < 0.3:
            held, cluster.held = cluster.held, []
            rng.shuffle(held)  # type: ignore[arg-type]
            for action in held:
                cluster.later(action)
            cluster.run()
        if number == 20:
            cluster.kill("c")
            cluster.configure()
    cluster.hold = lambda source, target, message: False
    cluster.deliver_held()
    cluster.pass_time(20.0)
    assert cluster.primary().value(0) == 39.0
    cluster.check()
