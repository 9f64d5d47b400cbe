"""Arrays over the body of a push: where each begins, and nothing copied."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.rules.rule import address
from adamctl.roles.ps.apply.update_sources import address_of, factors_of, part_of, values_of
from adamctl.roles.ps.core.instructions import Apply
from adamctl.roles.ps.core.push import Push, Source
from adamctl.roles.ps.core.shard import Batch
from adamctl.wire.constants import UpdateKind
from adamctl.wire.messages import PushPart, PushRequest, PushSource
from tests.roles.ps.core_harness import JOB, Harness
from tests.roles.ps.ps_cluster import make_layout


def source_of(header: PushSource, body: np.ndarray, row_size: int) -> Source:
    return Source(Push(None, 0.1, memoryview(body).cast("B"), 1), header, None, row_size)


def test_values_and_their_address_are_those_of_the_body() -> None:
    body = np.arange(100, dtype=np.float32)
    source = source_of(PushSource(UpdateKind.DELTA, 0, 3, 8, 40, 0, 0), body, 4)
    np.testing.assert_array_equal(values_of(source), np.arange(10, 30))
    assert values_of(source).base is not None and address(values_of(source)) == address(body) + 40
    assert address_of(source) + 4 * 3 * 4 == address(values_of(source)), "the first row of the tensor is not there"
    assert address_of(source) == address_of(source)


def test_a_body_that_is_too_short_is_never_read_beyond() -> None:
    source = source_of(PushSource(UpdateKind.DELTA, 0, 0, 9, 40, 0, 0), np.zeros(40, np.float32), 4)
    with pytest.raises(ValueError, match="buffer"):
        address_of(source)


def test_factors_are_errors_and_activations() -> None:
    body = np.arange(100, dtype=np.float32)
    source = source_of(PushSource(UpdateKind.FACTORS, 0, 2, 5, 16, 4, 80), body, 6)
    errors, activations = factors_of(source)
    np.testing.assert_array_equal(errors, np.arange(4, 16).reshape(4, 3))
    np.testing.assert_array_equal(activations, np.arange(20, 44).reshape(4, 6))


def test_each_shard_finds_its_own_rows() -> None:
    layout = make_layout(((40, 30), (40,)), servers=1)
    h, body = Harness("add", layout), np.arange(1200, dtype=np.float32)
    parts = tuple(PushPart(shard.index, 1, 0) for shard in layout.shards if shard.tensor == 0)
    request = PushRequest(JOB, h.epochs(), 1.0, 1, 1, (PushSource(UpdateKind.DELTA, 0, 0, 40, 0, 0, 0),), parts)
    (instruction,) = (
        one for one in h.core.push("p", 1, ("w", 1), request, memoryview(body).cast("B"), 0.0) if isinstance(one, Apply)
    )
    batches: list[Batch] = instruction.batches
    assert len(batches) > 5
    whole = np.concatenate([part_of(batch.updates[0], batch) for batch in batches])
    np.testing.assert_array_equal(whole, body)
    for batch in batches:
        source = batch.updates[0].source
        assert source is not None
        here = address_of(source) + 4 * batch.shard.row_start * batch.shard.row_size
        assert here == address(part_of(batch.updates[0], batch))
