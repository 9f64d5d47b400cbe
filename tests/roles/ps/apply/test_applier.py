"""Rules over many steps against plain NumPy, gradients and factors alike; nothing of a refused update is applied."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from adamctl.kernels.rules.rule import Rule
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RULE_NAMES
from adamctl.roles.ps.apply import fused as apply_together
from adamctl.roles.ps.apply.applier import ApplyThreads, _group_stop
from adamctl.roles.ps.core.instructions import AnswerPull, Apply, Refuse
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PushPart, PushRequest, PushSource
from tests.roles.ps.core_harness import JOB, Harness
from tests.roles.ps.ps_cluster import make_layout

WIDE = make_layout(((40, 30), (40,)), servers=1)


def push_tensor(
    h: Harness, token: object, sequence: int, kind: UpdateKind, arrays: list[np.ndarray], lr: float
) -> None:
    """Pushes tensor 0 whole: one source, all of its shards."""
    layout: ParameterLayout = h.layout
    tensor = layout.tensors[0]
    body = b"".join(array.astype(np.float32).tobytes() for array in arrays)
    examples = len(arrays[0]) if kind == UpdateKind.FACTORS else 0
    source = PushSource(kind, 0, 0, tensor.shape[0], 0, examples, arrays[0].size * 4 if examples else 0)
    parts = tuple(PushPart(shard.index, sequence, 0) for shard in layout.shards if shard.tensor == 0)
    request = PushRequest(JOB, h.epochs(), lr, 1, 1, (source,), parts)
    h.take(h.core.push(token, 1, ("w", 1), request, memoryview(body), 0.0))


def tensor_value(h: Harness) -> np.ndarray:
    shards = [h.job.shards[s.index] for s in h.layout.shards if s.tensor == 0]
    return np.concatenate([shard.values.array for shard in shards]).reshape(h.layout.tensors[0].shape)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad"])
def test_gradient_and_factor_pushes_lead_to_the_same_weights(rule: str, together: bool, hold: bool) -> None:
    """In place and beside a reader, one by one and in one batch: always as the formulas say."""
    generator = np.random.default_rng(11)
    by_gradient, by_factors = Harness(rule, WIDE), Harness(rule, WIDE)
    weights, state = np.zeros((40, 30)), np.zeros((40, 30))
    shards = [s.index for s in WIDE.shards if s.tensor == 0]
    for step in range(1, 13):
        errors, activations = generator.standard_normal((6, 40)), generator.standard_normal((6, 30))
        gradient, lr = errors.T @ activations, 0.1 / step
        for h, kind, arrays in (
            (by_gradient, UpdateKind.GRADIENT, [gradient]),
            (by_factors, UpdateKind.FACTORS, [errors, activations]),
        ):
            if hold and step % 4 == 0:
                h.pull(step, shards)
            push_tensor(h, step, step, kind, arrays, lr)
            if not together or step % 5 == 0:
                h.apply()
        if rule == "sgd":
            weights -= lr * gradient
        elif rule == "momentum":
            state = 0.9 * state + gradient
            weights -= lr * state
        else:
            state += gradient**2
            weights -= lr * gradient / np.sqrt(state)
    for h in (by_gradient, by_factors):
        h.apply()
        np.testing.assert_allclose(tensor_value(h), weights, rtol=2e-4, atol=2e-5)
        assert all(h.results(step)[0][0] == 0 for step in range(1, 13))


@pytest.mark.parametrize("rule", RULE_NAMES)
def test_large_shards_take_several_updates_in_one_pass_with_the_same_result(rule: str) -> None:
    size = 100_007
    layout = make_layout(((1, size), (1,)))
    generator = np.random.default_rng(5)
    gradients = [generator.standard_normal((1, size)).astype(np.float32) for _ in range(4)]
    one_by_one, together = Harness(rule, layout), Harness(rule, layout)
    kind = UpdateKind.DELTA if rule == "add" else UpdateKind.GRADIENT
    for sequence, gradient in enumerate(gradients, 1):
        for h in (one_by_one, together):
            push_tensor(h, sequence, sequence, kind, [gradient], 0.1)
        one_by_one.apply()
    together.apply()
    np.testing.assert_array_equal(tensor_value(one_by_one), tensor_value(together))
    assert together.job.shards[0].counter == 2 and one_by_one.job.shards[0].counter == 4


@pytest.mark.parametrize("rule", RULE_NAMES)
@pytest.mark.parametrize("factors", [False, True])
def test_a_delta_is_added_as_it_is_whatever_the_rule_and_leaves_the_rules_state_alone(rule: str, factors: bool) -> None:
    """In one batch with gradients before and after it, of either kind, and alone."""
    mixed, apart = Harness(rule, WIDE), Harness(rule, WIDE)
    kind = UpdateKind.FACTORS if factors else UpdateKind.DELTA if rule == "add" else UpdateKind.GRADIENT
    gradient = [np.ones((1, 40)), np.ones((1, 30))] if factors else [np.ones((40, 30))]
    for h, wait in ((mixed, False), (apart, True)):
        for sequence, (sent, arrays) in enumerate(
            [(kind, gradient), (UpdateKind.DELTA, [np.full((40, 30), 8.0)]), (kind, gradient)], 1
        ):
            push_tensor(h, sequence, sequence, sent, arrays, 0.5)
            if wait:
                h.apply()
        h.apply()
    alone = Harness(rule, WIDE)
    for sequence in (1, 2):
        push_tensor(alone, sequence, sequence, kind, gradient, 0.5)
    alone.apply()
    np.testing.assert_array_equal(tensor_value(mixed), tensor_value(apart))
    np.testing.assert_allclose(tensor_value(mixed), tensor_value(alone) + 8, rtol=1e-6)
    for ours, theirs in zip(mixed.job.shards.values(), alone.job.shards.values(), strict=True):
        for left, right in zip(ours.state.arrays, theirs.state.arrays, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("which", [0, 1])
def test_factors_that_are_not_finite_change_nothing(which: int) -> None:
    h = Harness("sgd", WIDE)
    arrays = [np.ones((2, 40)), np.ones((2, 30))]
    arrays[which][1, 3] = np.inf
    push_tensor(h, "bad", 1, UpdateKind.FACTORS, arrays, 0.1)
    push_tensor(h, "good", 2, UpdateKind.FACTORS, [np.ones((2, 40)), np.ones((2, 30))], 0.1)
    h.apply()
    assert {code for code, _ in h.results("bad")} == {ErrorCode.NOT_FINITE}
    assert {code for code, _ in h.results("good")} == {0}
    np.testing.assert_allclose(tensor_value(h), -0.2, rtol=1e-6)


def test_several_sources_share_their_activations_and_no_other_pushs() -> None:
    """Pushes of the same shape, one after the other: each source of a push has the activations of that push."""
    generator, h, expected = np.random.default_rng(3), Harness("add", WIDE), np.zeros((40, 30))
    shards = [s for s in WIDE.shards if s.tensor == 0]
    cut = len(shards) // 2
    assert 0 < cut < len(shards)
    halves = shards[:cut], shards[cut:]
    for step in range(1, 5):
        errors, activations = generator.standard_normal((6, 40)), generator.standard_normal((6, 30))
        expected += errors.T @ activations
        body, sources, parts = activations.astype(np.float32).tobytes(), [], []
        for number, half in enumerate(halves):
            start, stop = half[0].row_start, half[-1].row_stop
            body += bytes(-len(body) % 64)
            sources.append(PushSource(UpdateKind.FACTORS, 0, start, stop, len(body), 6, 0))
            body += errors[:, start:stop].astype(np.float32).tobytes()
            parts += [PushPart(shard.index, step, number) for shard in half]
        request = PushRequest(JOB, h.epochs(), 1.0, 1, 1, tuple(sources), tuple(parts))
        h.take(h.core.push(step, 1, ("w", 1), request, memoryview(body), 0.0))
        if step != 2:
            h.apply()
    np.testing.assert_allclose(tensor_value(h), expected, rtol=1e-4, atol=1e-4)


def test_factors_of_no_examples_are_a_zero_gradient() -> None:
    h = Harness("adagrad", WIDE)
    push_tensor(h, "p", 1, UpdateKind.FACTORS, [np.ones((0, 40)), np.ones((0, 30))], 0.1)
    h.apply()
    assert not tensor_value(h).any()


def test_only_the_shard_with_the_nan_is_refused() -> None:
    h = Harness("sgd", WIDE)
    gradient = np.ones((40, 30))
    gradient[39, 29] = np.nan
    push_tensor(h, "p", 1, UpdateKind.GRADIENT, [gradient], 0.5)
    h.apply()
    codes = [code for code, _ in h.results("p")]
    assert codes[-1] == ErrorCode.NOT_FINITE and not any(codes[:-1])
    value = tensor_value(h)
    last = next(s for s in reversed(WIDE.shards) if s.tensor == 0)
    np.testing.assert_array_equal(value[: last.row_start], -0.5)
    np.testing.assert_array_equal(value[last.row_start :], 0.0)


@pytest.mark.parametrize("hold", [False, True])
def test_of_several_that_wait_only_the_one_with_the_nan_is_refused(hold: bool) -> None:
    """They are applied without a look at each, and put right when the outcome is not finite."""
    h = Harness("sgd", WIDE)
    for sequence in range(1, 6):
        gradient = np.full((40, 30), float(sequence))
        if sequence == 4:
            gradient[0, 0] = np.inf
        push_tensor(h, sequence, sequence, UpdateKind.GRADIENT, [gradient], 0.5)
    if hold:
        h.pull("held", [s.index for s in WIDE.shards if s.tensor == 0])
    h.apply()
    codes = {token: [code for code, _ in h.results(token)] for token in range(1, 6)}
    assert codes[4][0] == ErrorCode.NOT_FINITE and not any(codes[4][1:])
    assert not any(any(codes[token]) for token in (1, 2, 3, 5))
    first = next(s for s in WIDE.shards if s.tensor == 0)
    value = tensor_value(h)
    np.testing.assert_array_equal(value[: first.row_stop], -0.5 * (1 + 2 + 3 + 5))
    np.testing.assert_array_equal(value[first.row_stop :], -0.5 * (1 + 2 + 3 + 4 + 5))


def test_adjacent_shards_of_one_push_share_one_product() -> None:
    h = Harness("sgd", WIDE)
    push_tensor(h, "p", 1, UpdateKind.FACTORS, [np.ones((2, 40)), np.ones((2, 30))], 0.1)
    (instruction,) = h.waiting
    assert len(instruction.batches) > 5
    assert _group_stop(instruction.batches, 0, None) == len(instruction.batches)
    two = sum(4 * batch.shard.size for batch in instruction.batches[:2])
    assert _group_stop(instruction.batches, 0, two) == 2
    assert _group_stop(instruction.batches, 0, 0) == 1


async def test_threads_report_back_on_the_loop_and_survive_a_failing_rule() -> None:
    h = Harness("sgd", WIDE, threads=2)
    done: asyncio.Queue[Apply] = asyncio.Queue()
    threads = ApplyThreads(2, done.put_nowait)
    try:
        for token, broken in (("broken", True), ("sound", False)):
            rule = h.job.rule
            if broken:
                h.job.rule = None  # type: ignore[assignment]
            push_tensor(h, token, 1 if broken else 2, UpdateKind.GRADIENT, [np.ones((40, 30))], 0.1)
            waiting, h.waiting = h.waiting, []
            assert {instruction.thread for instruction in waiting} == {0, 1}  # each stripe to its own thread
            for instruction in waiting:
                threads.submit(instruction)
            for _ in waiting:
                instruction = await asyncio.wait_for(done.get(), 20)
                h.take(h.core.completed(instruction.job, instruction.batches))
            h.job.rule = rule
        assert {code for code, _ in h.results("broken")} == {ErrorCode.INTERNAL}
        assert {code for code, _ in h.results("sound")} == {0}
        np.testing.assert_allclose(tensor_value(h), -0.1, rtol=1e-6)
    finally:
        threads.stop()


class Failing:
    """A rule that fails on one shard, by its length, after it has written half of it; `left`: how often.

    Prepared for many shards at once it fails before that, and then they come one by one.
    """

    def __init__(self, rule: Rule, size: int, left: int = 1) -> None:
        self._rule, self._size, self._left = rule, size, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rule, name)

    def prepare_shards(self, shards: list[Any], spare: np.ndarray) -> Any:
        if self._left and any(shard[0].size == self._size for shard in shards):
            raise MemoryError("as a test wants it, too")
        return self._rule.prepare_shards(shards, spare)

    def apply_many(self, current: np.ndarray, target: np.ndarray, *others: Any) -> None:
        if target.size == self._size and self._left:
            self._left -= 1
            target[: target.size // 2] = 77
            raise MemoryError("as a test wants it")
        self._rule.apply_many(current, target, *others)


def two_sizes(rule: str) -> Harness:
    """Shards of several lengths, so that one of them can fail alone."""
    h = Harness(rule, make_layout(((7, 3), (5,)), servers=1))
    assert len({shard.size for shard in h.job.shards.values()}) > 1
    return h


def test_a_failure_on_one_shard_beside_a_reader_is_that_shards_alone() -> None:
    """What was written half is thrown away."""
    h = two_sizes("sgd")
    last = max(h.job.shards)
    h.job.rule = Failing(h.job.rule, h.job.shards[last].size)  # type: ignore[assignment]
    shards = sorted(h.job.shards)
    h.pull("held", shards)
    h.push("first", [(shard, 1, 0.0) for shard in shards[:-1]], kind=UpdateKind.GRADIENT)
    h.apply()
    for number in (1, 2):
        h.push(number, [(shard, number + (shard != last), 1.0) for shard in shards], kind=UpdateKind.GRADIENT)
    h.apply()
    for number in (1, 2):
        found = [code for code, _ in h.results(number)]
        assert found[-1] == (ErrorCode.INTERNAL if number == 1 else 0) and not any(found[:-1])
    assert h.value(last) == -1
    assert all(h.value(shard) == -2 for shard in shards[:-1])
    assert h.job.failed is None


@pytest.mark.parametrize("rule", ["sgd", "momentum"])
def test_a_job_whose_values_or_state_were_written_half_is_given_up(rule: str) -> None:
    h = two_sizes(rule)
    last = max(h.job.shards)
    h.job.rule = Failing(h.job.rule, h.job.shards[last].size)  # type: ignore[assignment]
    shards = sorted(h.job.shards)
    if rule == "momentum":
        h.pull("held", shards)  # values are written beside, but not the state
    h.push("push", [(shard, 1, 1.0) for shard in shards], kind=UpdateKind.GRADIENT)
    if rule == "sgd":
        h.pull("pull", shards)
    shard = h.job.shards[last]
    h.apply()
    codes = [code for code, _ in h.results("push")]
    assert codes[-1] == ErrorCode.INTERNAL and not any(codes[:-1])
    assert not h.job.shards and not h.job.buckets and all(np.isnan(array).all() for array in shard.state.arrays)
    assert np.isnan(shard.values.array).all() == (rule == "sgd"), "what is being sent is not touched"
    if rule == "sgd":
        answer = h.answers["pull"][-1]
        assert isinstance(answer, AnswerPull)
        assert [part.code for part in answer.message.parts] == [0] * len(shards[:-1]) + [ErrorCode.INTERNAL]
    h.push("later", [(0, 2, 1.0)], kind=UpdateKind.GRADIENT)
    h.pull("later", [0])
    for answer in (*h.answers["later"], h.attach(2)):
        assert isinstance(answer, Refuse) and answer.code == ErrorCode.INTERNAL and "checkpoint" in answer.message


def test_shards_that_cannot_be_put_together_are_applied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    h = two_sizes("sgd")

    def fail(source: object) -> int:
        raise MemoryError("as a test wants it")

    monkeypatch.setattr(apply_together, "address_of", fail)
    h.push("push", [(shard, 1, 1.0) for shard in sorted(h.job.shards)], kind=UpdateKind.GRADIENT)
    h.apply()
    assert not any(code for code, _ in h.results("push"))
    assert all(h.value(shard) == -1 for shard in h.job.shards)


def test_a_failure_in_the_midst_of_all_shards_leaves_none_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    h = two_sizes("sgd")
    if not h.job.rule.is_compiled:
        pytest.skip("numba is not installed")

    def prepare(self: Rule, shards: list[Any], spare: np.ndarray) -> Any:
        def apply() -> list[bool]:
            raise MemoryError("as a test wants it")

        return apply

    monkeypatch.setattr(type(h.job.rule), "prepare_shards", prepare)
    h.push("push", [(shard, 1, 1.0) for shard in sorted(h.job.shards)], kind=UpdateKind.GRADIENT)
    h.apply()
    assert {code for code, _ in h.results("push")} == {ErrorCode.INTERNAL}
    assert not h.job.buckets


@pytest.mark.parametrize("hold", [False, True])
def test_a_shard_comes_to_lie_with_its_thread_once_and_nothing_else_changes(hold: bool) -> None:
    h, plain = Harness("momentum", WIDE), Harness("momentum", WIDE)
    shards = [h.job.shards[s.index] for s in WIDE.shards if s.tensor == 0]
    generator = np.random.default_rng(3)
    for step in range(1, 7):
        gradient, before = generator.standard_normal((40, 30)), shards[0].values.array
        if hold and step == 5:
            h.pull("held", [shard.index for shard in shards])
        for harness in (h, plain):
            push_tensor(harness, step, step, UpdateKind.GRADIENT, [gradient], 0.1)
        thread = 0 if step < 4 else 1
        for batch in h.waiting[0].batches:
            batch.bring_home(thread)
        h.apply()
        plain.apply()
        moved = step in (1, 4)
        assert (shards[0].values.array is not before) == (moved or (hold and step == 5))
        assert shards[0].home == thread
        if moved:
            assert shards[0].spare is None
    np.testing.assert_array_equal(tensor_value(h), tensor_value(plain))
