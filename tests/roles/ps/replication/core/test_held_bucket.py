"""What a secondary or a learner takes in, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.config.records import Acks, bucket_key, encode
from adamctl.roles.ps.core.acknowledge import Acknowledgements
from adamctl.roles.ps.core.exactly_once import ClientRecord, MemoryChange, MemoryRecord
from adamctl.roles.ps.core.flush import Entry, FlushCore
from adamctl.roles.ps.core.instructions import Holds, Instruction
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy
from adamctl.roles.ps.replication.core.held_bucket import HeldShard
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    Message,
    ReplicaFetchReply,
    ReplicaFetchRequest,
    ReplicaPrepareReply,
    ReplicaPrepareRequest,
    ReplicaStateReply,
    ReplicaStateRequest,
)
from tests.roles.ps.replica_cluster import BORN, Cluster
from tests.roles.ps.replica_server import JOB, Server


def record(
    counter: int, value: float, epoch: int = 1, size: int = 32, memory: MemoryRecord | None = None
) -> CopyRecord:
    described = ShardCopy(JOB, BORN, 0, epoch, counter, counter, size, (size,), memory or MemoryRecord(), 0)
    return CopyRecord(described, [np.full(size, value, np.float32)])


def ask(server: Server, message: Message, records: list[CopyRecord] | None = None, peer: str = "a") -> Any:
    """Returns (message, records, code of a refusal)."""
    answers: list[Any] = []
    now = server.cluster.now
    server.take(server.replication.requested(lambda *answer: answers.append(answer), peer, message, records or [], now))
    (answer,) = answers
    return answer


def prepare(server: Server, epoch: int = 1, receiver: int | None = None, **fields: Any) -> ReplicaPrepareRequest:
    incarnation = server.incarnation if receiver is None else receiver
    return ReplicaPrepareRequest(JOB, BORN, incarnation, {0: epoch}, **fields)


def test_a_newer_state_replaces_an_older_one_and_never_the_other_way() -> None:
    b = Cluster()["b"]
    for counter, value in ((2, 2.0), (1, 1.0), (2, 7.0)):
        reply, _, _ = ask(b, prepare(b), [record(counter, value)])
        assert reply == ReplicaPrepareReply(b.incarnation, takes_changes=True)
    assert b.value(0) == 2.0
    ask(b, prepare(b), [record(3, 3.0)])
    assert b.value(0) == 3.0


def test_what_has_changed_is_not_taken_without_what_it_has_changed() -> None:
    b = Cluster()["b"]
    change = MemoryChange((ClientRecord("w", 1, 9),), (), 0, -1, 0)
    followed, torn = (
        replace(one, copy=msgspec.structs.replace(one.copy, since=since, change=change))
        for one, since in ((record(2, 2.0), 0), (record(9, 9.0), 3))
    )
    reply, _, _ = ask(b, prepare(b), [followed])
    held = b.held()
    assert not reply.refused and held is not None and held.shards[0].memory.sequence(("w", 1)) == 9
    reply, _, _ = ask(b, prepare(b), [torn])
    assert reply.refused == {0: ErrorCode.BAD_MESSAGE} and b.value(0) == 2.0


def test_nothing_of_an_older_epoch_is_taken() -> None:
    cluster = Cluster()
    b = cluster["b"]
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.run()
    assert cluster.record().primary == "b"
    c = cluster["c"]
    reply, _, _ = ask(c, prepare(c, epoch=1), [record(9, 9.0)])
    assert reply.refused == {0: ErrorCode.STALE_EPOCH} and reply.routing == {0: 2}
    assert c.value(0) == 0.0
    assert b.serves()


def test_a_newer_epoch_has_to_wait_until_the_records_are_read() -> None:
    cluster = Cluster()
    c = cluster["c"]
    changed = cluster.record().changed(0.0, "test", primary="b", in_sync=["b", "c"])
    reply, _, _ = ask(c, prepare(c, epoch=2), [record(9, 9.0)], "b")
    assert reply.refused == {0: ErrorCode.NEWER_EPOCH} and c.value(0) == 0.0
    cluster.config.set(bucket_key(JOB, 0), encode(changed))
    cluster.run()  # it refreshes itself
    reply, _, _ = ask(c, prepare(c, epoch=2), [record(9, 9.0, 2)], "b")
    assert not reply.refused and c.value(0) == 9.0


def test_somebody_who_is_not_the_primary_is_refused() -> None:
    b = Cluster()["b"]
    reply, _, _ = ask(b, prepare(b), [record(9, 9.0)], "c")
    assert reply.refused == {0: ErrorCode.UNKNOWN_SHARD}


def test_what_was_meant_for_a_former_process_is_refused() -> None:
    cluster = Cluster()
    b = cluster["b"]
    reply, _, _ = ask(b, prepare(b, receiver=b.incarnation - 1), [record(9, 9.0)])
    assert reply.refused == {0: ErrorCode.STALE_INCARNATION}
    state, _, _ = ask(b, ReplicaStateRequest(JOB, BORN, b.incarnation - 1, 0, 1))
    assert state.code == ErrorCode.STALE_INCARNATION


def test_a_process_that_was_restarted_holds_nothing_and_says_so() -> None:
    cluster = Cluster()
    cluster.kill("b")
    cluster.hold = lambda source, target, message: True
    b = cluster.start("b")
    b.configure()
    cluster.run()
    reply, _, _ = ask(b, prepare(b), [record(9, 9.0)])
    assert reply.refused == {0: ErrorCode.UNKNOWN_SHARD}
    state, _, _ = ask(b, ReplicaStateRequest(JOB, BORN, b.incarnation, 0, 1))
    assert state.code == ErrorCode.UNKNOWN_SHARD and state.versions == ()


def test_a_record_that_does_not_fit_is_refused() -> None:
    b = Cluster()["b"]
    reply, _, _ = ask(b, prepare(b), [record(9, 9.0, size=16)])
    assert reply.refused == {0: ErrorCode.BAD_MESSAGE} and b.value(0) == 0.0


def test_a_job_that_is_not_known_is_refused_as_a_whole() -> None:
    b = Cluster()["b"]
    message, _, code = ask(b, ReplicaPrepareRequest(JOB, BORN + 5, b.incarnation, {0: 1}))
    assert message is None and code == ErrorCode.NOT_READY


def test_nobody_has_a_copy_begun_who_is_no_learner() -> None:
    b = Cluster()["b"]
    ask(b, prepare(b), [record(5, 5.0)])
    ask(b, prepare(b, begins={0: 99}))
    assert b.value(0) == 5.0


def test_a_copy_that_was_begun_is_not_begun_again_by_the_same_message_or_an_older_one() -> None:
    cluster = Cluster("ab", replication=2, spare="c")
    cluster.hold = lambda source, target, message: target == "c"
    changed = cluster.record().changed(0.0, "test", learners=["c"])
    cluster.config.set(bucket_key(JOB, 0), encode(changed))
    cluster.configure()
    cluster.run()
    c = cluster["c"]
    ask(c, prepare(c, epoch=2, begins={0: 50}))
    ask(c, prepare(c, epoch=2), [record(5, 5.0, 2)])
    for number in (50, 49):
        ask(c, prepare(c, epoch=2, begins={0: number}))
        assert c.value(0) == 5.0
    ask(c, prepare(c, epoch=2, begins={0: 51}))
    held = c.held()
    assert held is not None and not held.whole


def test_versions_and_states_are_told_to_a_new_primary() -> None:
    cluster = Cluster()
    c = cluster["c"]
    memory = MemoryRecord((ClientRecord("w", 1, 4),))
    ask(c, prepare(c), [record(4, 4.0, memory=memory)])
    cluster.hold = lambda source, target, message: True
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.run()
    state, _, _ = ask(c, ReplicaStateRequest(JOB, BORN, c.incarnation, 0, 2), peer="b")
    assert state == ReplicaStateReply(c.incarnation, 0, 2, ((0, 1, 4),))
    reply, records, _ = ask(c, ReplicaFetchRequest(JOB, BORN, c.incarnation, 0, 2, (0,)), peer="b")
    assert reply == ReplicaFetchReply(c.incarnation, 0, 2)
    assert records[0].copy.memory == memory and set(records[0].arrays[0].tolist()) == {4.0}


def test_an_image_is_not_written_over_by_a_takeover() -> None:
    cluster = Cluster()
    b = cluster["b"]
    held = b.held()
    assert held is not None
    image = held.shards[0].image()
    assert image is not None
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.run()
    b.attach()
    b.push("p", [(0, 1, 1.0)])
    cluster.run()
    assert b.code("p") == ErrorCode.OK and b.value(0) == 1.0
    assert set(image.values.array.tolist()) == {0.0}
    image.release()


# --- durable ----------------------------------------------------------------------------------------------------------


def with_log(server: Server) -> FlushCore:
    """Gives a server a log, and the shards of its copy their places in it."""
    flush = server.core.flush = FlushCore()
    server.core.acknowledgements = Acknowledgements(flush)
    held = server.held()
    assert held is not None
    for shard in held.shards.values():
        shard.entry = Entry(shard, shard.size_bytes)
    return flush


def write(server: Server, flush: FlushCore) -> None:
    """Writes what is due, as the store does."""
    group = flush.take(server.cluster.now)
    assert group is not None
    for item in group.items:
        flush.taken(item)
    assert server.core.acknowledgements is not None
    over = flush.finished([1] * len(group.items))
    server.take(server.core.acknowledgements.durable(over, server.cluster.now))


def test_a_durable_state_is_answered_when_it_is_on_disk() -> None:
    b = Cluster(acks="durable")["b"]
    flush = with_log(b)
    answers: list[Any] = []
    message = prepare(b, durable=True)
    for counter in (1, 1, 2):  # the second one is a repetition
        taken = b.replication.requested(lambda *one: answers.append(one), "a", message, [record(counter, 1.0)], 0.0)
        b.take(taken)
    assert not answers
    write(b, flush)
    assert len(answers) == 3


def test_what_is_not_asked_to_be_durable_is_answered_at_once_and_written_all_the_same() -> None:
    b = Cluster()["b"]
    flush = with_log(b)
    reply, _, _ = ask(b, prepare(b), [record(1, 1.0)])
    assert not reply.refused and flush.unsaved_bytes


def test_who_waits_for_the_disk_is_refused_when_the_copy_is_let_go() -> None:
    cluster = Cluster(acks="durable")
    b = cluster["b"]
    with_log(b)
    answers: list[Any] = []
    token = lambda *answer: answers.append(answer)  # noqa: E731
    b.take(b.replication.requested(token, "a", prepare(b, durable=True), [record(1, 1.0)], 0.0))
    cluster.config.set(bucket_key(JOB, 0), encode(cluster.record().changed(0.0, "test", in_sync=["a", "c"])))
    b.configure()
    ((message, _, code),) = answers
    assert message is None and code == ErrorCode.NOT_READY


def test_a_new_primary_is_told_of_what_is_on_disk_if_pushes_are_to_be() -> None:
    cluster = Cluster(acks="durable")
    c = cluster["c"]
    flush = with_log(c)
    ask(c, prepare(c), [record(4, 4.0)])
    cluster.hold = lambda source, target, message: True
    cluster.kill("a")
    cluster.configure("b", "c")
    cluster.run()
    answers: list[Any] = []
    message = ReplicaStateRequest(JOB, BORN, c.incarnation, 0, 2)
    c.take(c.replication.requested(lambda *one: answers.append(one), "b", message, [], cluster.now))
    assert not answers
    write(c, flush)
    ((state, _, _),) = answers
    assert state.versions == ((0, 1, 4),)


def test_a_learner_is_no_member_before_its_copy_is_on_its_disk() -> None:
    """Else a crash of all copies could leave the last one in sync with nothing to take up."""
    cluster = Cluster("ab", replication=2, spare="d", settle_s=0.1)
    d = cluster["d"]
    flush = d.core.flush = FlushCore()
    d.core.acknowledgements = Acknowledgements(flush)
    take = d._take

    def adopt(instruction: Instruction) -> None:
        take(instruction)
        if isinstance(instruction, Holds):
            held = d.held()
            assert held is not None
            for shard in held.shards.values():
                shard.entry = Entry(shard, shard.size_bytes)

    d._take = adopt  # type: ignore[method-assign]
    cluster.kill("b")
    cluster.configure()
    cluster.run()
    cluster.pass_time(5.0)
    assert cluster.record().learners == ("d",) and d.value(0) == 0.0
    write(d, flush)
    cluster.run()
    assert cluster.record().in_sync == ("a", "d")


def test_a_full_disk_keeps_no_learner_from_becoming_a_member() -> None:
    b = Cluster()["b"]
    flush = with_log(b)
    ask(b, prepare(b), [record(1, 1.0)])
    flush.full = True
    reply, _, _ = ask(b, prepare(b, durable=True))
    assert not reply.refused


def test_a_server_without_a_store_keeps_nothing_that_is_to_be_durable() -> None:
    """It would answer for its memory; the primary removes it instead, and looks for another."""
    b = Cluster(acks="durable")["b"]
    b.core.flush = None
    for message, records in ((prepare(b, durable=True), [record(1, 1.0)]), (prepare(b), [])):
        reply, _, _ = ask(b, message, records)
        assert reply.refused == {0: ErrorCode.UNKNOWN_SHARD}
    assert b.held() is not None and b.held().shards[0].version != (1, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("acks", ["replicated", "durable"])
def test_a_server_without_a_store_is_given_copies_unless_they_are_to_be_durable(acks: Acks) -> None:
    cluster = Cluster("ab", replication=2, acks=acks, spare="d", without_store="d", settle_s=0.1)
    cluster.kill("b")
    cluster.configure()
    cluster.run()
    cluster.pass_time(2.0)
    record = cluster.record()
    assert ("d" in (*record.in_sync, *record.learners)) == (acks == "replicated")


def holding(server: Server) -> HeldShard:
    """Returns the shard that a server holds, whose initial values are to come with its first push."""
    held = server.held()
    assert held is not None
    held.shards[0].given = True
    return held.shards[0]


def test_initial_values_that_were_given_are_confirmed_when_they_are_on_disk() -> None:
    """Whoever is told that they are there finds them, should the primary be gone for good and this one be restarted."""
    b = Cluster()["b"]
    flush, answers = with_log(b), list[Any]()
    shard = holding(b)
    ask(b, prepare(b), [record(0, 0.0)])  # as the job began
    b.take(b.replication.requested(lambda *one: answers.append(one), "a", prepare(b), [record(1, 1.0)], 0.0))
    assert not answers and shard.initial_values_volatile
    write(b, flush)
    assert len(answers) == 1
    assert shard.entry is not None
    shard.entry.version = (1, 1, 1)
    ask(b, prepare(b), [record(2, 2.0)])  # from then on they are found


def test_a_full_disk_keeps_a_learner_with_given_initial_values_from_becoming_a_member() -> None:
    b = Cluster()["b"]
    flush, answers = with_log(b), list[Any]()
    holding(b)
    b.take(b.replication.requested(lambda *one: answers.append(one), "a", prepare(b), [record(1, 1.0)], 0.0))
    flush.full = True
    message = prepare(b, durable=True)
    b.take(b.replication.requested(lambda *one: answers.append(one), "a", message, [], 0.0))
    assert not answers
