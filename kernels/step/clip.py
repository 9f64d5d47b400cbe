"""Gradient clipping by layer norm: scales a layer's gradient that is longer than a limit down to it.

The norm is that of the layer's weights and biases together, of one step's mean gradient (Pascanu et al. 2013, per
layer). It is computed in the step, before the gradient is accrued, applied to the replica's own weights and pushed:
there the whole layer is available, while a server holds only some of its shards. For a layer that is sent as factors
E [n, units] and A [n, inputs], the gradient need not exist: |E^T A|^2 = sum over (i, j) of (E E^T)_ij (A A^T)_ij, and
scaling E scales it.
"""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np

from adamctl.kernels.backend import compiled_if
from adamctl.kernels.native import Call, NativeCall, Word
from adamctl.kernels.operation import Array, Factors
from adamctl.kernels.step.network import Context, Network


class LayerNormClip:
    """Clips the gradients of one thread's context.

    Attributes:
        clipped: number of layers scaled down so far.
    """

    def __init__(self, network: Network, context: Context, norm_max: float) -> None:
        self.norm_max, self.clipped = norm_max, 0
        self._context = context
        self._layers = [layer for layer in network.layers if layer.tensors]
        self._compiled = compiled_if(network.backend, "accrual")
        tensors = network.tensors
        self._parts = np.array(
            [
                (tensors[index].offset, tensors[index].offset + tensors[index].size, number)
                for number, layer in enumerate(self._layers)
                for index in layer.tensors
            ],
            np.int64,
        ).reshape(-1, 3)
        self._count = np.zeros(1, np.int64)
        self._scales = np.ones(len(self._layers), np.float32)
        self._products = [np.zeros((network.batch_max, network.batch_max), np.float32) for _ in range(2)]

    def native(self, skip_dense_gradients: bool = False, count: Word | None = None) -> list[Call]:
        """Returns the scaling of gradients as a call for native steps; `settle` does the rest afterwards.

        Empty if scaling needs more than that. If `count` takes the number of layers scaled down, the caller adds it to
        `clipped`.
        """
        if self._compiled is None or skip_dense_gradients:
            return []
        arguments = (self._context.gradient, self._parts, float(self.norm_max), self._scales)
        return [NativeCall(self._compiled.clip_layers, arguments, self._count if count is None else count)]

    def settle(self, has_use_for_factors: bool = True) -> None:
        """Counts after a step that made the call, and scales the factors of layers that were scaled down."""
        clipped = int(self._count[0])
        if clipped:
            self.clipped += clipped
            if has_use_for_factors:
                self._scale_factors()

    def apply(self, skip_dense_gradients: bool = False, has_use_for_factors: bool = True) -> None:
        """Scales the last step's gradients and factors in place; those that are not finite stay unchanged.

        Args:
            skip_dense_gradients: as in the step: a dense layer's weight then has factors and no gradient.
            has_use_for_factors: False if the factors are not used, which saves scaling them.
        """
        if self._compiled is not None and not skip_dense_gradients:
            clipped = self._compiled.clip_layers(self._context.gradient, self._parts, self.norm_max, self._scales)
            if clipped:
                self.clipped += clipped
                if has_use_for_factors:
                    self._scale_factors()
            return
        for layer in self._layers:
            factors = self._context.factors(layer.shape.index) if layer.is_dense else None
            gradients = [self._context.gradient_views[index].reshape(-1) for index in layer.tensors]
            if skip_dense_gradients and factors is not None:
                del gradients[0]
            norm = self._norm(gradients, factors if skip_dense_gradients else None)
            if not self.norm_max < norm < float("inf"):
                continue
            self.clipped += 1
            scale = np.float32(self.norm_max / norm)
            for gradient in gradients:
                np.multiply(gradient, scale, out=gradient)
            if factors is not None:
                np.multiply(factors.errors, np.float32(scale), out=factors.errors)

    def _scale_factors(self) -> None:
        for layer, scale in zip(self._layers, self._scales.tolist(), strict=True):
            if layer.is_dense and scale != 1:
                factors = self._context.factors(layer.shape.index)
                assert factors is not None
                np.multiply(factors.errors, np.float32(scale), out=factors.errors)

    def _norm(self, gradients: list[Array], factors: Factors | None) -> float:
        with np.errstate(over="ignore"):
            squares = sum(float(np.dot(gradient, gradient)) for gradient in gradients)
            if factors is not None:
                squares += self._norm_squared(factors)
        if isfinite(squares):
            return sqrt(max(squares, 0.0))
        wide = [gradient.astype(np.float64) for gradient in gradients]  # rare: float32 squares overflow at 1.8e19
        if factors is not None:
            wide.append((factors.errors.astype(np.float64).T @ factors.activations).reshape(-1))
        return sqrt(sum(float(np.dot(gradient, gradient)) for gradient in wide))

    def _norm_squared(self, factors: Factors) -> float:
        rows = len(factors.errors)
        errors, activations = (product[:rows, :rows] for product in self._products)
        np.matmul(factors.errors, factors.errors.T, out=errors)
        np.matmul(factors.activations, factors.activations.T, out=activations)
        return float(np.einsum("ij,ij->", errors, activations))
