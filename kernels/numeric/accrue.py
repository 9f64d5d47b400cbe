"""A Downpour replica's use of a gradient: accrues it and applies it to its weights (DistBelief 4.1, Adam 3.2.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.backend import Backend, compiled_if
from adamctl.kernels.native import Call, NativeCall, Word, can_compile
from adamctl.kernels.operation import Array

BLOCK = 32768  # elements: three blocks of float32 stay in a second-level cache


class Accrual:
    """Flat float32 vectors of one length; weights may be read and written by other threads meanwhile, without locks."""

    def __init__(self, backend: Backend) -> None:
        self._compiled = compiled_if(backend, "accrual")

    def accrue(self, accrued: Array, gradient: Array, first: bool) -> None:
        """accrued = gradient if `first`, else accrued += gradient."""
        if first:
            np.copyto(accrued, gradient)
        else:
            np.add(accrued, gradient, out=accrued)

    def accrue_and_apply(self, accrued: Array, weights: Array, gradient: Array, lr: float, first: bool) -> None:
        """As `accrue`, and weights -= lr * gradient, in one pass."""
        if self._compiled is not None:
            self._compiled.accrue_and_apply(accrued, weights, gradient, np.float32(lr), first)
            return
        for start in range(0, len(gradient), BLOCK):
            part = slice(start, start + BLOCK)
            self.accrue(accrued[part], gradient[part], first)
            weights[part] -= np.float32(lr) * gradient[part]

    def native(
        self, accrued: Array, weights: Array | None, gradient: Array, filled: NDArray[np.int64], rate: Word
    ) -> list[Call] | None:
        """Returns `accrue_and_apply` (`accrue` without `weights`) as a call for native steps; None if impossible.

        filled [1] says whether `accrued` holds anything, and is set by the call.
        """
        if self._compiled is None or not can_compile():
            return None
        if weights is None:
            return [NativeCall(self._compiled.fill_or_add, (accrued, gradient, filled))]
        return [NativeCall(self._compiled.fill_or_add_and_apply, (accrued, weights, gradient, rate, filled))]

    def subtract_scaled(self, weights: Array, gradient: Array, lr: float) -> None:
        """weights -= lr * gradient."""
        if self._compiled is not None:
            self._compiled.subtract_scaled(weights, gradient, np.float32(lr))
            return
        for start in range(0, len(gradient), BLOCK):
            part = slice(start, start + BLOCK)
            weights[part] -= np.float32(lr) * gradient[part]

    def look_ahead(self, weights: Array, fetched: Array, before: Array, factor: float) -> None:
        """weights = fetched + factor * (fetched - before), then before = fetched, block by block."""
        for start in range(0, len(fetched), BLOCK):
            part = slice(start, start + BLOCK)
            np.subtract(fetched[part], before[part], out=before[part])
            before[part] *= np.float32(factor)
            np.add(fetched[part], before[part], out=weights[part])
            before[part] = fetched[part]

    def install(self, weights: Array, fetched: Array, gradient: Array, lr: float) -> None:
        """weights = fetched - lr * gradient, in one pass."""
        if self._compiled is not None:
            self._compiled.install(weights, fetched, gradient, np.float32(lr))
            return
        for start in range(0, len(gradient), BLOCK):
            part = slice(start, start + BLOCK)
            np.subtract(fetched[part], np.float32(lr) * gradient[part], out=weights[part])
