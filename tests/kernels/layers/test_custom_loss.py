"""A user's loss in steps, evaluations and partitions: the numbers are those of its methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adamctl.errors import CustomError
from adamctl.kernels.backend import Backend, installed
from adamctl.kernels.layers.make import make_loss
from adamctl.kernels.native import can_compile
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import cut_network
from adamctl.kernels.step.network import Network
from adamctl.model.description import Dense, Layer, Model, Softmax
from tests.kernels.kernel_checks import BACKENDS, check_step_gradient
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import cut

GENERATOR = np.random.default_rng(11)
IMAGES = GENERATOR.standard_normal((4, 6)).astype(np.float32)
TARGETS = GENERATOR.standard_normal((4, 5)).astype(np.float32)
LABELS = np.array([0, 4, 2, 1], np.int32)
CASES = [("Absolute", Dense(5), TARGETS), ("Margin", Dense(5), LABELS), ("Margin", Softmax(5), LABELS)]


NATIVE = [(f"Native{name}", last, answers) for name, last, answers in CASES]
needs_compiler = pytest.mark.skipif("numba" not in installed() or not can_compile(), reason="kernels are compiled")


def model_of(name: str, last: Layer) -> Model:
    return Model((6,), (Dense(7, "tanh"), last), f"tests.losses_for_tests:{name}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "last", "answers"), [*CASES, *NATIVE])
@pytest.mark.parametrize("batch_max", [4, 8])
def test_a_step_finds_its_gradient(name: str, last: Layer, answers: Any, backend: Backend, batch_max: int) -> None:
    network = Network(model_of(name, last), batch_max, backend)
    flat = np.random.default_rng(5).standard_normal(network.flat_size).astype(np.float32)
    made = check_step_gradient(network, flat, IMAGES, answers, every=9, tolerance=2e-2)
    found = network.tally(network.context(), flat, IMAGES, answers)
    assert made.loss == pytest.approx(found.loss_sum / 4, rel=1e-5)
    assert found.examples == 4 and found.sums[1] == (20 if answers is TARGETS else 4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "last", "answers"), [*CASES, *NATIVE])
def test_partitions_find_what_one_process_finds(name: str, last: Layer, answers: Any, backend: Backend) -> None:
    model = model_of(name, last)
    network = Network(model, 4, backend)
    weights = [GENERATOR.standard_normal(tensor.shape).astype(np.float32) for tensor in network.tensors]
    flat = np.zeros(network.flat_size, np.float32)
    for view, weight in zip(network.views(flat), weights, strict=True):
        view[...] = weight
    context = network.context()
    whole = network.tally(context, flat, IMAGES, answers)
    network.step(context, flat, IMAGES, answers)
    cuts = cut(model, [("units", [3, 3, 7]), ("units", [2, 4, 5])])
    replica = Replica(cut_network(model, cuts, backend), 4, 2, weights)
    (gradients, loss, _), (_, evaluated, _) = replica.run([Batch(IMAGES, answers)] * 2, evaluations=frozenset({1}))
    assert loss == pytest.approx(whole.loss_sum, rel=1e-5) and evaluated == pytest.approx(whole.loss_sum, rel=1e-5)
    for found, right in zip(replica.whole_gradients(gradients), context.gradient_views, strict=True):
        np.testing.assert_allclose(found, right, atol=2e-5 * float(np.abs(right).max()))
    for member in replica.members:
        assert member.evaluating(0, 4).found.sums == pytest.approx(whole.sums)
        assert member.training(1, 4).found.sums == ()
        assert member.training(1, 4).is_native is (name.startswith("Native") and backend == "numba")


@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        ("Absolute", LABELS, r"targets: expected float32 \[4, 5\]; found int32 \[4\]"),
        ("Absolute", TARGETS * np.float32(np.nan), "targets: expected finite numbers"),
        ("Margin", TARGETS, r"labels: expected int32 \[4\]; found float32 \[4, 5\]"),
        ("Margin", LABELS + np.int32(1), r"labels: expected values in \[0, 5\); found 1 to 5"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, answers: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_loss(f"tests.losses_for_tests:{name}").evaluate(TARGETS.copy(), answers)


def test_a_loss_that_does_what_it_must_not_is_named_with_its_method() -> None:
    with pytest.raises(
        CustomError, match=r"OneNumber\.evaluate: expected the loss of each example, \[4\]; found float32"
    ):
        make_loss("tests.losses_for_tests:OneNumber").evaluate(TARGETS.copy(), TARGETS)
    with pytest.raises(CustomError, match=r"Returned\.error: expected results in out and nothing returned; found nda"):
        make_loss("tests.losses_for_tests:Returned").backward(TARGETS.copy(), TARGETS, TARGETS.copy())
    with pytest.raises(
        CustomError, match=r"FinishesInPlace\.finish: expected what users see of each of 4 examples; fo"
    ):
        make_loss("tests.losses_for_tests:FinishesInPlace").finish(TARGETS.copy())
    with pytest.raises(CustomError, match=r"OneSum\.measure: expected a list of numbers; found 20\.0"):
        make_loss("tests.losses_for_tests:OneSum").sums(TARGETS, TARGETS)
    with pytest.raises(CustomError, match=r"RealTargets\.target_numbers: expected a whole number of at least 1; found"):
        make_loss("tests.losses_for_tests:RealTargets").evaluate(TARGETS.copy(), TARGETS)
    loss = make_loss("tests.losses_for_tests:Fails")
    assert loss.sums(TARGETS, TARGETS) == (1.0,)
    with pytest.raises(CustomError, match=r"Fails\.measure: expected as many as before, 1; found 2"):
        loss.sums(TARGETS, TARGETS)


@needs_compiler
@pytest.mark.parametrize(("name", "last", "answers"), NATIVE)
def test_with_native_calls_it_joins_the_native_step_and_computes_the_same(name: str, last: Layer, answers: Any) -> None:
    native, plain = Network(model_of(name, last), 4, "numba"), Network(model_of(name[6:], last), 4, "numba")
    flat = np.random.default_rng(5).standard_normal(native.flat_size).astype(np.float32)
    assert native.is_native(flat) and not plain.is_native(flat)
    contexts = native.context(), plain.context()
    for given in (answers, answers.astype(np.int64) if answers is LABELS else answers[::-1].copy()):
        one, other = native.step(contexts[0], flat, IMAGES, given), plain.step(contexts[1], flat, IMAGES, given)
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        np.testing.assert_allclose(contexts[0].gradient, contexts[1].gradient, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("examples", [4, 3])
def test_labels_come_as_int32_in_training_and_evaluations(backend: Backend, examples: int) -> None:
    """A compiled step of a whole batch has them as int64."""
    network = Network(model_of("LabelTypes", Dense(5)), 4, backend)
    flat = np.zeros(network.flat_size, np.float32)
    for labels in (LABELS[:examples], LABELS[:examples].astype(np.int64)):
        network.step(network.context(), flat, IMAGES[:examples], labels)
        network.tally(network.context(), flat, IMAGES[:examples], labels)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        ("NativeMargin", LABELS + np.int32(1), r"labels: expected values in \[0, 5\); found 1 to 5"),
        ("NativeMargin", LABELS - np.int32(2**30), r"labels: expected values in \[0, 5\)"),
        ("NativeAbsolute", TARGETS * np.float32(np.inf), "targets: expected finite numbers"),
    ],
)
def test_native_calls_never_see_labels_out_of_range(name: str, answers: Any, said: str) -> None:
    network = Network(model_of(name, Dense(5)), 4, "numba")
    flat = np.zeros(network.flat_size, np.float32)
    assert network.is_native(flat)
    with pytest.raises(ValueError, match=said):
        network.step(network.context(), flat, IMAGES, answers)


@needs_compiler
def test_batches_of_other_sizes_use_the_same_kernels() -> None:
    network = Network(model_of("OnlyNative", Dense(5)), 4, "numba")
    made = network.step(network.context(), np.ones(network.flat_size, np.float32), IMAGES[:3], TARGETS[:3])
    assert np.isfinite(made.loss)


@needs_compiler
def test_what_are_no_calls_is_refused() -> None:
    with pytest.raises(CustomError, match=r"NoCalls\.native_error: expected a list of adam.call\(...\), or None"):
        network = Network(model_of("NoCalls", Dense(5)), 4, "numba")
        network.is_native(np.zeros(network.flat_size, np.float32))


def test_an_empty_batch_costs_nothing() -> None:
    empty = np.zeros((0, 5), np.float32)
    loss = make_loss("tests.losses_for_tests:Absolute")
    assert loss.backward(empty, empty, empty.copy()) == (0, 0) and loss.sums(empty, empty) == ()
