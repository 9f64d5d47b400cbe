"""Copies of a batch algorithm's vectors: a commit ships what it changed; a primary may die at any moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.model.commands import Command, Set
from adamctl.roles.ps.core.instructions import AnswerAccumulate, AnswerVectors
from adamctl.roles.ps.core.shard_message import decode_body, encode_body
from adamctl.wire.codec import encode_commands
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    AccumulateRequest,
    BucketVectors,
    CommitRequest,
    EvaluateRequest,
    PullRequest,
    ReplicaPrepareRequest,
    RoundRequest,
)
from tests.roles.ps.replica_cluster import MANY, Cluster
from tests.roles.ps.replica_server import CLIENT, JOB, Server
from tests.roles.ps.replication.core.test_held_bucket import with_log, write
from tests.roles.ps.vector_harness import COMMIT, READ_SUM, RULE

OK = int(ErrorCode.OK)
TRIAL = (Set("d", ((-1.0, "g"),)), Set("t", ((1.0, "x"), (0.3, "d"))))


class Coordinator:
    """Drives one iteration after another, and makes again what a takeover has cost."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.number = self.evaluation = self.commits = 0
        self.sent: list[Callable[[Server], Any]] = []
        self.cut: Callable[[Server], bool] = lambda server: False

    @property
    def primary(self) -> Server:
        server = self.cluster.primary()
        server.attach()
        return server

    def ask(self, send: Callable[[Server, dict[int, int]], Any]) -> BucketVectors | None:
        """Returns the answer for the bucket; None: there is none, or a refusal of all."""
        server, epochs = self.primary, {0: self.cluster.record().epoch}
        server.answers.pop("v", None)
        self.sent.append(lambda other: send(other, epochs))
        server.take(send(server, epochs))
        if self.cut(server):
            return None
        self.cluster.run()
        answer = server.answers.get("v")
        return answer.message.results[0] if isinstance(answer, AnswerVectors) else None

    def round(self, commands: Sequence[Command], evaluation: int = 0, after: int = -1) -> BucketVectors | None:
        self.number += 1
        number, body = self.number, encode_commands(commands)
        request = lambda e: RoundRequest(JOB, e, number, evaluation, after)  # noqa: E731
        return self.ask(lambda s, e: s.vectors.round("v", 1, request(e), body, 0.0))

    def open(self) -> BucketVectors | None:
        evaluation = self.evaluation
        request = lambda e: EvaluateRequest(JOB, e, evaluation, "t", 20, 2)  # noqa: E731
        return self.ask(lambda s, e: s.vectors.evaluate("v", 1, request(e), 0.0))

    def commit(self, commands: Sequence[Command] = COMMIT) -> BucketVectors | None:
        number = self.commits + 1
        request = lambda e: CommitRequest(JOB, e, number)  # noqa: E731
        return self.ask(lambda s, e: s.vectors.commit("v", 1, request(e), encode_commands(commands), 0.0))

    def bundle(self, bundle: int) -> set[int]:
        """A worker pulls the trial point t and pushes a quarter, or the rest, of its gradient t - 8 + mean(t).

        So each number of it depends on the whole of t.
        """
        server, epochs = self.primary, {0: self.cluster.record().epoch}
        shards = tuple(s.index for s in self.cluster.layout.shards)
        pull = PullRequest(JOB, epochs, shards, vector="t", evaluation=self.evaluation)
        server.take(server.core.pull("pull", 1, CLIENT, pull, 0.0))
        answer = server.answers["pull"]
        codes = {part.code for part in answer.message.parts}  # type: ignore[attr-defined]
        if codes != {OK}:
            return codes
        mean = np.concatenate([one.array for one in answer.values]).mean(dtype=np.float64)  # type: ignore[attr-defined]
        values = [one.array - np.float32(8 - mean) for one in answer.values]  # type: ignore[attr-defined]
        for one in answer.values:  # type: ignore[attr-defined]
            one.release()
        offsets = tuple(int(o) for o in np.cumsum([0, *(4 * one.size for one in values)])[:-1])
        weight = (0.25, 0.75)[bundle]
        request = AccumulateRequest(JOB, epochs, self.evaluation, bundle, weight, shards, offsets)
        body = memoryview(b"".join(one.tobytes() for one in values))
        self.sent.append(lambda other: other.vectors.accumulate("add", 1, request, body, 0.0))
        server.take(server.vectors.accumulate("add", 1, request, body, 0.0))
        self.cluster.run()
        added = server.answers["add"]
        assert isinstance(added, AnswerAccumulate)
        return {result.code for result in added.message.results}

    def iterate(self, between: Callable[[str], None] = lambda phase: None) -> None:
        """One iteration, whatever happens `between` its parts; what a new primary lacks is made again."""
        self.evaluation += 1
        pending = ["trial", "open", "first", "second", "measure", "commit"]
        while pending:
            between(pending[0])
            code = self.do(pending[0])
            if code == OK:
                pending.pop(0)
            elif code in (ErrorCode.NO_VECTOR, ErrorCode.NOT_READY):  # a takeover: from the coefficients on
                pending = ["trial", "open", "first", "second", "measure", "commit"]
            else:
                raise AssertionError((pending[0], code))
        self.commits += 1

    def do(self, phase: str) -> int:
        if phase in ("first", "second"):
            (code,) = self.bundle(("first", "second").index(phase))
            return code
        result = {
            "trial": self.trial,
            "open": self.open,
            "measure": lambda: self.round([READ_SUM], self.evaluation),
            "commit": self.commit,
        }[phase]()
        return ErrorCode.NOT_READY if result is None else result.code

    def trial(self) -> BucketVectors | None:
        """Makes the trial point on all shards; where the commit of this iteration is done already, it is x."""
        result = self.round(TRIAL, after=self.commits)
        if result is not None and result.code == ErrorCode.SEQUENCE_GAP:
            assert {result.commit, result.commit_most} <= {self.commits, self.commits + 1}
            result = self.round([Set("t", ((1.0, "x"),))], after=self.commits + 1)
            return result and msgspec.structs.replace(result, code=0)
        return result


def kept(cluster: Cluster) -> list[bytes]:
    """All that is kept, of all shards."""
    job = cluster.primary().job
    return [a.tobytes() for s in job.shards.values() for a in (s.values.array, *s.state.arrays)]


def undisturbed(iterations: int, **options: Any) -> list[bytes]:
    cluster = Cluster("a", replication=1, acks="applied", rule=RULE, **options)
    coordinator = Coordinator(cluster)
    for _ in range(iterations):
        coordinator.iterate()
    return kept(cluster)


def test_iterations_with_copies_keep_what_one_server_keeps_and_the_copies_have_it() -> None:
    cluster = Cluster(rule=RULE)
    coordinator = Coordinator(cluster)
    for _ in range(3):
        coordinator.iterate()
        cluster.check()
    assert kept(cluster) == undisturbed(3)
    assert {cluster["b"].held().shards[0].memory.commit, cluster["c"].held().shards[0].memory.commit} == {3}  # type: ignore[union-attr]


def test_a_commit_is_acknowledged_when_all_copies_have_it_and_a_round_at_once() -> None:
    cluster = Cluster(rule=RULE)
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    cluster.hold_all(("c", "a"))
    assert coordinator.round([Set("t", ((1.0, "x"),)), Set("h")]) is not None
    assert coordinator.commit() is None, "c has not answered"
    answers = cluster["a"].answers
    cluster.deliver_held()
    answer = answers["v"]
    assert isinstance(answer, AnswerVectors) and answer.message.results[0].commit == 2
    cluster.check()


def shipped(cluster: Cluster) -> list[tuple[str, int]]:
    """Returns (receiver, bytes of arrays) of all records that are sent from now on; all go through bodies."""
    found: list[tuple[str, int]] = []
    send = cluster.send

    def sent(server: Server, ask: Any) -> None:
        if ask.records:
            body = b"".join(bytes(piece) for piece in encode_body(ask.records))
            assert [one.copy for one in decode_body(memoryview(body))] == [one.copy for one in ask.records]
            found.append((ask.peer, sum(array.nbytes for record in ask.records for array in record.arrays)))
        send(server, ask)

    cluster.send = sent  # type: ignore[method-assign]
    return found


def test_an_iteration_ships_what_its_commit_has_changed_and_nothing_else() -> None:
    cluster = Cluster(rule=RULE)
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    lengths = shipped(cluster)
    coordinator.iterate()
    size = sum(shard.size for shard in cluster.layout.shards)
    assert sorted(lengths) == [("b", 16 * size), ("c", 16 * size)]
    lengths.clear()
    coordinator.round([Set("t", ((2.0, "x"),)), Set("h")])
    coordinator.commit([Set("x", ((1.0, "t"),))])
    assert sorted(lengths) == [("b", 4 * size), ("c", 4 * size)], "only x was written"
    cluster.check()
    held = cluster["b"].held()
    assert held is not None and {array.size for record in held.records([0]) for array in record.arrays} == {size}
    whole = held.records([0])[0]
    assert decode_body(memoryview(b"".join(bytes(one) for one in encode_body([whole]))))[0].copy == whole.copy


def test_a_copy_that_answers_late_is_sent_all_that_changed_since_what_it_has() -> None:
    cluster = Cluster(rule=RULE, acks="applied")
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    size = sum(shard.size for shard in cluster.layout.shards)
    lengths = shipped(cluster)
    cluster.hold_all(("b", "a"))
    for place, (vector, value) in enumerate((("g", 3.0), ("s0", 4.0), ("y0", 5.0), ("s0", 6.0))):
        coordinator.round([Set("t", ((value, "x"),))])
        coordinator.commits = 1 + place
        assert coordinator.commit([Set(vector, ((1.0, "t"), (1.0, vector)))]) is not None
    cluster.deliver_held()
    to_b = [length for peer, length in lengths if peer == "b"]
    assert to_b == [4 * size, 8 * size], "first g; then, of all that came after, s0 and y0"
    cluster.check()
    assert cluster["b"].held().shards[0].version == cluster["c"].held().shards[0].version  # type: ignore[union-attr]


def test_what_has_not_changed_is_not_taken_without_the_version_it_has_not_changed_since() -> None:
    cluster = Cluster(rule=RULE)
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    caught: list[Any] = []
    send = cluster.send
    cluster.send = lambda server, ask: (caught.append(ask) if ask.records else None, send(server, ask))[1]  # type: ignore[method-assign]
    coordinator.iterate()
    record = caught[0].records[0]
    assert (record.copy.since, record.copy.counter) == (1, 2)
    empty = cluster["b"].held()
    assert empty is not None
    empty.shards[0].copy = None
    assert not empty.fits(record)


def test_the_store_of_a_copy_is_written_what_came_and_all_of_it_if_that_is_not_known() -> None:
    cluster = Cluster(rule=RULE, acks="applied")
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    flush = with_log(cluster["b"])
    held = cluster["b"].held()
    assert held is not None
    entry = held.shards[0].entry
    assert entry is not None
    for commands, expected in (
        ([Set("g", ((1.0, "t"),))], None),
        ([Set("g", ((1.0, "t"),))], {1}),
        ([Set("x", ((1.0, "t"),)), Set("y0")], {0, 3}),
    ):
        coordinator.round([Set("t", ((2.0, "x"),))])
        coordinator.commits = cluster.primary().job.shards[0].memory.commit
        assert coordinator.commit(commands) is not None
        assert entry.unsaved == expected
        cluster.now += 100
        write(cluster["b"], flush)


def test_a_copy_that_takes_over_writes_over_nothing_that_is_still_being_read() -> None:
    """A reader of an older state of the copy, such as the store, holds arrays that the newest state shares with it."""
    cluster = Cluster(rule=RULE)
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    images = [image for name in "bc" if (held := cluster[name].held()) and (image := held.image(0))]
    before = [[array.tobytes() for array in image.state.arrays] for image in images]
    coordinator.round([Set("t", ((2.0, "g"),))])
    coordinator.commits = 1
    coordinator.commit([Set("g", ((1.0, "t"),))])
    cluster.kill("a")
    cluster.configure()
    cluster.pass_time(10)
    coordinator.commits = 2
    coordinator.commit([Set("s0", ((3.0, "s0"), (1.0, "g")))])
    assert before == [[array.tobytes() for array in image.state.arrays] for image in images]


PHASES = ("trial", "open", "first", "second", "measure", "commit")


@pytest.mark.parametrize("phase", PHASES)
def test_a_primary_that_dies_costs_no_bit(phase: str) -> None:
    cluster = Cluster(rule=RULE, shapes=MANY)
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    killed: list[str] = []

    def kill(before: str) -> None:
        if before == phase and not killed:
            killed.append(cluster.record().primary)
            cluster.kill(killed[0])
            cluster.configure()
            cluster.pass_time(10)
            assert cluster.record().primary != killed[0]

    coordinator.iterate(kill)
    coordinator.iterate()
    assert killed and kept(cluster) == undisturbed(3, shapes=MANY)
    cluster.check()


def test_a_primary_that_dies_with_a_commit_half_shipped_loses_nothing_that_was_acknowledged() -> None:
    """Some shards of the copies have the commit and some do not: the same number again brings all of them to it."""
    cluster = Cluster(rule=RULE, shapes=MANY, message_bytes_max=3000)
    coordinator = Coordinator(cluster)
    coordinator.iterate()
    seen = 0

    def some(source: str, target: str, message: Any) -> bool:
        nonlocal seen
        seen += isinstance(message, ReplicaPrepareRequest)
        return seen > 3

    def cut(before: str) -> None:
        if before == "commit" and not seen:
            cluster.hold = some
            assert coordinator.commit() is None
            cluster.kill("a")
            cluster.hold = lambda source, target, message: False
            cluster.held.clear()
            cluster.configure()
            cluster.pass_time(10)
            commits = {shard.memory.commit for shard in cluster.primary().job.shards.values()}
            assert commits == {1, 2}, "shards of one bucket may be one commit apart"

    coordinator.iterate(cut)
    assert seen and kept(cluster) == undisturbed(2, shapes=MANY)


@pytest.mark.parametrize("seed", range(16))
def test_deaths_at_any_moment_and_messages_that_come_late_or_twice_cost_no_bit(seed: int) -> None:
    random = Random(seed)
    print("seed", seed)
    cluster = Cluster("abc", spare="de", rule=RULE, shapes=MANY, message_bytes_max=random.choice((2000, 1 << 20)))
    coordinator = Coordinator(cluster)
    left = 2

    def cut(server: Server) -> bool:
        """The primary dies while it does what it was asked to, or ships it."""
        nonlocal left
        if not left or random.random() >= 0.1:
            return False
        left -= 1
        cluster.step(random.randrange(20))
        cluster.kill(server.node)
        cluster.configure()
        cluster.pass_time(15)
        return True

    def trouble(phase: str) -> None:
        nonlocal left
        if left and random.random() < 0.15:
            left -= 1
            cluster.kill(
                random.choice([n for n, s in cluster.servers.items() if s.alive and n in cluster.record().in_sync])
            )
            cluster.configure()
        for late in random.choices(coordinator.sent, k=random.randrange(4)) if coordinator.sent else ():
            server = coordinator.primary if any(s.serves() for s in cluster.servers.values()) else None
            if server is not None:
                server.take(late(server))
                cluster.run()
        if random.random() < 0.5 or not any(s.serves() for s in cluster.servers.values()):
            cluster.pass_time(15)

    coordinator.cut = cut
    for _ in range(4):
        coordinator.iterate(trouble)
    assert kept(cluster) == undisturbed(4, shapes=MANY)
    cluster.check()
