"""Networks that together have every kind of layer, in the sizes of the papers' experiments."""

from __future__ import annotations

from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Local2D,
    LocalContrastNorm,
    Logistic,
    MaxPool2D,
    Model,
    Softmax,
)

ADAM_MNIST = Model(
    (28, 28, 1),
    (
        Conv2D(10, 5, activation="relu"), MaxPool2D(2), Conv2D(20, 5, activation="relu"), MaxPool2D(2),
        Dense(400, "relu"), Dense(400, "relu"), Softmax(10),
    ),
)  # fmt: skip
"""Adam 4.3.3."""

ADAM_IMAGENET = Model(
    (128, 128, 3),
    (
        Conv2D(60, 7, stride=2, padding="same", activation="relu"), MaxPool2D(3, 2),
        Conv2D(120, 5, padding="same", activation="relu"), MaxPool2D(3, 2),
        Conv2D(180, 3, padding="same", activation="relu"), Conv2D(180, 3, padding="same", activation="relu"),
        Conv2D(150, 3, padding="same", activation="relu"), MaxPool2D(3, 2),
        Dense(3000, "relu"), Dropout(0.5), Softmax(1000),
    ),
)  # fmt: skip
"""The shape of Adam 4.4.3."""

DISTBELIEF_SPEECH = Model((440,), (Dense(2560, "sigmoid"), Dense(2560, "sigmoid"), Softmax(8192)))
"""DistBelief 5: its kinds of layers, each once."""

DISTBELIEF_IMAGES = Model(
    (50, 50, 3),
    (Local2D(8, 10), L2Pool2D(5), LocalContrastNorm(5), Logistic(21000)),
    loss="logistic",
)
"""DistBelief 5: one of three stages, on smaller images, with the same number of outputs."""

SAMPLES = (ADAM_MNIST, ADAM_IMAGENET, DISTBELIEF_SPEECH, DISTBELIEF_IMAGES)
