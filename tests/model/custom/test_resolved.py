"""Shapes, parameters and regions of layers of the user's own, and what does not fit."""

from __future__ import annotations

import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError
from adamctl.model.custom.resolved import Placed, resolved
from adamctl.model.layout import tensors_of
from adamctl.model.shapes import infer
from tests.custom_layers import Mix, Relu, RowSums, Slope


def test_parameters_are_ordered_by_name_and_get_their_initial_values() -> None:
    model = adam.Sequential([RowSums(3), Mix(4), adam.Softmax(2)], (5, 4, 2))
    found = {tensor.name: (tensor.shape, tensor.distribution) for tensor in tensors_of(model)}
    assert list(found)[:4] == ["row_sums1.added", "row_sums1.scale", "mix1.mixing", "mix1.scale"]
    assert found["row_sums1.scale"] == ((5,), "constant") and found["row_sums1.added"] == ((2,), "zeros")
    assert found["mix1.mixing"] == ((4, 40), "uniform") and found["mix1.scale"] == ((1,), "constant")


def test_layers_are_named_by_their_classes_in_order() -> None:
    model = adam.Sequential([Relu(), Slope(), Relu(), adam.Softmax(2)], (5, 4, 2))
    assert [shape.name for shape in infer(model)] == ["relu1", "slope1", "relu2", "softmax1"]


@pytest.mark.parametrize(
    ("layer", "axes"),
    [(Relu(), ("rows", "maps")), (Slope(), ("rows",)), (RowSums(3), ("rows",)), (Mix(3), ("units",))],
)
def test_axes_follow_from_what_a_node_reads(layer: adam.Layer, axes: tuple[str, ...]) -> None:
    assert resolved(layer, (7, 6, 2)).axes == axes


def test_a_window_part_reads_its_halo_and_is_told_of_the_zeros() -> None:
    own = resolved(RowSums(3), (7, 6, 2))
    assert own.placed(0, 0, 2) == Placed((0, 3), 1, 4)
    assert own.placed(0, 2, 4) == Placed((1, 5), 0, 4)
    assert own.placed(0, 5, 7) == Placed((4, 7), 0, 4)
    piece = own.piece("rows", 2, 4)
    assert piece.inputs == ((1, 5), (0, 6), (0, 2)) and piece.outputs == ((2, 4), (0, 6), (0, 2))
    assert piece.parameters == (((0, 2),), ((2, 4),)), "the shared one whole, of the other its rows"


class Wrong(Relu):
    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(name="wrong")


class Flat(Wrong):
    def output_shape(self, input):
        return (3, 4)


class Raises(Wrong):
    def output_shape(self, input):
        return (input[7],)


class SameOfOtherShape(Wrong):
    def output_shape(self, input):
        return (3,)


class NoConnectivity(Wrong):
    def connectivity(self):
        return "all"


class TooFewRows(Wrong):
    def parameters(self, input):
        return {"gain": adam.Parameter((3,))}


class NotAParameter(Wrong):
    def parameters(self, input):
        return {"gain": (3,)}


class ADenseName(Wrong):
    def parameters(self, input):
        return {"weight": adam.Parameter((5, 2))}


class NoInit(Wrong):
    def parameters(self, input):
        return {"gain": adam.Parameter((5,), init="random")}


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Flat, "expected .units,. or .height, width, maps."),
        (Raises, "IndexError"),
        (SameOfOtherShape, "outputs of the inputs' shape"),
        (NoConnectivity, "expected adam.Window, adam.Same or adam.Full; found 'all'"),
        (TooFewRows, r"gain: expected 5 on axis 0, the rows of the outputs, or shared=True; found shape \[3\]"),
        (NotAParameter, "gain: expected adam.Parameter"),
        (ADenseName, "weight is what dense layers push"),
        (NoInit, "gain: expected init of he"),
    ],
)
def test_what_does_not_fit_is_named(layer: type[adam.Layer], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolved(layer(), (5, 4, 2))


def test_a_message_says_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match="give the outputs more maps"):
        adam.Message(per_node=3)


def test_a_layer_that_is_not_the_last_may_be_an_image_the_last_is_a_vector() -> None:
    adam.Sequential([adam.Dense(3), Relu()], (4,), loss="squared_error")
    with pytest.raises(ConfigurationError, match="the last layer must be dense, softmax or logistic; found tests"):
        adam.Sequential([Relu()], (4, 4, 1), loss="squared_error")
