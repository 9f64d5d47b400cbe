"""What servers have answered a bundle, by bucket."""

from __future__ import annotations

import pytest

from adamctl.errors import RemoteError
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.roles.ps.client.parameter_client import BundleOutcome
from adamctl.roles.worker.sandblaster.executor import refused_by_bucket
from adamctl.wire.constants import ErrorCode

LAYOUT = build_layout(Model((64,), (Dense(512, "relu"), Softmax(10))), 1)


def test_a_bucket_that_has_lost_the_evaluation_says_so_whatever_else_its_shards_say() -> None:
    bucket, one = next((one.index, one) for one in LAYOUT.buckets if one.shard_stop - one.shard_start > 1)
    for lost in (one.shard_start, one.shard_stop - 1):
        refused: dict[int, tuple[int, str]] = dict.fromkeys(
            range(one.shard_start, one.shard_stop), (ErrorCode.NOT_FINITE, "")
        )
        refused |= {lost: (ErrorCode.NO_VECTOR, ""), 0: (ErrorCode.OUT_OF_RANGE, "")}
        found = refused_by_bucket(LAYOUT, BundleOutcome(dict(refused)))
        assert found == {0: ErrorCode.OUT_OF_RANGE, bucket: ErrorCode.NO_VECTOR}
    assert refused_by_bucket(LAYOUT, BundleOutcome({})) == {}


def test_a_code_that_nobody_expects_ends_the_worker() -> None:
    with pytest.raises(RemoteError, match="of another length") as raised:
        refused_by_bucket(LAYOUT, BundleOutcome({0: (ErrorCode.WRONG_LENGTH, "of another length")}))
    assert raised.value.code == ErrorCode.WRONG_LENGTH
