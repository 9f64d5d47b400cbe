"""Models in the Python interface."""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.model.custom.interface import Layer as CustomLayer
from adamctl.model.custom.loss import Loss, name_of
from adamctl.model.custom.registry import described
from adamctl.model.description import Layer, Model
from adamctl.model.shapes import infer


def Sequential(  # noqa: N802
    layers: Sequence[Layer | CustomLayer],
    input_shape: Sequence[int],
    loss: str | type[Loss] | Loss = "cross_entropy",
) -> Model:
    """Returns a model of these layers in order; `input_shape` is [height, width, channels] or [features].

    A layer of your own is given as its object, `Whiten(size=5)`. `loss` is a name, or a class of one's own derived from
    `Loss`, which is imported by its name wherever it is needed.

    Raises:
        ConfigurationError: the layers do not fit together; the message names the layer.
    """
    described_layers = (described(layer) if isinstance(layer, CustomLayer) else layer for layer in layers)
    model = Model(tuple(input_shape), tuple(described_layers), name_of(loss))
    infer(model)
    return model
