"""A bucket with one copy is a group of one: made where it was placed, read back where it was, or given up."""

from __future__ import annotations

import pytest

from adamctl.config.records import BucketRecord, bucket_key, encode, node_key
from adamctl.roles.ps.core.instructions import Build, Load, Notice, Propose, Refuse
from adamctl.wire.constants import ErrorCode
from tests.roles.ps.replica_cluster import MANY, Cluster
from tests.roles.ps.replica_server import JOB, Server
from tests.roles.ps.replication.core.test_all_lost import stored

RESUME = "resume the run from its last checkpoint"


def single(**options: object) -> Cluster:
    return Cluster("a", replication=1, acks="durable", **options)  # type: ignore[arg-type]


def restarted(cluster: Cluster) -> Server:
    cluster.kill("a")
    return cluster.start("a")


def told(server: Server) -> list[object]:
    """What a server's core says when it is told of the records."""
    cluster = server.cluster
    out = server.replication.configured(JOB, cluster.view(), cluster.nodes(), cluster.draining, cluster.now)
    return [one for one in out if not isinstance(one, Notice)]


# --- placed on this process -----------------------------------------------------------------------------------------


def test_what_was_placed_on_this_process_is_made_once() -> None:
    cluster = single(start=False)
    assert told(cluster["a"]) == [Build(JOB, [0])]
    assert cluster["a"].job.building == {0: 1}
    assert told(cluster["a"]) == [], "it is under way"


def test_it_is_served_without_a_lease_and_without_links() -> None:
    cluster = single()
    server = cluster["a"]
    server.lease = False
    assert server.pushed(1, 2.0) == ErrorCode.OK
    assert not server.job.leased and not server.replication.groups(JOB)


def test_what_others_serve_is_neither_made_nor_lost() -> None:
    cluster = Cluster("ab", replication=1, acks="durable", start=False)
    assert told(cluster["b"]) == [] and cluster["b"].job.ready


def test_what_is_moved_while_it_is_made_is_not_served() -> None:
    cluster = single(start=False, spare="d")
    server = cluster["a"]
    told(server)
    cluster.config.set(bucket_key(JOB, 0), encode(BucketRecord(2, "d", ("d",))))
    told(server)
    server.build([0])
    assert not server.serves() and not server.job.building


# --- placed on an earlier process of this name ----------------------------------------------------------------------


def test_what_the_store_has_is_served_again_under_a_new_epoch() -> None:
    cluster = single()
    server = restarted(cluster)
    stored(cluster, "a", 5, 5.0)
    assert told(server) == [Load(JOB, [0])]
    refused = server.attach()
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.NOT_READY, "nobody may attach before"
    assert "is being resumed from the store" in refused.message
    server.load(Load(JOB, [0]))
    cluster.run()
    assert server.serves() and server.value(0) == 5.0 and cluster.record().epoch == 2
    assert server.job.ready


def test_it_waits_for_nobody() -> None:
    """No other server can have a bucket that has one copy, so no time has to pass."""
    cluster, before = single(), 0.0
    server = restarted(cluster)
    stored(cluster, "a", 5, 5.0)
    before = cluster.now
    cluster.configure()
    cluster.run()
    assert server.serves() and cluster.now == before


def test_a_new_epoch_is_above_that_of_the_store_too() -> None:
    """The controllers may have lost their memory."""
    cluster = single()
    server = restarted(cluster)
    stored(cluster, "a", 5, 5.0, epoch=7)
    cluster.configure()
    cluster.run()
    assert server.serves() and cluster.record().epoch == 8


def test_the_change_holds_only_if_nothing_has_changed_meanwhile() -> None:
    cluster = single()
    server = restarted(cluster)
    stored(cluster, "a", 5, 5.0)
    told(server)
    out = server.replication.loaded(JOB, {0: server.store[0]}, cluster.now)
    (proposed,) = (one for one in out if isinstance(one, Propose))
    assert proposed.changes.conditions == {
        bucket_key(JOB, 0): cluster.config.keys[bucket_key(JOB, 0)][1],
        node_key("a"): cluster.config.keys[node_key("a")][1],
    }


def test_what_was_served_and_is_not_in_the_store_is_given_up_and_the_record_stays() -> None:
    cluster = single()
    server = restarted(cluster)
    cluster.configure()
    cluster.run()
    cluster.pass_time(10.0)
    text = f"a was restarted and no longer has bucket 0 of job '{JOB}'; {RESUME}"
    assert server.job.failed == (ErrorCode.INTERNAL, text)
    assert cluster.record().epoch == 1 and not server.serves()
    warnings = [one for one in server.said if isinstance(one, Notice) and one.warning]
    assert len(warnings) == 1, "it is said once"


def test_what_is_in_the_store_in_part_is_given_up() -> None:
    cluster = single(shapes=MANY)
    server = restarted(cluster)
    contents = server.as_begun([0])[0]
    server.store[0] = contents[:-1]
    cluster.configure()
    cluster.run()
    assert server.job.failed is not None and not server.serves()


@pytest.mark.parametrize("others", [(), ("b",)])
def test_what_nobody_has_served_begins_as_the_job_did_under_a_new_epoch(others: tuple[str, ...]) -> None:
    """Whether others have served other buckets of the job makes no difference."""
    cluster = single(start=False)
    cluster.served |= set(others)
    server = restarted(cluster)
    assert told(server) == [Load(JOB, [0], initial=True)]
    server.load(Load(JOB, [0], initial=True))
    cluster.run()
    assert server.serves() and server.value(0) == 0.0 and cluster.record().epoch == 2


def test_what_was_served_does_not_begin_again() -> None:
    cluster = single()
    assert told(restarted(cluster)) == [Load(JOB, [0])]


# --- several copies -------------------------------------------------------------------------------------------------


def test_with_several_copies_a_member_that_has_served_nothing_does_not_begin_again() -> None:
    """It may have got the bucket from one that is no member any more."""
    cluster = Cluster("ab", replication=2, acks="durable")
    cluster.served.discard("b")
    cluster.kill("a")
    cluster.kill("b")
    alone = cluster.record().changed(0.0, "a is gone", primary="b", in_sync=["b"])
    cluster.config.set(bucket_key(JOB, 0), encode(alone))
    assert told(cluster.start("b")) == [Load(JOB, [0])]


def test_the_only_copy_is_not_handed_over_before_everybody_can_know_who_has_it() -> None:
    """Else the next process of the new holder's name would begin as the job did."""
    cluster = single(spare="d")
    cluster.draining = frozenset({"a"})
    cluster["d"].tell_served = lambda: None  # type: ignore[method-assign]
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    assert cluster["d"].held() is not None and cluster.record().in_sync == ("a",)
    cluster.served.add("d")
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    assert cluster.record().in_sync == ("d",) and cluster["d"].serves()
