"""A client's pushes in 16 bits: in the order they were begun, as far as they are needed, in buffers used again."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from adamctl.kernels.numeric import convert
from adamctl.kernels.numeric.feedback import round_with_feedback
from adamctl.model.layout import ParameterLayout
from adamctl.roles.ps.client import rounding as module
from adamctl.roles.ps.client.envelope import Envelope, cut_push
from adamctl.roles.ps.client.push_set import PushSet
from adamctl.roles.ps.client.rounding import Rounder, Rounding
from adamctl.wire.constants import UpdateKind
from tests.roles.ps.client.test_envelope import make_job_routing
from tests.roles.ps.ps_cluster import make_layout, random_flat, views

SMALL = make_layout(((40, 30), (40,)))
LARGE = make_layout(((600, 1000), (1500, 1000), (1500,)))


def push_of(layout: ParameterLayout, seed: int, kind: str = "gradient") -> PushSet:
    flat = random_flat(layout, seed)
    push = PushSet(layout, 0.1)
    for tensor, values in enumerate(views(layout, flat)):
        getattr(push, kind)(tensor, values)
    return push


def envelopes_of(rounding: Rounding) -> list[Envelope]:
    layout = rounding.push.layout
    return cut_push(rounding.push, [1] * len(layout.shards), make_job_routing(layout, 2))


async def finished(rounding: Rounding) -> PushSet:
    for envelope in envelopes_of(rounding):
        async with asyncio.timeout(30):
            await rounding.until(envelope)
    return rounding.push


class Reference:
    """The same pushes rounded one after another."""

    def __init__(self, layout: ParameterLayout, wire: str) -> None:
        self.wire = wire
        self.residuals = [np.zeros(tensor.size, np.float32) for tensor in layout.tensors]

    def expected(self, push: PushSet) -> list[np.ndarray]:
        found = []
        for tensor, update in push.updates.items():
            out = np.empty(update.values.size, convert.NARROW[self.wire])
            round_with_feedback(update.values, self.residuals[tensor], out)
            found.append(out)
        return found


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", [SMALL, LARGE], ids=["small", "large"])
async def test_pushes_are_rounded_one_after_another_with_what_the_last_left(layout: ParameterLayout, wire: str) -> None:
    rounder, reference = Rounder(layout, wire), Reference(layout, wire)
    pushes = [push_of(layout, seed) for seed in range(4)]
    begun = [rounder.start(push) for push in pushes]  # all at once, and small ones after large ones
    for push, rounding in zip(pushes, begun, strict=True):
        rounded = await finished(rounding)
        for (tensor, update), expected in zip(rounded.updates.items(), reference.expected(push), strict=True):
            np.testing.assert_array_equal(update.values.view(np.uint16), expected.view(np.uint16), err_msg=str(tensor))
            assert update.kind == UpdateKind.GRADIENT and convert.format_of(update.values) == wire
        rounding.give_back()
    rounder.close()


async def test_a_small_push_after_a_large_one_waits_its_turn() -> None:
    rounder, reference = Rounder(LARGE, "bfloat16"), Reference(LARGE, "bfloat16")
    large, small = push_of(LARGE, 1), PushSet(LARGE, 0.1)
    small.gradient(2, np.full(1500, 0.3, np.float32))
    first, second = rounder.start(large), rounder.start(small)
    expected = reference.expected(large)
    out = np.empty(1500, np.uint16)
    round_with_feedback(small.updates[2].values, reference.residuals[2], out)
    np.testing.assert_array_equal((await finished(second)).updates[2].values, out)
    np.testing.assert_array_equal((await finished(first)).updates[1].values, expected[1])
    rounder.close()


async def test_an_envelope_waits_only_for_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ELEMENTS", 1 << 16)
    rounder = Rounder(LARGE, "bfloat16")
    rounding = rounder.start(push_of(LARGE, 1))
    needed = [
        max(rounding._needed(source.tensor, source.row_stop, source.kind) for source in envelope.sources)
        for envelope in envelopes_of(rounding)
    ]
    assert min(needed) < max(needed) == len(rounding.pieces)
    await finished(rounding)
    assert rounding.done == len(rounding.pieces)
    rounder.close()


async def test_rows_that_are_not_sent_are_neither_read_nor_written() -> None:
    """A partition's vectors are as long as the network's, and take memory where it holds something."""
    sent, tensor = slice(300, 1200), 1
    rounder, reference = Rounder(LARGE, "bfloat16"), Reference(LARGE, "bfloat16")
    for seed in range(2):
        push = PushSet(LARGE, 0.1)
        push.gradient(tensor, views(LARGE, random_flat(LARGE, seed))[tensor])
        (expected,) = reference.expected(push)
        rounder._free = [np.full(LARGE.flat_size, 7, np.uint16)]
        rounding = rounder.start(push, {tensor: (sent.start, sent.stop)})
        async with asyncio.timeout(30):
            while rounding.done < len(rounding.pieces):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        found = rounding.push.updates[tensor].values.reshape(1500, 1000)
        np.testing.assert_array_equal(found[sent], expected.reshape(1500, 1000)[sent])
        assert (found[: sent.start] == 7).all() and (found[sent.stop :] == 7).all()
        assert rounding._needed(tensor, 301, UpdateKind.GRADIENT) == 1
        assert rounding._needed(tensor, 1200, UpdateKind.GRADIENT) == len(rounding.pieces) == 2
    rounder.close()


async def test_factors_of_a_part_of_the_rows() -> None:
    rounder = Rounder(SMALL, "bfloat16")
    errors = np.full((6, 40), 0.3, np.float32)
    push, whole = PushSet(SMALL, 0.1), PushSet(SMALL, 0.1)
    whole.factors(0, errors.copy(), np.ones((6, 30), np.float32))
    errors[:, :10] = errors[:, 25:] = np.nan
    push.factors(0, errors, np.ones((6, 30), np.float32))
    expected = rounder.start(whole).push.updates[0]
    rounder._free = [np.full(1000, 7, np.uint16)]
    found = rounder.start(push, {0: (10, 25)}).push.updates[0]
    np.testing.assert_array_equal(found.values[:, 10:25], expected.values[:, 10:25])
    np.testing.assert_array_equal(found.activations, expected.activations)
    assert (found.values[:, :10] == 7).all() and (found.values[:, 25:] == 7).all()
    rounder.close()


async def test_buffers_are_made_for_the_pushes_under_way_and_used_again() -> None:
    rounder, seen = Rounder(SMALL, "float16"), set()
    for seed in range(10):
        pair = [rounder.start(push_of(SMALL, seed)) for _ in range(2)]
        seen |= {rounding.buffer.ctypes.data for rounding in pair}
        for rounding in pair:
            rounding.give_back()
    assert len(seen) == 2
    rounder.close()


async def test_a_buffer_that_is_too_small_makes_room_for_a_larger_one() -> None:
    rounder = Rounder(SMALL, "bfloat16")
    bias = PushSet(SMALL, 0.1)
    bias.gradient(1, np.ones(40, np.float32))
    for push in (bias, push_of(SMALL, 1), bias, push_of(SMALL, 2)):
        rounder.start(push).give_back()
        assert len(rounder._free) == 1
    rounder.close()


async def test_gradients_and_deltas_of_one_tensor_keep_apart_what_rounding_left() -> None:
    rounder = Rounder(SMALL, "bfloat16")
    for kind in ("gradient", "delta"):
        reference = Reference(SMALL, "bfloat16")
        for seed in range(3):
            push = push_of(SMALL, seed, kind)
            expected = reference.expected(push)
            np.testing.assert_array_equal(rounder.start(push).push.updates[0].values, expected[0])
    rounder.close()


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
async def test_factors_are_bfloat16_either_way_and_only_rounded(wire: str) -> None:
    generator = np.random.default_rng(2)
    wide_rows = generator.standard_normal((6, 100)).astype(np.float32)
    errors, activations = wide_rows[:, 20:60], generator.standard_normal((6, 30)).astype(np.float32)
    rounder, results = Rounder(SMALL, wire), []
    for _ in range(2):
        push = PushSet(SMALL, 0.1)
        push.factors(0, errors, activations)
        push.gradient(1, np.full(40, 1 / 3, np.float32))
        rounded = await finished(rounder.start(push))
        update = rounded.updates[0]
        assert update.kind == UpdateKind.FACTORS and update.values.shape == (6, 40)
        assert update.activations is not None and update.activations.shape == (6, 30)
        assert convert.format_of(update.values) == convert.format_of(update.activations) == "bfloat16"
        assert convert.format_of(rounded.updates[1].values) == wire
        for sent, given in ((update.values, errors), (update.activations, activations)):
            back = np.empty(sent.size, np.float32)
            convert.widened(sent.reshape(-1), back)
            np.testing.assert_allclose(back.reshape(sent.shape), given, rtol=2.0**-8)
        results.append(update.values.tobytes())
    assert results[0] == results[1]
    rounder.close()


async def test_factors_that_may_have_to_become_a_product_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FACTOR_BYTES_MAX", 2 * 6 * 70 - 1)
    push = PushSet(SMALL, 0.1)
    push.factors(0, np.ones((6, 40), np.float32), np.ones((6, 30), np.float32))
    rounder = Rounder(SMALL, "bfloat16")
    rounded = await finished(rounder.start(push))
    assert rounded.updates[0] is push.updates[0]
    rounder.close()


async def test_whoever_waits_is_told_if_rounding_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(module, "round_with_feedback", fail)
    rounder = Rounder(LARGE, "bfloat16")
    rounding = rounder.start(push_of(LARGE, 1))
    with pytest.raises(MemoryError, match="no room"):
        await finished(rounding)
    rounder.close()


async def test_an_envelope_that_waits_after_rounding_has_failed_is_told_so() -> None:
    rounder = Rounder(LARGE, "bfloat16")
    rounding = rounder.start(push_of(LARGE, 1))
    envelope = envelopes_of(rounding)[-1]
    await finished(rounding)
    rounding.advance(0, RuntimeError("out of order"))
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="out of order"):
            await rounding.until(envelope)
    rounder.close()
