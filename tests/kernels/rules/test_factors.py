"""Factors give the gradient of any rows, and through any rule the same weights as the gradient."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.rules import RULES, gradient_rows, make_rule
from adamctl.model.rule import RuleConfig

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
