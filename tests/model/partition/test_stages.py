"""Which layers are cut together, along which axes, and what their windows read."""

from __future__ import annotations

from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Local2D,
    LocalContrastNorm,
    MaxPool2D,
    Model,
    Softmax,
)
from adamctl.model.layout import tensors_of
from adamctl.model.partition.stages import Window, stages_of

MODEL = Model(
    (40, 40, 4),
    (
        Conv2D(8, 3),
        MaxPool2D(2),
        MaxPool2D(3, 1),
        Conv2D(8, 3, padding="same", groups=2),
        L2Pool2D(2),
        Local2D(6, 3, 2),
        LocalContrastNorm(3),
        Dropout(0.5),
        Dense(10),
        Dropout(0.5),
        Softmax(10),
    ),
)


def test_a_convolution_and_its_pooling_are_one_stage() -> None:
    stages = stages_of(MODEL)
    assert [stage.name for stage in stages] == [
        "conv2d1", "maxpool2d2", "conv2d2", "l2pool2d1", "local2d1", "local_contrast_norm1", "dropout1", "dense1",
        "dropout2", "softmax1",
    ]  # fmt: skip
    assert [shape.index for stage in stages for shape in stage.layers] == list(range(11))
    assert [shape.index for shape in stages[0].layers] == [0, 1]
    assert stages[0].output == (19, 19, 8) and stages[0].pooling == Window(2, 2)
    assert stages[1].pooling is None


def test_stages_know_their_tensors() -> None:
    tensors = tensors_of(MODEL)
    for stage in stages_of(MODEL):
        assert {tensors[index].layer for index in stage.tensors} <= {stage.layers[0].index}
    assert [index for stage in stages_of(MODEL) for index in stage.tensors] == list(range(len(tensors)))


def test_axes_of_each_kind() -> None:
    assert [stage.axes for stage in stages_of(MODEL)] == [
        ("rows", "maps"), ("rows", "maps"), ("rows", "maps", "groups"), ("rows", "maps"), ("rows",), ("rows", "maps"),
        ("rows", "maps"), ("units",), ("units",), ("units",),
    ]  # fmt: skip
    assert [stage.name for stage in stages_of(MODEL) if stage.follows] == [
        "maxpool2d2", "l2pool2d1", "dropout1", "dropout2",
    ]  # fmt: skip


def test_windows_read_rows_inside_the_image() -> None:
    window = Window(5, 2, 2)
    assert window.reads(0, 1, 9) == (0, 3)
    assert window.reads(1, 3, 9) == (0, 7)
    assert window.reads(4, 5, 9) == (6, 9)
