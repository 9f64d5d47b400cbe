"""The common shape of a server's update rules: one pass over a range of one tensor's elements.

A rule is built once per job and holds no state of a shard; the shard's state arrays are passed to every
call. All arrays are 1-D contiguous float32 of equal length. `weights_out` may be `weights_in` itself (in
place) or another array (the server writes the new version beside the old one while that is being sent);
state is updated in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from adamctl.kernels.backend import Backend, choose, compiled_if
from adamctl.kernels.operation import Array
from adamctl.model.rule import RuleConfig

BLOCK = 1 << 14  # elements: a block of each array, and a temporary, stay in a core's cache between numpy's passes


class Rule(ABC):
    """Applies a gradient to weights.

    Attributes:
        name: as in `RuleConfig.name`.
        state_names: what the rule keeps per element, in the order of `state`.
    """

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: RuleConfig, backend: str | None = None) -> None:
        self.config = config
        self.backend: Backend = choose(backend)
        self._compiled = compiled_if(self.backend, "rules")

    def initial_state(self, size: int) -> list[Array]:
        """Returns the state of `size` elements before the first update: zeros."""
        return [np.zeros(size, np.float32) for _ in self.state_names]

    def apply(self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float) -> None:
        """Writes the updated weights and state; the gradient is only read.

        Raises:
            ValueError: lengths differ or the number of state arrays is not the rule's.
        """
        arrays = (weights_in, weights_out, gradient, *state)
        if len(state) != len(self.state_names) or any(array.shape != weights_in.shape for array in arrays):
            raise ValueError(
                f"{self.name}: expected weights, gradient and {len(self.state_names)} state arrays of one length; "
                f"found {[list(array.shape) for array in arrays]}"
            )
        if not weights_in.size:
            return
        if self._compiled is not None:
            self._apply_numba(weights_in, weights_out, state, gradient, lr)
        elif self.backend == "numexpr":
            self._apply_numexpr(weights_in, weights_out, state, gradient, lr)
        else:
            for start in range(0, weights_in.size, BLOCK):
                part = slice(start, start + BLOCK)
                parts = [array[part] for array in state]
                self._apply_numpy(weights_in[part], weights_out[part], parts, gradient[part], lr)

    @abstractmethod
    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None: ...

    @abstractmethod
    def _apply_numexpr(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None: ...

    @abstractmethod
    def _apply_numba(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, lr: float
    ) -> None: ...


def evaluate(expression: str, out: Array, arrays: dict[str, Array], scalars: dict[str, float]) -> None:
    """Evaluates a numexpr expression of float32 arrays and scalars into `out`, which may be one of the arrays."""
    import numexpr

    arguments = {**arrays, **{name: np.float32(value) for name, value in scalars.items()}}
    numexpr.evaluate(expression, local_dict=arguments, global_dict={}, out=out)
