"""An operator goes on with what is there: which buckets are stuck, on whom they are recovered, what that changes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from adamctl.config.records import BucketRecord, NodeRecord, bucket_key, decode, node_key
from adamctl.roles.ps.core.instructions import AnswerAttach
from adamctl.roles.ps.core.job import ShardContent
from adamctl.roles.ps.replication.core import replication_core as core_replication
from adamctl.roles.ps.replication.core.job_buckets import VersionedRecord
from adamctl.roles.ps.replication.core.node_keys import NodeView
from adamctl.roles.ps.replication.core.proposals import CHANGES_MAX
from adamctl.roles.ps.replication.core.recovery import Finding, Kept, State, examine, examine_all, recovery
from adamctl.wire.constants import ErrorCode
from tests.roles.ps.replica_cluster import Cluster
from tests.roles.ps.replica_server import JOB
from tests.roles.ps.replication.core.test_all_lost import stored

EPOCH = 3
KNOWN = VersionedRecord(BucketRecord(EPOCH, "a", ("a", "b", "c"), ("d",)), 20)
BACK, OLD = 30, 10
"""Revisions of node keys: of a process that was started after the record was written, and of one that it means."""


def nodes(**revisions: int) -> dict[str, NodeView]:
    return {n: NodeView(NodeRecord(n, "ps", 1, (), "host", 1), revision) for n, revision in revisions.items()}


def has(counter: int, epoch: int = EPOCH - 1, pushes: int = 0) -> Kept:
    return Kept(EPOCH, True, 2, (epoch, counter), (epoch, counter), pushes or 2 * counter)


NOTHING = Kept(EPOCH, True)


def look(there: Mapping[str, int], **kept: Kept | None) -> Finding:
    """`kept`: what servers say; one that is left out answers and does not mention the bucket."""
    told = {node: {0: kept[node]} if node in kept else {} for node in there}
    silent = {node: None for node, one in kept.items() if one is None}
    return examine(0, KNOWN, nodes(**there), {**told, **silent}, bucket_key(JOB, 0))  # type: ignore[dict-item]


# --- what is found ----------------------------------------------------------------------------------------------------


def test_the_newest_of_those_that_are_there_serves_and_all_that_have_something_stay() -> None:
    found = look({"b": BACK, "c": BACK + 1}, b=has(5), c=has(7))
    assert (found.state, found.primary, found.given_up) == (State.STUCK, "c", ("a",))
    record = found.recovered(9.0)
    assert (record.epoch, record.primary, record.in_sync, record.learners) == (EPOCH + 1, "c", ("c", "b"), ())
    assert record.why == "recovered by an operator: a given up" and record.history[-1].why == record.why
    assert record.history[-1].what == "c primary after a, a out of sync, d learns no more"


def test_the_epoch_counts_more_than_the_number() -> None:
    assert look({"b": BACK, "c": BACK}, b=has(9, 1), c=has(7, 2)).primary == "c"


def test_one_that_has_nothing_is_given_up_too() -> None:
    found = look({"b": BACK, "c": BACK}, b=has(5), c=NOTHING)
    assert (found.state, found.primary, found.given_up) == (State.STUCK, "b", ("a", "c"))
    assert found.recovered(0.0).in_sync == ("b",)
    assert (found.missing, found.empty) == (("a",), ("c",))


def test_one_that_can_serve_nothing_counts_as_missing() -> None:
    """Though it is there, it will never answer."""
    failed = Kept(EPOCH, False, failed=True)
    found = look({"a": BACK, "b": BACK, "c": BACK}, a=failed, b=has(5), c=has(4))
    assert (found.state, found.given_up) == (State.STUCK, ("a",))


def test_the_change_relies_upon_the_record_and_upon_all_of_its_members() -> None:
    found = look({"b": BACK, "c": BACK + 1}, b=has(5), c=NOTHING)
    (changes,) = recovery(JOB, [found], 9.0)
    assert changes.conditions == {
        bucket_key(JOB, 0): KNOWN.revision,
        node_key("a"): 0,
        node_key("b"): BACK,
        node_key("c"): BACK + 1,
    }
    assert decode(changes.puts[bucket_key(JOB, 0)], BucketRecord) == found.recovered(9.0)


def test_nothing_is_done_while_a_living_process_may_have_it_in_memory() -> None:
    """One that the record means, and that does not say that it has lost it."""
    for member in "abc":
        others = {node: has(5) for node in "abc" if node != member}
        found = look({node: OLD if node == member else BACK for node in "abc"}, **others)
        assert (found.state, found.why) == (State.HELD, f"{member} has it in memory")


def test_nothing_is_done_while_somebody_is_in_doubt() -> None:
    silent = look({"b": BACK, "c": OLD}, b=has(5), c=None)
    assert (silent.state, silent.why) == (State.UNCERTAIN, "c is registered and does not answer")
    fresh = look({"b": BACK, "c": BACK}, b=has(5))
    assert (fresh.state, fresh.why) == (State.UNCERTAIN, "c has not read its record yet")
    late = look({"b": BACK, "c": BACK}, b=has(5), c=Kept(EPOCH - 1, True, 2))
    assert late.state is State.UNCERTAIN
    looking = look({"b": BACK, "c": BACK}, b=has(5), c=Kept(EPOCH, False))
    assert (looking.state, looking.why) == (State.UNCERTAIN, "c has not searched its store yet")


def test_when_all_are_back_they_need_nobody() -> None:
    found = look({"a": BACK, "b": BACK, "c": BACK}, a=has(4), b=has(5), c=NOTHING)
    assert found.state is State.RETURNING


def test_what_nobody_has_cannot_be_recovered() -> None:
    assert look({}).why == "a, b, c are not there"
    found = look({"b": BACK}, b=NOTHING)
    assert (found.state, found.why, found.primary) == (State.NOBODY, "b has no data of it; a, c are not there", "")
    all_back = look({"a": BACK, "b": BACK, "c": BACK}, a=NOTHING, b=NOTHING, c=NOTHING)
    assert (all_back.state, all_back.why) == (State.NOBODY, "a, b, c have no data of it")


def test_one_that_takes_it_up_and_waits_for_a_member_that_is_gone_again_can_be_helped() -> None:
    """The record means this very process, and it says that it has the bucket from its store only."""
    found = look({"a": OLD, "b": BACK}, a=has(4), b=has(5))
    assert (found.state, found.primary, found.given_up) == (State.STUCK, "b", ("c",))


def test_what_a_status_says_comes_back_as_it_was() -> None:
    kept = Kept(7, True, 3, (2, 5), (3, 9), 40, True)
    assert Kept.of_values([*kept.values(), "of a later version"]) == kept
    with pytest.raises(ValueError, match="not enough values"):
        Kept.of_values([1, True])


def test_many_buckets_are_changed_a_few_at_a_time() -> None:
    known = dict.fromkeys(range(CHANGES_MAX + 1), KNOWN)
    told = {"b": dict.fromkeys(known, has(5))}
    findings = examine_all(JOB, known, nodes(b=BACK), told)
    assert [len(changes.puts) for changes in recovery(JOB, findings, 0.0)] == [CHANGES_MAX, 1]


# --- whole lives ------------------------------------------------------------------------------------------------------


def found_in(cluster: Cluster, answering: str = "abc") -> Finding:
    """What an operator finds: by what servers say of themselves."""
    told = {
        node: cluster[node].replication.kept()[JOB] if node in answering and cluster[node].alive else None
        for node in cluster.nodes()
    }
    view = cluster.view()
    (finding,) = examine_all(
        JOB, {0: VersionedRecord(view.buckets[0], view.bucket_revisions[0])}, cluster.nodes(), told
    )
    return finding


def recover(cluster: Cluster, finding: Finding) -> bool:
    (changes,) = recovery(JOB, [finding], 0.0)
    done = not cluster.config.change(changes).conflicts
    cluster.configure()
    cluster.run()
    return done


def all_killed(*back: str, **counters: int) -> Cluster:
    """All three have died, and some are back; `counters`: what stores are found to hold."""
    cluster = Cluster()
    for node in "abc":
        cluster.kill(node)
    for node in back:
        cluster.start(node)
    for node, counter in counters.items():
        stored(cluster, node, counter, float(counter))
    cluster.configure()
    cluster.run()
    cluster.pass_time(10.0)
    assert not any(server.serves() for server in cluster.servers.values())
    return cluster


def test_a_stuck_bucket_is_recovered_from_the_newest_that_is_there() -> None:
    cluster = all_killed("a", "b", a=5, b=7)
    found = found_in(cluster)
    assert (found.state, found.primary, found.given_up) == (State.STUCK, "b", ("c",))
    assert recover(cluster, found)
    cluster.pass_time(3.0)
    b = cluster["b"]
    assert b.serves() and b.value(0) == 7.0 and cluster.record().in_sync == ("b", "a")
    assert found_in(cluster).state is State.HELD
    answer = b.attach([(0, 9)])
    assert isinstance(answer, AnswerAttach) and answer.message.rolled_back == 9
    again = b.attach([(0, 9)])
    assert isinstance(again, AnswerAttach) and again.message.rolled_back == 9  # so that a lost answer loses nothing
    assert b.pushed(10, 1.0) == ErrorCode.OK
    assert cluster["a"].value(0) == 8.0
    cluster.check()


def test_the_highest_of_each_shard_is_taken_from_whoever_has_it() -> None:
    cluster = Cluster(shapes=((2, 16),), one_bucket=True)
    shards = len(cluster.layout.shards)
    assert shards > 1
    for node in "abc":
        cluster.kill(node)
    for node, counters in (("a", (9, *[1] * (shards - 1))), ("b", (2, *[6] * (shards - 1)))):
        cluster.start(node)
        cluster[node].store[0] = [
            ShardContent(s.index, np.full(s.size, c, np.float32), [], c, c, None, 1)
            for s, c in zip(cluster.layout.shards, counters, strict=True)
        ]
    cluster.configure()
    cluster.run()
    cluster.pass_time(10.0)
    assert recover(cluster, found_in(cluster))
    cluster.pass_time(3.0)
    server = cluster.primary()
    assert [server.value(index) for index in range(shards)] == [9.0] + [6.0] * (shards - 1)
    cluster.check()


def test_one_that_comes_back_while_the_command_runs_is_not_given_up() -> None:
    cluster = all_killed("a", "b", a=5, b=7)
    found = found_in(cluster)
    cluster.start("c")
    stored(cluster, "c", 9, 9.0)
    assert not recover(cluster, found)
    assert cluster.record().epoch == 1
    cluster.configure()
    cluster.run()
    cluster.pass_time(20.0)
    assert cluster.primary().value(0) == 9.0  # by themselves, and nothing is lost
    cluster.check()


def test_one_that_dies_again_while_the_command_runs_is_not_relied_upon() -> None:
    cluster = all_killed("a", "b", a=5, b=7)
    found = found_in(cluster)
    cluster.kill("b")
    assert not recover(cluster, found)
    found = found_in(cluster)
    assert (found.primary, found.given_up) == ("a", ("b", "c"))
    cluster.start("b")  # another process, whose store may have been emptied
    assert not recover(cluster, found)


def test_one_that_comes_back_late_learns_and_never_resumes() -> None:
    cluster = all_killed("a", "b", a=5, b=7)
    assert recover(cluster, found_in(cluster))
    cluster.pass_time(3.0)
    b = cluster["b"]
    b.attach()
    assert b.pushed(1, 1.0) == ErrorCode.OK
    cluster.start("c")
    stored(cluster, "c", 99, 99.0, epoch=1)  # what was given up
    cluster.configure()
    cluster.run()
    assert cluster["c"].held() is None or not cluster["c"].held().complete  # type: ignore[union-attr]
    cluster.pass_time(20.0)
    assert set(cluster.record().in_sync) == {"a", "b", "c"}
    assert all(cluster[node].value(0) == 8.0 for node in "abc")
    cluster.check()


def test_an_old_primary_that_only_slept_is_fenced() -> None:
    cluster = Cluster()
    assert cluster["a"].pushed(1, 3.0) == ErrorCode.OK
    for node in "abc":
        cluster.kill(node)
    cluster.start("b")
    stored(cluster, "b", 0, 0.0)
    cluster.configure()
    cluster.run()
    assert recover(cluster, found_in(cluster))
    cluster.pass_time(3.0)
    assert cluster["b"].serves()
    a = cluster["a"]
    a.alive = True  # it still serves epoch 1, until it reads the records
    a.push("late", [(0, 2, 5.0)], epoch=1)
    cluster.run()
    assert a.code("late") != ErrorCode.OK
    a.configure()
    cluster.run()
    assert not a.serves() and cluster["b"].value(0) == 0.0


def test_a_recovery_that_is_cut_short_can_be_helped_again() -> None:
    cluster = all_killed("a", "b", a=5, b=7)
    cluster.hold = lambda source, target, message: "a" in (source, target)
    assert recover(cluster, found_in(cluster))
    cluster.pass_time(3.0)
    assert found_in(cluster).state is State.RETURNING  # nobody is missing, it only takes long
    cluster.kill("a")
    cluster.configure("b")
    cluster.pass_time(3.0)
    assert not cluster["b"].serves()
    found = found_in(cluster)
    assert (found.state, found.primary, found.given_up) == (State.STUCK, "b", ("a",))
    assert recover(cluster, found)
    cluster.pass_time(3.0)
    assert cluster["b"].serves() and cluster["b"].value(0) == 7.0


def test_a_bucket_that_is_taken_over_by_itself_is_left_alone() -> None:
    cluster = Cluster()
    cluster.kill("a")
    assert found_in(cluster).state is State.HELD
    cluster.configure()
    cluster.run()
    cluster.pass_time(5.0)
    assert found_in(cluster).state is State.HELD


def test_without_stores_nobody_has_it() -> None:
    cluster = all_killed("a", "b")
    found = found_in(cluster)
    assert (found.state, found.why) == (State.NOBODY, "a, b have no data of it; c is not there")


def test_a_status_tells_of_so_many_buckets_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("ab", replication=2, shapes=((40, 16),), one_bucket=False)
    assert len(cluster.layout.buckets) > 4
    for node in "ab":
        cluster.kill(node)
    a = cluster.start("a")
    cluster.configure()
    assert len(a.replication.kept()[JOB]) == len(cluster.layout.buckets)
    monkeypatch.setattr(core_replication, "KEPT_MAX", 4)
    assert set(a.replication.kept()[JOB]) == {0, 1, 2, 3}
