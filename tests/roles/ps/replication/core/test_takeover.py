"""How a secondary takes a bucket over: what is kept, who is asked, who may."""

from __future__ import annotations

from adamctl.config.records import bucket_key, encode, node_key
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message, ReplicaFetchRequest, ReplicaPrepareRequest, ReplicaStateRequest
from tests.roles.ps.replica_cluster import MANY, Cluster
from tests.roles.ps.replica_server import JOB, Server


def dead(cluster: Cluster, node: str = "a") -> None:
    """Kills a server and tells the others."""
    cluster.kill(node)
    cluster.configure(*(name for name, server in cluster.servers.items() if server.alive))


def go_on(cluster: Cluster) -> Server:
    """Lets everything come to rest, and returns the new primary after a push to it."""
    cluster.run()
    cluster.pass_time(4.0)
    server = cluster.primary()
    server.attach()
    return server


def test_the_first_in_sync_secondary_takes_over() -> None:
    cluster = Cluster()
    cluster["a"].push("p", [(0, 1, 1.0)])
    cluster.run()
    dead(cluster)
    server = go_on(cluster)
    assert server.node == "b"
    assert (cluster.record().primary, cluster.record().in_sync) == ("b", ("b", "c"))
    server.push("again", [(0, 1, 1.0)])
    server.push("next", [(0, 2, 1.0)])
    cluster.run()
    assert server.code("again") == server.code("next") == ErrorCode.OK
    assert server.value(0) == cluster["c"].value(0) == 2.0
    cluster.check()


def test_the_second_waits_a_beacon_and_takes_over_if_the_first_does_not() -> None:
    cluster = Cluster()
    cluster["b"].replication.tick = lambda now: []  # type: ignore[method-assign]
    cluster.hold_all(("b", "c"), ("c", "b"))
    cluster.kill("a")
    cluster.configure("c")
    cluster.run()
    assert cluster.record().primary == "a"
    cluster.pass_time(0.5)
    assert cluster.record().primary == "a"
    cluster.pass_time(1.0)
    assert cluster.record().primary == "c"


def test_a_primary_whose_node_key_is_there_cannot_be_overthrown() -> None:
    cluster = Cluster()
    old = cluster.nodes()
    cluster.kill("a")
    without = cluster.nodes()
    cluster.config.keys[node_key("a")] = (encode(old["a"].record), old["a"].revision)
    b = cluster["b"]
    b.take(b.replication.configured(JOB, cluster.view(), without, frozenset(), cluster.now))
    cluster.run()
    assert [done for _, _, done in cluster.proposals] == [False]
    assert cluster.record().epoch == 1


def test_what_only_one_member_has_is_kept_and_given_to_all() -> None:
    """The primary dies when a push has reached one of two: mutant `takeover without reconciliation`."""
    cluster = Cluster()
    cluster.hold_all(("a", "b"))
    cluster["a"].push("p", [(0, 1, 5.0)])
    cluster.run()
    assert (cluster["b"].value(0), cluster["c"].value(0)) == (0.0, 5.0)
    dead(cluster)
    server = go_on(cluster)
    assert server.node == "b"
    assert server.value(0) == cluster["c"].value(0) == 5.0
    server.push("again", [(0, 1, 5.0)])
    cluster.run()
    assert server.code("again") == ErrorCode.OK
    assert server.value(0) == 5.0  # the memory came with the values
    cluster.check()


def test_what_the_new_primary_has_and_another_has_not_is_given_to_it() -> None:
    cluster = Cluster()
    cluster.hold_all(("a", "c"))
    cluster["a"].push("p", [(0, 1, 5.0)])
    cluster.run()
    dead(cluster)
    cluster.run()
    held = cluster["c"].held()
    assert held is not None and held.shards[0].version == (2, 1)
    assert cluster["c"].value(0) == 5.0
    cluster.check()


def test_nothing_is_served_before_every_member_has_what_is_kept() -> None:
    cluster = Cluster()
    cluster.hold_all(("a", "c"))
    cluster["a"].push("p", [(0, 1, 5.0)])
    cluster.run()
    cluster.hold = lambda source, target, message: isinstance(message, ReplicaPrepareRequest)
    dead(cluster)
    cluster.run()
    b = cluster["b"]
    assert cluster.record().primary == "b" and not b.serves()
    b.attach()
    assert b.core.jobs[JOB].taking == {0}
    cluster.deliver_held()
    assert b.serves()


def test_a_client_is_told_to_wait_meanwhile() -> None:
    cluster = Cluster()
    dead(cluster)
    cluster.hold = lambda source, target, message: True
    cluster.run()
    b = cluster["b"]
    b.push("p", [(0, 1, 1.0)])
    assert b.code("p") == ErrorCode.NOT_READY
    cluster.deliver_held()
    b.attach()
    b.push("p", [(0, 1, 1.0)])
    cluster.run()
    assert b.code("p") == ErrorCode.OK


def test_a_member_that_does_not_answer_is_removed_and_all_are_asked_anew() -> None:
    cluster = Cluster("abcd", replication=4)
    cluster.hold_all(("b", "d"), ("d", "b"))
    dead(cluster)
    cluster.run()
    assert not cluster["b"].serves()
    cluster.pass_time(3.0)
    assert cluster.record().in_sync == ("b", "c") and cluster["b"].serves()
    assert cluster.record().epoch == 3


def test_a_member_that_was_restarted_unnoticed_is_removed() -> None:
    cluster = Cluster()
    cluster.hold_all(("a", "c"), ("c", "a"))
    cluster.kill("c")
    cluster.start("c")
    cluster.config.set(bucket_key(JOB, 0), encode(cluster.record().changed(0.0, "something else")))
    cluster.configure("b", "c")
    cluster.run()
    dead(cluster)
    cluster.run()
    cluster.pass_time(1.0)
    assert cluster["b"].serves()
    assert "c" not in cluster.record().in_sync or cluster["c"].held() is not None
    cluster.deliver_held()


def test_it_begins_anew_if_it_dies_at_any_point() -> None:
    """At each step of a takeover the new primary dies; the third takes over with all that was acknowledged."""
    for steps in range(40):
        cluster = Cluster()
        cluster["a"].push("p", [(0, 1, 5.0)])
        cluster.run()
        cluster.hold_all(("a", "b"))
        cluster["a"].push("q", [(0, 2, 3.0)])
        cluster.run()
        cluster.hold = lambda source, target, message: False
        dead(cluster)
        cluster.step(steps)
        dead(cluster, "b")
        server = go_on(cluster)
        assert server.node == "c" and server.value(0) == 8.0, steps
        server.push("q", [(0, 2, 3.0)])
        cluster.run()
        assert server.code("q") == ErrorCode.OK and server.value(0) == 8.0


def test_whoever_loses_the_race_follows_the_winner() -> None:
    cluster = Cluster()
    cluster.kill("a")
    cluster["b"].configure()
    cluster.now += 5.0
    c = cluster["c"]
    c.configure()
    c.take(c.replication.tick(cluster.now))
    cluster.now += 5.0
    c.take(c.replication.tick(cluster.now))
    cluster.run()
    assert sorted(done for _, record, done in cluster.proposals if record.epoch == 2) == [False, True]
    assert sum(server.serves() for server in cluster.servers.values()) == 1


def test_an_old_primary_that_comes_back_to_life_is_refused_and_stops() -> None:
    cluster = Cluster()
    a = cluster["a"]
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.run()
    a.alive = True  # it had only stood still
    a.push("p", [(0, 1, 9.0)], epoch=1)
    cluster.run()
    assert not a.serves()
    assert a.code("p") == ErrorCode.STALE_EPOCH
    assert cluster["b"].value(0) == 0.0


def test_a_restarted_primary_does_not_take_up_its_place() -> None:
    cluster = Cluster()
    cluster["a"].push("p", [(0, 1, 5.0)])
    cluster.run()
    cluster.kill("a", reported=False)
    a = cluster.start("a")
    a.configure()
    cluster.run()
    assert not a.serves()
    cluster.configure("b", "c")
    cluster.run()
    assert cluster["b"].serves() and cluster["b"].value(0) == 5.0
    cluster.pass_time(15.0)
    assert set(cluster.record().in_sync) == {"a", "b", "c"}
    assert a.value(0) == 5.0


def test_a_silent_primary_has_its_node_key_read() -> None:
    cluster = Cluster()
    cluster.kill("a", reported=False)
    before = len(cluster["b"].said)
    cluster.pass_time(1.0)
    assert len(cluster["b"].said) == before
    cluster.pass_time(2.0)
    assert len(cluster["b"].said) > before


def test_large_buckets_are_fetched_and_written_in_parts() -> None:
    cluster = Cluster(shapes=MANY, message_bytes_max=700)
    shards = range(len(cluster.layout.shards))
    cluster.hold = lambda source, target, message: target == "b"
    cluster["a"].push("p", [(shard, 1, 1.0 + shard) for shard in shards])
    cluster.run()
    seen: list[type[Message]] = []

    def look(source: str, target: str, message: Message | None) -> bool:
        seen.append(type(message))  # type: ignore[arg-type]
        return False

    cluster.hold = look
    dead(cluster)
    cluster.run()
    assert seen.count(ReplicaStateRequest) == 1 and seen.count(ReplicaFetchRequest) > 5
    assert [cluster["b"].value(shard) for shard in shards] == [1.0 + shard for shard in shards]
    cluster.check()


def test_two_of_three_die_and_the_last_one_goes_on() -> None:
    cluster = Cluster()
    cluster["a"].push("p", [(0, 1, 5.0)])
    cluster.run()
    cluster.kill("a")
    cluster.kill("b")
    cluster.configure("c")
    server = go_on(cluster)
    assert server.node == "c" and server.value(0) == 5.0
    assert cluster.record().in_sync == ("c",)
