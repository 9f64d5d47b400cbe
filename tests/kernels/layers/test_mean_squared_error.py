"""Mean squared error: formula, derivative against central differences, refusals, a step against PyTorch's meaning."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.layers.make import make_loss
from adamctl.kernels.operation import Array
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Model
from tests.kernels.kernel_checks import BACKENDS, check_step_gradient

GENERATOR = np.random.default_rng(3)
OUTPUTS, TARGETS = (GENERATOR.standard_normal((5, 3)).astype(np.float32) for _ in range(2))


def formula(outputs: Array, targets: Array) -> float:
    """The mean over all numbers of a batch, as PyTorch's `MSELoss` has it."""
    return float(np.mean((outputs.astype(np.float64) - targets) ** 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_value_and_derivative_follow_the_formula(backend: str) -> None:
    loss, error = make_loss("mean_squared_error", backend), np.zeros_like(OUTPUTS)
    found = loss.backward(OUTPUTS, TARGETS, error)
    assert found.loss_sum / len(OUTPUTS) == pytest.approx(formula(OUTPUTS, TARGETS), rel=1e-6)
    assert found.correct == 0 and loss.evaluate(OUTPUTS, TARGETS) == pytest.approx(found)
    for place in np.ndindex(OUTPUTS.shape):
        step = np.zeros(OUTPUTS.shape)
        step[place] = 1e-5
        numerical = (formula(OUTPUTS + step, TARGETS) - formula(OUTPUTS - step, TARGETS)) / 2e-5
        assert error[place] == pytest.approx(numerical, abs=1e-6)
    bound = loss.bind_backward(5, error)
    assert bound(OUTPUTS, TARGETS) == pytest.approx((found.loss_sum, 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_costs_nothing(backend: str) -> None:
    empty = np.zeros((0, 3), np.float32)
    assert make_loss("mean_squared_error", backend).backward(empty, empty, empty.copy()) == (0, 0)


def with_one(place: int, value: float) -> Array:
    targets = TARGETS.copy()
    targets.reshape(-1)[place] = value
    return targets


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (np.zeros(5, np.int32), r"expected shape \[5, 3\]; found \[5\]"),
        (TARGETS[:, :2], r"expected shape \[5, 3\]; found \[5, 2\]"),
        (TARGETS.astype(np.float64), "expected float32; found float64"),
        (with_one(7, np.inf), "finite numbers; found inf in example 2"),
        (with_one(14, np.nan), "found nan in example 4"),
    ],
)  # fmt: skip
def test_what_are_no_such_targets_are_refused(backend: str, targets: Array, said: str) -> None:
    loss, network = make_loss("mean_squared_error", backend), Network(MODEL, 5, backend)
    bound = loss.bind_backward(5, np.zeros_like(OUTPUTS))
    flat = np.zeros(network.flat_size, np.float32)
    context = network.context()
    for take in (
        lambda: loss.evaluate(OUTPUTS, targets),
        lambda: bound(OUTPUTS, targets),
        lambda: network.step(context, flat, IMAGES, targets),
    ):
        with pytest.raises(ValueError, match=f"targets: .*{said}"):
            take()


MODEL = Model((4,), (Dense(6, "tanh"), Dense(3)), "mean_squared_error")
IMAGES = GENERATOR.standard_normal((5, 4)).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch_max", [5, 8])
def test_a_step_finds_the_gradient_of_the_mean_over_all_numbers(backend: str, batch_max: int) -> None:
    """Of whole batches, which are native, and of others."""
    network = Network(MODEL, batch_max, backend)
    flat = GENERATOR.standard_normal(network.flat_size).astype(np.float32)
    made = check_step_gradient(network, flat, IMAGES, TARGETS, every=7, tolerance=2e-3)
    outputs = network.predict(network.context(), flat, IMAGES)
    assert made.loss == pytest.approx(formula(outputs, TARGETS), rel=1e-5) and made.correct == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_are_what_users_see(backend: str) -> None:
    outputs = OUTPUTS.copy()
    np.testing.assert_array_equal(make_loss("mean_squared_error", backend).finish(outputs), OUTPUTS)


def test_torch_means_the_same() -> None:
    torch = pytest.importorskip("torch")
    outputs = torch.from_numpy(OUTPUTS.copy()).requires_grad_()
    expected = torch.nn.MSELoss()(outputs, torch.from_numpy(TARGETS))
    expected.backward()
    error = np.zeros_like(OUTPUTS)
    found = make_loss("mean_squared_error").backward(OUTPUTS, TARGETS, error)
    assert found.loss_sum / 5 == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(error, outputs.grad.numpy(), rtol=1e-6)
