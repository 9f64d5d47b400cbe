"""Each rule over many steps against a plain float64 reference, in place and copy-on-write, in each implementation."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.errors import ConfigurationError
from adamctl.kernels.rules import RULES, make_rule
from adamctl.kernels.rules.rule import address
from adamctl.model.rule import RuleConfig
from tests.kernels.kernel_checks import BACKENDS

CONFIGS = [
    RuleConfig("add"),
    RuleConfig("sgd"),
    RuleConfig("sgd", weight_decay=0.01),
    RuleConfig("momentum"),
    RuleConfig("momentum", momentum=0.5, weight_decay=0.01),
    RuleConfig("momentum", nesterov=True),
    RuleConfig("adagrad"),
    RuleConfig("adagrad", weight_decay=0.01),
    RuleConfig("rmsprop"),
    RuleConfig("rmsprop", decay=0.99, epsilon=1e-4, weight_decay=0.01),
    RuleConfig("adam"),
    RuleConfig("adam", beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.01),
]
SIZE, STEPS = 20_011, 120


def plain_step(config, weights, state, gradient, lr):
    """One update in float64, straight from the formulas."""
    decay = lr * config.weight_decay * weights
    if config.name == "add":
        return weights + gradient
    if config.name == "sgd":
        return weights - lr * gradient - decay
    if config.name == "momentum":
        state[:] = config.momentum * state + gradient
        step = gradient + config.momentum * state if config.nesterov else state
        return weights - lr * step - decay
    if config.name == "rmsprop":
        state[:] = config.decay * state + (1 - config.decay) * gradient**2
        return weights - lr * gradient / (np.sqrt(state) + config.epsilon) - decay
    if config.name == "adam":
        mean, squares, steps = state.mean, state.squares, state.steps = plain_moments(config, state, gradient)
        mean, squares = mean / (1 - config.beta1**steps), squares / (1 - config.beta2**steps)
        return weights - lr * mean / (np.sqrt(squares) + config.epsilon) - decay
    state += gradient**2
    rate = np.divide(lr, np.sqrt(state), out=np.zeros_like(state), where=state > 0)
    return weights - rate * gradient - decay


class PlainState(np.ndarray):
    """Zeros that can also hold Adam's two means and its count."""

    mean: np.ndarray | float = 0.0
    squares: np.ndarray | float = 0.0
    steps: int = 0


def plain_moments(config, state, gradient):
    mean = config.beta1 * state.mean + (1 - config.beta1) * gradient
    return mean, config.beta2 * state.squares + (1 - config.beta2) * gradient**2, state.steps + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_many_steps_follow_the_formula(backend, config):
    generator = np.random.default_rng(1)
    rule = make_rule(config, backend)
    weights = generator.standard_normal(SIZE).astype(np.float32)
    expected, plain_state = weights.astype(np.float64), np.zeros(SIZE).view(PlainState)
    state = rule.initial_state(SIZE)
    for step in range(STEPS):
        gradient = generator.standard_normal(SIZE).astype(np.float32)
        gradient[step % 7 :: 7] = 0
        gradient.flags.writeable = False
        lr = 0.1 / (1 + step)
        rule.apply(weights, weights, state, gradient, lr)
        expected = plain_step(config, expected, plain_state, gradient.astype(np.float64), lr)
    np.testing.assert_allclose(weights, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 15, 19])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_many_at_once_are_the_same_bits_as_one_after_another(backend, config, count, beside):
    generator = np.random.default_rng(count)
    rule, size = make_rule(config, backend), 5003
    weights = generator.standard_normal(size).astype(np.float32)
    gradients = [generator.standard_normal(size).astype(np.float32) for _ in range(count)]
    lrs = [0.1 / (1 + step) for step in range(count)]
    one_by_one, states = weights.copy(), (rule.initial_state(size), rule.initial_state(size))
    for gradient, lr in zip(gradients, lrs, strict=True):
        rule.apply(one_by_one, one_by_one, states[0], gradient, lr)
    kept, target = weights.copy(), weights.copy() if beside else weights
    rule.apply_many(weights, target, states[1], gradients, lrs)
    np.testing.assert_array_equal(target, one_by_one)
    for one, two in zip(*states, strict=True):
        np.testing.assert_array_equal(one, two)
    if beside:
        np.testing.assert_array_equal(weights, kept)


@pytest.mark.skipif("numba" not in BACKENDS, reason="only compiled rules take many shards in one call")
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_many_shards_in_one_call_are_the_same_bits_and_one_that_is_not_finite_is_left(config, beside):
    """Shards around the lengths of vectors, blocks and pieces; gradients of which one spoils the end of a shard."""
    generator = np.random.default_rng(6)
    rule, spare = make_rule(config, "numba"), np.empty(40_000, np.float32)
    assert rule.is_compiled and not make_rule(config, "numpy").is_compiled
    shards, expected = [], []
    for size, count, bad in (
        (0, 2, -1), (1, 1, -1), (17, 3, 2), (4097, 8, -1), (16384, 9, -1), (16385, 2, 1), (40_000, 19, 18),
        (39_999, 1, 0), (33_000, 4, -1),
    ):  # fmt: skip
        weights = generator.standard_normal(size).astype(np.float32)
        gradients = [generator.standard_normal(size).astype(np.float32) for _ in range(count)]
        lrs = [0.1 / (1 + step % 2) for step in range(count)]
        state, other = rule.initial_state(size), rule.initial_state(size)
        alone = weights.copy()
        if bad >= 0:
            gradients[bad][-1] = (np.nan, np.inf)[bad % 2]
        else:
            rule.apply_many(alone, alone, other, gradients, lrs)
        after = np.zeros(size, np.float32) if beside else weights
        shards.append((weights, after, state, [address(gradient) for gradient in gradients], lrs))
        expected.append((gradients, bad >= 0, alone, other))  # the gradients are kept, too
    refused = rule.prepare_shards(shards, spare)()
    assert refused == [bad for _, bad, _, _ in expected]
    for (weights, after, state, _, _), (_, bad, alone, other) in zip(shards, expected, strict=True):
        np.testing.assert_array_equal(weights if bad else after, alone)
        for ours, theirs in zip(state, other, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif("numba" not in BACKENDS, reason="only compiled rules take many shards in one call")
def test_many_shards_that_do_not_fit_are_refused_before_anything_is_written():
    rule, ones = make_rule(RuleConfig("sgd"), "numba"), np.ones(10, np.float32)
    good = (ones, ones, [], [address(ones)], [0.1])
    for bad, spare in (
        ((ones, ones[:9], [], [address(ones)], [0.1]), 10),
        ((ones, ones, [], [address(ones)], []), 10),
        ((ones, ones, [ones], [address(ones)], [0.1]), 10),
        (good, 9),
    ):
        with pytest.raises(ValueError, match="sgd: "):
            rule.prepare_shards([good, bad], np.empty(spare, np.float32))
    np.testing.assert_array_equal(ones, 1)


@pytest.mark.parametrize("name", RULES)
def test_state_is_copied_and_comes_back_from_a_checkpoint_as_it_was(name):
    """As the server does it: beside a reader on a copy; from a file as plain arrays, all of the shard's length."""
    generator = np.random.default_rng(4)
    rule, weights = make_rule(RuleConfig(name)), np.ones(100, np.float32)
    state = rule.initial_state(100)
    for _ in range(3):
        rule.apply(weights, weights, state, generator.standard_normal(100).astype(np.float32), 0.1)
    gradient, ends = generator.standard_normal(100).astype(np.float32), []
    stored = [np.array(array, order="C") for array in state]
    for other in (rule.copied_state(state), rule.restored_state(stored), state):
        assert [array.strides for array in other] == [array.strides for array in state]
        after = weights.copy()
        rule.apply(weights, after, other, gradient, 0.1)
        ends.append((after, *other))
    for end in ends[1:]:
        for one, two in zip(ends[0], end, strict=True):
            np.testing.assert_array_equal(one, two)


def test_adams_count_is_one_number_that_takes_no_memory_and_stays_small_when_shards_are_joined():
    rule = make_rule(RuleConfig("adam"))
    state = rule.initial_state(1000)
    assert state[2].shape == (1000,) and state[2].strides == (0,)
    weights = np.ones(1000, np.float32)
    rule.apply_many(weights, weights, state, [weights.copy()] * 5, [0.1] * 5)
    assert set(state[2].tolist()) == {5.0}
    state[2] = np.repeat(np.float32([7, 5]), 500)
    assert set(rule.restored_state(state)[2].tolist()) == {5.0}
    assert [array.size for array in rule.restored_state(rule.initial_state(0))] == [0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sorted(set(RULES) - {"add"}))
def test_where_all_gradients_were_zero_nothing_changes(backend, name):
    rule = make_rule(RuleConfig(name), backend)
    weights = np.random.default_rng(3).standard_normal(999).astype(np.float32)
    kept, state = weights.copy(), rule.initial_state(999)
    rule.apply_many(weights, weights, state, [np.zeros(999, np.float32)] * 20, [0.5] * 20)
    np.testing.assert_array_equal(weights, kept)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adams_first_step_is_the_learning_rate_whatever_the_gradients_size(backend):
    rule = make_rule(RuleConfig("adam"), backend)
    gradient, weights = np.array([1e-4, -1e-4, 1.0, -1e4], np.float32), np.zeros(4, np.float32)
    rule.apply(weights, weights, rule.initial_state(4), gradient, 0.25)
    np.testing.assert_allclose(weights, [-0.25, 0.25, -0.25, 0.25], rtol=2e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_copy_on_write_equals_in_place_and_leaves_the_old_version(backend, config):
    generator = np.random.default_rng(2)
    rule = make_rule(config, backend)
    weights = generator.standard_normal(SIZE).astype(np.float32)
    gradient = generator.standard_normal(SIZE).astype(np.float32)
    kept, after = weights.copy(), np.empty_like(weights)
    state, other = rule.initial_state(SIZE), rule.initial_state(SIZE)
    weights.flags.writeable = False
    rule.apply(weights, after, state, gradient, 0.1)
    np.testing.assert_array_equal(weights, kept)
    weights.flags.writeable = True
    rule.apply(weights, weights, other, gradient, 0.1)
    np.testing.assert_array_equal(weights, after)
    for one, two in zip(state, other, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_the_gradient_is_zero_adagrad_changes_nothing(backend):
    rule = make_rule(RuleConfig("adagrad"), backend)
    weights = np.random.default_rng(3).standard_normal(999).astype(np.float32)
    kept, state = weights.copy(), rule.initial_state(999)
    state[0][500:] = 2
    squares = state[0].copy()
    for _ in range(100):
        rule.apply(weights, weights, state, np.zeros(999, np.float32), 0.5)
    np.testing.assert_array_equal(weights, kept)
    np.testing.assert_array_equal(state[0], squares)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adagrads_first_step_is_the_learning_rate_whatever_the_gradients_size(backend):
    rule = make_rule(RuleConfig("adagrad"), backend)
    gradient = np.array([1e-15, -1e-15, 1e-3, -1e15], np.float32)
    weights = np.zeros(4, np.float32)
    rule.apply(weights, weights, rule.initial_state(4), gradient, 0.25)
    np.testing.assert_allclose(weights, [-0.25, 0.25, -0.25, 0.25], rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RULES)
def test_nan_shows_in_the_weights(backend, name):
    rule = make_rule(RuleConfig(name), backend)
    weights, gradient = np.ones(40, np.float32), np.ones(40, np.float32)
    gradient[17] = np.nan
    rule.apply(weights, weights, rule.initial_state(40), gradient, 0.1)
    assert np.flatnonzero(np.isnan(weights)).tolist() == [17]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", RULES)
def test_no_elements_is_fine(backend, name):
    rule, empty = make_rule(RuleConfig(name), backend), np.zeros(0, np.float32)
    rule.apply(empty, empty, rule.initial_state(0), empty, 0.1)


def test_lengths_that_differ_are_refused():
    rule = make_rule(RuleConfig("momentum"))
    ones = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="momentum: expected weights, gradient and 1 state arrays"):
        rule.apply(ones, ones, [], ones, 0.1)
    with pytest.raises(ValueError, match="momentum: expected"):
        rule.apply(ones, ones, rule.initial_state(4), np.ones(3, np.float32), 0.1)
    with pytest.raises(ValueError, match="momentum: expected 2 learning rates; found 1"):
        rule.apply_many(ones, ones, rule.initial_state(4), [ones.copy(), ones.copy()], [0.1])


@pytest.mark.parametrize("gradient", [np.ones(4), np.ones(8, np.float32)[::2], np.ones(4, np.int32)], ids=repr)
def test_types_that_a_pass_over_memory_does_not_take_are_refused(gradient):
    rule, ones = make_rule(RuleConfig("momentum")), np.ones(4, np.float32)
    with pytest.raises(ValueError, match="momentum: expected 1-D contiguous float32 arrays"):
        rule.apply(ones, ones, rule.initial_state(4), gradient, 0.1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RuleConfig("sdg"), "rule.name: expected one of adagrad, adam, add, momentum, rmsprop, sgd; found 'sdg'"),
        (RuleConfig("momentum", momentum=1.0), "rule.momentum"),
        (RuleConfig("sgd", weight_decay=-0.1), "rule.weight_decay"),
        (RuleConfig("rmsprop", decay=1.0), "rule.decay: expected at least 0 and below 1; found 1.0"),
        (RuleConfig("adam", beta1=-0.1), "rule.beta1"),
        (RuleConfig("adam", beta2=1.0), "rule.beta2"),
        (RuleConfig("adam", epsilon=0.0), "rule.epsilon: expected above 0; found 0.0"),
    ],
)
def test_a_wrong_setting_is_refused(config, message):
    with pytest.raises(ConfigurationError, match=message):
        make_rule(config)


def test_vectors_are_state_that_no_update_changes() -> None:
    rule = make_rule(RuleConfig("vectors", kept=("g", "s0", "y0"), scratch=("t", "d", "h")))
    assert [array.tolist() for array in rule.initial_state(2)] == [[0.0, 0.0]] * 3
    assert rule.state_names == ("g", "s0", "y0") and rule.scratch_bytes == 3 * 4 + 8
    with pytest.raises(NotImplementedError):
        rule.apply(np.ones(2, np.float32), np.ones(2, np.float32), rule.initial_state(2), np.ones(2, np.float32), 1.0)


@pytest.mark.parametrize(
    ("kept", "scratch", "said"),
    [
        (("x",), (), "found 'x'"),
        ((), ("accumulator",), "found 'accumulator'"),
        (("G",), (), "found 'G'"),
        (("g" * 33,), (), "lower-case"),
        (("g",), ("g",), "different names; found g, g"),
        (tuple(f"s{i}" for i in range(64)), (), "at most 63"),
        ((), tuple(f"t{i}" for i in range(17)), "at most 16"),
    ],
)
def test_vectors_have_names_that_commands_can_tell_apart(
    kept: tuple[str, ...], scratch: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_rule(RuleConfig("vectors", kept=kept, scratch=scratch))
