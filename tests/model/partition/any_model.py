"""Random networks of all kinds of layers, and random cuts of their stages."""

from __future__ import annotations

from hypothesis import strategies as st

from adamctl.errors import ConfigurationError
from adamctl.model.custom.registry import described
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
)
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.stages import Stage
from adamctl.model.shapes import infer
from tests.custom_layers import Mix, Relu, RowSums, Slope

OWN = [described(layer) for layer in (Relu(), Slope(), RowSums(3), RowSums(2, 2), RowSums(3, 2, "valid"))]
SMALL = st.integers(1, 4)


@st.composite
def image_layers(draw: st.DrawFn) -> Layer:
    kind = draw(st.sampled_from(["conv", "conv", "pool", "l2", "local", "contrast", "dropout", "own"]))
    padding = draw(st.sampled_from(["valid", "same"]))
    if kind == "conv":
        groups = draw(st.sampled_from([1, 1, 2, 3]))
        return Conv2D(6 * draw(SMALL), (draw(SMALL), draw(SMALL)), draw(st.integers(1, 3)), padding, groups=groups)
    if kind == "local":
        return Local2D(6, draw(SMALL), draw(st.integers(1, 2)), padding)
    if kind == "own":
        return draw(st.sampled_from(OWN))
    if kind in ("pool", "l2"):
        pooling = MaxPool2D if kind == "pool" else L2Pool2D
        return pooling(draw(SMALL), draw(st.none() | SMALL))
    return LocalContrastNorm(draw(st.sampled_from([1, 3, 5]))) if kind == "contrast" else Dropout(0.5)


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Networks of up to five layers on images, then up to two on vectors, then a head; only layers that fit."""
    shape = (draw(st.integers(4, 24)), draw(st.integers(4, 12)), 6)
    layers: tuple[Layer, ...] = ()
    tail = tuple(draw(st.lists(st.sampled_from([Dense(24), Dense(13), Dropout(0.5), described(Mix(11))]), max_size=2)))
    head = draw(st.sampled_from([Softmax(11), Logistic(17)]))
    loss = "cross_entropy" if isinstance(head, Softmax) else "logistic"
    for layer in draw(st.lists(image_layers(), max_size=5)):
        try:
            infer(Model(shape, (*layers, layer, head), loss))
        except ConfigurationError:
            continue
        layers = (*layers, layer)
    return Model(shape, (*layers, *tail, head), loss)


@st.composite
def cuts_of(draw: st.DrawFn, stage: Stage, partitions: int) -> Cut:
    """Cuts that a user may give, some of which leave partitions nothing."""
    axis = draw(st.sampled_from([*stage.axes, "whole"]))
    if axis == "whole":
        return Cut(whole=draw(st.integers(0, partitions - 1)))
    size = stage.extent("maps") // stage.groups if axis == "maps" else 1
    extent = stage.groups if axis in ("maps", "groups") and stage.groups > 1 else stage.extent(axis) // size
    if axis == "maps" and stage.groups == 1:
        size, extent = 1, stage.extent("maps")
    bounds = draw(st.lists(st.integers(0, extent), min_size=partitions - 1, max_size=partitions - 1))
    return Cut(axis, tuple(sorted(bound * size for bound in bounds)))
