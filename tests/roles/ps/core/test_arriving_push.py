"""Parts of a push that are applied while the rest is on its way: as if they had been pushed by themselves before."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from adamctl.kernels.numeric.convert import NARROW, narrowed
from adamctl.roles.ps.core.acknowledge import Acknowledgements
from adamctl.roles.ps.core.arrival import QUEUED_BYTES_MAX, arrived, begin_arrival
from adamctl.roles.ps.core.arriving_push import ArrivingPush
from adamctl.roles.ps.core.instructions import Refuse
from adamctl.roles.ps.core.job import Job
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PushPart, PushRequest, PushSource
from tests.roles.ps.core.test_acknowledge import StoringHarness
from tests.roles.ps.core_harness import JOB, Harness

ME = ("w", 1)


class Arriving:
    """A push that comes to a harness one part after the other."""

    def __init__(
        self,
        harness: Harness,
        token: Any,
        parts: list[tuple[int, int, float]],
        *,
        kind: int = UpdateKind.DELTA,
        epoch: int = 1,
        piece_bytes: int = 1,
        client: tuple[str, int] = ME,
        connection: int = 1,
        dtype: str = "float32",
        **changes: Any,
    ) -> None:
        self.h, self.token, self.client, self.connection = harness, token, client, connection
        sources, wire_parts, body = [], [], b""
        for shard, sequence, value in parts:
            s = harness.layout.shards[shard]
            wire_parts.append(PushPart(shard, sequence, len(sources), 0, 0))
            sources.append(PushSource(kind, s.tensor, s.row_start, s.row_stop, len(body), dtype=dtype))
            values = np.full(s.size, value, np.float32)
            if dtype != "float32":
                wide, values = values, np.empty(s.size, NARROW[dtype])
                narrowed(wide, values)
            body += values.tobytes()
        request = PushRequest(JOB, harness.epochs(epoch), 1.0, 1, 1, tuple(sources), tuple(wire_parts))
        request = msgspec.structs.replace(request, **changes)
        self.request, self.sent = request, body
        self.body = bytearray(len(body))
        self.view = memoryview(self.body)
        self.next = 0
        self.push: ArrivingPush | None = begin_arrival(
            harness.core, connection, client, request, self.view, 0.0, piece_bytes
        )

    def come(self, count: int = 1) -> list[bool]:
        """More pieces are there; says of each whether it was taken."""
        assert self.push is not None
        taken = []
        for _ in range(count):
            start = self.push.stops[self.next - 1] if self.next else 0
            stop = self.push.stops[self.next]
            data = memoryview(bytearray(self.sent[start:stop]))
            instruction = arrived(self.h.core, self.push, self.next, data)
            if instruction is not None:
                self.h.applier.apply(instruction.job.rule, instruction.batches)
                self.h.take(self.h.core.completed(instruction.job, instruction.batches))
            taken.append(self.push.taken(self.next))
            if not taken[-1]:
                self.body[start:stop] = self.sent[start:stop]
            self.next += 1
        return taken

    def complete(self) -> None:
        """All of it is there. What was taken is not in the body."""
        core = self.h.core
        if self.push is None:
            self.body[:] = self.sent
        out = core.push(self.token, self.connection, self.client, self.request, self.view, 0.0, self.push)
        self.h.take(out)


def known(h: Harness, *shards: int) -> None:
    """Has the client pushed nothing to some shards, so that they know it."""
    h.push("before", [(shard, 1, 0.0) for shard in shards])
    h.apply()


def test_parts_are_applied_as_they_come_and_answered_together() -> None:
    h = Harness()
    known(h, 0, 1, 2)
    push = Arriving(h, "p", [(0, 2, 1.0), (1, 2, 2.0), (2, 2, 3.0)])
    assert push.come(2) == [True, True]
    assert (h.value(0), h.value(1), h.value(2)) == (1.0, 2.0, 0.0)
    assert not h.answered("p")
    assert push.come() == [True]
    push.complete()
    assert not h.waiting  # nothing is left for apply threads
    assert [type(answer).__name__ for answer in h.answers["p"]] == ["AnswerPush"]  # nor is the body kept
    assert h.results("p") == [(0, 0)] * 3
    versions = [result.version for result in h.answers["p"][-1].message.results]  # type: ignore[union-attr]
    assert versions == [2, 2, 2]
    assert (h.core.queued_bytes, h.core.queued_updates, h.job.pushes) == (0, 0, 2)
    assert h.job.updates == 2 * sum(h.layout.shards[shard].size for shard in (0, 1, 2))


def test_a_busy_shard_is_left_for_when_all_is_there() -> None:
    h = Harness()
    known(h, 0, 1)
    h.push("other", [(0, 1, 10.0)], client=("v", 1))
    push = Arriving(h, "p", [(0, 2, 1.0), (1, 2, 2.0)])
    assert push.come(2) == [False, True]
    push.complete()
    assert [type(answer).__name__ for answer in h.answers["p"]] == ["Keep"]
    h.apply()
    assert h.results("p") == [(0, 1), (0, 0)]
    assert (h.value(0), h.value(1)) == (11.0, 2.0)
    assert (h.core.queued_bytes, h.core.queued_updates, h.job.pushes) == (0, 0, 3)


def test_a_pull_meanwhile_sees_each_shard_at_one_version_and_is_not_written_over() -> None:
    h = Harness()
    known(h, 0, 1)
    push = Arriving(h, "p", [(0, 2, 1.0), (1, 2, 2.0)])
    h.pull("pull", [0, 1])
    held = h.answers["pull"][-1].values  # type: ignore[union-attr]
    assert push.come(2) == [True, True]
    assert [set(values.array.tolist()) for values in held] == [{0.0}, {0.0}]
    assert (h.value(0), h.value(1)) == (1.0, 2.0)


def test_what_was_applied_before_the_connection_ended_is_not_applied_again() -> None:
    h = Harness()
    known(h, 0, 1, 2)
    Arriving(h, "cut", [(0, 2, 1.0), (1, 2, 2.0), (2, 2, 4.0)]).come(2)
    h.core.disconnected(1)
    h.attach(2)
    again = Arriving(h, "again", [(0, 2, 1.0), (1, 2, 2.0), (2, 2, 4.0)], connection=2)
    assert again.come(3) == [False, False, True]
    again.complete()
    assert h.results("again") == [(0, 0)] * 3
    assert (h.value(0), h.value(1), h.value(2)) == (1.0, 2.0, 4.0)
    assert not h.answered("cut")


def test_one_that_is_sent_again_while_it_waits_is_answered_when_it_is_done() -> None:
    h = Harness()
    known(h, 0, 1)
    h.push("first", [(0, 2, 1.0)])
    push = Arriving(h, "again", [(0, 2, 1.0), (1, 2, 2.0)])
    assert push.come(2) == [False, True]
    push.complete()
    assert not h.answered("again")
    h.apply()
    assert h.results("again") == [(0, 0)] * 2
    assert (h.value(0), h.value(1)) == (1.0, 2.0)


def test_numbers_out_of_turn_are_judged_when_all_is_there() -> None:
    """The one before may be complete, and wait to be handled."""
    h = Harness()
    known(h, 0, 1)
    push = Arriving(h, "second", [(0, 3, 1.0), (1, 3, 1.0)])
    assert push.come(2) == [False, False]
    h.push("first", [(0, 2, 1.0)])
    push.complete()
    h.apply()
    assert h.results("second") == [(0, 0), (ErrorCode.SEQUENCE_GAP, 0)]
    assert h.value(0) == 2.0


def test_a_part_that_is_not_finite_is_refused_and_the_others_are_not() -> None:
    h = Harness()
    known(h, 0, 1)
    push = Arriving(h, "p", [(0, 2, np.nan), (1, 2, 2.0)])
    assert push.come(2) == [True, True]
    push.complete()
    assert h.results("p") == [(ErrorCode.NOT_FINITE, 0), (0, 0)]
    assert (h.value(0), h.value(1)) == (0.0, 2.0)
    h.push("again", [(0, 2, 1.0)])
    assert h.results("again") == [(ErrorCode.NOT_FINITE, 0)]


def test_pieces_of_several_parts() -> None:
    h = Harness()
    shards = sorted(h.job.shards)[:3]
    known(h, *shards)
    push = Arriving(h, "p", [(shard, 2, 1.0) for shard in shards], piece_bytes=1 << 20)
    assert push.push is not None and push.push.positions == [[0, 1, 2]]
    h.push("other", [(shards[1], 1, 1.0)], client=("v", 1))
    assert push.come() == [False]  # one of them is busy, the others are done
    push.complete()
    h.apply()
    assert [code for code, _ in h.results("p")] == [0, 0, 0]
    assert [h.value(shard) for shard in shards] == [1.0, 2.0, 1.0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype: str) -> None:
    h = Harness()
    known(h, 0, 1)
    push = Arriving(h, "p", [(0, 2, 1.5), (1, 2, -2.0)], dtype=dtype)
    assert push.come(2) == [True, True]
    push.complete()
    assert (h.value(0), h.value(1)) == (1.5, -2.0)


def test_rules_with_state() -> None:
    h, other = Harness("adagrad"), Harness("adagrad")
    for harness in (h, other):
        harness.push("before", [(0, 1, 0.5)], kind=UpdateKind.GRADIENT)
        harness.apply()
    push = Arriving(h, "p", [(0, 2, 2.0)], kind=UpdateKind.GRADIENT)
    assert push.come() == [True]
    push.complete()
    other.push("p", [(0, 2, 2.0)], kind=UpdateKind.GRADIENT)
    other.apply()
    assert h.value(0) == other.value(0) != 0.0
    assert h.job.shards[0].state.arrays[0].tolist() == other.job.shards[0].state.arrays[0].tolist()


@pytest.mark.parametrize("event", ["epoch", "dropped", "refusing", "lease", "failed"])
def test_a_bucket_that_leaves_meanwhile(event: str) -> None:
    h = Harness()
    known(h, 0, 1)
    push = Arriving(h, "p", [(0, 2, 1.0), (1, 2, 1.0)])
    assert push.come() == [True]
    bucket = h.layout.bucket_of_shard[1]
    match event:
        case "epoch":
            h.raise_epochs(2, bucket)
        case "dropped":
            h.move(2, bucket)
        case "refusing":
            h.job.refusing[bucket] = "it is on its way"
        case "lease":
            h.job.leased, h.core.lease_holds = True, lambda: False
        case "failed":
            h.job.give_up(ErrorCode.INTERNAL, "it is lost")
    before = h.job.shards[1].values.array.copy() if 1 in h.job.shards else None
    assert push.come() == [False]
    if before is not None:
        assert h.job.shards[1].values.array.tolist() == before.tolist()
    push.complete()
    answer = h.answers["p"][-1]
    if event in ("epoch", "dropped"):
        assert h.results("p") == [(0, 0), (ErrorCode.STALE_EPOCH, 0)]
    else:
        assert isinstance(answer, Refuse)
        expected = ErrorCode.INTERNAL if event == "failed" else ErrorCode.NOT_READY
        assert answer.code == expected


@pytest.mark.parametrize("again", [True, False])
def test_a_job_that_ends_meanwhile(again: bool) -> None:
    h = Harness()
    known(h, 0, 1)
    push = Arriving(h, "p", [(0, 2, 1.0), (1, 2, 1.0)])
    assert push.come() == [True]
    h.take(h.core.remove_job(JOB))
    if again:
        other = Harness()
        h.job = Job(JOB, h.layout, other.job.rule)
        h.core.add_job(h.job)
        h.job.epochs = {0: 1}
        h.attach(1)
    assert push.come() == [False]
    push.complete()
    answer = h.answers["p"][-1]
    assert isinstance(answer, Refuse)
    if again:  # its body is not whole any more
        assert answer.code == ErrorCode.NOT_READY and "made again" in answer.message


def test_strangers_come_as_ever() -> None:
    h = Harness()
    push = Arriving(h, "p", [(0, 1, 1.0)])
    assert push.come() == [False]
    push.complete()
    h.apply()
    assert h.value(0) == 1.0


def test_what_is_not_applied_on_the_way() -> None:
    h = Harness("sgd")
    known_shards = [(0, 2, 1.0), (1, 2, 1.0)]
    h.push("before", [(0, 1, 0.0), (1, 1, 0.0)], kind=UpdateKind.GRADIENT)
    h.apply()
    gradients = {"kind": UpdateKind.GRADIENT}
    assert Arriving(h, "as it is", known_shards, **gradients).push is not None
    assert Arriving(h, "of a step", known_shards, step=1, step_parts=2, **gradients).push is None
    assert Arriving(h, "in shared memory", known_shards, region=1, **gradients).push is None
    assert Arriving(h, "no parts", [], **gradients).push is None
    assert Arriving(h, "factors", known_shards, kind=UpdateKind.FACTORS).push is None
    assert Arriving(h, "not attached", known_shards, connection=7, **gradients).push is None
    assert Arriving(h, "unknown job", known_shards, job="other", **gradients).push is None
    twice = [(0, 2, 1.0), (0, 3, 1.0)]
    assert Arriving(h, "one shard twice", twice, **gradients).push is not None
    forwards = Arriving(h, "forwards", known_shards, **gradients)
    backwards = msgspec.structs.replace(forwards.request, parts=forwards.request.parts[::-1])
    assert begin_arrival(h.core, 1, ME, backwards, forwards.view, 0.0) is None
    nowhere = msgspec.structs.replace(forwards.request, sources=())
    assert begin_arrival(h.core, 1, ME, nowhere, forwards.view, 0.0) is None
    assert begin_arrival(h.core, 1, ME, forwards.request, forwards.view[:-4], 0.0) is None  # shorter than its sources
    h.core.queued_bytes = QUEUED_BYTES_MAX + 1
    assert Arriving(h, "too much waits", known_shards, **gradients).push is None


def test_one_shard_twice_in_a_push_is_applied_twice() -> None:
    h = Harness()
    known(h, 0)
    push = Arriving(h, "p", [(0, 2, 1.0), (0, 3, 1.0)])
    assert push.come(2) == [True, True]
    push.complete()
    assert h.value(0) == 2.0


def test_what_must_be_durable_is_answered_when_it_is() -> None:
    h = StoringHarness(durable=True)
    known(h, 0, 1)
    h.save()
    push = Arriving(h, "p", [(0, 2, 1.0), (1, 2, 1.0)])
    assert push.come(2) == [True, True]
    push.complete()
    assert not h.answered("p")
    assert sorted(h.save()) == [0, 1]
    assert h.results("p") == [(0, 0), (0, 0)]
    assert [type(one).__name__ for one in h.pushed("p")] == ["AnswerPush"]  # no body to be freed


def test_nothing_is_applied_on_the_way_while_the_loss_window_is_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The push would be refused when it is complete; what it brings must not be added to what is unsaved."""
    h = StoringHarness(durable=False)
    known(h, 0)
    monkeypatch.setattr(Acknowledgements, "crowded", property(lambda _: True))
    push = Arriving(h, "p", [(0, 2, 1.0)])
    assert push.push is None
    push.complete()
    answer = h.answers["p"][-1]
    assert isinstance(answer, Refuse) and answer.code == ErrorCode.OVER_QUOTA
    assert h.value(0) == 0.0


@pytest.mark.parametrize("seed", range(60))
def test_any_order_of_events_gives_the_same_sums(seed: int) -> None:
    """Pushes of two clients, whole and on their way, cut off and sent again, busy shards and pulls between."""
    chance = random.Random(seed)
    h = Harness()
    shards = sorted(h.job.shards)[:4]
    clients = [("w", 1), ("v", 1)]
    numbers = {(client, shard): 0 for client in clients for shard in shards}
    expected = dict.fromkeys(shards, 0.0)
    open_pushes: dict[tuple[str, int], tuple[Any, list[tuple[int, int, float]], Arriving | None]] = {}
    for step in range(200):
        client = chance.choice(clients)
        if chance.random() < 0.3:
            h.apply(1)
        if chance.random() < 0.1:
            h.pull(("pull", step), shards)
        if client not in open_pushes:
            chosen = sorted(chance.sample(shards, chance.randint(1, len(shards))))
            parts = []
            for shard in chosen:
                numbers[client, shard] += 1
                value = float(chance.randint(1, 9))
                expected[shard] += value
                parts.append((shard, numbers[client, shard], value))
            open_pushes[client] = ((client, step), parts, None)
            continue
        token, parts, push = open_pushes[client]
        if h.answered(token) and all(code == 0 for code, _ in h.results(token)):
            del open_pushes[client]
        elif h.answered(token) or token not in h.sent:
            if push is None or chance.random() < 0.1:  # begins, or is cut off and begins again
                open_pushes[client] = (token, parts, Arriving(h, token, parts, client=client))
            elif push.push is not None and push.next < len(push.push.stops):
                push.come()
            else:
                push.complete()
                h.sent[token] = parts
        elif chance.random() < 0.05:  # gives up waiting, and sends it again
            again = ((client, step), parts, Arriving(h, (client, step), parts, client=client))
            open_pushes[client] = again
    h.apply()
    for client, (token, parts, _) in open_pushes.items():
        if not (h.answered(token) and token in h.sent):
            h.push(("end", client), parts, client=client)
    h.apply()
    assert {shard: h.value(shard) for shard in shards} == expected
    assert (h.core.queued_bytes, h.core.queued_updates) == (0, 0)
