"""What a partition does with a flight's gradient: clips it, accrues it, applies it to its own weights, keeps factors.

Clipping is exact: the norm of a layer is that of its gradient on all partitions. Each finds the squares of the rows
that it alone holds or owns, so that those of shared tensors count once; all add them up in the order of partitions.
Where the gradient is not computed, |E^T A|^2 = sum over (i, j) of (E E^T)_ij (A A^T)_ij, as in a whole replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.native import Call, NativeCall, Word, joined, product
from adamctl.kernels.numeric.accrue import Accrual
from adamctl.kernels.operation import Array, Factors
from adamctl.kernels.partition.accruing import CLIPPED, RATE, Accruing, KeptFactors
from adamctl.kernels.partition.flight import FlightArrays
from adamctl.kernels.partition.program import Batch, Row, Step
from adamctl.kernels.partition.regions import BlockMove, Held
from adamctl.kernels.partition.stages import MemberTensors
from adamctl.kernels.segments import Post


def accruing_steps(arrays: FlightArrays, accruing: Accruing) -> list[Step]:
    """Returns the last steps of a flight: factors are kept, then the gradient is accrued."""
    return [*(_keeping(arrays, kept) for kept in accruing.factors), _accruing(arrays, accruing)]


def _keeping(arrays: FlightArrays, kept: KeptFactors) -> Step:
    """Copies the factors of one tensor behind those of the flights before."""
    found, backend = arrays.factors(kept.tensor), arrays.network.backend
    own, whole = (kept.rows,), ((0, kept.errors[0].shape[1]),)
    inputs = ((0, kept.activations[0].shape[1]),)
    errors = BlockMove(Held(kept.errors[0][: arrays.batch], whole), Held(found.errors, own), own)
    activations = BlockMove(Held(kept.activations[0][: arrays.batch], inputs), Held(found.activations, inputs), inputs)

    def work(batch: Batch, row: Row) -> None:
        slot, first, stop = row.place.slot, row.place.examples, row.place.examples + arrays.batch
        kept.errors[slot][first:stop, slice(*kept.rows)] = found.errors
        kept.activations[slot][first:stop] = _read(arrays, found.activations, batch)

    return Step((), joined(errors.native(backend), activations.native(backend)), work)


def _accruing(arrays: FlightArrays, accruing: Accruing) -> Step:
    """Range by range, since a partition holds some of the vector; parts of a batch in their turn."""
    accrual, weights = Accrual(arrays.network.backend), accruing.weights
    ranges = MemberTensors(arrays.network, arrays.neighbours.own).ranges_without(accruing.skipped)
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
        slot, first = accruing.slots[row.place.slot], not accruing.filled[row.place.slot]
        for part in ranges:
            if weights is None:
                accrual.accrue(slot[part], arrays.gradient[part], first)
            else:
                accrual.accrue_and_apply(slot[part], weights[part], arrays.gradient[part], row.rate, first)
        accruing.filled[row.place.slot] = 1

    if accruing.turn is None:
        return Step((), calls, work)
    return Step((accruing.turn,), calls, work, [Post(accruing.turn, ahead=1)])


def passing(accruing: Accruing) -> Step:
    """Returns the last step of a flight that has a turn and nothing to accrue."""
    assert accruing.turn is not None, "flights accrue as they come"
    return Step((accruing.turn,), [], lambda batch, row: None, [Post(accruing.turn, ahead=1)])


class _Kept(NamedTuple):
    """A tensor's factors in a flight. `skipped`: it has no gradient."""

    layer: int
    factors: Factors
    skipped: bool


class Clipping:
    """Scales the gradients of layers that are longer than `norm_max`, as the whole network would be (decision 0004)."""

    def __init__(
        self, arrays: FlightArrays, norm_max: float, accruing: Accruing | None = None, accrued: bool = False
    ) -> None:
        """Args:
        accruing: whose kept factors are scaled, too.
        accrued: what is clipped is the accrued gradient of all parts of a batch, not the flight's own.
        """
        self._arrays, self._norm_max = arrays, norm_max
        self._accrued = accruing.slots if accrued and accruing is not None else None
        self._native_gradient = arrays.gradient if self._accrued is None else self._accrued[0]
        skipped = accruing.skipped if accruing is not None else frozenset[int]()
        self._own, self._all = _parts(arrays, skipped)
        stage_of = _stages_of(arrays)
        self._kept = [
            _Kept(stage_of[kept.tensor], arrays.factors(kept.tensor), kept.tensor in skipped)
            for kept in (accruing.factors if accruing is not None else ())
        ]
        self._products = [np.zeros((arrays.batch, arrays.batch), np.float32) for _ in range(2)]
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
            (), self._native_squares(of_all[own]), lambda batch, row: self._squares(batch, row, of_all[own]),
            arrays.post("norms", 0, set(partitions)),
        )  # fmt: skip
        scaled = Step(words, self._native_scale(of_all), lambda batch, row: self._scale(of_all, row))
        return [found, scaled]

    def _gradient(self, row: Row) -> Array:
        return self._arrays.gradient if self._accrued is None else self._accrued[row.place.slot]

    def _squares(self, batch: Batch, row: Row, squares: NDArray[np.float64]) -> None:
        squares[...] = 0
        gradient = self._gradient(row)
        for start, stop, layer in self._own.tolist():
            squares[layer] += float(np.square(gradient[start:stop], dtype=np.float64).sum())
        for kept in self._kept:
            if kept.skipped:
                activations = _read(self._arrays, kept.factors.activations, batch)
                for factor, found in zip((kept.factors.errors, activations), self._products, strict=True):
                    np.matmul(factor, factor.T, out=found)
                squares[kept.layer] += float(np.sum(np.multiply(*self._products, dtype=np.float64)))

    def _scale(self, of_all: Sequence[NDArray[np.float64]], row: Row) -> None:
        self._total[...] = 0
        for squares in of_all:
            self._total += squares
        row.clipped = 0
        for layer, norm in enumerate(sqrt(max(total, 0.0)) for total in self._total.tolist()):  # below 0 by rounding
            if self._norm_max < norm < float("inf"):
                row.clipped += 1
                for start, stop, _ in self._all[self._all[:, 2] == layer].tolist():
                    self._gradient(row)[start:stop] *= np.float32(self._norm_max / norm)
                for kept in self._kept:
                    if kept.layer == layer:
                        np.multiply(kept.factors.errors, np.float32(self._norm_max / norm), out=kept.factors.errors)

    def _native_squares(self, squares: NDArray[np.float64]) -> list[Call] | None:
        if self._compiled is None:
            return None
        calls: list[Call] | None = [
            NativeCall(self._compiled.squares_of_layers, (self._native_gradient, self._own, squares))
        ]
        for kept in self._kept:
            if kept.skipped:
                for factor, found in zip((kept.factors.errors, kept.factors.activations), self._products, strict=True):
                    calls = joined(calls, product(factor, factor.T, found))
                arguments = (squares, kept.layer, *self._products)
                calls = joined(calls, [NativeCall(self._compiled.add_square_of_product, arguments)])
        return calls

    def _native_scale(self, of_all: Sequence[NDArray[np.float64]]) -> list[Call] | None:
        compiled = self._compiled
        if compiled is None:
            return None
        adds: list[Call] = [
            NativeCall(compiled.add_squares, (self._total, squares, int(not number)))
            for number, squares in enumerate(of_all)
        ]
        arguments = (self._native_gradient, self._all, self._total, float(self._norm_max))
        factors: list[Call] = [
            NativeCall(compiled.scale_errors, (kept.factors.errors, self._total, kept.layer, float(self._norm_max)))
            for kept in self._kept
        ]
        return [*adds, NativeCall(compiled.scale_layers, arguments, Word(CLIPPED)), *factors]


def _read(arrays: FlightArrays, activations: Array, batch: Batch) -> Array:
    """Returns the activations of a flight: its images where the layer reads those."""
    return batch.images.reshape(arrays.batch, -1) if np.shares_memory(activations, arrays.images) else activations


def _stages_of(arrays: FlightArrays) -> dict[int, int]:
    stages = enumerate(arrays.network.stages)
    return {index: place for place, stage in stages for layer in stage.layers for index in layer.tensors}


def _parts(arrays: FlightArrays, skipped: frozenset[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (start, stop, stage) in the gradient of all rows that this partition alone holds or owns, and of all.

    `skipped`: tensors that have no gradient.
    """
    network, number = arrays.network, arrays.neighbours.own
    tensors = MemberTensors(network, number)
    stage_of = _stages_of(arrays)
    own: list[tuple[int, int, int]] = []
    every: list[tuple[int, int, int]] = []
    for (tensor, (first, _)), offset, shape in zip(tensors.held, tensors.offsets, tensors.shapes, strict=True):
        if tensor in skipped:
            continue
        stage, size = stage_of[tensor], prod(shape[1:])
        every.append((offset, offset + prod(shape), stage))
        owners = network.stages[stage].shared.get(tensor)
        rows = (
            [(first, first + shape[0])] if owners is None else [one.rows for one in owners if one.partition == number]
        )
        own += [(offset + (start - first) * size, offset + (stop - first) * size, stage) for start, stop in rows]
    return np.array(own, np.int64).reshape(-1, 3), np.array(every, np.int64).reshape(-1, 3)
