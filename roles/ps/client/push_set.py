"""What a client pushes: gradients, factors or deltas by tensor, before they are cut into envelopes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.numeric.convert import Narrow
from adamctl.kernels.operation import Array
from adamctl.model.layout import ParameterLayout, Tensor
from adamctl.roles.ps.core.push import Place
from adamctl.wire.constants import UpdateKind

Numbers = NDArray[np.int64]
"""One number per shard of the layout."""


@dataclass(frozen=True)
class Base:
    """Which pushes were in the parameters that a gradient was computed from; staleness is counted from here.

    Attributes:
        pushes: per shard, how many pushes of all clients were applied.
        sequences: per shard, the last of this client's own pushes that was applied.
    """

    pushes: Numbers
    sequences: Numbers


@dataclass(frozen=True)
class TensorUpdate:
    """One tensor's part of a push. `values` is flat [size]; factors have errors [k, out], activations [k, in].

    Users give float32; it may be rounded to 16 bits before it is sent (`adamctl.roles.ps.client.rounding`).
    """

    kind: UpdateKind
    values: Array | Narrow
    activations: Array | Narrow | None = None


@dataclass
class PushSet:
    """One push: at most one update per tensor, all with the same learning rate.

    Arrays are borrowed, not copied: they must stay unchanged until the push is done.

    Attributes:
        steps, examples: how many steps and examples were accumulated, for statistics.
        base: None: staleness counts from the job's first version.
        place: which part of which step these gradients are; None: not part of a step.
    """

    layout: ParameterLayout
    learning_rate: float
    steps: int = 1
    examples: int = 0
    base: Base | None = None
    place: Place | None = None
    updates: dict[int, TensorUpdate] = field(default_factory=dict)

    def gradient(self, tensor: int, values: Array) -> None:
        """Adds a tensor's gradient: float32, C-contiguous, of the tensor's size. Raises ValueError otherwise."""
        self.updates[tensor] = TensorUpdate(UpdateKind.GRADIENT, self._flat(tensor, values))

    def delta(self, tensor: int, values: Array) -> None:
        """Adds a tensor's delta, which the server adds unchanged (rule `add`); otherwise like `gradient`."""
        self.updates[tensor] = TensorUpdate(UpdateKind.DELTA, self._flat(tensor, values))

    def factors(self, tensor: int, errors: Array, activations: Array) -> None:
        """Adds a dense layer's factors, gradient = errors.T @ activations (Adam 3.2.6).

        Raises:
            ValueError: not float32 errors [k, out] and C-contiguous activations [k, in] of the tensor.
        """
        described = self.layout.tensors[tensor]
        expected = (described.shape[0], described.row_size)
        fits = errors.ndim == 2 and activations.ndim == 2 and (errors.shape[1], activations.shape[1]) == expected
        if not fits or len(errors) != len(activations) or errors.dtype != np.float32:
            raise ValueError(
                f"{described.name}: expected float32 errors [k, {expected[0]}], activations [k, {expected[1]}]; "
                f"found {errors.dtype} {list(errors.shape)} and {activations.dtype} {list(activations.shape)}"
            )
        _check(described, activations)
        self.updates[tensor] = TensorUpdate(UpdateKind.FACTORS, errors, activations)

    def _flat(self, tensor: int, values: Array) -> Array:
        described = self.layout.tensors[tensor]
        _check(described, values)
        if values.size != described.size:
            raise ValueError(f"{described.name}: expected {list(described.shape)}; found {list(values.shape)}")
        return values.reshape(-1)

    def arrays(self) -> list[Array | Narrow]:
        """Returns all arrays it borrows."""
        found = [array for update in self.updates.values() for array in (update.values, update.activations)]
        return [array for array in found if array is not None]


def _check(tensor: Tensor, values: Array) -> None:
    if values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ValueError(
            f"{tensor.name}: expected C-contiguous float32; found {values.dtype}, "
            f"{'contiguous' if values.flags.c_contiguous else 'not contiguous'}; use np.ascontiguousarray"
        )
