"""Losses: formulas, derivatives against central differences, labels of both widths, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.make import make_loss
from tests.kernels.kernel_checks import BACKENDS


def case(units=6, batch=5):
    generator = np.random.default_rng(1)
    logits = generator.standard_normal((batch, units))
    labels = generator.integers(0, units, batch)
    return logits, labels


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def cross_entropy(logits, labels):
    return -np.log(softmax(logits)[np.arange(len(labels)), labels]).sum()


def squared_error(outputs, labels):
    return 0.5 * ((np.eye(outputs.shape[1])[labels] - outputs) ** 2).sum()


def logistic(logits, labels):
    """The sum of the cross entropies of yes-or-no outputs, with the targets written out."""
    targets, p = np.eye(logits.shape[1])[labels], 1 / (1 + np.exp(-logits))
    return -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).sum()


FORMULAS = {"cross_entropy": cross_entropy, "squared_error": squared_error, "logistic": logistic}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [np.int32, np.int64])
@pytest.mark.parametrize("name", FORMULAS)
def test_value_and_derivative_follow_the_formula(backend, width, name):
    values, labels = case()
    formula = FORMULAS[name]
    outputs = softmax(values) if name == "cross_entropy" else values
    error = np.zeros(values.shape, np.float32)
    loss = make_loss(name, backend)
    found = loss.backward(outputs.astype(np.float32), labels.astype(width), error)
    assert found.loss_sum == pytest.approx(formula(values, labels), rel=1e-5)
    assert found.correct == (outputs.argmax(axis=1) == labels).sum()
    assert loss.evaluate(outputs.astype(np.float32), labels.astype(width)) == pytest.approx(found)
    for place in np.ndindex(values.shape):
        step = np.zeros(values.shape)
        step[place] = 1e-5
        numerical = (formula(values + step, labels) - formula(values - step, labels)) / 2e-5 / len(labels)
        assert error[place] == pytest.approx(numerical, abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
def test_an_empty_batch_costs_nothing(backend, name):
    empty = np.zeros((0, 3), np.float32)
    assert make_loss(name, backend).backward(empty, np.zeros(0, np.int32), empty.copy()) == (0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_labels_out_of_range_are_refused(backend, labels, name):
    outputs = np.full((2, 3), 1 / 3, np.float32)
    with pytest.raises(ValueError, match=r"expected values in \[0, 3\)"):
        make_loss(name, backend).evaluate(outputs, np.array(labels, np.int32))


@pytest.mark.parametrize("labels", [np.zeros(3, np.int32), np.zeros(2, np.float32), np.zeros((2, 1), np.int32)])
def test_labels_of_another_shape_or_type_are_refused(labels):
    with pytest.raises(ValueError, match="labels: expected"):
        make_loss("squared_error").evaluate(np.zeros((2, 3), np.float32), labels)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
def test_nan_makes_the_loss_nan(backend, name):
    outputs = np.full((1, 2), np.nan, np.float32)
    assert np.isnan(make_loss(name, backend).evaluate(outputs, np.zeros(1, np.int32)).loss_sum)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_probability_of_zero_gives_a_finite_loss(backend):
    found = make_loss("cross_entropy", backend).evaluate(np.array([[0, 1]], np.float32), np.zeros(1, np.int64))
    assert found.loss_sum == pytest.approx(87.3365, rel=1e-4)


LARGE = np.array([[0, 30, 300, 3e38], [0, -30, -300, -3e38], [1e-30, -1e-30, 88, -88]], np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("label", [0, 1, 2])
def test_the_logistic_loss_is_exact_for_large_and_tiny_logits(backend, label):
    """ln(1 + exp(z)) is z for a large z, and exp(z) for a very negative one; a derivative is never beyond 1 / n."""
    labels = np.full(3, label)
    exact = np.logaddexp(0, LARGE.astype(np.float64)).sum() - LARGE.astype(np.float64)[:, label].sum()
    error = np.zeros_like(LARGE)
    found = make_loss("logistic", backend).backward(LARGE, labels, error)
    assert found.loss_sum == pytest.approx(exact, rel=1e-6)
    expected = np.exp(-np.logaddexp(0, -LARGE.astype(np.float64))) - np.eye(4)[labels]
    np.testing.assert_allclose(error * 3, expected, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_small_logistic_loss_keeps_its_digits(backend):
    """Outputs that are right by far leave a loss near 1e-9, which a probability of 1 - 1e-9 in float32 would lose."""
    logits = np.array([[21, -21, -22]], np.float32)
    found = make_loss("logistic", backend).evaluate(logits, np.zeros(1, np.int32))
    assert found.loss_sum == pytest.approx(2 * np.exp(-21) + np.exp(-22), rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_thousands_of_logistic_outputs(backend):
    logits = (np.random.default_rng(4).standard_normal((3, 2500)) * 4 - 6).astype(np.float32)
    labels = np.array([0, 1700, 2499])
    error = np.zeros_like(logits)
    found = make_loss("logistic", backend).backward(logits, labels, error)
    assert found.loss_sum == pytest.approx(logistic(logits.astype(np.float64), labels), rel=1e-6)
    expected = (1 / (1 + np.exp(-logits.astype(np.float64))) - np.eye(2500)[labels]) / 3
    np.testing.assert_allclose(error, expected, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
def test_the_first_of_equals_is_the_largest(backend, name):
    outputs = np.array([[0.5, 0.5, 0.1], [0.1, 0.5, 0.5], [0.2, 0.2, 0.2]], np.float32)
    loss = make_loss(name, backend)
    assert [loss.evaluate(outputs, np.full(3, label)).correct for label in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_among_logits_is_nan_in_the_derivative_where_it_was(backend):
    logits, error = np.array([[1, np.nan, -1]], np.float32), np.zeros((1, 3), np.float32)
    found = make_loss("logistic", backend).backward(logits, np.zeros(1, np.int64), error)
    assert np.isnan(found.loss_sum) and np.isnan(error).tolist() == [[False, True, False]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FORMULAS)
def test_only_logits_need_a_finish(backend, name):
    outputs = np.array([[0.25, -1000, 1000]], np.float32)
    finished = make_loss(name, backend).finish(outputs.copy())
    expected = [[0.5621765, 0, 1]] if name == "logistic" else outputs
    np.testing.assert_allclose(finished, expected, rtol=1e-6)
