"""A network reads the same from a file and from Python, and refuses keys it does not know."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

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
    Softmax,
    pair,
)

LAYERS = (
    Conv2D(10, 5),
    Conv2D(20, (3, 5), stride=(2, 1), padding="same", activation="tanh", init="glorot"),
    MaxPool2D(2),
    MaxPool2D((3, 2), stride=1),
    Dropout(0.5),
    Dense(400, "relu", "he"),
    Dense(400, "relu", 0.5),
    Dense(400, "relu", "pytorch"),
    Softmax(10),
    Local2D(8, (10, 9), 2, "same", "relu", "he"),
    L2Pool2D(3, (2, 1)),
    LocalContrastNorm(9, "uniform", 0.5),
    Logistic(21_000, "glorot"),
)


def test_every_layer_comes_back_from_plain_values_and_from_bytes() -> None:
    model = Model((28, 28, 1), LAYERS, "squared_error")
    assert msgspec.convert(msgspec.to_builtins(model), Model) == model
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(model), type=Model) == model


@pytest.mark.parametrize(
    ("table", "layer"),
    [
        ({"type": "conv2d", "filters": 10, "kernel": 5}, Conv2D(10, 5)),
        ({"type": "conv2d", "filters": 1, "kernel": [3, 5], "stride": [2, 1]}, Conv2D(1, (3, 5), (2, 1))),
        ({"type": "maxpool2d", "size": 2}, MaxPool2D(2)),
        ({"type": "dense", "units": 400, "activation": "sigmoid"}, Dense(400, "sigmoid")),
        ({"type": "dense", "units": 400, "init": "lecun"}, Dense(400, init="lecun")),
        ({"type": "dense", "units": 400, "init": 0}, Dense(400, init=0.0)),
        ({"type": "dropout", "rate": 0.25}, Dropout(0.25)),
        ({"type": "softmax", "units": 10}, Softmax(10)),
        ({"type": "local2d", "filters": 8, "kernel": 10, "stride": [2, 1]}, Local2D(8, 10, (2, 1))),
        ({"type": "l2pool2d", "size": 3, "stride": 2}, L2Pool2D(3, 2)),
        ({"type": "local_contrast_norm", "size": 9}, LocalContrastNorm(9, "gaussian", 0.01)),
        ({"type": "logistic", "units": 21000}, Logistic(21_000)),
    ],
)
def test_a_layer_is_told_by_its_type(table: dict[str, object], layer: Layer) -> None:
    assert msgspec.convert(table, Layer) == layer


def test_types_are_unique() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(Layer)]
    assert len(tags) == len(set(tags))
    assert set(tags) > {"conv2d", "maxpool2d", "dense", "dropout", "softmax"}
    assert set(tags) > {"local2d", "l2pool2d", "local_contrast_norm", "logistic"}


@pytest.mark.parametrize(
    "table",
    [
        {"type": "dense", "units": 4, "unit": 4},
        {"type": "dense"},
        {"type": "conv3d", "filters": 1, "kernel": 1},
        {"type": "dense", "units": 4, "activation": "swish"},
        {"type": "conv2d", "filters": 4, "kernel": 3, "padding": "full"},
        {"type": "conv2d", "filters": 4, "kernel": [3, 3, 3]},
        {"units": 4},
        {"type": "local_contrast_norm", "size": 3, "weights": "triangular"},
        {"type": "l2pool2d", "size": 3, "padding": "same"},
    ],
)
def test_what_is_not_a_layer_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, Layer)


def test_a_description_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        LAYERS[0].filters = 11  # type: ignore[misc,union-attr]


def test_one_number_is_both_height_and_width() -> None:
    assert pair(3) == (3, 3) and pair((2, 5)) == (2, 5)


def test_cross_entropy_is_what_a_classifier_is_trained_with() -> None:
    assert Model((4,), (Softmax(2),)).loss == "cross_entropy"
