"""Which batches go together, and that a shard with something not finite is left exactly as it was."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.backend import choose
from adamctl.roles.ps.apply.fused import Together, plain_groups
from adamctl.roles.ps.core.shard import Batch
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PushPart, PushRequest, PushSource
from tests.roles.ps.core_harness import JOB, Harness
from tests.roles.ps.ps_cluster import make_layout

pytestmark = pytest.mark.skipif(choose() != "numba", reason="without compiled rules nothing goes together")
LAYOUT = make_layout(((40, 30), (40,)), servers=1)
SHARDS = [shard for shard in LAYOUT.shards if shard.tensor == 0]


def queued(h: Harness, pushes: list[tuple[UpdateKind, np.ndarray, str]]) -> list[Batch]:
    """Returns batches in which all of these wait, as if they had come while the shards were busy."""
    shards = [h.job.shards[shard.index] for shard in SHARDS]
    for shard in shards:
        shard.batch = Batch(shard)
    for number, (kind, values, dtype) in enumerate(pushes, 1):
        size = 4 * 1200 if dtype == "float32" else 2 * 1200
        body = values.astype(np.float32).tobytes()[:size]
        source = PushSource(kind, 0, 0, 40, 0, 0, 0, dtype)
        parts = tuple(PushPart(shard.index, number, 0) for shard in SHARDS)
        h.take(h.core.push(number, 1, ("w", 1), PushRequest(JOB, h.epochs(), 0.5, 1, 1, (source,), parts),
                           memoryview(body), 0.0))  # fmt: skip
    assert not h.waiting
    for shard in shards:
        shard.batch = Batch(shard)
        assert len(shard.batch.updates) == len(pushes)
    return [shard.batch for shard in shards if shard.batch is not None]


def ones(value: float = 1.0) -> np.ndarray:
    return np.full((40, 30), value)


def test_rules_go_apart_and_what_is_mixed_narrow_or_refused_is_left() -> None:
    gradient, delta = (UpdateKind.GRADIENT, ones(), "float32"), (UpdateKind.DELTA, ones(), "float32")
    narrow = (UpdateKind.GRADIENT, ones(), "float16")
    h = Harness("adagrad", LAYOUT)
    for pushes, name in (([gradient, gradient], "adagrad"), ([delta], "add")):
        batches = queued(Harness("adagrad", LAYOUT), pushes)
        (group,), left = plain_groups(h.job.rule, batches)
        assert not left and group.used.name == name and group.batches == batches
        assert [len(addresses) for addresses in group.gradients] == [len(pushes)] * len(batches)
    for pushes in ([gradient, delta], [narrow], [gradient, narrow]):
        batches = queued(Harness("adagrad", LAYOUT), pushes)
        assert plain_groups(h.job.rule, batches) == ([], batches)
    batches = queued(Harness("adagrad", LAYOUT), [gradient, gradient])
    batches[2].updates[1].refuse(1, "as a test wants it")
    (group,), left = plain_groups(h.job.rule, batches)
    assert left == [batches[2]] and len(group.batches) == len(batches) - 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad"])
def test_a_shard_with_something_not_finite_is_left_and_all_others_are_done(rule: str, held: bool, count: int) -> None:
    h, plain = Harness(rule, LAYOUT), Harness(rule, LAYOUT)
    bad = ones(2.0)
    row = SHARDS[2].row_start
    bad[row, 29] = np.nan
    for shard in h.job.shards.values():
        shard.values.array[:] = 7
        shard.values.readers = shard.state.readers = int(held)
        plain.job.shards[shard.index].values.array[:] = 7
    pushes = [(UpdateKind.GRADIENT, bad if number == count - 1 else ones(), "float32") for number in range(count)]
    batches = queued(h, pushes)
    (group,), _ = plain_groups(h.job.rule, batches)
    left = Together().prepare(h.job.rule, group)()
    assert left == [batches[2]]
    for batch, reference in zip(batches, queued(plain, [(kind, np.nan_to_num(v), d) for kind, v, d in pushes]),
                                strict=True):  # fmt: skip
        shard, expected = batch.shard, reference.shard
        if batch in left:
            assert not batch.begun and not batch.applied and batch.new_state is None
            np.testing.assert_array_equal(shard.values.array, 7)
            assert not any(array.any() for array in shard.state.arrays)
            continue
        assert batch.begun and batch.applied == count
        for update in reference.updates:
            assert update.source is not None
            values = np.frombuffer(update.source.push.body, np.float32)
            part = values[expected.row_start * 30 : expected.row_stop * 30]
            plain.job.rule.apply(expected.values.array, expected.values.array, expected.state.arrays, part, 0.5)
        after = batch.target if held else shard.values.array
        assert after is not None
        np.testing.assert_array_equal(after, expected.values.array)
        for ours, theirs in zip(batch.new_state or shard.state.arrays, expected.state.arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_nothing_is_written_before_it_is_called() -> None:
    h = Harness("sgd", LAYOUT)
    batches = queued(h, [(UpdateKind.GRADIENT, ones(), "float32")])
    (group,), _ = plain_groups(h.job.rule, batches)
    apply = Together().prepare(h.job.rule, group)
    assert not any(batch.begun or batch.shard.values.array.any() for batch in batches)
    assert apply() == []
    assert all(batch.begun and (batch.shard.values.array == -0.5).all() for batch in batches)
