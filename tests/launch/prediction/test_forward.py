"""One process predicts: parameters by rows, parts of any length, and no more of them in memory than are computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import DamagedDataError
from adamctl.kernels.layers.make import make_loss
from adamctl.kernels.operation import Array
from adamctl.kernels.step.network import Network
from adamctl.launch.prediction.forward import StoredParameters, WholeNetwork, predictions
from adamctl.model.description import Dense, Logistic, Model, Softmax
from adamctl.model.initial import initial_rows
from adamctl.model.layout import tensors_of
from tests.launch.prediction.checkpoints import write_checkpoint

MODEL = Model((6,), (Dense(9, "relu"), Softmax(4)))
BATCH = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoints" / "000001", MODEL)


def examples(count: int) -> Array:
    return np.random.default_rng(count).standard_normal((count, 6)).astype(np.float32)


def expected(values: Array, model: Model = MODEL) -> Array:
    network = Network(model, max(len(values), 1))
    flat = np.zeros(network.flat_size, np.float32)
    for number, (tensor, view) in enumerate(zip(network.tensors, network.views(flat), strict=True)):
        view[...] = initial_rows(tensor, number, 0, tensor.shape[0], 3).reshape(tensor.shape)
    return network.predict(network.context(training=False), flat, values).copy()


def test_parameters_are_read_by_rows(folder: Path) -> None:
    tensors = tensors_of(MODEL)
    stored, out = StoredParameters(folder, tensors), np.empty((3, 6), np.float32)
    stored.read(0, 4, out)
    np.testing.assert_array_equal(out, initial_rows(tensors[0], 0, 4, 7, 3).reshape(3, 6))


def test_a_checkpoint_of_another_model_is_named(folder: Path) -> None:
    with pytest.raises(DamagedDataError, match=r"dense1.weight: expected \[8, 6\]; found \[9, 6\]"):
        StoredParameters(folder, tensors_of(Model((6,), (Dense(8), Softmax(4)))))
    with pytest.raises(DamagedDataError, match=r"dense2.weight: expected .* found nothing"):
        StoredParameters(folder, tensors_of(Model((6,), (Dense(9), Dense(9), Softmax(4)))))


def test_outputs_are_arrays_of_their_own(folder: Path) -> None:
    forward = WholeNetwork(MODEL, folder, BATCH)
    parts = [examples(BATCH), examples(5), examples(BATCH)]
    for found, part in zip(list(forward.outputs(parts)), parts, strict=True):
        np.testing.assert_allclose(found, expected(part), atol=2e-6)


@pytest.mark.parametrize("lengths", [[20], [0], [], [3, 0, 0, 9, 8, 0], [16, 1]])
def test_parts_may_have_any_length(folder: Path, lengths: list[int]) -> None:
    forward, parts = WholeNetwork(MODEL, folder, BATCH), [examples(length) for length in lengths]
    found = list(predictions(forward, make_loss(MODEL.loss), 4, parts))
    assert [one.shape for one in found] == [(length, 4) for length in lengths]
    for outputs, part in zip(found, parts, strict=True):
        np.testing.assert_allclose(outputs, expected(part) if len(part) else outputs, atol=2e-6)


def test_examples_are_prepared_as_they_are_computed(folder: Path) -> None:
    taken, prepared = list[int](), list[int]()

    def parts() -> Iterator[Array]:
        for number in range(5):
            taken.append(number)
            yield examples(20)

    def prepare(raw: Array) -> Array:
        prepared.append(len(raw))
        return raw

    found = predictions(WholeNetwork(MODEL, folder, BATCH), make_loss(MODEL.loss), 4, parts(), prepare)
    assert not taken
    next(found)
    assert taken == [0] and prepared == [BATCH, BATCH, 4]


def test_logits_become_what_a_user_sees(tmp_path: Path) -> None:
    model = Model((6,), (Dense(9, "relu"), Logistic(4)), "logistic")
    forward = WholeNetwork(model, write_checkpoint(tmp_path / "000001", model), BATCH)
    (found,) = predictions(forward, make_loss(model.loss), 4, [examples(3)])
    np.testing.assert_allclose(found, expected(examples(3), model), atol=2e-6)
    assert (found > 0).all() and (found < 1).all()
