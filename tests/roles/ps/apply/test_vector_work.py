"""Work on vectors in an apply thread: sums in fixed point, arrays made when they are first written or are read."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.operation import Array
from adamctl.model.commands import Set
from adamctl.roles.ps.apply.vector_work import VectorApplier
from adamctl.roles.ps.core.vector_requests import Addition, Commit, Opening, Round, VectorBatch
from adamctl.wire.constants import ErrorCode
from tests.roles.ps.vector_harness import COMMIT, VectorHarness, dot

RANDOM = np.random.default_rng(5)


def opened(h: VectorHarness, bits: int = 40) -> None:
    h.evaluate("e", 1, bits=bits, bundles=9)


def add(h: VectorHarness, gradient: Array, weight: float) -> VectorBatch:
    work = Addition("token", 1, 0, weight, memoryview(gradient.tobytes()))
    work.places[0] = 0
    batch = work.batch(h.shard(0))
    VectorApplier().carry_out([batch])
    return batch


def sums(h: VectorHarness) -> Array:
    vectors = h.shard(0).vectors
    assert vectors is not None and vectors.accumulator is not None
    return vectors.accumulator


@pytest.mark.parametrize("bits", [0, 20, 40])
def test_a_gradient_is_added_in_units_of_the_evaluation(bits: int) -> None:
    h = VectorHarness()
    opened(h, bits)
    gradient = RANDOM.standard_normal(h.shard(0).size).astype(np.float32)
    assert not add(h, gradient, 0.25).code
    assert not add(h, gradient, 0.3).code
    expected = [round(float(one) * 0.25 * 2**bits) + round(float(one) * 0.3 * 2**bits) for one in gradient]
    assert sums(h).dtype == np.int64 and sums(h).tolist() == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_of_a_gradient_that_does_not_fit_nothing_is_added(bad: float) -> None:
    h = VectorHarness()
    opened(h)
    gradient = np.ones(h.shard(0).size, np.float32)
    gradient[-1] = bad
    assert add(h, gradient, 1.0).code == ErrorCode.NOT_FINITE
    gradient[-1] = 2.0**22
    assert add(h, gradient, 1.0).code == ErrorCode.OUT_OF_RANGE
    assert not sums(h).any()
    assert not add(h, gradient, 0.1).code, "it is the product that must fit"


def test_an_accumulator_is_made_once_and_emptied_for_the_next_evaluation() -> None:
    h = VectorHarness()
    opened(h)
    add(h, np.ones(h.shard(0).size, np.float32), 1.0)
    before = sums(h)
    batch = Opening("token", 2, "x", 40, 1).batch(h.shard(0))
    VectorApplier().carry_out([batch])
    assert not batch.made and not before.any()


def test_a_vector_is_made_when_it_is_first_written_and_copied_while_it_is_read() -> None:
    h, made = VectorHarness(), []

    def new(size: int) -> Array:
        made.append(np.full(size, 99, np.float32))
        return made[-1]

    shard = h.shard(1)
    batch = Round("token", 1, [Set("t", ((2.0, "x"),)), Set("h", ((1.0, "x"),))], 0).batch(shard)
    VectorApplier(new).carry_out([batch])
    assert batch.made.keys() == {"t", "h"} and set(batch.made["t"].tolist()) == {2.0}
    assert Round("token", 1, [Set("t")], 0).finish(batch) is False
    commit = Commit("token", 1, COMMIT, 0, False).batch(shard)
    VectorApplier(new).carry_out([commit])
    assert not commit.made and len(made) == 2, "nobody reads what is kept, so it is written in place"
    shard.values.readers += 1
    commit = Commit("token", 1, [Set("x", ((3.0, "x"), (1.0, "x")))], 0, False).batch(shard)
    VectorApplier(new).carry_out([commit])
    assert set(commit.made["x"].tolist()) == {8.0} and set(shard.values.array.tolist()) == {2.0}
    assert not commit.in_place and commit.copy_state


def test_one_shard_that_fails_does_not_keep_the_others() -> None:
    h = VectorHarness()
    good = Round("token", 1, [Set("t")], 0).batch(h.shard(1))
    bad = Round("token", 1, [Set("t", ((1.0, "x"),))], 0).batch(h.shard(0))
    bad.arrays["x"] = bad.arrays["x"][:-1]
    VectorApplier().carry_out([bad, good])
    assert bad.code == ErrorCode.INTERNAL and not good.code and "t" in good.made


def test_what_a_round_computes_with_is_shared_by_its_shards_and_not_kept_with_what_they_found() -> None:
    """It is large, and a shard remembers what its last round has found."""
    h, applier = VectorHarness(), VectorApplier()
    work = Round("token", 1, [Set("t", ((1.0, "x"),)), dot("t", "t")], 0)
    batches = [work.batch(h.shard(index)) for index in range(3)]
    applier.carry_out(batches)
    assert all(batch.found is not None and batch.found.scratch is None for batch in batches)
    assert [batch.found.parts()[0].numbers for batch in batches if batch.found is not None] == [
        (float(index**2 * h.shard(index).size),) for index in range(3)
    ]
    other = Round("token", 2, [Set("d"), Set("t", ((2.0, "x"),)), dot("t", "x"), dot("x", "x")], 0).batch(h.shard(2))
    applier.carry_out([other])
    assert other.found is not None
    assert [part.numbers for part in other.found.parts()] == [
        (8.0 * h.shard(2).size,),
        (4.0 * h.shard(2).size,),
    ]
