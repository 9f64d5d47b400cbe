"""Applies gradients that came as 16-bit numbers: widens them block by block in cache, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adamctl.kernels.numeric.convert import Narrow, widened
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule

TOGETHER = 8  # gradients that are widened at a time
SCRATCH = 1 << 18  # elements widened at a time, over all gradients: one whole shard, or an eighth of eight
ALIGNMENT = 16  # elements: blocks start with a cache line


class NarrowUpdate:
    """Applies updates of which some are 16-bit. For one thread; scratch memory is allocated once."""

    def __init__(self) -> None:
        self._scratch = np.empty(SCRATCH, np.float32)

    def apply_many(
        self,
        rule: Rule,
        weights_in: Array,
        weights_out: Array,
        state: list[Array],
        gradients: Sequence[Array | Narrow],
        lrs: Sequence[float],
    ) -> None:
        """As `rule.apply_many` with the gradients as float32, to the bit; float32 gradients are not copied.

        Raises:
            ValueError: as `rule.apply_many`, or a gradient is neither float32 nor float16 nor uint16 (bfloat16).
        """
        rule.check(weights_in, weights_out, state, (), ())
        shapes = [gradient.shape for gradient in gradients]
        if shapes != [weights_in.shape] * len(lrs):
            what = f"{len(lrs)} gradients of shape {list(weights_in.shape)}"
            raise ValueError(f"{rule.name}: expected {what}; found {[list(shape) for shape in shapes]}")
        if not weights_in.size or not gradients:
            return
        updates = [rule.numbers_of(lr, state, number) for number, lr in enumerate(lrs, 1)]
        block = SCRATCH // min(len(gradients), TOGETHER) // ALIGNMENT * ALIGNMENT
        for start in range(0, weights_in.size, block):
            part = slice(start, start + block)
            source, states = weights_in[part], [array[part] for array in state]
            for first in range(0, len(gradients), TOGETHER):
                taken = slice(first, first + TOGETHER)
                wide = [self._widened(gradient[part], block, place) for place, gradient in enumerate(gradients[taken])]
                rule.apply_checked(source, weights_out[part], states, wide, updates[taken])
                source = weights_out[part]
        rule.count(state, len(gradients))

    def _widened(self, part: Array | Narrow, block: int, place: int) -> Array:
        if part.dtype == np.float32:
            return part
        wide = self._scratch[place * block : place * block + part.size]
        widened(part, wide)
        return wide
