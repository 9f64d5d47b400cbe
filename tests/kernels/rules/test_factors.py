"""Factors give the gradient of any rows, and through any rule the same weights as the gradient."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.rules import RULES, FactorUpdate, apply_factors, gradient_rows, make_rule
from adamctl.model.rule import RuleConfig
from tests.kernels.kernel_checks import BACKENDS

GENERATOR = np.random.default_rng(1)
ERRORS = GENERATOR.standard_normal((8, 30)).astype(np.float32)
ACTIVATIONS = GENERATOR.standard_normal((8, 17)).astype(np.float32)


@pytest.mark.parametrize(("start", "stop"), [(0, 30), (0, 1), (7, 19), (30, 30)])
def test_rows_of_the_gradient(start, stop):
    out = np.full((stop - start, 17), 9, np.float32)
    assert gradient_rows(ERRORS, ACTIVATIONS, start, stop, out) is out
    np.testing.assert_allclose(out, (ERRORS.T @ ACTIVATIONS)[start:stop], rtol=1e-5, atol=1e-5)


def test_no_examples_give_a_zero_gradient():
    out = np.full((4, 17), 9, np.float32)
    assert not gradient_rows(ERRORS[:0], ACTIVATIONS[:0], 2, 6, out).any()


@pytest.mark.parametrize("name", RULES)
def test_both_protocols_lead_to_the_same_weights(name):
    rule = make_rule(RuleConfig(name))
    by_gradient = GENERATOR.standard_normal(30 * 17).astype(np.float32)
    by_factors = by_gradient.copy()
    state = rule.initial_state(30 * 17)
    parts = [rule.initial_state(10 * 17) for _ in range(3)]
    for _ in range(20):
        errors = GENERATOR.standard_normal((8, 30)).astype(np.float32)
        activations = GENERATOR.standard_normal((8, 17)).astype(np.float32)
        rule.apply(by_gradient, by_gradient, state, (errors.T @ activations).ravel(), 0.01)
        for start in range(0, 30, 10):
            part = slice(start * 17, (start + 10) * 17)
            rows = gradient_rows(errors, activations, start, start + 10, np.empty((10, 17), np.float32))
            rule.apply(by_factors[part], by_factors[part], parts[start // 10], rows.ravel(), 0.01)
    np.testing.assert_allclose(by_factors, by_gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("start", "stop", "rows", "inputs"), [(0, 31, 31, 17), (-1, 2, 3, 17), (0, 5, 4, 17), (0, 5, 5, 16)]
)
def test_shapes_that_do_not_fit_are_refused(start, stop, rows, inputs):
    with pytest.raises(ValueError, match="factors: errors"):
        gradient_rows(ERRORS, ACTIVATIONS, start, stop, np.empty((rows, inputs), np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "config", [*(RuleConfig(name) for name in RULES), RuleConfig("momentum", nesterov=True)], ids=str
)
@pytest.mark.parametrize(("k", "cuts", "inputs"), [(1, (1,), 1), (3, (5, 8, 9), 7), (9, (17,), 100), (4, (6, 2), 96)])
def test_shards_get_what_the_gradient_of_the_whole_layer_would_give_them(backend, config, k, cuts, inputs):
    """Tiles at all edges; several updates, in place and beside; state follows."""
    generator, update = np.random.default_rng(k), FactorUpdate()
    rule, plain = make_rule(config, backend), make_rule(config, "numpy")
    rows = sum(cuts)
    expected = generator.standard_normal(rows * inputs).astype(np.float32)
    expected_state = plain.initial_state(rows * inputs)
    weights = [part.copy() for part in np.split(expected, np.cumsum([cut * inputs for cut in cuts])[:-1])]
    states = [rule.initial_state(part.size) for part in weights]
    for step in range(4):
        errors = generator.standard_normal((k, rows + 3)).astype(np.float32)
        activations = generator.standard_normal((k, inputs)).astype(np.float32)
        gradient = errors[:, 2 : rows + 2].astype(np.float64).T @ activations
        plain.apply(expected, expected, expected_state, gradient.astype(np.float32).ravel(), 0.1)
        update.begin(rule, errors, activations, [2, *(2 + np.cumsum(cuts))])
        before = weights
        weights = before if step % 2 else [np.empty_like(part) for part in before]
        shards = list(zip(range(len(cuts)), before, weights, states, strict=True))
        for some in (shards,) if step < 2 else ([shard] for shard in reversed(shards)):
            update.apply(rule, some, 0.1)
    np.testing.assert_allclose(np.concatenate(weights), expected, rtol=1e-4, atol=1e-4)
    for number, whole in enumerate(expected_state):
        np.testing.assert_allclose(np.concatenate([state[number] for state in states]), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_examples_no_rows_and_other_shards_stay_as_they_are(backend):
    rule, update, weights = make_rule(RuleConfig("sgd"), backend), FactorUpdate(), np.ones(5 * 17, np.float32)
    update.begin(rule, ERRORS[:0], ACTIVATIONS[:0], [0, 3, 8, 30])
    update.apply(rule, [(1, weights, weights, [])], 0.1)
    update.begin(rule, ERRORS, ACTIVATIONS, [4, 5, 5, 30])
    update.apply(rule, [(1, weights[:0], weights[:0], [])], 0.1)
    np.testing.assert_array_equal(weights, 1)
    update.apply(rule, [(0, weights[17:34], weights[17:34], [])], 1.0)
    np.testing.assert_array_equal(weights[:17], 1)
    np.testing.assert_array_equal(weights[34:], 1)
    np.testing.assert_allclose(1 - weights[17:34], (ERRORS.T @ ACTIVATIONS)[4], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_activations_again_need_not_be_packed_and_others_are(backend):
    rule, update = make_rule(RuleConfig("add"), backend), FactorUpdate()
    narrow = np.ascontiguousarray(ACTIVATIONS[:, :5])
    for activations, same in ((ACTIVATIONS, False), (ACTIVATIONS, True), (narrow, True), (2 * narrow, False)):
        weights = np.zeros((30, activations.shape[1]), np.float32)
        update.begin(rule, ERRORS, activations, [0, 30], same=same)
        update.apply(rule, [(0, weights.reshape(-1), weights.reshape(-1), [])], 1.0)
        np.testing.assert_allclose(weights, ERRORS.T @ activations, rtol=1e-5, atol=1e-5)


def test_a_layers_shards_are_updated_in_one_call():
    rule, weights = make_rule(RuleConfig("add")), np.zeros(30 * 17, np.float32)
    apply_factors(rule, [weights[: 20 * 17], weights[20 * 17 :]], [[], []], ERRORS, ACTIVATIONS, 1.0)
    np.testing.assert_allclose(weights.reshape(30, 17), ERRORS.T @ ACTIVATIONS, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_the_factors_is_refused():
    rule, update, weights = make_rule(RuleConfig("sgd")), FactorUpdate(), np.zeros(5 * 17, np.float32)
    with pytest.raises(ValueError, match=r"factors: errors \[8, 30\] and activations \[7, 17\] do not give rows 0, 30"):
        update.begin(rule, ERRORS, ACTIVATIONS[:7], [0, 30])
    for bounds in ([0, 31], [-1, 5], [4, 3, 5]):
        with pytest.raises(ValueError, match=f"do not give rows {bounds[0]}, {bounds[1]}"):
            update.begin(rule, ERRORS, ACTIVATIONS, bounds)
    with pytest.raises(ValueError, match="expected C-contiguous float32"):
        update.begin(rule, ERRORS[:, ::2], ACTIVATIONS, [0, 15])
    update.begin(rule, ERRORS, ACTIVATIONS, [4, 9, 13])
    for shard, size, rows in ((0, 84, "4 to 9"), (1, 85, "9 to 13")):
        with pytest.raises(ValueError, match=f"factors: expected weights of rows {rows} of 17 each; found {size}"):
            update.apply(rule, [(shard, weights[:size], weights[:size], [])], 0.1)
    with pytest.raises(ValueError, match="sgd: expected weights"):
        update.apply(rule, [(0, weights, weights, [weights])], 0.1)
