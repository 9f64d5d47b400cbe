"""How a bucket leaves a server: drained, handed over, told to whoever waits."""

from __future__ import annotations

import pytest

from adamctl.config.records import BucketRecord, bucket_key, encode
from adamctl.roles.ps.replication.core.node_keys import NodeView
from adamctl.wire.constants import ErrorCode, UpdateKind
from tests.roles.ps.replica_cluster import Cluster
from tests.roles.ps.replica_server import JOB, Server


def drained(cluster: Cluster, node: str) -> None:
    cluster.draining = frozenset({node})
    cluster.configure()
    cluster.run()
    cluster.pass_time(40.0)


@pytest.mark.parametrize("node", ["a", "b"])
def test_a_drained_server_holds_nothing_in_the_end(node: str) -> None:
    cluster = Cluster(spare="d")
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
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
    assert server.pushed(2) == ErrorCode.OK
    cluster.check()


def test_a_single_copy_is_moved_off_a_drained_server() -> None:
    cluster = Cluster("a", replication=1, acks="applied", spare="d")
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
    drained(cluster, "a")
    assert cluster.record().in_sync == ("d",)
    assert cluster["d"].serves() and cluster["d"].value(0) == 3.0
    d = cluster["d"]
    d.attach()
    d.lease = False
    assert d.pushed(2) == ErrorCode.OK


def test_a_primary_that_is_restarted_while_its_only_copy_moves_makes_nothing_anew() -> None:
    """The other one has all that was pushed (simulated servers, seed 3420)."""
    cluster = Cluster("a", replication=1, acks="applied", spare="d")
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
    cluster.propose_hook = lambda server, record: record.primary == "a"
    drained(cluster, "a")
    assert (cluster.record().primary, set(cluster.record().in_sync)) == ("a", {"a", "d"})
    cluster.kill("a", reported=False)
    cluster.propose_hook, cluster.draining = lambda server, record: True, frozenset()
    cluster.start("a")
    cluster.configure("a")
    cluster.run()
    assert not cluster["a"].serves()
    cluster.configure()
    cluster.pass_time(40.0)
    assert cluster["d"].serves() and cluster["d"].value(0) == 3.0


def test_a_primary_that_may_have_a_member_without_knowing_it_needs_its_lease() -> None:
    cluster = Cluster("a", replication=1, acks="applied", spare="d")
    cluster.propose_hook = lambda server, record: len(record.in_sync) == 1
    assert cluster["a"].pushed(1) == ErrorCode.OK
    cluster["a"].lease = False
    assert cluster["a"].pushed(2) == ErrorCode.OK
    cluster["a"].lease = True
    drained(cluster, "a")  # its copy has everything; nobody knows whether it is a member
    assert cluster.record().learners == ("d",)
    cluster["a"].lease = False
    assert cluster["a"].pushed(3) == ErrorCode.NOT_READY


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
    code = a.pushed(1)
    assert code == ErrorCode.NOT_READY
    cluster.pass_time(30.0)
    cluster.propose_hook = lambda server, record: True
    cluster.pass_time(10.0)
    server = cluster.primary()
    assert server.node != "a"
    server.attach()
    assert server.pushed(1, 2.0) == ErrorCode.OK and server.value(0) == 2.0


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
    assert server.pushed(1) == ErrorCode.OK
    cluster.check()


def test_the_old_primary_keeps_its_copy_when_it_hands_over() -> None:
    cluster = Cluster()
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
    cluster.propose_hook = lambda server, record: len(record.in_sync) == 3
    drained(cluster, "a")
    record = cluster.record()
    assert record.primary != "a" and "a" in record.in_sync
    assert cluster["a"].held() is not None
    server = cluster.primary()
    server.attach()
    assert server.pushed(2, 1.0) == ErrorCode.OK
    assert cluster["a"].value(0) == 4.0
    cluster.check()


def test_a_bucket_is_not_handed_over_to_a_process_that_was_started_meanwhile() -> None:
    cluster = Cluster()
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
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
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
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
    assert b.pushed(2) == ErrorCode.OK
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
    assert result.version == 1, "it was applied, and the others may have it"
