"""Bundles: how a batch is cut, who does what again, what counts, and how little a slow worker delays."""

from __future__ import annotations

import heapq
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.roles.coordinator.core.bundles import (
    BUNDLES_FEWEST,
    BUNDLES_LEAST,
    BUNDLES_MOST,
    COMPUTED_LEAST,
    COPIES_MOST,
    Bundle,
    BundleBook,
    Given,
    WorkerKey,
    cut_bundles,
)

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def book(count: int, examples: int = 10) -> BundleBook:
    return BundleBook([Bundle(n, n * examples, (n + 1) * examples) for n in range(count)])


def take(one: BundleBook, worker: WorkerKey, now_s: float = 0.0) -> Given:
    found = one.take(worker, now_s)
    assert found is not None
    return found


# --- cuts -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**7), st.integers(1, 1000), st.integers(1, 10**9), st.integers(1, 10**9))
@settings(max_examples=60, deadline=None)
def test_bundles_are_whole_portions_and_cover_the_batch(
    examples: int, portion: int, connections: int, parameters: int
) -> None:
    bundles = cut_bundles(examples, portion, connections, parameters)
    assert bundles[0].start == 0 and bundles[-1].stop == examples
    assert all(one.stop == other.start for one, other in pairwise(bundles))
    assert all(one.examples % portion == 0 and one.examples for one in bundles[:-1])
    assert [one.number for one in bundles] == list(range(len(bundles)))
    portions = -(-examples // portion)
    least = BUNDLES_LEAST if 3 * connections * portion >= COMPUTED_LEAST else BUNDLES_FEWEST
    assert min(least, portions) <= len(bundles) <= 2 * BUNDLES_MOST


def test_what_pushes_much_for_its_work_has_larger_bundles_and_smaller_ones_at_the_end() -> None:
    dense, local = (cut_bundles(600_000, 10, 150_000, parameters) for parameters in (500_000, 1_000))
    assert local[0].examples == 1_200, "enough work to be worth handing out"
    sizes = [one.examples for one in dense]
    assert sizes[0] == 3_340 and sizes[-1] < 840 and sizes == sorted(sizes, reverse=True)
    assert sum(size for size in sizes if size < 3_340) == pytest.approx(600_000 / 8, rel=0.05)


def test_a_batch_of_little_work_is_cut_into_few_bundles() -> None:
    bundles = cut_bundles(1437, 64, 4_736, 4_810)
    assert len(bundles) == 12, "two portions each: with five, there would be fewer than eight"
    assert len(cut_bundles(1437, 8, 4_736, 4_810)) == 9, "37 portions each have enough work"
    assert len(cut_bundles(1437, 64, 474_000, 4_810)) == 23, "one portion has enough work"


# --- who does what --------------------------------------------------------------------------------------------------


def test_who_did_a_bundle_does_it_again_and_reads_it_ahead() -> None:
    one = book(4)
    one.begin(1, {A, B})
    for worker in (A, B, B, A):
        one.done(worker, take(one, worker), 1.0, 1.0)
    assert one.is_complete
    assert [bundle.number for bundle in one.first_of(B, 5)] == [1, 2] and len(one.first_of(B, 1)) == 1
    one.begin(2, {A, B})
    assert [take(one, worker).bundle.number for worker in (B, A, B, A)] == [1, 0, 2, 3]


def test_who_has_none_left_takes_the_last_one_of_who_has_most_left() -> None:
    one = book(6)
    one.begin(1, {A, B})
    for number in range(6):
        one.done(A if number < 4 else B, take(one, A if number < 4 else B), 0.0, 1.0)
    one.begin(2, {A, B, C})
    assert [take(one, C).bundle.number for _ in range(2)] == [3, 2]
    assert [take(one, worker).bundle.number for worker in (A, B, B, C)] == [0, 4, 5, 1]


def test_the_bundles_of_a_lost_worker_are_done_by_others() -> None:
    one = book(3)
    one.begin(1, {A, B})
    lost = take(one, A)
    one.done(B, take(one, B), 1.0, 1.0)
    one.lose(A)
    assert [take(one, B).bundle.number for _ in range(2)] == [0, 2]
    late = one.done(A, lost, 5.0, 9.0)  # it had pushed it, and lives after all
    assert late.counts and late.losers == (B,) and one.loss_sum == 6.0


def test_a_bundle_that_was_given_up_is_anybodys() -> None:
    one = book(2)
    one.begin(1, {A, B})
    first = take(one, A)
    one.give_back(A, first)
    one.give_back(A, first)
    assert take(one, B) == first
    copied = take(one, B)
    assert one.done(B, copied, 1.0, 1.0).counts
    one.give_back(A, copied)
    assert take(one, A, 9.0) == first  # a copy
    one.give_back(B, first)
    assert one.outstanding() == {0: (A,)}


# --- what counts ----------------------------------------------------------------------------------------------------


def test_a_bundle_counts_once_whoever_did_it_first() -> None:
    one = book(2)
    one.begin(1, {A, B})
    one.done(B, take(one, B, 0.0), 0.25, 1.0)
    slow = take(one, A, 0.0)
    assert take(one, B, 50.0) == slow  # a copy
    won = one.done(B, slow, 0.5, 51.0)
    assert won == (True, (A,), True)
    assert one.done(A, slow, 0.5, 52.0) == (False, (), False)
    assert one.done(B, slow, 0.5, 52.0) == (False, (), False)
    assert one.is_complete and one.loss_sum == 0.75
    assert one.evaluation is not None and (one.evaluation.backups, one.evaluation.backups_won) == (1, 1)


def test_what_is_said_of_another_evaluation_or_attempt_does_not_count() -> None:
    one = book(1)
    one.begin(4, {A})
    old = take(one, A)
    one.again({A})
    assert not one.done(A, old, 1.0, 1.0).counts and not one.is_complete
    repeated = take(one, A)
    assert repeated == Given(4, 1, old.bundle)
    assert one.done(A, repeated, 1.0, 1.0).counts and one.is_complete
    one.begin(5, {A})
    assert not one.done(A, repeated, 1.0, 1.0).counts
    wrong = Given(5, 0, Bundle(0, 0, 3))
    assert not one.done(A, wrong, 1.0, 1.0).counts
    with pytest.raises(AssertionError, match="never repeat"):
        one.begin(5, {A})


def test_the_loss_of_a_repeated_evaluation_is_that_of_the_first() -> None:
    one = book(2)
    one.begin(1, {A})
    one.done(A, take(one, A), 2.0, 1.0)
    one.again({A})
    for _ in range(2):
        one.done(A, take(one, A), 2.0, 1.0)
    assert one.loss_sum == 4.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_losses_add_up_to_the_same_bits_in_any_order(losses: list[float], random: Random) -> None:
    one = book(len(losses))
    one.begin(1, {A})
    given_out = [take(one, A) for _ in losses]
    random.shuffle(given_out)
    for each in given_out:
        one.done(A, each, losses[each.bundle.number], 1.0)
    assert one.loss_sum == float(sum(map(Fraction, losses)))


# --- backups --------------------------------------------------------------------------------------------------------


def test_a_copy_is_made_only_if_it_would_end_earlier_and_at_most_once() -> None:
    one = book(3)
    one.begin(1, {A, B, C})
    for worker, seconds in ((A, 1.0), (B, 4.0), (C, 1.0)):
        one.done(worker, take(one, worker), 0.0, seconds)
    one.begin(2, {A, B, C})
    slow = take(one, B, 10.0)
    one.done(A, take(one, A, 10.0), 0.0, 11.0)
    one.done(C, take(one, C, 10.0), 0.0, 11.0)
    assert one.take(A, 13.5) is None  # 14 is earlier than 14.5
    assert one.take(A, 12.0) == slow and COPIES_MOST == 2
    assert one.take(C, 12.0) is None and one.take(A, 12.0) is None


def test_a_bundle_that_hangs_is_copied() -> None:
    one = book(2)
    one.begin(1, {A, B})
    hanging = take(one, A, 0.0)
    one.done(B, take(one, B, 0.0), 0.0, 1.0)
    assert one.take(B, 0.5) is None  # A is expected to be as fast
    assert one.take(B, 3.0) == hanging


def finish_s(speeds: dict[WorkerKey, float], count: int, *, backups: bool = True, halves: bool = False) -> float:
    """Returns how long a batch of one second of work takes over its ideal share, in the third evaluation."""
    one, now_s = book(count), 0.0
    examples = count * 10
    taken_s = 0.0
    for number in range(3):
        began_s = now_s
        one.begin(number, set(speeds))
        events: list[tuple[float, int, WorkerKey, Given]] = []
        order, idle = 0, set(speeds)
        while not one.is_complete:
            for worker in sorted(idle):
                evaluation = one.evaluation
                assert evaluation is not None
                if halves and any(worker == own.worker for out in evaluation.out.values() for own in out):
                    continue
                if not backups and not any(evaluation.left.values()):
                    continue
                given_out = one.take(worker, now_s)
                if given_out is not None:
                    idle.discard(worker)
                    order += 1
                    seconds = given_out.bundle.examples / examples / speeds[worker]
                    heapq.heappush(events, (now_s + seconds, order, worker, given_out))
            now_s, _, worker, given_out = heapq.heappop(events)
            idle.add(worker)
            one.done(worker, given_out, 0.0, now_s)
        now_s = max(now_s, began_s)
        taken_s = now_s - began_s
    return taken_s * sum(speeds.values())


def test_a_slow_worker_delays_a_batch_by_little() -> None:
    """The contract's figures for two workers at speeds 1 and 1/4."""
    speeds = {A: 1.0, B: 0.25}
    assert finish_s(speeds, 2, backups=False) == pytest.approx(2.5)
    alone = [finish_s(speeds, count, backups=False) for count in range(16, 65)]
    backed = [finish_s(speeds, count) for count in range(16, 65)]
    assert max(alone) <= 1.25 + 1e-9
    assert max(backed) <= 1.06
    assert all(one <= other + 1e-9 for one, other in zip(backed, alone, strict=True))


@given(
    st.integers(1, 20),
    st.lists(st.sampled_from([0.1, 0.5, 1.0, 3.0]), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
@settings(max_examples=80, deadline=None)
def test_every_evaluation_ends_while_one_worker_lives(count: int, speeds: list[float], random: Random) -> None:
    """Workers die and come back at random; a bundle is with two workers at most, and all are done once."""
    one, now_s = book(count), 0.0
    workers = {(f"w{number}", 1): speed for number, speed in enumerate(speeds)}
    for number in range(3):
        one.begin(number, set(workers))
        has: dict[WorkerKey, Given] = {}
        counted: list[int] = []
        while not one.is_complete:
            now_s += random.random()
            worker = random.choice(sorted(workers))
            if len(has) < len(workers) and random.random() < 0.1 and len(workers) > 1:
                one.lose(worker)
                has.pop(worker, None)
                continue
            if worker not in has:
                found = one.take(worker, now_s)
                if found is not None:
                    has[worker] = found
            elif random.random() < workers[worker] / 3:
                finished = has.pop(worker)
                if one.done(worker, finished, 1.0, now_s).counts:
                    counted.append(finished.bundle.number)
            assert all(len(out) <= COPIES_MOST for out in one.outstanding().values())
        assert sorted(counted) == list(range(count)) and one.loss_sum == count
