"""What is taken up again when every copy of a bucket has died."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.config.records import BucketRecord, bucket_key, encode
from adamctl.roles.ps.core.instructions import Refuse
from adamctl.roles.ps.core.job import ShardContent
from adamctl.wire.constants import ErrorCode
from tests.roles.ps.replica_cluster import Cluster
from tests.roles.ps.replica_server import JOB, Server


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
    assert server.pushed(10, 1.0) == ErrorCode.OK
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


def restarted(stores: dict[str, tuple[int, float, int]]) -> Cluster:
    """Servers that all died, and are back: each has a counter, a value and an epoch in its store."""
    cluster = Cluster()
    for node in stores:
        cluster.kill(node)
    for node, (counter, value, epoch) in stores.items():
        cluster.start(node)
        stored(cluster, node, counter, value, epoch)
    return cluster


@pytest.mark.parametrize("first", [1, 2, 9, 12])
def test_pushes_are_on_every_copy_if_the_record_is_older_than_the_stores(first: int) -> None:
    """As after a restore of etcd from a backup that was made before the bucket moved, perhaps away from `a`."""
    cluster = restarted({"a": (3, 3.0, first), "b": (8, 8.0, 9), "c": (7, 7.0, 9)})
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    server, value = cluster["a"], 3.0 if first == 12 else 8.0
    assert server.serves() and server.value(0) == value
    assert cluster.record().epoch > max(first, 9)
    server.attach()
    assert all(server.pushed(sequence, 1.0) == ErrorCode.OK for sequence in range(1, 6))
    assert all(cluster[node].value(0) == value + 5 for node in "abc")
    cluster.check()
    cluster.kill("a")
    cluster.configure()
    cluster.pass_time(10.0)
    assert cluster.primary().value(0) == value + 5


@pytest.mark.parametrize("alone", [False, True])
def test_what_an_operator_recovers_is_served_above_every_epoch_in_a_store(alone: bool) -> None:
    """Else a later start would take the states from before the recovery for the newest."""
    cluster = restarted({"a": (3, 3.0, 9), "b": (8, 8.0, 9), "c": (7, 7.0, 12)})
    members = ["b"] if alone else ["b", "c"]
    changed = cluster.record().changed(0.0, "recovered by an operator", primary="b", in_sync=members)
    cluster.config.set(bucket_key(JOB, 0), encode(changed))
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    assert cluster["b"].serves() and cluster["b"].value(0) == (8.0 if alone else 7.0)
    (served,) = (one.epoch for one in cluster.record().history if one.why == "stores have states of later epochs")
    assert served == (10 if alone else 13)
    cluster.check()


def test_a_member_with_a_later_epoch_that_restarts_before_the_record_is_raised_is_asked_again() -> None:
    cluster = restarted({"a": (3, 3.0, 1), "b": (8, 8.0, 9), "c": (7, 7.0, 9)})

    def crash(server: Server, record: BucketRecord) -> bool:
        if record.epoch > 9 and cluster["b"].incarnation == first:
            cluster.kill("b")
            cluster.start("b")
            stored(cluster, "b", 8, 8.0, 20)
            cluster.later(cluster.configure)
        return True

    first, cluster.propose_hook = cluster["b"].incarnation, crash
    cluster.configure()
    cluster.run()
    cluster.pass_time(30.0)
    assert cluster.primary().value(0) == 8.0 and cluster.record().epoch > 20
    cluster.check()


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
    assert b.pushed(10) == ErrorCode.OK


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
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
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


def test_numbers_that_a_client_goes_on_after_are_in_a_version_of_their_own() -> None:
    """Else the shard has two memories at one version, and a copy that was its primary keeps what no other has."""
    cluster = Cluster(acks="applied")
    server = cluster.primary()
    assert server.pushed(1, 1.0) == ErrorCode.OK
    before = server.job.shards[0].counter
    server.attach([(0, 9)])
    cluster.run()
    assert server.job.shards[0].counter == before + 1
    for node in "bc":
        held = cluster[node].replication.copies(JOB)[0].shards[0]
        assert held.version[1] == before + 1
        assert [client.sequence for client in held.memory.record().clients] == [9]
