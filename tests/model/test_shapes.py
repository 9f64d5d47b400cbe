"""Every layer's output shape and connections; descriptions that do not fit together are refused by name."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Layer,
    Local2D,
    LocalContrastNorm,
    Logistic,
    MaxPool2D,
    Model,
    Padding,
    Softmax,
)
from adamctl.model.shapes import infer, same_padding, window_output

HEAD = Softmax(3)


def output(layer: Layer, *shape: int) -> tuple[int, ...]:
    return infer(Model(shape, (layer, HEAD)))[0].output


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Conv2D(10, 5), (28, 28, 1), (24, 24, 10)),
        (Conv2D(10, 5, padding="same"), (28, 28, 1), (28, 28, 10)),
        (Conv2D(4, 3, stride=2), (9, 8, 2), (4, 3, 4)),
        (Conv2D(4, 3, stride=2, padding="same"), (9, 8, 2), (5, 4, 4)),
        (Conv2D(4, (1, 7), stride=(3, 1)), (9, 8, 2), (3, 2, 4)),
        (Conv2D(4, 9, padding="same"), (3, 2, 1), (3, 2, 4)),
        (Conv2D(4, (9, 8)), (9, 8, 2), (1, 1, 4)),
        (MaxPool2D(2), (24, 24, 10), (12, 12, 10)),
        (MaxPool2D(2), (5, 7, 3), (2, 3, 3)),
        (MaxPool2D(3, stride=2), (8, 9, 3), (3, 4, 3)),
        (MaxPool2D((2, 3), stride=(1, 3)), (8, 9, 3), (7, 3, 3)),
        (Dropout(0.5), (8, 9, 3), (8, 9, 3)),
        (Dropout(0.0), (7,), (7,)),
        (Dense(400), (4, 4, 20), (400,)),
        (Dense(5, "tanh"), (7,), (5,)),
        (Local2D(8, 10), (100, 100, 3), (91, 91, 8)),
        (Local2D(4, (1, 7), (3, 1), "same"), (9, 8, 2), (3, 8, 4)),
        (L2Pool2D(3, 2), (8, 9, 3), (3, 4, 3)),
        (L2Pool2D((2, 3)), (8, 9, 3), (4, 3, 3)),
        (LocalContrastNorm((3, 9)), (4, 5, 6), (4, 5, 6)),
    ],
    ids=str,
)
def test_output_of_one_layer(layer: Layer, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert output(layer, *shape) == expected


def test_the_network_of_adam_4_3_3() -> None:
    layers = (Conv2D(10, 5), MaxPool2D(2), Conv2D(20, 5), MaxPool2D(2), Dense(400), Dense(400), Softmax(10))
    shapes = infer(Model((28, 28, 1), layers))
    assert [shape.output for shape in shapes][:4] == [(24, 24, 10), (12, 12, 10), (8, 8, 20), (4, 4, 20)]
    assert [shape.connections for shape in shapes] == [144_000, 0, 320_000, 0, 128_000, 160_000, 4_000]
    assert sum(shape.connections for shape in shapes) == 756_000


def test_layers_are_named_by_type_and_ordinal_and_chained() -> None:
    shapes = infer(Model((8, 8, 1), (Conv2D(2, 3), Dropout(0.1), Conv2D(3, 3), Dense(4), Dense(4), HEAD)))
    assert [shape.name for shape in shapes] == ["conv2d1", "dropout1", "conv2d2", "dense1", "dense2", "softmax1"]
    assert [shape.index for shape in shapes] == list(range(6))
    for before, after in pairwise(shapes):
        assert after.input == before.output


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5))
def test_windows_are_counted_as_they_lie(size: int, window: int, stride: int) -> None:
    """Valid: windows that lie inside. Same: one at every stride-th place, over as few zeros as do."""
    inside = [start for start in range(0, size, stride) if start + window <= size]
    if window <= size:
        assert window_output(size, window, stride, "valid") == len(inside)
    else:
        assert window_output(size, window, stride, "valid") < 1
    count = window_output(size, window, stride, "same")
    assert count == len(range(0, size, stride))
    before, after = same_padding(size, window, stride)
    assert 0 <= before <= after <= before + 1
    padded = before + size + after
    assert (count - 1) * stride + window <= padded
    assert padded == size or (count - 1) * stride + window == padded


def refusal(*layers: Layer, shape: tuple[int, ...] = (8, 8, 1), loss: str = "cross_entropy") -> str:
    with pytest.raises(ConfigurationError) as refused:
        infer(Model(shape, layers, loss))  # type: ignore[arg-type]
    assert refused.value.exit_code == 2
    return str(refused.value)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Conv2D(0, 3), "model.layers[1] (conv2d): filters must be at least 1; found 0"),
        (Conv2D(2, 0), "model.layers[1] (conv2d): kernel must be at least 1; found 0"),
        (Conv2D(2, (3, -1)), "model.layers[1] (conv2d): kernel must be at least 1; found (3, -1)"),
        (Conv2D(2, 3, stride=0), "model.layers[1] (conv2d): stride must be at least 1; found 0"),
        (MaxPool2D(0), "model.layers[1] (maxpool2d): size must be at least 1; found 0"),
        (MaxPool2D(2, stride=(1, 0)), "model.layers[1] (maxpool2d): stride must be at least 1; found (1, 0)"),
        (Dense(0), "model.layers[1] (dense): units must be at least 1; found 0"),
        (Dropout(1.0), "model.layers[1] (dropout): rate must be at least 0 and below 1; found 1.0"),
        (Dropout(-0.1), "model.layers[1] (dropout): rate must be at least 0 and below 1; found -0.1"),
        (Dropout(float("nan")), "model.layers[1] (dropout): rate must be at least 0 and below 1; found nan"),
        (Conv2D(2, 9), "model.layers[1] (conv2d): a window of 9x9 does not fit an input of 8x8"),
        (MaxPool2D((1, 9)), "model.layers[1] (maxpool2d): a window of 1x9 does not fit an input of 8x8"),
        (Local2D(0, 3), "model.layers[1] (local2d): filters must be at least 1; found 0"),
        (Local2D(2, 9), "model.layers[1] (local2d): a window of 9x9 does not fit an input of 8x8"),
        (L2Pool2D(2, stride=0), "model.layers[1] (l2pool2d): stride must be at least 1; found 0"),
        (LocalContrastNorm(4), "model.layers[1] (local_contrast_norm): size must be odd"),
        (LocalContrastNorm((3, -1)), "model.layers[1] (local_contrast_norm): size must be odd"),
        (LocalContrastNorm(3, deviation_min=0.0), "(local_contrast_norm): deviation_min must be above 0 and finite"),
        (LocalContrastNorm(3, deviation_min=float("nan")), "deviation_min must be above 0 and finite; found nan"),
    ],
    ids=str,
)
def test_a_layer_that_cannot_be_is_named(layer: Layer, words: str) -> None:
    assert words in refusal(Dropout(0.1), layer, HEAD)


def test_softmax_needs_units_too() -> None:
    assert refusal(Softmax(-3)) == "model.layers[0] (softmax): units must be at least 1; found -3"


@pytest.mark.parametrize(
    "layer", [Conv2D(2, 1), MaxPool2D(1), Local2D(2, 1), L2Pool2D(1), LocalContrastNorm(1)], ids=str
)
def test_an_image_layer_after_a_flat_one_is_named(layer: Layer) -> None:
    tag = layer.__struct_config__.tag
    words = f"model.layers[1] ({tag}): expected an image [height, width, channels]; found shape [4]"
    assert refusal(Dense(4), layer, HEAD) == words


def test_a_window_that_does_not_fit_comes_with_what_to_do() -> None:
    assert 'use a smaller window or padding = "same"' in refusal(Conv2D(2, 9), HEAD)


def test_softmax_is_the_last_layer() -> None:
    words = refusal(HEAD, Dense(4), HEAD)
    assert words == "model.layers[0]: softmax is the last layer; found 2 after it"


@pytest.mark.parametrize("last", [Dense(4), Dropout(0.5), Conv2D(2, 3)], ids=str)
def test_cross_entropy_needs_softmax(last: Layer) -> None:
    words = refusal(last)
    assert words.startswith("model.loss: cross_entropy needs softmax as the last layer")
    assert f"found {last.__struct_config__.tag}" in words and "squared_error" in words


def test_logistic_is_a_last_layer_with_a_loss_of_its_own() -> None:
    assert infer(Model((7,), (Logistic(5),), "logistic"))[0].output == (5,)
    assert refusal(Logistic(5), HEAD) == "model.layers[0]: logistic is the last layer; found 1 after it"
    assert 'End with softmax or set loss = "logistic"' in refusal(Logistic(5))
    assert 'End with logistic or set loss = "cross_entropy"' in refusal(HEAD, loss="logistic")


def test_mean_squared_error_takes_what_a_dense_layer_gives() -> None:
    assert infer(Model((7,), (Dense(2),), "mean_squared_error"))[0].output == (2,)
    words = refusal(HEAD, loss="mean_squared_error")
    assert words.startswith("model.loss: mean_squared_error needs dense as the last layer; found softmax")


@pytest.mark.parametrize("last", [Conv2D(2, 3), MaxPool2D(2), Dropout(0.5), Local2D(2, 3), L2Pool2D(2)], ids=str)
def test_the_last_layer_has_units(last: Layer) -> None:
    words = f"the last layer must be dense, softmax or logistic; found {last.__struct_config__.tag}"
    assert words in refusal(last, loss="squared_error")


@pytest.mark.parametrize("last", [Dense(4), HEAD, Logistic(4)], ids=str)
def test_squared_error_takes_any_outputs(last: Layer) -> None:
    assert infer(Model((7,), (last,), "squared_error"))[0].output == (last.units,)  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(), (4, 4), (4, 4, 1, 1), (0,), (4, 0, 1), (-1,)])
def test_an_input_that_is_no_example_is_refused(shape: tuple[int, ...]) -> None:
    words = refusal(HEAD, shape=shape)
    assert words.startswith("model.input: expected [features] or [height, width, channels]")
    assert words.endswith(f"found {list(shape)}")


def test_a_network_has_layers() -> None:
    assert refusal() == "model.layers: expected at least one layer, found none"


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_connections_are_multiply_accumulates(padding: Padding) -> None:
    shape = infer(Model((9, 8, 2), (Conv2D(4, (3, 2), stride=2, padding=padding), HEAD)))[0]
    height, width, filters = shape.output
    assert shape.connections == height * width * filters * 3 * 2 * 2
    local = infer(Model((9, 8, 2), (Local2D(4, (3, 2), stride=2, padding=padding), HEAD)))[0]
    assert local.connections == shape.connections


def test_groups_divide_the_connections() -> None:
    plain, grouped = (Model((8, 8, 4), (Conv2D(6, 3, groups=n), Dense(1)), "squared_error") for n in (1, 2))
    assert infer(plain)[0].connections == 2 * infer(grouped)[0].connections


@pytest.mark.parametrize("groups", [0, 3, 4])
def test_groups_divide_channels_and_filters(groups: int) -> None:
    with pytest.raises(ConfigurationError, match=f"groups must .*found {groups}"):
        infer(Model((8, 8, 4), (Conv2D(6, 3, groups=groups), Dense(1)), "squared_error"))
