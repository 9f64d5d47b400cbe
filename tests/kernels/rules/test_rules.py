"""Each rule over many steps against a plain float64 reference, in place and copy-on-write, in each implementation."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_checks import BACKENDS

from adamctl.errors import ConfigurationError
from adamctl.kernels.rules import RULES, make_rule
from adamctl.model.rule import RuleConfig

CONFIGS = [
    RuleConfig("add"),
    RuleConfig("sgd"),
    RuleConfig("sgd", weight_decay=0.01),
    RuleConfig("momentum"),
    RuleConfig("momentum", momentum=0.5, weight_decay=0.01),
    RuleConfig("momentum", nesterov=True),
    RuleConfig("adagrad"),
    RuleConfig("adagrad", weight_decay=0.01),
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
    state += gradient**2
    rate = np.divide(lr, np.sqrt(state), out=np.zeros_like(state), where=state > 0)
    return weights - rate * gradient - decay


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_many_steps_follow_the_formula(backend, config):
    generator = np.random.default_rng(1)
    rule = make_rule(config, backend)
    weights = generator.standard_normal(SIZE).astype(np.float32)
    expected, plain_state = weights.astype(np.float64), np.zeros(SIZE)
    state = rule.initial_state(SIZE)
    for step in range(STEPS):
        gradient = generator.standard_normal(SIZE).astype(np.float32)
        gradient[step % 7 :: 7] = 0
        gradient.flags.writeable = False
        lr = 0.1 / (1 + step)
        rule.apply(weights, weights, state, gradient, lr)
        expected = plain_step(config, expected, plain_state, gradient.astype(np.float64), lr)
    np.testing.assert_allclose(weights, expected, rtol=2e-5, atol=2e-5)


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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RuleConfig("sdg"), "rule.name: expected one of adagrad, add, momentum, sgd; found 'sdg'"),
        (RuleConfig("momentum", momentum=1.0), "rule.momentum"),
        (RuleConfig("sgd", weight_decay=-0.1), "rule.weight_decay"),
    ],
)
def test_a_wrong_setting_is_refused(config, message):
    with pytest.raises(ConfigurationError, match=message):
        make_rule(config)
