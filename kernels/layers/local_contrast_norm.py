"""Local contrast normalisation, subtractive then divisive, over space and across maps (DistBelief 5).

With w the weights of a window [size] around a pixel and all C maps (Jarrett et al. 2009, section 2.1; Le et al. 2012,
section 3):

    m[y, x]    = sum over (dy, dx, c) of w[dy, dx] / C * inputs[y + dy, x + dx, c]
    v[y, x, c] = inputs[y, x, c] - m[y, x]
    s[y, x]    = sqrt(sum over (dy, dx, c) of w[dy, dx] / C * v[y + dy, x + dx, c]^2)
    outputs    = v / max(s, deviation_min)

w is uniform, or Gaussian with a standard deviation of a quarter of the size, and sums to 1 over the pixels of the
window inside the image: a constant image gives 0 at its border, too. Since w is a product of a factor of dy and one of
dx, and so is its sum inside the image, smoothing a map A is the product R A K^T with a banded matrix for rows and one
for columns. Backward, with e the error at the outputs and T the transpose of smoothing:

    error at s^2    = -(sum over c of e * outputs) / (2 s^2) where s > deviation_min, 0 elsewhere
    error at v      = e / max(s, deviation_min) + 2 v / C * T(error at s^2)
    error at inputs = error at v - T(sum over c of error at v) / C
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import Backend, choose, compiled_if
from adamctl.kernels.native import Call, NativeCall, joined, product
from adamctl.kernels.operation import Array, Buffers, Key, Operation, SlicedOperation, empty_buffers, image_shape
from adamctl.kernels.slicing import OutputSlice, check_slice, halo
from adamctl.model.description import Size, Weighting, pair


@dataclass(frozen=True)
class Part:
    """The whole image's rows that an operation reads, centres and outputs, and the maps it outputs: [start, stop)."""

    reads: tuple[int, int]
    centres: tuple[int, int]
    makes: tuple[int, int]
    maps: tuple[int, int]


class LocalContrastNorm(Operation):
    """Inputs and outputs [n, height, width, maps]. NaN or infinity in an image makes all of its outputs NaN.

    Numbers beyond 1e19, whose squares are infinite in float32, leave 0 around them and NaN elsewhere.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        size: Size,
        weights: Weighting = "gaussian",
        deviation_min: float = 0.01,
        backend: str | None = None,
        part: Part | None = None,
    ) -> None:
        """`input_shape` is the whole image's, even if only a part of it is computed."""
        height, width, maps = image_shape(input_shape)
        self.whole_shape, self.size, self.weights, self.deviation_min = input_shape, pair(size), weights, deviation_min
        if any(extent < 1 or extent % 2 == 0 for extent in self.size) or deviation_min <= 0:
            raise ValueError(
                "LocalContrastNorm: expected an odd size and a deviation_min above 0; "
                f"found {list(self.size)} and {deviation_min}"
            )
        self.part = part or Part((0, height), (0, height), (0, height), (0, maps))
        reads, centres, makes, made = (stop - start for start, stop in vars(self.part).values())
        super().__init__((reads, width, maps), (makes, width, made))
        self.first, self.inner = self.part.centres[0] - self.part.reads[0], self.part.makes[0] - self.part.centres[0]
        self.centred_rows = centres
        self.backend: Backend = choose(backend)
        self._compiled = compiled_if(self.backend, "contrast")
        rows, columns = smoothing(height, self.size[0], weights), smoothing(width, self.size[1], weights)
        self._matrices = {
            "centre": rows[slice(*self.part.centres), slice(*self.part.reads)],
            "deviate": rows[slice(*self.part.makes), slice(*self.part.centres)],
            "columns": columns,
        }

    def allocate(
        self, batch_max: int, needs_input_error: bool = True, dtype: type[np.floating] = np.float32
    ) -> Buffers:
        """Keeps means and deviations for backward; the rest is scratch inside a call."""
        buffers = empty_buffers(self, batch_max, needs_input_error, dtype)
        reads, width, maps = self.input_shape
        rows = {
            "per_read": reads,
            "between_reads": reads,
            "means": self.centred_rows,
            "per_centred": self.centred_rows,
            "between_centred": self.centred_rows,
            "deviations": self.output_shape[0],
            "per_made": self.output_shape[0],
            "between_made": self.output_shape[0],
        }
        for name, count in rows.items():
            buffers.scratch[name] = np.zeros((batch_max, count, width), dtype)
        if self._compiled is None:
            buffers.scratch["centred"] = np.zeros((batch_max, self.centred_rows, width, maps), dtype)
            buffers.scratch["product"] = np.zeros((batch_max, self.centred_rows, width, maps), dtype)
        for name, matrix in self._matrices.items():
            buffers.scratch[name] = np.ascontiguousarray(matrix, dtype)
        return buffers

    def forward(
        self,
        inputs: Array,
        weights: Sequence[Array],
        buffers: Buffers,
        training: bool,
        key: Key,
    ) -> Array:
        self._check_inputs(inputs, buffers)
        batch = len(inputs)
        outputs, held = buffers.output[:batch], _Held(buffers, batch)
        if self._compiled is not None:
            self._compiled.mean_of_maps(inputs, held["per_read"])
        else:
            np.mean(inputs, axis=3, out=held["per_read"])
        held.smooth("centre", "per_read", "between_centred", "means")
        if self._compiled is not None:
            self._compiled.mean_square(inputs, held["means"], held["per_centred"], self.first)
        else:
            centred, product = held["centred"], held["product"]
            rows = inputs[:, self.first : self.first + self.centred_rows]
            np.subtract(rows, held["means"][..., None], out=centred)
            np.mean(np.square(centred, out=product), axis=3, out=held["per_centred"])
        held.smooth("deviate", "per_centred", "between_made", "deviations")
        deviations, places = held["deviations"], (self.first, self.inner, self.part.maps[0])
        if self._compiled is not None:
            self._compiled.divide(inputs, held["means"], deviations, outputs, *places, np.float32(self.deviation_min))
        else:
            np.maximum(np.sqrt(deviations, out=deviations), self.deviation_min, out=deviations)
            np.divide(self._made(centred), deviations[..., None], out=outputs)
        return outputs

    def backward(
        self,
        output_error: Array,
        inputs: Array,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        needs_input_error: bool = True,
    ) -> Array | None:
        """See the equations at the top of this file."""
        self._check("output error", output_error, self.output_shape)
        if not needs_input_error:
            return None
        batch = len(inputs)
        outputs, held, error = buffers.output[:batch], _Held(buffers, batch), buffers.input_error[:batch]
        deviations = held["deviations"]
        if self._compiled is not None:
            least = np.float32(self.deviation_min)
            self._compiled.square_error(outputs, output_error, deviations, held["per_made"], least)
        else:
            self._square_error(outputs, output_error, held)
        held.smooth_back("deviate", "per_made", "between_centred", "per_centred")
        if self._compiled is not None:
            places = (self.first, self.inner, self.part.maps[0])
            into = (error, held["between_centred"])
            self._compiled.centred_error(
                inputs, held["means"], deviations, held["per_centred"], output_error, *into, *places
            )
        else:
            self._centred_error(output_error, error, held)
        held.smooth_back("centre", "between_centred", "between_reads", "per_read")
        if self._compiled is not None:
            self._compiled.subtract_mean_error(held["per_read"], error)
        else:
            held["per_read"][...] /= self.input_shape[2]
            error -= held["per_read"][..., None]
        return error

    def native_forward(
        self, batch: int, weights: Sequence[Array], buffers: Buffers, inputs: Array, key: Key
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        held, compiled, least = _Held(buffers, batch), self._compiled, np.float32(self.deviation_min)
        means, deviations, outputs = held["means"], held["deviations"], buffers.output[:batch]
        places = (self.first, self.inner, self.part.maps[0])
        return joined(
            [NativeCall(compiled.mean_of_maps, (inputs, held["per_read"]))],
            held.native_smooth("centre", "per_read", "between_centred", "means"),
            [NativeCall(compiled.mean_square, (inputs, means, held["per_centred"], self.first))],
            held.native_smooth("deviate", "per_centred", "between_made", "deviations"),
            [NativeCall(compiled.divide, (inputs, means, deviations, outputs, *places, least))],
        )

    def native_backward(
        self,
        batch: int,
        weights: Sequence[Array],
        gradients: Sequence[Array | None],
        buffers: Buffers,
        output_error: Array,
        inputs: Array,
        needs_input_error: bool,
    ) -> list[Call] | None:
        if self._compiled is None:
            return None
        if not needs_input_error:
            return []
        held, compiled, least = _Held(buffers, batch), self._compiled, np.float32(self.deviation_min)
        outputs, error, deviations = buffers.output[:batch], buffers.input_error[:batch], held["deviations"]
        factors, sums = held["per_centred"], held["between_centred"]
        centred = (inputs, held["means"], deviations, factors, output_error, error, sums)
        places = (self.first, self.inner, self.part.maps[0])
        return joined(
            [NativeCall(compiled.square_error, (outputs, output_error, deviations, held["per_made"], least))],
            held.native_smooth_back("deviate", "per_made", "between_centred", "per_centred"),
            [NativeCall(compiled.centred_error, (*centred, *places))],
            held.native_smooth_back("centre", "between_centred", "between_reads", "per_read"),
            [NativeCall(compiled.subtract_mean_error, (held["per_read"], error))],
        )

    def slice(self, part: OutputSlice) -> SlicedOperation:
        """Cuts by rows, which read two half windows of rows on either side, or by maps, which read all inputs."""
        check_slice(part, self.output_shape, ("rows", "maps"), type(self).__name__)
        if self.part.makes != (0, self.whole_shape[0]) or self.part.maps != (0, self.whole_shape[2]):
            raise ValueError(f"{type(self).__name__}: expected a whole layer to cut; found a slice of one")
        own, every, height = slice(part.start, part.stop), slice(None), self.whole_shape[0]
        piece, read = Part((0, height), (0, height), (0, height), (part.start, part.stop)), every
        outputs = (every, every, own)
        if part.axis == "rows":
            window = self.size[0]
            centred, _ = halo(part.start, part.stop, height, window, 1, window // 2)
            read, _ = halo(centred.start, centred.stop, height, window, 1, window // 2)
            ends = (read.start, read.stop), (centred.start, centred.stop), (part.start, part.stop)
            piece, outputs = Part(*ends, (0, self.whole_shape[2])), (own, every, every)
        operation = LocalContrastNorm(
            self.whole_shape, self.size, self.weights, self.deviation_min, self.backend, piece
        )
        return SlicedOperation(operation, (read, every, every), outputs, ())

    def _made(self, centred: Array) -> Array:
        """Returns the view of the outputs' rows and maps in a centred array."""
        return centred[:, self.inner : self.inner + self.output_shape[0], :, slice(*self.part.maps)]

    def _square_error(self, outputs: Array, output_error: Array, held: _Held) -> None:
        """per_made = the error at s^2; the numpy reference."""
        product, square_error, deviations = self._made(held["product"]), held["per_made"], held["deviations"]
        np.multiply(output_error, outputs, out=product)
        np.sum(product, axis=3, out=square_error)
        square_error /= deviations
        square_error /= deviations
        square_error *= -0.5
        square_error[deviations <= self.deviation_min] = 0

    def _centred_error(self, output_error: Array, error: Array, held: _Held) -> None:
        """error = the error at v, in all rows read; between_centred = its sum over the maps; the numpy reference."""
        factor = held["per_centred"]
        factor *= 2 / self.input_shape[2]
        error[...] = 0
        rows = error[:, self.first : self.first + self.centred_rows]
        np.multiply(held["centred"], factor[..., None], out=rows)
        output_error /= held["deviations"][..., None]
        made = self._made(rows)
        made += output_error
        np.sum(rows, axis=3, out=held["between_centred"])


class _Held:
    """The scratch of one batch by name, and the smoothing from one of its arrays to another."""

    def __init__(self, buffers: Buffers, batch: int) -> None:
        self._scratch, self._batch = buffers.scratch, batch

    def __getitem__(self, name: str) -> Array:
        return self._scratch[name][: self._batch]  # type: ignore[return-value]

    def smooth(self, rows: str, source: str, between: str, target: str) -> None:
        """target = R source K^T for each image."""
        self._multiply(self._scratch[rows], source, between)
        self._along(self._scratch["columns"].T, between, target)

    def smooth_back(self, rows: str, source: str, between: str, target: str) -> None:
        """target = R^T source K for each image."""
        self._multiply(self._scratch[rows].T, source, between)
        self._along(self._scratch["columns"], between, target)

    def native_smooth(self, rows: str, source: str, between: str, target: str) -> list[Call] | None:
        """Returns `smooth` as calls."""
        return self._products(self._matrix(rows), source, between, self._matrix("columns").T, target)

    def native_smooth_back(self, rows: str, source: str, between: str, target: str) -> list[Call] | None:
        """Returns `smooth_back` as calls."""
        return self._products(self._matrix(rows).T, source, between, self._matrix("columns"), target)

    def _products(self, rows: Array, source: str, between: str, columns: Array, target: str) -> list[Call] | None:
        return joined(product(rows, self[source], self[between]), product(self[between], columns, self[target]))

    def _matrix(self, name: str) -> Array:
        return self._scratch[name]  # type: ignore[return-value]

    def _multiply(self, matrix: NDArray[np.generic], source: str, target: str) -> None:
        np.matmul(matrix, self[source], out=self[target])

    def _along(self, matrix: NDArray[np.generic], source: str, target: str) -> None:
        np.matmul(self[source], matrix, out=self[target])


def smoothing(extent: int, size: int, weights: Weighting) -> NDArray[np.float64]:
    """Returns a matrix [extent, extent]: row i holds the weights of the window around pixel i; each row sums to 1."""
    distance = np.arange(extent)[:, None] - np.arange(extent)
    inside = np.abs(distance) <= size // 2
    bell = np.exp(-0.5 * (distance / (size / 4)) ** 2) if weights == "gaussian" else np.ones(distance.shape)
    matrix: NDArray[np.float64] = np.where(inside, bell, 0)
    matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix
