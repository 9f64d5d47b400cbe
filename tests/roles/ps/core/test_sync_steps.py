"""Steps that all replicas take together, on a server: held until complete, added up in order, applied once."""

from __future__ import annotations

from itertools import permutations
from random import Random

import numpy as np
import pytest

from adamctl.roles.ps.core.exactly_once import ClientMemory
from adamctl.roles.ps.core.instructions import AnswerPull, AnswerPush
from adamctl.wire.constants import ErrorCode, UpdateKind
from tests.roles.ps.apply.test_applier import push_tensor
from tests.roles.ps.core_harness import Harness
from tests.roles.ps.ps_cluster import make_layout

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def harness(**options: object) -> Harness:
    return Harness("sgd", **options)  # learning rate 1: values are minus the sums of what was applied


def part(
    h: Harness, token: str, client: tuple[str, int], value: float, place: tuple[int, int, int], sequence: int = 1,
    shard: int = 0, **options: object,
) -> None:  # fmt: skip
    h.push(token, [(shard, sequence, value)], client=client, kind=UpdateKind.GRADIENT, place=place, **options)
    h.apply()


def codes(h: Harness, token: str) -> list[int]:
    return [code for code, _ in h.results(token)]


def test_parts_are_held_until_all_are_there_and_are_acknowledged_when_their_step_is_applied() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    assert not h.answered("first")
    assert h.value(0) == 0
    assert h.core.queued_updates == 1
    part(h, "second", B, 2, (1, 1, 2))
    assert h.results("first") == h.results("second") == [(ErrorCode.OK, 0)], "nothing came between: no staleness"
    assert h.ages("first") == h.ages("second") == [0]
    assert h.value(0) == -3
    assert h.job.shards[0].counter == 1, "one update, one version"
    assert h.core.queued_updates == h.core.queued_bytes == 0


def test_a_pull_meanwhile_gets_the_version_before() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    h.pull("pull", [0])
    answer = h.answers["pull"][-1]
    assert isinstance(answer, AnswerPull) and answer.message.parts[0].version == 0


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_sum_does_not_depend_on_the_order_of_arrival(order: tuple[int, ...]) -> None:
    values = [1.0, 2.0**25, -(2.0**25)]
    h = harness()
    for place in order:
        part(h, f"part {place}", ("abc"[place], 1), values[place], (1, place, 3))
    total = np.float32(0)
    for value in values:
        total = total + np.float32(value)
    assert h.value(0) == -total == 0, "in another order it would be 1"


def test_steps_of_different_shards_are_apart() -> None:
    h = harness(layout=make_layout(servers=2))
    part(h, "a0", A, 1, (1, 0, 2), shard=0)
    part(h, "b1", B, 1, (1, 1, 2), shard=1)
    assert not h.answered("a0") and not h.answered("b1")
    part(h, "a1", A, 1, (1, 0, 2), shard=1)
    assert h.answered("b1") and h.answered("a1") and not h.answered("a0")
    assert (h.value(0), h.value(1)) == (0, -2)


def test_a_part_that_is_sent_again_while_it_is_held_waits_too() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    part(h, "again", A, 1, (1, 0, 2))
    assert not h.answered("again")
    part(h, "second", B, 2, (1, 1, 2))
    assert h.answered("first") and h.answered("again")
    assert h.value(0) == -3


def test_the_part_of_a_dead_replica_that_another_makes_again_is_applied_once() -> None:
    h = harness()
    part(h, "of the dead", A, 1, (1, 0, 2))
    part(h, "again, by another", B, 1, (1, 0, 2), sequence=1)
    assert not h.answered("again, by another"), "what is held is applied, or lost with the server: not yet known"
    part(h, "its own", B, 2, (1, 1, 2), sequence=2)
    assert codes(h, "again, by another") == codes(h, "its own") == [ErrorCode.OK]
    assert h.value(0) == -3
    assert h.job.shards[0].pushes == 2
    assert h.job.shards[0].memory.sequence(B) == 2


def test_two_parts_of_one_client_in_one_step_whatever_their_order() -> None:
    h = harness()
    part(h, "its own", B, 2, (1, 1, 2), sequence=1)
    part(h, "of the dead", B, 1, (1, 0, 2), sequence=2)
    assert h.answered("its own") and h.answered("of the dead")
    assert h.job.shards[0].memory.sequence(B) == 2
    part(h, "next", B, 4, (2, 0, 1), sequence=3)
    assert h.value(0) == -7


def test_a_part_of_a_step_that_was_applied_is_answered_and_changes_nothing() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 1))
    part(h, "late", B, 1, (1, 0, 1))
    assert codes(h, "late") == [ErrorCode.OK]
    assert h.value(0) == -1
    assert h.job.shards[0].counter == 1


def test_a_held_step_that_is_overtaken_was_complete_before_a_restart_took_it_back() -> None:
    h = harness()
    part(h, "answer lost", A, 1, (7, 0, 2))
    part(h, "goes on", B, 2, (8, 1, 2))
    assert codes(h, "answer lost") == [ErrorCode.OK], "it was acknowledged to the others"
    assert h.value(0) == 0 and not h.answered("goes on")
    part(h, "follows", A, 1, (8, 0, 2), sequence=2)
    assert h.value(0) == -3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_part_that_is_not_finite_refuses_its_whole_step(bad: float) -> None:
    h = harness()
    part(h, "good", A, 1, (1, 0, 2))
    part(h, "bad", B, bad, (1, 1, 2))
    assert codes(h, "good") == codes(h, "bad") == [ErrorCode.NOT_FINITE]
    assert h.value(0) == 0
    part(h, "good again", A, 1, (2, 0, 1), sequence=2)
    assert h.value(0) == -1, "the step is spent, the next one comes"


def test_what_does_not_fit_its_step_is_refused_and_the_step_goes_on() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    part(h, "other count", B, 1, (1, 1, 3))
    part(h, "no such part", B, 1, (1, 2, 2), sequence=2)
    assert codes(h, "other count") == codes(h, "no such part") == [ErrorCode.BAD_MESSAGE]
    h.push("delta", [(0, 1, 1.0)], client=C, kind=UpdateKind.DELTA, place=(1, 1, 2))
    h.apply()
    assert codes(h, "delta") == [ErrorCode.WRONG_KIND]
    part(h, "second", B, 2, (1, 1, 2), sequence=3)
    assert h.value(0) == -3


def test_plain_pushes_to_the_same_shard_are_not_held() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    h.push("plain", [(0, 1, 8.0)], client=C, kind=UpdateKind.GRADIENT)
    h.apply()
    assert h.answered("plain") and h.value(0) == -8
    part(h, "second", B, 2, (1, 1, 2))
    assert h.value(0) == -11


def test_parts_of_a_bucket_that_has_moved_are_sent_elsewhere() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    h.move(2)
    h.take(h.core.forget_left(h.job))
    assert codes(h, "first") == [ErrorCode.STALE_EPOCH] and h.versions("first") == [0], "nothing of it was applied"
    assert h.core.queued_updates == 0


def test_parts_of_a_freed_job_are_answered() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    h.take(h.core.remove_job(h.job.name))
    assert isinstance(h.answers["first"][-1], AnswerPush)


def test_a_record_has_the_steps_that_its_values_have() -> None:
    h = harness()
    part(h, "step 1", A, 1, (1, 0, 1))
    part(h, "held", A, 1, (2, 0, 2), sequence=2)
    record = h.job.shards[0].memory.record()
    assert (record.step, record.clients[0].sequence) == (1, 1)
    h.push("complete", [(0, 1, 1.0)], client=B, kind=UpdateKind.GRADIENT, place=(2, 1, 2))
    assert h.job.shards[0].memory.record().step == 1, "not applied yet"
    h.apply()
    record = h.job.shards[0].memory.record()
    assert (record.step, record.clients[0].sequence) == (2, 2)
    again = harness()
    again.job.shards[0].memory = ClientMemory.restored(record)
    part(again, "late", C, 1, (2, 0, 2))
    assert codes(again, "late") == [ErrorCode.OK] and again.value(0) == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_twice_or_late_or_from_somebody_else_each_step_is_applied_once(seed: int) -> None:
    """Replicas in step, each part perhaps sent again under its number, or made again by another replica."""
    chance = Random(seed)
    replicas, steps = chance.randint(1, 4), 6
    h = harness(threads=2)
    sequences = dict.fromkeys(range(replicas), 0)
    expected, sent = np.float32(0), 0
    for step in range(1, steps + 1):
        parts = chance.randint(1, replicas)
        values = [np.float32(chance.uniform(-1, 1) * 10 ** chance.randint(-3, 6)) for _ in range(parts)]
        total = values[0]
        for value in values[1:]:
            total = total + value
        expected = expected - total
        makers = [[place, *chance.sample(range(replicas), chance.randint(0, 1))] for place in range(parts)]
        pushes = [(place, maker) for place, of in enumerate(makers) for maker in of]
        chance.shuffle(pushes)
        tokens = []
        for place, maker in pushes:
            sequences[maker] += 1
            for _ in range(chance.randint(1, 2)):
                sent += 1
                tokens.append(f"push {sent}")
                h.push(
                    tokens[-1], [(0, sequences[maker], float(values[place]))], client=("replica", maker),
                    kind=UpdateKind.GRADIENT, place=(step, place, parts),
                )  # fmt: skip
                h.apply(chance.choice([0, 1, None]))
        h.apply()
        assert all(codes(h, token) == [ErrorCode.OK] for token in tokens), f"seed {seed}, step {step}"
        assert np.float32(h.value(0)) == expected, f"seed {seed}, step {step}"
        assert h.job.shards[0].counter == h.job.shards[0].memory.step == step
    assert h.core.queued_bytes == h.core.queued_updates == 0


FOLLOWERS = {
    "plain": {"kind": UpdateKind.DELTA},
    "late": {"kind": UpdateKind.GRADIENT, "place": (1, 0, 2)},
    "refused": {"kind": UpdateKind.GRADIENT, "place": (2, 5, 2)},
}


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_what_follows_a_held_number_is_not_settled_before_it(follower: str) -> None:
    """Else the held one would count as done, for whoever asks again and in the record, and never be applied."""
    h = harness()
    h.job.shards[0].memory.step = 1
    part(h, "held", A, 1, (2, 0, 2))
    h.push("follows", [(0, 2, 8.0)], client=A, **FOLLOWERS[follower])  # type: ignore[arg-type]
    h.push("again", [(0, 2, 8.0)], client=A, **FOLLOWERS[follower])  # type: ignore[arg-type]
    h.apply()
    assert not h.answered("follows") and not h.answered("again")
    assert all(client.sequence == 0 for client in h.job.shards[0].memory.record().clients)
    part(h, "held again", A, 1, (2, 0, 2))
    assert not h.answered("held again")
    part(h, "completes", B, 2, (2, 1, 2))
    assert codes(h, "held") == codes(h, "held again") == [ErrorCode.OK]
    assert codes(h, "follows") == codes(h, "again") == [ErrorCode.BAD_MESSAGE if follower == "refused" else 0]
    assert h.value(0) == (5 if follower == "plain" else -3)
    assert h.job.shards[0].memory.sequence(A) == 2
    assert h.core.queued_bytes == h.core.queued_updates == 0


def test_what_follows_a_held_number_goes_on_when_its_step_is_overtaken_or_its_bucket_moves() -> None:
    h = harness()
    for step in (1, 2):
        part(h, f"held {step}", A, 1, (step, 0, 2), sequence=2 * step - 1)
        h.push(f"follows {step}", [(0, 2 * step, 8.0)], client=A)
    h.apply()
    assert codes(h, "held 1") == codes(h, "follows 1") == [ErrorCode.OK]
    assert h.value(0) == 8 and h.job.shards[0].memory.sequence(A) == 2
    h.move(2)
    h.take(h.core.forget_left(h.job))
    assert codes(h, "held 2") == codes(h, "follows 2") == [ErrorCode.STALE_EPOCH]
    assert h.core.queued_bytes == h.core.queued_updates == 0


def test_a_twin_that_does_not_fit_is_refused_alone() -> None:
    h = harness()
    part(h, "first", A, 1, (1, 0, 2))
    h.push("misfit", [(0, 1, 1.0)], client=C, kind=UpdateKind.GRADIENT, place=(1, 0, 2), offset=4)
    part(h, "second", B, 2, (1, 1, 2))
    assert codes(h, "first") == codes(h, "second") == [ErrorCode.OK]
    assert codes(h, "misfit") == [ErrorCode.WRONG_LENGTH]
    assert h.value(0) == -3


@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_factors_that_came_before_a_step_do_not_keep_its_parts_from_being_added_up(rule: str) -> None:
    """Nor is a second part for one place applied beside them."""
    wanted, h = Harness(rule), Harness(rule)
    rows, row_size = h.layout.tensors[0].shape
    for made, wait in ((wanted, True), (h, False)):
        made.push("first", [(0, 1, 0.5)], client=C, kind=UpdateKind.GRADIENT)  # what follows waits
        push_tensor(made, "factors", 1, UpdateKind.FACTORS, [np.ones((1, rows)), np.ones((1, row_size))], 1.0)
        if wait:
            made.apply()
        for token, client, place in (("part", A, 0), ("again", B, 0), ("other", C, 1)):
            made.push(
                token, [(0, 1 + (client == C), 1.0)], client=client, kind=UpdateKind.GRADIENT, place=(1, place, 2)
            )
        made.apply()
        assert codes(made, "part") == codes(made, "again") == codes(made, "other") == [ErrorCode.OK]
        assert set(codes(made, "factors")) == {ErrorCode.OK}
    assert h.value(0) == wanted.value(0)


def test_factors_are_refused_where_a_shard_is_in_step() -> None:
    h = harness()
    part(h, "held", A, 1, (1, 0, 2))
    rows, row_size = h.layout.tensors[0].shape
    push_tensor(h, "factors", 1, UpdateKind.FACTORS, [np.ones((1, rows)), np.ones((1, row_size))], 1.0)
    part(h, "completes", B, 2, (1, 1, 2))
    assert codes(h, "factors")[0] == ErrorCode.WRONG_KIND
    answer = h.answers["factors"][-1]
    assert isinstance(answer, AnswerPush)
    assert answer.message.results[0].message.endswith(
        'expected gradients, found factors; set train.protocol = "gradient"'
    )
    assert codes(h, "held") == codes(h, "completes") == [ErrorCode.OK]
    assert h.value(0) == -3
