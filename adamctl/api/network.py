"""Models in the Python interface."""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.model.custom.interface import Layer as CustomLayer
from adamctl.model.custom.registry import described
from adamctl.model.description import Layer, Loss, Model
from adamctl.model.shapes import infer


def Sequential(  # noqa: N802
    layers: Sequence[Layer | CustomLayer], input_shape: Sequence[int], loss: Loss = "cross_entropy"
) -> Model:
    """Returns a model of these layers in order; `input_shape` is [height, width, channels] or [features].

    A layer of your own is given as its object, `Whiten(size=5)`.

    Raises:
        ConfigurationError: the layers do not fit together; the message names the layer.
    """
    described_layers = (described(layer) if isinstance(layer, CustomLayer) else layer for layer in layers)
    model = Model(tuple(input_shape), tuple(described_layers), loss)
    infer(model)
    return model
