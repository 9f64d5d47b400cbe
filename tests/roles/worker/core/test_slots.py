"""Downpour's bookkeeping: when to push and fetch, what fetched parameters lack, when a gradient may be forgotten."""

from __future__ import annotations

import random

import numpy as np
import pytest

from adamctl.roles.worker.core.following import ALONE_AFTER, SAMPLES, SHARE_MAX, Following
from adamctl.roles.worker.core.slots import Base, Slot, SlotCore, SlotState

SHARDS = 3


def base(sequence: int | list[int], pushes: int = 0) -> Base:
    return Base(np.full(SHARDS, pushes), np.broadcast_to(np.asarray(sequence), SHARDS).astype(np.int64))


def make(
    threads: int = 1,
    slots: int = 3,
    n_push: int = 1,
    n_fetch: int = 1,
    keeps: bool = True,
    following: Following | None = None,
) -> SlotCore:
    return SlotCore(threads, slots, n_push, n_fetch, keeps, following)


def step(core: SlotCore, thread: int = 0) -> bool:
    assert core.begin_step(thread) is not None
    return core.end_step(thread, 8, 0.1, 0.1).push is not None


def test_pushes_every_n_push_steps_and_fetches_every_n_fetch_steps_of_a_thread() -> None:
    core = make(n_push=3, n_fetch=2, slots=8)
    pushed, fetched = [], []
    for number in range(1, 13):
        slot = core.begin_step(0)
        actions = core.end_step(0, 8, 0.1, 0.1)
        pushed += [number] if actions.push is not None else []
        fetched += [number] if actions.fetch else []
        assert slot is not None
    assert pushed == [3, 6, 9, 12]
    assert fetched == [2, 4, 6, 8, 10, 12]


def test_a_pushed_slot_carries_the_sum_of_its_steps() -> None:
    core = make(n_push=3)
    for _ in range(2):
        assert not step(core)
    slot = core.begin_step(0)
    assert core.end_step(0, 5, 0.2, 0.3).push is slot
    assert slot is not None and (slot.steps, slot.examples, slot.learning_rate) == (3, 21, 0.2)


def test_several_steps_up_to_the_next_action_are_counted_at_once() -> None:
    core, pushed, fetched = make(n_push=3, n_fetch=5, slots=8), [], []
    counts = (3, 2, 1, 3, 1, 2, 3)
    for count in counts:
        assert core.begin_step(0) is not None
        assert core.steps_until_actions(0) == count
        actions = core.end_step(0, 8 * count, 0.1, 0.1, count)
        pushed += [] if actions.push is None else [(core.steps[0], actions.push.steps, actions.push.examples)]
        fetched += [core.steps[0]] if actions.fetch else []
    assert pushed == [(step, 3, 24) for step in (3, 6, 9, 12, 15)]
    assert fetched == [5, 10, 15]


def test_threads_accrue_apart() -> None:
    core = make(threads=2)
    first, second = core.begin_step(0), core.begin_step(1)
    assert first is not second


def test_a_thread_waits_while_all_its_slots_are_on_their_way_and_goes_on_when_one_is_acknowledged() -> None:
    core = make(slots=2)
    for _ in range(2):
        step(core)
    assert core.begin_step(0) is None
    core.acknowledged(core.slots[0])
    assert core.begin_step(0) is core.slots[0], "no fetch is under way: the next will contain it"


def test_a_push_acknowledged_during_a_fetch_is_kept_until_that_is_installed() -> None:
    core = make(slots=1)
    step(core)
    slot = core.slots[0]
    slot.sequences = np.full(SHARDS, 1)
    core.fetch_started()
    core.acknowledged(slot)
    assert core.begin_step(0) is None, "what arrives may lack it"
    assert [r.slot for r in core.fetched(base(0))] == [slot]
    assert core.begin_step(0) is None, "it is being applied again"
    core.installed()
    assert core.begin_step(0) is slot


def test_without_local_application_a_slot_is_free_when_acknowledged() -> None:
    core = make(slots=1, keeps=False)
    slot = core.begin_step(0)
    assert slot is not None
    core.end_step(0, 8, 0.1, 0.0)
    assert core.begin_step(0) is None
    core.acknowledged(slot)
    assert core.begin_step(0) is slot
    assert core.fetched(base(0)) == []


def test_fetched_parameters_lack_what_is_accruing_and_what_no_sequence_says_they_contain() -> None:
    core = make(slots=4, n_push=2)
    step(core)
    step(core)
    pushed = core.slots[0]
    step(core)
    accruing = core.slots[1]
    assert [r.slot for r in core.fetched(base(0))] == [pushed, accruing], "the push has no numbers yet"
    pushed.sequences = np.full(SHARDS, 1)
    assert [r.slot for r in core.fetched(base(0))] == [pushed, accruing]
    assert [r.slot for r in core.fetched(base(1))] == [accruing], "contained, though not acknowledged yet"
    assert pushed.state is SlotState.PUSHING


def test_a_push_contained_in_some_shards_is_lacking_in_the_others_only() -> None:
    core = make()
    step(core)
    core.slots[0].sequences = np.full(SHARDS, 4)
    (reapply,) = core.fetched(base([4, 3, 4]))
    assert reapply.shards is not None and reapply.shards.tolist() == [False, True, False]


def test_a_slot_that_holds_steps_which_are_not_counted_yet_is_lacking_too() -> None:
    core = make(threads=2, n_push=4)
    slot, other = core.begin_step(0, 0.25), core.begin_step(1)
    assert core.fetched(base(0)) == []
    assert slot is not None and other is not None
    (reapply,) = core.fetched(base(0), begun=(slot.index,))
    assert (reapply.slot, reapply.shards, slot.local_learning_rate) == (slot, None, 0.25)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_thread_that_follows_its_push_waits_for_a_fetch_that_began_after_the_answer(keeps: bool) -> None:
    core = make(threads=2, keeps=keeps, following=Following())
    step(core)
    core.fetch_started()  # the other thread's, before the answer
    slot = core.slots[0]
    slot.sequences = np.full(SHARDS, 1)
    core.acknowledged(slot)
    core.fetched(base(0))
    core.installed()
    assert core.begin_step(0) is None, "that may lack the push"
    assert core.begin_step(1) is not None, "a thread waits for its own pushes only"
    core.fetch_started()
    core.fetched(base(1, pushes=1))
    assert core.begin_step(0) is None, "it is being copied"
    core.installed()
    begun = core.begin_step(0)
    assert begun is not None and begun.base is not None and begun.base.pushes.tolist() == [1] * SHARDS


def test_a_replica_finds_out_from_what_it_fetches_whether_others_push() -> None:
    following = Following(applies_locally=True)
    core = make(following=following)

    def fetch(own: int, others: int) -> None:
        core.fetch_started()
        core.fetched(base(own, pushes=own + others))
        core.installed()

    for own in range(ALONE_AFTER + 1):
        assert following.waits
        fetch(own, others=0)
    assert not following.waits, "all that was applied was its own"
    fetch(ALONE_AFTER + 1, others=1)
    assert following.waits


def test_a_thread_that_follows_asks_for_no_fetch_by_itself() -> None:
    core = make(n_push=3, n_fetch=1, following=Following())
    for _ in range(3):
        assert core.begin_step(0) is not None
        assert core.steps_until_actions(0) == 3 - core.steps[0]
        assert not core.end_step(0, 8, 0.1, 0.1).fetch


def test_a_thread_goes_on_at_once_while_the_way_there_and_back_is_long_beside_its_steps() -> None:
    core, now = make(slots=4, keeps=False, following=Following()), 0.0

    def trip(there_and_back_s: float) -> bool:
        """One step of 1 s and its push; returns whether the thread may go on before that is back."""
        nonlocal now
        slot = core.begin_step(0, 0.0, now)
        assert slot is not None
        now += 1.0
        core.end_step(0, 8, 0.1, 0.0, 1, now)
        may = core.begin_step(0, 0.0, now) is not None
        core.acknowledged(slot)
        core.fetch_started()
        core.fetched(base(0))
        now += there_and_back_s
        core.installed(now)
        if may:
            core.filling[0] = None  # only asked
            core.slots_of(0)[1].state = SlotState.FREE
        return may

    assert not any(trip(SHARE_MAX / 2) for _ in range(SAMPLES))
    assert [trip(1.0) for _ in range(SAMPLES)].count(True) == SAMPLES // 2, "one that is late counts for nothing"
    assert all(trip(1.0) for _ in range(SAMPLES))
    assert [trip(SHARE_MAX / 2) for _ in range(SAMPLES)].count(False) == SAMPLES // 2


@pytest.mark.parametrize(("pushes", "way_s", "meets"), [(99, 0.1, 0), (0, 0.1, 1), (0, 1.0, 0)])
def test_a_thread_that_goes_on_before_its_push_is_back_meets_it_soon_where_the_way_is_short(
    pushes: int, way_s: float, meets: int
) -> None:
    following = Following(first_pushes=pushes)
    for _ in range(SAMPLES):
        following.stepped(1.0)
        following.came_back(way_s)
    core = make(keeps=False, following=following)
    core.begin_step(0)
    pushed = core.end_step(0, 8, 0.1, 0.0).push
    assert pushed is not None and pushed.meets == 0, "there was none before it"
    if pushes:
        assert core.begin_step(0) is None
        core.acknowledged(pushed)
        core.fetch_started()
        core.fetched(base(1, pushes=1))
        core.installed()
    begun = core.begin_step(0)
    assert begun is not None and begun.meets == meets


def test_flush_hands_over_what_is_accrued_and_nothing_empty() -> None:
    core = make(threads=2, n_push=4)
    step(core, 0)
    core.begin_step(1)
    assert [slot.thread for slot in core.flush()] == [0]
    assert core.flush() == []


def test_the_base_of_a_slot_is_what_was_installed_when_it_began_to_fill() -> None:
    core = make(n_push=2)
    core.fetched(base(0, pushes=7))
    core.installed()
    core.fetched(base(0, pushes=9))
    slot = core.begin_step(0)  # while those that have arrived are being copied
    core.installed()
    assert slot is not None and slot.base is not None and slot.base.pushes.tolist() == [7] * SHARDS


@pytest.mark.parametrize("seed", range(50))
def test_the_replica_never_forgets_nor_repeats_its_own_work(seed: int) -> None:
    """Parameters are modelled as a count of the replica's steps: what a fetch brings + what is re-applied = all."""
    chance = random.Random(seed)
    following = Following() if seed % 2 else None
    core = make(threads=2, slots=3, n_push=chance.randint(1, 3), n_fetch=1, following=following)
    made, sequence, applied = 0, 0, 0
    at_server: dict[int, int] = {0: 0}  # sequence -> steps that the server has applied up to it
    sent: list[Slot] = []  # not applied yet
    unacknowledged: list[Slot] = []  # applied
    fetching: int | None = None  # the sequence that the answer under way contains
    for _ in range(500):
        action = chance.random()
        if action < 0.4:
            thread = chance.randrange(2)
            if core.begin_step(thread) is not None:
                made += 1
                pushed = core.end_step(thread, 1, 0.1, 0.1).push
                if pushed is not None:
                    sequence += 1
                    pushed.sequences = np.full(SHARDS, sequence)
                    sent.append(pushed)
        elif action < 0.6 and sent:
            slot = sent.pop(0)
            applied = int(slot.sequences[0])
            at_server[applied] = at_server[applied - 1] + slot.steps
            unacknowledged.append(slot)
        elif action < 0.8 and unacknowledged:
            core.acknowledged(unacknowledged.pop(0))
        elif fetching is None:
            core.fetch_started()
            fetching = applied
        else:
            lacking = core.fetched(base(fetching))
            assert at_server[fetching] + sum(r.slot.steps for r in lacking) == made, f"seed {seed}"
            core.installed()
            fetching = None
