"""What a primary ships, and when it answers for it."""

from __future__ import annotations

from adamctl.config.records import RetiredRecord
from adamctl.roles.ps.core.admission import APPLIED
from adamctl.roles.ps.core.exactly_once import Client
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.instructions import AnswerPull, Ask, Refuse
from adamctl.roles.ps.core.shard_message import ALIGNMENT, encode_body
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import Message, ReplicaPrepareReply, ReplicaPrepareRequest
from tests.roles.ps.replica_cluster import MANY, Cluster
from tests.roles.ps.replica_server import JOB, Server

TWO_SHARDS = ((4, 8), (4, 4))


def test_a_push_is_in_all_copies_when_it_is_acknowledged() -> None:
    cluster = Cluster()
    a = cluster["a"]
    a.push("p", [(0, 1, 2.0)])
    cluster.run()
    assert a.code("p") == ErrorCode.OK
    assert [cluster[node].value(0) for node in "abc"] == [2.0] * 3
    cluster.check()


def test_it_is_not_acknowledged_before_every_copy_has_prepared_it() -> None:
    cluster = Cluster()
    cluster.hold_all(("c", "a"))
    cluster["a"].push("p", [(0, 1, 2.0)])
    cluster.run()
    assert cluster["a"].code("p") is None
    assert cluster["c"].value(0) == 2.0
    cluster.deliver_held()
    assert cluster["a"].code("p") == ErrorCode.OK


def test_under_applied_nobody_waits_but_states_are_shipped() -> None:
    cluster = Cluster(acks="applied")
    cluster.hold_all(("a", "b"), ("a", "c"))
    cluster["a"].push("p", [(0, 1, 2.0)])
    cluster.run()
    assert cluster["a"].code("p") == ErrorCode.OK
    cluster.deliver_held()
    assert cluster["c"].value(0) == 2.0


def test_a_repeated_push_waits_for_the_copies_as_the_first_did() -> None:
    cluster = Cluster()
    cluster.hold_all(("a", "b"))
    cluster["a"].push("p", [(0, 1, 2.0)])
    cluster.run()
    cluster["a"].push("again", [(0, 1, 2.0)])
    cluster.run()
    assert cluster["a"].code("again") is None
    cluster.deliver_held()
    assert cluster["a"].code("p") == cluster["a"].code("again") == ErrorCode.OK
    assert cluster["b"].value(0) == 2.0


def test_one_state_of_a_shard_is_under_way_and_the_rest_folds_into_the_next() -> None:
    cluster = Cluster()
    sent: list[Message | None] = []

    def count(source: str, target: str, message: Message | None) -> bool:
        sent.append(message)
        return (source, target) == ("b", "a")

    cluster.hold = count
    for number in range(1, 21):
        cluster["a"].push(number, [(0, number, 1.0)])
        cluster.run()
    assert sum(isinstance(message, ReplicaPrepareRequest) for message in sent) == 1 + 20  # b once, c each time
    cluster.deliver_held()
    assert cluster["b"].value(0) == cluster["c"].value(0) == 20.0
    assert all(cluster["a"].code(number) == ErrorCode.OK for number in range(1, 21))
    cluster.check()


def test_states_that_are_sent_are_not_written_over_meanwhile() -> None:
    cluster = Cluster(rule="adagrad")
    cluster.hold_all(("a", "b"))
    cluster["a"].push(1, [(0, 1, 1.0)])
    cluster.run()
    cluster["a"].push(2, [(0, 2, 1.0)])
    cluster.run()
    cluster.deliver_held()
    cluster.check()
    assert cluster["b"].value(0) == 2.0


def test_a_message_has_no_more_than_so_many_bytes() -> None:
    cluster = Cluster(shapes=MANY, message_bytes_max=3000)
    shards = len(cluster.layout.shards)
    parts = [(shard, 1, 1.0) for shard in range(shards)]
    cluster["a"].push("p", parts)
    cluster.run()
    assert cluster["a"].code("p") == ErrorCode.OK
    assert all(cluster["c"].value(shard) == 1.0 for shard in range(shards))


def bodies_of(cluster: Cluster) -> list[int]:
    """Returns the lengths of all bodies that are sent from now on."""
    lengths: list[int] = []
    send = cluster.send

    def sent(server: Server, ask: Ask) -> None:
        if ask.records:
            lengths.append(sum(memoryview(piece).nbytes for piece in encode_body(ask.records)))
        send(server, ask)

    cluster.send = sent  # type: ignore[method-assign]
    return lengths


def remember(server: Server, clients: int) -> None:
    """Makes a server's shards remember clients that are no more."""
    for shard in server.job.shards.values():
        for number in range(clients):
            client = Client((f"gone-{number}", number + 100))
            shard.memory.accept(client, 1)
            shard.memory.settle(client, 1, 0, shard.counter + 1)


def test_clients_that_shards_remember_count_in_the_bytes_of_a_message() -> None:
    """Else a message passes what a frame may have, and nobody's push is ever answered."""
    bound = 64 << 10
    cluster = Cluster(shapes=MANY, message_bytes_max=bound)
    shards = len(cluster.layout.shards)
    bodies, a = bodies_of(cluster), cluster["a"]
    remember(a, 900)
    a.push("p", [(shard, 1, 1.0) for shard in range(shards)])
    cluster.run()
    assert a.code("p") == ErrorCode.OK and sum(bodies) > 2 * bound
    assert max(bodies) <= bound
    cluster.kill("a")
    cluster.configure()
    cluster.run()
    assert cluster["b"].job.shards[0].memory.sequence(("gone-7", 107)) == 1
    cluster.check()


def test_a_push_ships_what_has_changed_of_its_clients_and_not_all_of_them() -> None:
    cluster = Cluster()
    bodies, a = bodies_of(cluster), cluster["a"]
    a.push("none", [(0, 1, 1.0)])
    cluster.run()
    remember(a, 900)
    for number in range(2, 5):
        a.push(number, [(0, number, 1.0)])
        cluster.run()
    fresh, more, *later = [bodies[place] for place in range(0, len(bodies), 2)]
    assert more > 900 * 10 and later == [later[0]] * 2 and later[0] <= fresh + ALIGNMENT
    for node in "bc":
        held = cluster[node].held()
        assert held is not None and held.shards[0].memory.record() == a.job.shards[0].memory.record()


def test_retired_clients_are_forgotten_with_the_next_push_by_every_copy() -> None:
    """Copies of a version stay alike, and a primary that has not heard of it knows all the same who is retired."""
    cluster = Cluster()
    a = cluster["a"]
    for number in range(1, 4):
        a.push(number, [(0, 1, 1.0)], client=("w", number))
        cluster.run()
    a.core.retired = RetiredRecord(2, (1,))
    assert len(a.job.shards[0].memory.clients) == 3
    a.push("next", [(0, 2, 1.0)], client=("w", 3))
    cluster.run()
    for node in "bc":
        held = cluster[node].held()
        assert held is not None and list(held.shards[0].memory.clients) == [("w", 1), ("w", 3)]
        assert held.shards[0].memory.record() == a.job.shards[0].memory.record()
    cluster.kill("a")
    cluster.configure()
    cluster.run()
    b = cluster["b"]
    b.attach()
    b.push("late", [(0, 1, 1.0)], client=("w", 2))
    cluster.run()
    assert b.code("late") == ErrorCode.CLIENT_EVICTED and b.value(0) == 4.0


def test_a_refused_push_is_remembered_by_the_copies_too() -> None:
    cluster = Cluster()
    a = cluster["a"]
    a.push("bad", [(0, 1, float("nan"))])
    cluster.run()
    assert a.code("bad") == ErrorCode.NOT_FINITE
    for node in "bc":
        held = cluster[node].held()
        assert held is not None and held.shards[0].copy is not None
        assert [client.done for client in held.shards[0].memory.clients.values()] == [1]


def test_with_fewer_members_than_demanded_pushes_are_refused_and_pulls_are_not() -> None:
    cluster = Cluster("ab", replication=2, min_in_sync=2)
    cluster.kill("b")
    cluster.configure("a")
    cluster.run()
    assert cluster.record().in_sync == ("a",)
    cluster["a"].push("p", [(0, 1, 1.0)])
    cluster.run()
    answer = cluster["a"].answers["p"]
    assert isinstance(answer, Refuse) and answer.code == ErrorCode.NOT_READY and "pushes need 2" in answer.message
    assert not answer.details, "it was not taken in"
    assert isinstance(cluster["a"].pull("q", [0]), AnswerPull)


def refused_though_applied(server: Server, token: str) -> bool:
    """Whether a client that is forgotten before it is answered again knows that it must not push the same anew."""
    answer = server.answers[token]
    return isinstance(answer, Refuse) and answer.code == ErrorCode.NOT_READY and APPLIED in answer.details


def test_what_waits_when_members_become_too_few_is_refused() -> None:
    cluster = Cluster("ab", replication=2, min_in_sync=2)
    cluster.hold_all(("a", "b"))
    cluster["a"].push("p", [(0, 1, 1.0)])
    cluster.run()
    cluster.kill("b")
    cluster.configure("a")
    cluster.run()
    assert refused_though_applied(cluster["a"], "p")


# --- leases -----------------------------------------------------------------------------------------------------------


def test_without_a_lease_nothing_is_taken_in_or_told() -> None:
    cluster = Cluster()
    a = cluster["a"]
    a.lease = False
    a.push("p", [(0, 1, 1.0)])
    assert a.code("p") == ErrorCode.NOT_READY
    answer = a.pull("q", [0])
    assert isinstance(answer, Refuse) and answer.code == ErrorCode.NOT_READY


def test_the_lease_is_looked_at_again_when_a_push_is_answered() -> None:
    cluster = Cluster()
    cluster.hold_all(("b", "a"))
    a = cluster["a"]
    a.push("p", [(0, 1, 1.0)])
    cluster.run()
    a.lease = False
    cluster.deliver_held()
    assert refused_though_applied(a, "p")
    a.lease = True
    a.push("again", [(0, 1, 1.0)])
    cluster.run()
    assert a.code("again") == ErrorCode.OK and a.value(0) == 1.0


def test_and_under_applied_as_well() -> None:
    cluster = Cluster(acks="applied")
    a = cluster["a"]
    cluster.applies = False
    a.push("p", [(0, 1, 1.0)])
    a.lease = False
    a.apply()
    assert refused_though_applied(a, "p")


def test_and_when_a_pull_has_waited_for_a_batch() -> None:
    cluster = Cluster()
    a = cluster["a"]
    cluster.applies = False
    a.push("p", [(0, 1, 1.0)])
    assert a.pull("q", [0]) is None
    a.lease = False
    a.apply()
    answer = a.answers["q"]
    assert isinstance(answer, Refuse) and answer.code == ErrorCode.NOT_READY
    assert not a.job.shards[0].values.readers


def test_a_bucket_with_one_copy_needs_no_lease() -> None:
    cluster = Cluster("a", replication=1, acks="applied")
    a = cluster["a"]
    a.lease = False
    a.push("p", [(0, 1, 1.0)])
    cluster.run()
    assert a.code("p") == ErrorCode.OK
    assert a.job.shards[0].replica is None
    assert a.core.acknowledgements is None


# --- members ----------------------------------------------------------------------------------------------------------


def test_a_member_that_was_restarted_is_removed_even_if_the_record_has_changed_since() -> None:
    cluster = Cluster(spare="d")
    cluster.kill("c")
    cluster.start("c")
    cluster.configure("c")
    cluster.kill("b")
    cluster.configure("a")
    cluster.run()
    cluster.pass_time(1.0)
    assert "c" not in cluster.record().in_sync or cluster["c"].held() is not None
    cluster["a"].push("p", [(0, 1, 1.0)])
    cluster.run()
    cluster.check()


def test_a_late_answer_of_a_member_that_was_removed_counts_for_nothing() -> None:
    cluster = Cluster()
    cluster.hold_all(("c", "a"))
    a = cluster["a"]
    a.push("p", [(0, 1, 1.0)])
    cluster.run()
    cluster.kill("c")
    cluster.configure("a")
    cluster.run()
    assert cluster.record().in_sync == ("a", "b") and a.code("p") == ErrorCode.OK
    cluster.deliver_held()
    (replica,) = a.replication.groups("job")[0].shards.values()
    assert set(replica.prepared) == {"b"}


def test_heartbeats_find_out_that_a_primary_is_deposed() -> None:
    cluster = Cluster()
    cluster.kill("a")
    cluster["a"].alive = True  # it was only cut off
    cluster.configure("b", "c")
    cluster.run()
    assert cluster["b"].serves()
    cluster.configure("a")
    cluster.run()
    assert not cluster["a"].serves()
    answers = [m for m in cluster["a"].said if isinstance(m, ReplicaPrepareReply)]
    assert not answers


def test_given_initial_values_are_acknowledged_when_all_copies_have_them_even_under_applied() -> None:
    """Copies answer for them when they are on their disks (test_core_copies.py)."""
    cluster = Cluster(acks="applied")
    a = cluster["a"]
    (shard,) = a.core.jobs[JOB].shards.values()
    shard.given, shard.entry = True, Entry(shard, 128)
    shard.entry.version = (1, 1, 1)  # here they are on disk already
    cluster.hold_all(("c", "a"))
    a.push("p", [(0, 1, 2.0)])
    cluster.run()
    assert shard.initial_values_volatile and a.code("p") is None
    cluster.deliver_held()
    assert not shard.initial_values_volatile and a.code("p") == ErrorCode.OK
