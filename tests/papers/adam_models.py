"""The models that tests of Project Adam train."""

from __future__ import annotations

import numpy as np

from adamctl.model.description import Conv2D, Dense, Dropout, MaxPool2D, Model, Softmax

MNIST = Model(
    (28, 28, 1),
    (
        Conv2D(10, 5, activation="relu"),
        MaxPool2D(2),
        Conv2D(20, 5, activation="relu"),
        MaxPool2D(2),
        Dense(400, "relu"),
        Dropout(0.5),
        Dense(400, "relu"),
        Softmax(10),
    ),
)
SMALL = Model((6,), (Dense(5, "relu"), Softmax(3)))
BATCH = 4


def small_batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((BATCH, 6), np.float32), generator.integers(0, 3, BATCH).astype(np.int32)
