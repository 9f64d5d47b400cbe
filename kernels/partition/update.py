"""What a partition does with a flight's gradient: clips it, accrues it and applies it to its own weights.

Clipping is exact: the norm of a layer is that of its gradient on all partitions. Each finds the squares of the rows
that it alone holds or owns, so that those of shared tensors count once; all add them up in the order of partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.native import Call, NativeCall, Word
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.flight import FlightArrays
from adamctl.kernels.partition.program import CLIPPED, RATE, Batch, Row, Step
from adamctl.kernels.partition.stages import MemberTensors


class Accruing:
    """Where the flights of one context accrue.

    Attributes:
        slots: flat vectors, of which `begin` names one for each flight.
        filled: [slots], whether a slot holds anything; written by the flight that accrues.
        weights: weights to which the gradient is also applied, if any.
    """

    def __init__(
        self, slots: Sequence[Array], weights: Array | None = None, filled: NDArray[np.int64] | None = None
    ) -> None:
        self.slots, self.weights = tuple(slots), weights
        self.filled = np.zeros(len(self.slots), np.int64) if filled is None else filled


def accruing_step(arrays: FlightArrays, accruing: Accruing) -> Step:
    """Returns the last step of a flight: range by range, since a partition holds some of the vector."""
    accrual, weights = Accrual(arrays.network.backend), accruing.weights
    ranges = MemberTensors(arrays.network, arrays.neighbours.own).ranges
    compiled = compiled_if(arrays.network.backend, "ranges")
    calls: list[Call] | None = None
    if compiled is not None:
        bounds = np.array([(part.start, part.stop) for part in ranges], np.int64).reshape(-1, 2)
        slot, filled, gradient = accruing.slots[0], accruing.filled[:1], arrays.gradient
        if weights is None:
            calls = [NativeCall(compiled.fill_or_add_ranges, (slot, gradient, filled, bounds))]
        else:
            arguments = (slot, weights, gradient, Word(RATE), filled, bounds)
            calls = [NativeCall(compiled.fill_or_add_and_apply_ranges, arguments)]

    def work(batch: Batch, row: Row) -> None:
        slot, first = accruing.slots[row.slot], not accruing.filled[row.slot]
        for part in ranges:
            if weights is None:
                accrual.accrue(slot[part], arrays.gradient[part], first)
            else:
                accrual.accrue_and_apply(slot[part], weights[part], arrays.gradient[part], row.rate, first)
        accruing.filled[row.slot] = 1

    return Step((), calls, work)


class Clipping:
    """Scales the gradients of layers that are longer than `norm_max`, as the whole network would be (decision 0004)."""

    def __init__(self, arrays: FlightArrays, norm_max: float) -> None:
        self._arrays, self._norm_max = arrays, norm_max
        self._own, self._all = _parts(arrays)
        self._total = np.zeros(len(arrays.network.stages))
        self._compiled = compiled_if(arrays.network.backend, "norms")

    def steps(self) -> list[Step]:
        """Returns the steps between the sums of gradients and their use."""
        arrays = self._arrays
        own, partitions = arrays.neighbours.own, range(arrays.network.partitions)
        of_all: list[NDArray[np.float64]] = [np.zeros(len(arrays.network.stages))]
        if len(partitions) > 1:
            of_all = [arrays.shown(one, "norms", 0) for one in partitions]  # type: ignore[misc]
        words = tuple(arrays.word(one, "norms", 0) for one in partitions if one != own)
        found = Step(
            (), self._native_squares(of_all[own]), lambda batch, row: self._squares(of_all[own]),
            arrays.post("norms", 0, set(partitions)),
        )  # fmt: skip
        scaled = Step(words, self._native_scale(of_all), lambda batch, row: self._scale(of_all, row))
        return [found, scaled]

    def _squares(self, squares: NDArray[np.float64]) -> None:
        squares[...] = 0
        for start, stop, layer in self._own.tolist():
            squares[layer] += float(np.square(self._arrays.gradient[start:stop], dtype=np.float64).sum())

    def _scale(self, of_all: Sequence[NDArray[np.float64]], row: Row) -> None:
        self._total[...] = 0
        for squares in of_all:
            self._total += squares
        row.clipped = 0
        for layer, norm in enumerate(map(sqrt, self._total)):
            if self._norm_max < norm < float("inf"):
                row.clipped += 1
                for start, stop, _ in self._all[self._all[:, 2] == layer].tolist():
                    self._arrays.gradient[start:stop] *= np.float32(self._norm_max / norm)

    def _native_squares(self, squares: NDArray[np.float64]) -> list[Call] | None:
        if self._compiled is None:
            return None
        return [NativeCall(self._compiled.squares_of_layers, (self._arrays.gradient, self._own, squares))]

    def _native_scale(self, of_all: Sequence[NDArray[np.float64]]) -> list[Call] | None:
        compiled = self._compiled
        if compiled is None:
            return None
        adds: list[Call] = [
            NativeCall(compiled.add_squares, (self._total, squares, int(not number)))
            for number, squares in enumerate(of_all)
        ]
        arguments = (self._arrays.gradient, self._all, self._total, float(self._norm_max))
        return [*adds, NativeCall(compiled.scale_layers, arguments, Word(CLIPPED))]


def _parts(arrays: FlightArrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (start, stop, stage) in the gradient of all rows that this partition alone holds or owns, and of all."""
    network, number = arrays.network, arrays.neighbours.own
    tensors = MemberTensors(network, number)
    stage_of = {
        index: place for place, stage in enumerate(network.stages) for layer in stage.layers for index in layer.tensors
    }
    own: list[tuple[int, int, int]] = []
    every: list[tuple[int, int, int]] = []
    for (tensor, (first, _)), offset, shape in zip(tensors.held, tensors.offsets, tensors.shapes, strict=True):
        stage, size = stage_of[tensor], prod(shape[1:])
        every.append((offset, offset + prod(shape), stage))
        owners = network.stages[stage].shared.get(tensor)
        rows = (
            [(first, first + shape[0])] if owners is None else [one.rows for one in owners if one.partition == number]
        )
        own += [(offset + (start - first) * size, offset + (stop - first) * size, stage) for start, stop in rows]
    return np.array(own, np.int64).reshape(-1, 3), np.array(every, np.int64).reshape(-1, 3)
