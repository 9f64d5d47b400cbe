"""A server that is pushed and asked for 16 bits: what is applied, what is refused, how a pull is laid out."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from adamctl.model.wire_types import WireType
from adamctl.roles.ps.core.instructions import AnswerPull, Refuse
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PullRequest, PushPart, PushRequest, PushSource
from tests.roles.ps.core_harness import JOB, Harness
from tests.roles.ps.ps_cluster import make_layout
from tests.roles.ps.sixteen_bits import SIXTEEN, narrowed, widened

WIDE = make_layout(((40, 30), (40,)))


def push_narrow(
    h: Harness,
    token: Any,
    sequence: int,
    kind: UpdateKind,
    arrays: list[np.ndarray],
    dtypes: str,
    lr: float = 0.1,
    body_bytes: int | None = None,
    **changes: Any,
) -> None:
    """Pushes tensor 0 whole; `changes` go into the source's header."""
    wire = [narrowed(array, dtypes) if dtypes != "float32" else array.astype(np.float32) for array in arrays]
    body = b"".join(array.tobytes() for array in wire)[:body_bytes]
    examples = len(arrays[0]) if kind == UpdateKind.FACTORS else 0
    fields = {"tensor": 0, "row_start": 0, "row_stop": 40, "offset": 0, "examples": examples, "dtype": dtypes}
    fields["activations_offset"] = wire[0].nbytes if examples else 0
    parts = tuple(PushPart(shard.index, sequence, 0) for shard in h.layout.shards if shard.tensor == 0)
    source = PushSource(**{"kind": kind, **fields, **changes})
    request = PushRequest(JOB, h.epochs(), lr, 1, 1, (source,), parts)
    h.take(h.core.push(token, 1, ("w", 1), request, memoryview(body), 0.0))


def tensor_value(h: Harness) -> np.ndarray:
    return np.concatenate([h.job.shards[s.index].values.array for s in h.layout.shards if s.tensor == 0])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("dtype", get_args(WireType))
@pytest.mark.parametrize("rule", ["add", "sgd", "momentum", "adagrad", "adam"])
def test_what_is_applied_is_what_was_sent_to_the_bit(rule: str, dtype: str, together: bool) -> None:
    """Gradients, deltas and factors of one type, in one batch and one by one, as the rule does with their float32."""
    generator = np.random.default_rng(4)
    h, plain = Harness(rule, WIDE), Harness(rule, WIDE)
    kinds = [UpdateKind.DELTA, UpdateKind.FACTORS] if rule == "add" else list(UpdateKind)
    for sequence in range(1, 10):
        kind = kinds[sequence % len(kinds)]
        shapes = [(6, 40), (6, 30)] if kind == UpdateKind.FACTORS else [(40, 30)]
        arrays = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
        push_narrow(h, sequence, sequence, kind, arrays, dtype)
        if dtype != "float32":
            arrays = [widened(narrowed(array, dtype)).reshape(array.shape) for array in arrays]
        push_narrow(plain, sequence, sequence, kind, arrays, "float32")
        if not together:
            h.apply()
            plain.apply()
    h.apply()
    plain.apply()
    assert all(code == 0 for sequence in range(1, 10) for code, _ in h.results(sequence))
    np.testing.assert_array_equal(tensor_value(h), tensor_value(plain))
    assert tensor_value(h).any()


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize(
    ("kind", "changes", "body_bytes"),
    [
        (UpdateKind.GRADIENT, {}, 2 * 1200 - 1),
        (UpdateKind.GRADIENT, {"dtype": "float32"}, None),  # says that it is twice as long as it is
        (UpdateKind.GRADIENT, {"offset": 1}, None),
        (UpdateKind.GRADIENT, {"offset": 2}, None),
        (UpdateKind.GRADIENT, {"offset": -2}, None),
        (UpdateKind.FACTORS, {"examples": 7}, None),
        (UpdateKind.FACTORS, {"examples": -1}, None),
        (UpdateKind.FACTORS, {"examples": 1 << 62}, None),
        (UpdateKind.FACTORS, {"activations_offset": 481}, None),
        (UpdateKind.FACTORS, {"activations_offset": 1 << 62}, None),
        (UpdateKind.FACTORS, {"dtype": "float32"}, None),
    ],
)
def test_sizes_that_do_not_fit_the_type_are_refused(
    kind: UpdateKind, changes: dict[str, Any], body_bytes: int | None, dtype: str
) -> None:
    h = Harness("sgd", WIDE)
    arrays = [np.ones((6, 40)), np.ones((6, 30))] if kind == UpdateKind.FACTORS else [np.ones((40, 30))]
    push_narrow(h, "p", 1, kind, arrays, dtype, body_bytes=body_bytes, **changes)
    h.apply()
    assert {code for code, _ in h.results("p")} == {ErrorCode.WRONG_LENGTH}
    assert not tensor_value(h).any()


@pytest.mark.parametrize("dtype", ["float64", "", "bfloat16 ", "x" * 60_000])
def test_an_unknown_type_is_refused_with_what_there_is(dtype: str) -> None:
    h = Harness("sgd", WIDE)
    push_narrow(h, "p", 1, UpdateKind.GRADIENT, [np.ones((40, 30))], "bfloat16", dtype=dtype)
    h.apply()
    answer = h.answers["p"][-1]
    assert {result.code for result in answer.message.results} == {ErrorCode.WRONG_DTYPE}  # type: ignore[union-attr]
    message = answer.message.results[0].message  # type: ignore[union-attr]
    assert message.startswith("expected dtype float32, bfloat16 or float16; found ") and len(message) < 150
    h.take(h.core.pull("q", 1, ("w", 1), PullRequest(JOB, h.epochs(), (0,), dtype), 0.0))
    refused = h.answers["q"][-1]
    assert isinstance(refused, Refuse) and refused.code == ErrorCode.WRONG_DTYPE and refused.message == message
    assert not any(shard.values.readers for shard in h.job.shards.values())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("kind", [UpdateKind.GRADIENT, UpdateKind.DELTA, UpdateKind.FACTORS])
def test_what_is_not_finite_changes_nothing(kind: UpdateKind, dtype: str, bad: float) -> None:
    h = Harness("sgd", WIDE)
    arrays = [np.ones((6, 40)), np.ones((6, 30))] if kind == UpdateKind.FACTORS else [np.ones((40, 30))]
    arrays[-1][-1, -1] = bad
    push_narrow(h, "p", 1, kind, arrays, dtype)
    h.apply()
    codes = [code for code, _ in h.results("p")]
    assert codes[-1] == ErrorCode.NOT_FINITE and set(codes) <= {0, ErrorCode.NOT_FINITE}
    shards = [s for s in h.layout.shards if s.tensor == 0]
    for shard, code in zip(shards, codes, strict=True):
        assert bool(h.job.shards[shard.index].values.array.any()) is (code == 0)


def test_one_place_in_the_body_may_be_used_as_two_types() -> None:
    """Whether it is finite is found for each of them: bits of a finite float32 can be NaN as two bfloat16."""
    h = Harness("sgd", WIDE)
    activations = np.full(180, 1.0, np.float32)
    activations.view(np.uint16)[::2] = 0x7FC0  # NaN as bfloat16; the lower half of a float32
    body = np.ones(240, np.float32).tobytes() + activations.tobytes()
    parts = [PushPart(s.index, sequence, source) for sequence, source in ((1, 0), (2, 1)) for s in WIDE.shards[:1]]
    sources = tuple(PushSource(UpdateKind.FACTORS, 0, 0, 40, 0, 6, 960, dtype) for dtype in ("float32", "bfloat16"))
    request = PushRequest(JOB, h.epochs(), 0.1, 1, 1, sources, tuple(parts))
    h.take(h.core.push("p", 1, ("w", 1), request, memoryview(body), 0.0))
    h.apply()
    assert [code for code, _ in h.results("p")] == [0, ErrorCode.NOT_FINITE]


@pytest.mark.parametrize("dtype", get_args(WireType))
def test_a_pull_lays_the_values_out_as_the_type_needs(dtype: str) -> None:
    h = Harness("add", WIDE)
    shards = tuple(range(len(WIDE.shards)))
    h.take(h.core.pull("q", 1, ("w", 1), PullRequest(JOB, h.epochs(), shards, dtype), 0.0))
    answer = h.answers["q"][-1]
    assert isinstance(answer, AnswerPull) and answer.dtype == dtype
    width, offset = 4 if dtype == "float32" else 2, 0
    for part in answer.message.parts:
        assert (part.offset, part.size) == (offset, WIDE.shards[part.shard].size)
        offset += part.size * width
