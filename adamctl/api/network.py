"""Models in the Python interface."""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.model.description import Layer, Loss, Model
from adamctl.model.shapes import infer


def Sequential(  # noqa: N802
    layers: Sequence[Layer], input_shape: Sequence[int], loss: Loss = "cross_entropy"
) -> Model:
    """Returns a model of these layers in order; `input_shape` is [height, width, channels] or [features].

    Raises:
        ConfigurationError: the layers do not fit together; the message names the layer.
    """
    model = Model(tuple(input_shape), tuple(layers), loss)
    infer(model)
    return model
