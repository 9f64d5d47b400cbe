"""Whole lives of buckets: made by all, damaged, many at once; and the planted faults."""

from __future__ import annotations

import numpy as np

from adamctl.config.records import bucket_key, encode
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message, ReplicaPrepareRequest
from tests.roles.ps.replica_cluster import MANY, Cluster
from tests.roles.ps.replica_server import JOB, Server

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
    assert a.pushed(1) is None
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
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
    damage(cluster, cluster["a"], "bad", [(0, 2, 1.0)])
    assert cluster["a"].code("bad") == ErrorCode.STALE_EPOCH and cluster["a"].job.failed is None
    server = cluster.primary()
    assert server.node != "a"
    server.attach()
    assert server.pushed(2, 1.0) == ErrorCode.OK and server.value(0) == 4.0
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
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
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
