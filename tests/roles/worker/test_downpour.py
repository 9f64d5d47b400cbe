"""Downpour's two network activities against servers in memory: what is pushed, when is fetched, what is counted."""

from __future__ import annotations

import asyncio
from math import inf

import numpy as np
import pytest

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.ps.client.parameter_client import PushOutcome, RefusedPart
from adamctl.roles.worker.core.following import Following
from adamctl.roles.worker.core.foresight import Momentum
from adamctl.roles.worker.core.slots import SlotState
from adamctl.roles.worker.downpour import STALENESS_MAX
from adamctl.wire.constants import ErrorCode, UpdateKind
from tests.roles.worker.downpour_world import (
    BATCH,
    LAYOUT,
    SHARDS,
    WEIGHTS,
    world,
)


async def test_training_begins_with_the_servers_parameters() -> None:
    async with world() as w:
        np.testing.assert_array_equal(w.replica.weights, w.servers.values)
        assert (w.downpour.fetches, w.servers.pulls) == (1, 1)


@pytest.mark.parametrize("factors", [(), WEIGHTS])
async def test_a_push_carries_the_gradient_its_rate_steps_examples_and_base(factors: tuple[int, ...]) -> None:
    async with world(n_push=3, factors=factors) as w:
        expected = np.zeros(LAYOUT.flat_size, np.float32)
        for rate in (0.3, 0.2, 0.1):
            w.step(rate)
            expected += w.context.gradient
        await w.downpour.settled()
        (push,) = w.servers.pushed
        assert (push.learning_rate, push.steps, push.examples) == (0.1, 3, 3 * BATCH)
        assert push.base is not None
        assert push.base.pushes.tolist() == push.base.sequences.tolist() == [0] * SHARDS
        kinds = {index: update.kind for index, update in push.updates.items()}
        assert kinds == {
            index: UpdateKind.FACTORS if index in factors else UpdateKind.GRADIENT
            for index in range(len(LAYOUT.tensors))
        }
        np.testing.assert_allclose(w.servers.gradients[0], expected, rtol=1e-4, atol=1e-5)


async def test_a_later_push_names_what_its_parameters_contained() -> None:
    async with world() as w:
        for _ in range(3):
            w.step()
            await w.drained()
        bases = [push.base.sequences.tolist() for push in w.servers.pushed if push.base is not None]
        assert bases == [[n] * SHARDS for n in range(3)]


async def test_wishes_that_come_during_a_fetch_are_answered_by_one_more() -> None:
    async with world() as w:
        w.servers.answer_pulls.clear()
        w.downpour.want_fetch()
        await w.until(lambda: w.servers.pulls == 2)
        for _ in range(5):
            w.downpour.want_fetch()
            await asyncio.sleep(0)
        assert w.servers.pulls == 2, "one fetch at a time"
        w.servers.answer_pulls.set()
        await w.until(lambda: w.downpour.fetches == 3)
        await asyncio.sleep(0.02)
        assert (w.servers.pulls, w.downpour.fetches) == (3, 3)


async def test_who_comes_back_from_a_rest_waits_for_what_was_fetched_since() -> None:
    """A fetch that was under way may hold what servers had long before."""
    async with world() as w:
        w.servers.answer_pulls.clear()
        w.downpour.want_fetch()
        await w.until(lambda: w.servers.pulls == 2)
        w.servers.values += 1.0
        freshening = [asyncio.ensure_future(w.downpour.freshen()) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert w.servers.pulls == 2 and not any(one.done() for one in freshening)
        w.servers.answer_pulls.set()
        await asyncio.gather(*freshening)
        assert w.servers.pulls == 3
        np.testing.assert_array_equal(w.replica.weights, w.servers.values)


async def test_what_is_fetched_does_not_wipe_out_work_on_its_way() -> None:
    """Fetched before the push was applied, installed after: the gradient is applied again."""
    async with world(n_fetch=100) as w:
        w.servers.answer_pulls.clear()
        w.downpour.want_fetch()
        await w.until(lambda: w.servers.pulls == 2)
        w.step()
        own, before = w.context.gradient.copy(), w.servers.values.copy()
        await w.downpour.settled()
        w.servers.answer_pulls.set()
        await w.until(lambda: w.downpour.fetches == 2)
        np.testing.assert_allclose(w.replica.weights, before - 0.5 * own, rtol=1e-5, atol=1e-6)


async def test_a_fetch_that_follows_a_push_starts_when_that_is_answered_and_the_thread_waits_for_it() -> None:
    async with world(following=Following(), local=False) as w:
        w.servers.answer_pushes.clear()
        w.servers.answer_pulls.clear()
        w.step()
        await asyncio.sleep(0.01)
        assert w.servers.pulls == 1, "what is fetched now would lack the push"
        assert w.replica.core.begin_step(0) is None
        w.servers.answer_pushes.set()
        await w.until(lambda: w.servers.pulls == 2)
        assert w.replica.core.begin_step(0) is None
        w.servers.answer_pulls.set()
        await w.until(lambda: w.downpour.fetches == 2)
        np.testing.assert_array_equal(w.replica.weights, w.servers.values)
        assert w.step() is not None
        await w.downpour.settled()
        base = w.servers.pushed[-1].base
        assert base is not None and base.pushes.tolist() == [1] * SHARDS


class Near(Following):
    """The way there and back stays short, however fast the test is."""

    def came_back(self, seconds: float) -> None:
        self.is_near = True


@pytest.mark.parametrize(("pushes", "updates"), [(inf, 2.71), (0, 2.32)])
async def test_a_replica_looks_less_far_ahead_by_the_push_that_a_step_meets(pushes: float, updates: float) -> None:
    foresight = Momentum(0.9)
    async with world(following=Near(first_pushes=pushes), foresight=foresight, local=False) as w:
        w.servers.outcome = PushOutcome((0,), (), 0, (3,))
        for _ in range(200):
            w.step()
            if not pushes:
                w.step()  # before the other is back
            await w.drained()
        assert foresight.updates_ahead == pytest.approx(updates, abs=0.1), "a push of two is met"


async def test_after_a_refused_push_the_thread_that_has_waited_for_it_goes_on() -> None:
    async with world(following=Following(), local=False) as w:
        refused = RefusedPart(1, ErrorCode.NOT_FINITE, "the gradient holds NaN or infinite values")
        w.servers.outcome = PushOutcome((), (refused,), 0)
        for number in range(3):
            w.step()
            await w.until(lambda number=number: w.downpour.fetches == number + 2)


@pytest.mark.parametrize("factors", [(), WEIGHTS])
@pytest.mark.parametrize("local", [False, True])
async def test_one_replica_that_waits_for_its_network_is_plain_sgd(local: bool, factors: tuple[int, ...]) -> None:
    """n_fetch = n_push = 1, each step after the push and fetch of the one before: nothing is stale, nothing is lost."""
    async with world(factors=factors, local=local) as w:
        plain, context = w.servers.values.copy(), w.network.context()
        for number in range(8):
            rate = 0.5 / (1 + number)
            w.network.step(context, plain, *w.batch())
            plain -= np.float32(rate) * context.gradient
            w.step(rate)
            await w.drained()
        np.testing.assert_allclose(w.servers.values, plain, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(w.replica.weights, plain, rtol=1e-4, atol=1e-5)


async def test_updates_and_staleness_are_counted_until_they_are_taken() -> None:
    async with world() as w:
        w.servers.outcome = PushOutcome((0, 2, 2, STALENESS_MAX + 9), (), 1234, (1, 3, 3, STALENESS_MAX + 9))
        w.step()
        w.step()
        await w.downpour.settled()
        assert (w.downpour.pushes, w.downpour.updates) == (2, 2468)
        taken = w.downpour.take_staleness()
        assert len(taken) == STALENESS_MAX + 1 and (taken[0], taken[2], taken[-1]) == (2, 4, 2)
        assert w.downpour.take_staleness() == ()
        taken = w.downpour.take_ages()
        assert len(taken) == STALENESS_MAX + 1 and (taken[1], taken[3], taken[-1]) == (2, 4, 2)
        assert w.downpour.take_ages() == ()


async def test_refused_parts_are_counted_and_training_goes_on() -> None:
    async with world() as w:
        refused = RefusedPart(1, ErrorCode.NOT_FINITE, "the gradient holds NaN or infinite values")
        w.servers.outcome = PushOutcome((0,), (refused, refused), 10)
        w.step()
        await w.downpour.settled()
        assert w.downpour.refused == 2 and "NaN" in w.downpour.last_refusal
        assert not w.failures
        assert w.step() is not None


async def test_to_be_forgotten_by_a_server_ends_in_on_failure_and_is_not_counted_as_a_refusal() -> None:
    """Else the run goes on while every gradient is dropped."""
    async with world() as w:
        refused = RefusedPart(1, ErrorCode.CLIENT_EVICTED, "this client was forgotten here; register again")
        w.servers.outcome = PushOutcome((0,), (refused,), 10)
        w.step(0)
        await w.downpour.settled()
        (failure,) = w.failures
        assert isinstance(failure, RemoteError) and failure.code == ErrorCode.CLIENT_EVICTED
        assert w.downpour.refused == 0


async def test_acknowledged_slots_are_free_again() -> None:
    async with world(n_fetch=100) as w:
        slots = [w.step() for _ in range(2)]
        assert all(slot is not None and slot.state is SlotState.PUSHING for slot in slots)
        await w.downpour.settled()
        assert all(slot is not None and slot.state is SlotState.FREE for slot in slots)


@pytest.mark.parametrize("local", [False, True])
async def test_a_push_that_fails_ends_in_on_failure_and_frees_its_slot(local: bool) -> None:
    async with world(n_fetch=100, local=local) as w:
        w.servers.failure = UnreachableError("parameter server ps-0 is gone")
        slot = w.step()
        await w.downpour.settled()
        assert w.failures == [w.servers.failure]
        assert slot is not None and slot.state is SlotState.FREE
        assert w.downpour.pushes == 0


async def test_the_result_of_a_push_says_whether_it_was_answered() -> None:
    async with world(n_push=2, n_fetch=100) as w:
        for failure in (None, UnreachableError("parameter server ps-0 is gone")):
            w.servers.failure = failure
            w.step()
            (slot,) = w.replica.flush()
            assert await w.downpour.push(slot) is (failure is None)


async def test_a_fetch_that_fails_ends_in_on_failure() -> None:
    async with world() as w:
        w.servers.failure = UnreachableError("parameter server ps-0 is gone")
        w.downpour.want_fetch()
        await w.until(lambda: w.failures)
        assert w.failures == [w.servers.failure]


async def test_the_first_fetch_fails_to_whoever_starts() -> None:
    async with world(start=False) as w:
        w.servers.failure = UnreachableError("nobody answers")
        with pytest.raises(UnreachableError, match="nobody answers"):
            await w.downpour.start()


async def test_settled_waits_for_every_push_that_was_started() -> None:
    async with world(n_push=2, n_fetch=100) as w:
        w.servers.answer_pushes.clear()
        w.step()
        assert w.servers.pushed == []
        for slot in w.replica.flush():
            w.downpour.push(slot)
        settled = asyncio.ensure_future(w.downpour.settled())
        await w.until(lambda: w.servers.pushed)
        await asyncio.sleep(0.01)
        assert not settled.done() and w.servers.pushed[0].steps == 1, "what was accrued, though less than n_push"
        w.servers.answer_pushes.set()
        async with asyncio.timeout(10):
            await settled
        assert w.downpour.pushes == 1 and w.replica.flush() == []


async def test_a_snapshot_is_the_servers_and_leaves_the_replica_alone() -> None:
    async with world() as w:
        weights = w.replica.weights.copy()
        w.servers.values += 1
        await w.downpour.snapshot(w.replica.snapshot)
        np.testing.assert_array_equal(w.replica.snapshot, w.servers.values)
        np.testing.assert_array_equal(w.replica.weights, weights)
