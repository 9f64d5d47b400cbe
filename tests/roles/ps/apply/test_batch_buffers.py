"""Where a batch reads and writes: in place, beside, and on a copy of the state; deltas are added whatever the rule."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.rules.narrow import NarrowUpdate
from adamctl.roles.ps.apply.batch_buffers import Prepared, rule_for
from adamctl.roles.ps.core.push import Push, Source
from adamctl.roles.ps.core.shard import Batch
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PushSource
from tests.roles.ps.core_harness import Harness


def source_of(kind: UpdateKind) -> Source:
    return Source(Push(None, 0.1, memoryview(b""), 1), PushSource(kind, 0, 0, 1, 0, 0, 0), None, 1)


@pytest.mark.parametrize(("read", "imaged"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_what_is_being_read_is_not_written(read: int, imaged: int) -> None:
    h = Harness("momentum")
    shard = h.job.shards[0]
    values, state = shard.values.array, shard.state.arrays
    shard.values.readers, shard.state.readers = read, imaged
    batch = Batch(shard)
    work = Prepared(h.job.rule, batch)
    one = np.ones(shard.size, np.float32)
    for _ in range(2):
        work.apply(h.job.rule, [one], [1.0], NarrowUpdate())
    work.finish()
    assert batch.begun and batch.applied == 2
    assert (work.target is values) == (not read) and (work.state is state) == (not imaged)
    np.testing.assert_allclose(work.target, -1 - 1.9, rtol=1e-6)
    np.testing.assert_allclose(values, 0 if read else -2.9, rtol=1e-6)
    np.testing.assert_allclose(state[0], 0 if imaged else 1.9, rtol=1e-6)
    assert (batch.new_state is None) == (not imaged)


def test_where_nothing_was_applied_there_is_no_new_state() -> None:
    h = Harness("adagrad")
    shard = h.job.shards[0]
    shard.state.readers = 1
    batch = Batch(shard)
    Prepared(h.job.rule, batch).finish()
    assert batch.new_state is None and not batch.begun


def test_a_delta_is_added_and_takes_no_state() -> None:
    h = Harness("adagrad")
    work = Prepared(h.job.rule, Batch(h.job.shards[0]))
    used = rule_for(source_of(UpdateKind.DELTA), h.job.rule)
    assert used.name == "add" and work.state_for(used) == []
    assert rule_for(source_of(UpdateKind.GRADIENT), h.job.rule) is h.job.rule
    assert work.state_for(h.job.rule) is work.state
    adding = Harness("add").job.rule
    assert rule_for(source_of(UpdateKind.DELTA), adding) is adding
