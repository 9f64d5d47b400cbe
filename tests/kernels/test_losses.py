"""Losses: formulas, derivatives against central differences, labels of both widths, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_checks import BACKENDS

from adamctl.kernels.losses import make_loss


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [np.int32, np.int64])
@pytest.mark.parametrize("name", ["cross_entropy", "squared_error"])
def test_value_and_derivative_follow_the_formula(backend, width, name):
    values, labels = case()
    formula = cross_entropy if name == "cross_entropy" else squared_error
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
@pytest.mark.parametrize("name", ["cross_entropy", "squared_error"])
def test_an_empty_batch_costs_nothing(backend, name):
    empty = np.zeros((0, 3), np.float32)
    assert make_loss(name, backend).backward(empty, np.zeros(0, np.int32), empty.copy()) == (0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_labels_out_of_range_are_refused(backend, labels):
    outputs = np.full((2, 3), 1 / 3, np.float32)
    with pytest.raises(ValueError, match=r"expected values in \[0, 3\)"):
        make_loss("cross_entropy", backend).evaluate(outputs, np.array(labels, np.int32))


@pytest.mark.parametrize("labels", [np.zeros(3, np.int32), np.zeros(2, np.float32), np.zeros((2, 1), np.int32)])
def test_labels_of_another_shape_or_type_are_refused(labels):
    with pytest.raises(ValueError, match="labels: expected"):
        make_loss("squared_error").evaluate(np.zeros((2, 3), np.float32), labels)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["cross_entropy", "squared_error"])
def test_nan_makes_the_loss_nan(backend, name):
    outputs = np.full((1, 2), np.nan, np.float32)
    assert np.isnan(make_loss(name, backend).evaluate(outputs, np.zeros(1, np.int32)).loss_sum)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_probability_of_zero_gives_a_finite_loss(backend):
    found = make_loss("cross_entropy", backend).evaluate(np.array([[0, 1]], np.float32), np.zeros(1, np.int64))
    assert found.loss_sum == pytest.approx(87.3365, rel=1e-4)
