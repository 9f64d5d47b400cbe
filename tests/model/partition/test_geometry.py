"""Regions are those of the kernels' slices, for every kind of layer, axis and uneven cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.kernels.backend import installed
from adamctl.kernels.layers.convpool import ConvPool
from adamctl.kernels.operation import Operation
from adamctl.kernels.slicing import OutputSlice, region_shape
from adamctl.kernels.slicing import Region as Slices
from adamctl.kernels.step.build import build_operation
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
from adamctl.model.layout import tensors_of
from adamctl.model.partition.cuts import Cut, complete
from adamctl.model.partition.geometry import Region, StagePart, common, everything, parts_of, region_size
from adamctl.model.partition.stages import Stage, stages_of
from tests.custom_layers import Mix, Relu, RowsOfAll, RowSums, Slope
from tests.model.partition.any_model import cuts_of, models

CASES: dict[str, tuple[tuple[int, ...], tuple]] = {
    "valid": ((11, 9, 3), (Conv2D(6, 3),)),
    "same": ((11, 9, 3), (Conv2D(6, 5, padding="same"),)),
    "even kernel, same": ((10, 9, 2), (Conv2D(4, 4, padding="same"),)),
    "stride, same": ((11, 9, 2), (Conv2D(4, (5, 3), (2, 1), "same"),)),
    "stride beyond the kernel": ((17, 9, 2), (Conv2D(4, 2, 3),)),
    "groups": ((9, 9, 4), (Conv2D(8, 3, groups=4),)),
    "pooled": ((20, 12, 3), (Conv2D(6, 5), MaxPool2D(2))),
    "overlapping pooling": ((23, 12, 3), (Conv2D(6, 4, 2, "same"), MaxPool2D(3, 2))),
    "pooling apart": ((21, 12, 3), (Conv2D(6, 3), MaxPool2D(2, 3))),
    "pooled groups": ((15, 9, 4), (Conv2D(8, 3, groups=2), MaxPool2D(3, 2))),
    "pooling alone": ((13, 9, 5), (MaxPool2D(3, 2),)),
    "L2 pooling": ((13, 9, 5), (L2Pool2D(3, 1),)),
    "local": ((11, 7, 2), (Local2D(3, 4, padding="same"),)),
    "local, stride": ((12, 7, 2), (Local2D(3, 3, 2),)),
    "contrast": ((12, 7, 4), (LocalContrastNorm((5, 3)),)),
    "dropout of images": ((12, 7, 4), (Dropout(0.5),)),
    "dropout of vectors": ((12,), (Dropout(0.5),)),
    "dense": ((4, 3, 2), (Dense(10),)),
    "own, pointwise": ((12, 7, 4), (described(Relu()),)),
    "own, pointwise with parameters": ((12, 7, 4), (described(Slope()),)),
    "own, pointwise on vectors": ((12,), (described(Slope()),)),
    "own, same": ((11, 7, 2), (described(RowSums(4, 2)),)),
    "own, valid": ((12, 7, 2), (described(RowSums(3, 2, "valid")),)),
    "own, full to an image": ((6, 5, 2), (described(RowsOfAll(7)),)),
    "own, full": ((4, 3, 2), (described(Mix(10)),)),
}


def first_stage(shape: tuple[int, ...], layers: tuple) -> tuple[Model, Stage]:
    model = Model(shape, (*layers, Softmax(9)))
    return model, stages_of(model)[0]


def operations(model: Model, stage: Stage) -> list[Operation]:
    return [build_operation(model, shape, "numpy") for shape in stage.layers]


def plain(region: Slices, shape: tuple[int, ...]) -> Region:
    return tuple(part.indices(extent)[:2] for part, extent in zip(region, shape, strict=True))


def as_the_kernels_say(layers: list[Operation], axis: str, start: int, stop: int) -> StagePart:
    """Returns the part that the operations' own slices make; owned ranges are not theirs to say.

    A part that makes all outputs of an operation is that operation, and reads rows, too, that no window reaches.
    """
    outputs = convolved = None
    inputs: Region = ()
    parameters: tuple[Region, ...] = ()
    part = OutputSlice(axis, start, stop)  # type: ignore[arg-type]
    for number, operation in reversed(list(enumerate(layers))):
        sliced = operation.slice(part)
        if part.stop - part.start == operation.output_shape[-1 if axis == "maps" else 0]:
            sliced = replace(sliced, operation=operation, inputs=(slice(None),) * len(operation.input_shape))
        inputs = plain(sliced.inputs, operation.input_shape)
        made = plain(sliced.outputs, operation.output_shape)
        held = [plain(region, shape) for region, shape in zip(sliced.parameters, operation.parameters, strict=True)]
        assert sliced.operation.input_shape == region_shape(operation.input_shape, sliced.inputs)
        assert sliced.operation.output_shape == region_shape(operation.output_shape, sliced.outputs)
        parameters = tuple(held)
        if number == len(layers) - 1:
            outputs = made
        else:
            convolved = made
        if number:
            along = inputs[-1] if axis == "maps" else inputs[0]
            part = OutputSlice(axis, *along)  # type: ignore[arg-type]
    return StagePart(outputs, inputs, convolved, parameters)


def tensor_shapes(model: Model, stage: Stage) -> tuple[tuple[int, ...], ...]:
    tensors = tensors_of(model)
    return tuple(tensors[index].shape for index in stage.tensors)


def check_stage(model: Model, stage: Stage, cut: Cut, partitions: int) -> None:
    parts = parts_of(stage, cut, partitions, tensor_shapes(model, stage))
    layers = operations(model, stage)
    extent = stage.extent(cut.axis)
    for number, part in enumerate(parts):
        start, stop = cut.range_of(number, extent)
        if start == stop:
            assert part == StagePart(parameters=(None,) * len(stage.tensors), owned=(None,) * len(stage.tensors))
            continue
        wanted = as_the_kernels_say(layers, cut.axis, start, stop)
        found = (part.outputs, part.inputs, part.convolved, part.parameters)
        assert found == (wanted.outputs, wanted.inputs, wanted.convolved, wanted.parameters), (cut, number)
    check_cover(stage.output, [part.outputs for part in parts])
    for place, shape in enumerate(tensor_shapes(model, stage)):
        owned = [part.owned[place] for part in parts]
        check_cover(shape[:1], [None if rows is None else (rows,) for rows in owned])
        for part, rows in zip(parts, owned, strict=True):
            held = part.parameters[place]
            if rows is not None:
                assert held is not None and held[0][0] <= rows[0] < rows[1] <= held[0][1]


def check_cover(shape: tuple[int, ...], regions: list[Region | None]) -> None:
    """Each element lies in exactly one region."""
    counted = np.zeros(shape, int)
    for region in regions:
        if region is not None:
            counted[tuple(slice(*along) for along in region)] += 1
    assert (counted == 1).all()


def uneven_cuts(extent: int, seed: int) -> Iterator[tuple[int, ...]]:
    generator = np.random.default_rng(seed)
    for partitions in range(2, 10):
        yield tuple(sorted(generator.integers(0, extent + 1, partitions - 1).tolist()))


@pytest.mark.parametrize("case", CASES)
def test_a_part_is_the_slice_of_the_kernels(case: str) -> None:
    model, stage = first_stage(*CASES[case])
    for axis in stage.axes:
        size = stage.extent("maps") // stage.groups
        extent = stage.groups if axis == "groups" else stage.extent(axis)
        for at in uneven_cuts(extent, seed=7):
            if axis == "maps" and stage.groups > 1:
                at = tuple(bound // size * size for bound in at)
            cut = complete(stage, Cut(axis, at), len(at) + 1)
            check_stage(model, stage, cut, len(at) + 1)


def test_a_part_of_a_group_reads_the_channels_of_that_group() -> None:
    model, stage = first_stage(*CASES["groups"])
    check_stage(model, stage, Cut("maps", (1, 2, 4, 6)), 5)
    part = parts_of(stage, Cut("maps", (1, 2, 4, 6)), 5, tensor_shapes(model, stage))[2]
    assert part.outputs == ((0, 7), (0, 7), (2, 4)) and part.inputs == ((0, 9), (0, 9), (1, 2))


@pytest.mark.skipif("numba" not in installed(), reason="a fused convolution and pooling is compiled")
@pytest.mark.parametrize("case", ["pooled", "overlapping pooling", "pooling apart"])
def test_a_fused_convolution_and_pooling_is_cut_alike(case: str) -> None:
    model, stage = first_stage(*CASES[case])
    layers = [build_operation(model, shape, "numba") for shape in stage.layers]
    fused = ConvPool(*layers)  # type: ignore[arg-type]
    for axis in ("rows", "maps"):
        extent = stage.extent(axis)
        for start, stop in pairwise((0, 1, extent // 2, extent)):
            sliced = fused.slice(OutputSlice(axis, start, stop))  # type: ignore[arg-type]
            part = as_the_kernels_say(operations(model, stage), axis, start, stop)
            assert plain(sliced.inputs, fused.input_shape) == part.inputs
            assert plain(sliced.outputs, fused.output_shape) == part.outputs
            held = [plain(region, shape) for region, shape in zip(sliced.parameters, fused.parameters, strict=True)]
            assert tuple(held) == part.parameters


def test_a_stage_that_is_not_cut_is_in_one_partition() -> None:
    model, stage = first_stage(*CASES["pooled"])
    one, two, three = parts_of(stage, Cut(whole=1), 3, tensor_shapes(model, stage))
    assert one == three and one.outputs is None and one.owned == (None, None)
    assert two.outputs == everything(stage.output) and two.inputs == everything((20, 12, 3))
    assert two.convolved == everything((16, 8, 6)) and two.owned == ((0, 6), (0, 6))


def test_what_rows_share_has_owners_in_even_ranges_among_those_that_have_rows() -> None:
    model, stage = first_stage(*CASES["pooled"])
    parts = parts_of(stage, Cut("rows", (3, 3, 5)), 4, tensor_shapes(model, stage))
    assert [part.owned for part in parts] == [((0, 2), (0, 2)), (None, None), ((2, 4), (2, 4)), ((4, 6), (4, 6))]
    assert all(part.parameters == ((everything((6, 5, 5, 3))), ((0, 6),)) for part in parts if part.outputs)


def test_regions_meet() -> None:
    assert common(((0, 4), (2, 6)), ((3, 9), (0, 3))) == ((3, 4), (2, 3))
    assert common(((0, 4), (2, 6)), ((4, 9), (0, 3))) is None
    assert common(None, ((0, 1),)) is None
    assert region_size(((3, 5), (2, 6))) == 8 and region_size(None) == 0


@settings(deadline=None, max_examples=150, print_blob=True)
@given(st.data())
def test_any_stage_of_any_model_is_cut_as_the_kernels_say(data: st.DataObject) -> None:
    model = data.draw(models(), label="model")
    partitions = data.draw(st.integers(1, 9), label="partitions")
    for stage in stages_of(model):
        cut = complete(stage, data.draw(cuts_of(stage, partitions), label=stage.name), partitions)
        if cut.axis != "whole":
            check_stage(model, stage, cut, partitions)


def test_every_kind_of_layer_is_among_the_cases() -> None:
    kinds = {type(layer) for _, layers in CASES.values() for layer in layers} | {Softmax, Logistic}
    assert kinds == set(get_args(Layer))
