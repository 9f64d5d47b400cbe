"""Initial values: each row by itself, so that every cut over servers begins with the same model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.model.description import Conv2D, Dense, Local2D, Model, Softmax
from adamctl.model.initial import initial_rows
from adamctl.model.layout import ParameterLayout, Tensor, build_layout

MODEL = Model((9, 9, 2), (Conv2D(6, 3, activation="relu"), Local2D(3, 2), Dense(40), Softmax(5)))


def whole(layout: ParameterLayout, seed: int) -> list[np.ndarray]:
    """Draws a model shard by shard, as servers do."""
    parts: list[list[np.ndarray]] = [[] for _ in layout.tensors]
    for shard in layout.shards:
        tensor = layout.tensors[shard.tensor]
        parts[shard.tensor].append(initial_rows(tensor, shard.tensor, shard.row_start, shard.row_stop, seed))
    return [np.concatenate(rows) for rows in parts]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(0, 2**63 - 1))
def test_the_same_model_however_it_is_cut_over_servers(servers: int, seed: int) -> None:
    for one, many in zip(whole(build_layout(MODEL, 1), seed), whole(build_layout(MODEL, servers), seed), strict=True):
        np.testing.assert_array_equal(one, many)


@given(st.integers(0, 20), st.integers(0, 20))
def test_rows_do_not_depend_on_the_rows_drawn_with_them(one: int, other: int) -> None:
    start, stop = sorted((one, other))
    tensor = Tensor("t", 0, (20, 3), 0, "normal", 1.0)
    rows = initial_rows(tensor, 4, start, stop, 7)
    assert rows.shape == (stop - start, 3) and rows.dtype == np.float32
    np.testing.assert_array_equal(rows, initial_rows(tensor, 4, 0, 20, 7)[start:stop])


def test_he_weights_have_its_deviation() -> None:
    """N(0, 2 / fan_in): over 200,000 draws the deviation is met within a hundredth."""
    tensor = build_layout(Model((500,), (Dense(400, "relu"), Softmax(2))), 1).tensors[0]
    values = initial_rows(tensor, 0, 0, 400, 1)
    assert abs(values.mean()) < 0.01 * tensor.scale
    assert values.std() == pytest.approx(np.sqrt(2 / 500), rel=0.01)
    assert 4 * tensor.scale < np.abs(values).max() < 7 * tensor.scale


def test_glorot_weights_fill_its_interval_evenly() -> None:
    """U(-s, s), s^2 = 6 / (fan_in + fan_out): no value outside, a tenth of them in each tenth."""
    tensor = build_layout(Model((500,), (Dense(400, "tanh"), Softmax(2))), 1).tensors[0]
    values = initial_rows(tensor, 0, 0, 400, 1)
    limit = np.sqrt(6 / 900)
    assert np.abs(values).max() <= limit
    assert values.std() == pytest.approx(limit / np.sqrt(3), rel=0.01)
    counts, _ = np.histogram(values, 10, (-limit, limit))
    np.testing.assert_allclose(counts / values.size, 0.1, atol=0.005)


def test_constant_values_are_all_the_same() -> None:
    layout = build_layout(Model((5,), (Dense(4, "relu", -0.5), Softmax(2, "zeros"))), 1)
    weight, bias, last, _ = whole(layout, 3)
    assert (weight == -0.5).all() and not bias.any() and not last.any()


def test_biases_are_zero() -> None:
    for tensor, values in zip(build_layout(MODEL, 1).tensors, whole(build_layout(MODEL, 1), 3), strict=True):
        assert values.any() == (not tensor.name.endswith("bias"))


def test_seeds_tensors_and_rows_are_told_apart() -> None:
    tensor = Tensor("t", 0, (3, 8), 0, "normal", 1.0)
    drawn = [
        tuple(row.tolist())
        for seed in (0, 1, 2, 2**62 + 1, 2**62, 2**63 - 1)
        for index in (0, 1)
        for row in initial_rows(tensor, index, 0, 3, seed)
    ]
    assert len(set(drawn)) == len(drawn)
